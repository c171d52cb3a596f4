"""The programs of a session: one for each kind of device work, shared by all requests for it.

Each distinct set of outputs is a compilation, which takes minutes for a large model. So all runs with hook fetches and
with the same fetches and feeds of the caller share one program. It can compute everything that hooks have fetched so
far or have declared. The values for a hook are under a `lax.cond` there; in each run a mask selects the wanted values.

Example:
    The caller fetches `train`; one hook logs `loss` each 100 steps, another `norm` each 1000. Three kinds of runs get
    two programs: `train` alone, and `train` with gated outputs `(loss,)` and `(norm,)`, which is called with the mask
    (1, 0) at step 100 and (1, 1) at step 1000. If the hooks have declared their fetches, and these are a few numbers
    that each step computes anyway, there is no `lax.cond`, and the second program makes the runs in between, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hookline.errors import OpError
from hookline.graph import placement
from hookline.graph.gradient import Gradient
from hookline.graph.graph import Function, Operation, Tensor
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.nodes import Constant, Group, HostCall, SessionCall, Source
from hookline.graph.variable import VariableRead
from hookline.session.plan.plan import HookTensors, Plan, TensorKey, input_tensors
from hookline.session.plan.request import Request
from hookline.session.program.program import Program
from hookline.session.store import VariableStore

# Larger constants are arguments of the program; smaller ones are compiled into it.
_LARGE_CONSTANT_BYTES = 4096

# Operations without side effects: no update, no latch, no draw of a random key, nothing from outside. (Nor may they
# have a check, which needs a latch.)
PURE_OPERATIONS = (Function, Gradient, VariableRead, Constant, Group)

# Each returned number costs a run about a microsecond, so many are not worth the compilation that they save.
_FEW_NUMBERS = 16


class ProgramCache:
    """The programs that a session has made, kept as long as a plan uses them.

    Attributes:
        constants: Large constants, on the device.
        declared: The fetches of each hook: shared programs have them from the start.
    """

    def __init__(self) -> None:
        self._warned: set[str] = set()
        # By the variables that they write or initialise: the outputs of programs so far, outputs for hooks, inputs, and
        # largest numbers of steps.
        self._seen: dict[Hashable, tuple[set[TensorKey], set[TensorKey], set[TensorKey], set[int]]] = {}
        self.constants: MutableMapping[Constant, Any] = weakref.WeakKeyDictionary()
        self.declared: list[Sequence[Tensor | Operation]] = []
        # The tensors that hooks have fetched so far, by the fetches and feeds of their runs.
        self._hook_tensors: dict[Hashable, list[HookTensors]] = {}
        self._made: MutableMapping[Any, Program] = weakref.WeakValueDictionary()

    def choose(
        self, plan: Plan, request: Request, store: VariableStore
    ) -> tuple[Program | None, tuple[jax.Array, ...]]:
        """Returns the program for the plan of a request, and a mask; the program is None if the device is not needed.

        The mask selects the fetches of hooks that this run computes. There is no program of several steps if hooks
        fetch something in the last one that changes state or comes from outside.
        """
        max_steps = request.max_steps
        outputs = _from_device(plan, request.fetched)
        for_host = {tensor.key: tensor for tensor in plan.pulled}
        if max_steps == 1:
            # Inputs of a caller's host operation belong to the caller; those of a hook's belong to the hook.
            caller_tensors = {t.key for o in plan.after if o in plan.caller_operations for t in o.inputs}
            outputs |= {key: tensor for key, tensor in for_host.items() if key in caller_tensors}
        for_hooks = _from_device(plan, request.hook_elements(is_stacked=False)) | for_host
        rows = _from_device(plan, request.hook_elements(is_stacked=True))
        if max_steps == 1:  # Of several steps, an output has the values of all, and a hook's tensor only the last one.
            for_hooks = {key: tensor for key, tensor in for_hooks.items() if key not in outputs}
        if not plan.device and not plan.remote_updates and not outputs and not for_hooks:
            return None, ()
        shared = None
        if for_hooks or (max_steps == 1 and self.declared):
            shared = self._find_shared(plan, request, set(outputs) if max_steps == 1 else set(), store)
        if shared is None:
            if for_hooks and max_steps > 1:
                return None, ()
            return self._find_or_make(plan, outputs, for_hooks | rows, store, max_steps), ()
        of_all, base_operations, gated, wanted = shared
        mask = placement.device_put_uncommitted(tuple(map(jnp.asarray, wanted)), store.default_sharding)
        return self._find_or_make(of_all, outputs, rows, store, max_steps, base_operations, gated), mask

    def _find_shared(
        self, plan: Plan, request: Request, known: set[TensorKey], store: VariableStore
    ) -> tuple[Plan, frozenset[Operation], Sequence[HookTensors], list[bool]] | None:
        """Finds the shared program for a run; None if it cannot share, or has nothing to share.

        A run without hook fetches shares only if hooks have declared no more than a few numbers that it computes
        anyway: the step then has one program. `known` are the tensors that the program returns for the caller.

        Returns:
            The plan of everything, the operations that every run computes, the tensors that each hook may fetch, and
            for each hook whether this run wants them.
        """
        if plan.remote_updates:
            return None
        by_hook = [part.elements for part in request.hooks if not part.is_stacked]
        operations = [element for element in request.hook_elements(is_stacked=False) if isinstance(element, Operation)]
        carried = [*dict.fromkeys(operations), *request.hook_elements(is_stacked=True)]
        base_operations = plan.needed([*plan.fetched, *carried])

        def tensors_of(elements: Sequence[Tensor | Operation], among: Plan) -> HookTensors:
            needed = among.needed(elements)
            device_inputs = input_tensors([o for o in among.after if o in set(needed)], among.needs_device)
            tensors = [*(e for e in elements if isinstance(e, Tensor) and among.needs_device(e)), *device_inputs]
            return tuple({tensor.key: tensor for tensor in tensors if tensor.key not in known}.values())

        wanted = [found for elements in by_hook if (found := tensors_of(elements, plan))]

        def plan_for(groups: Iterable[HookTensors]) -> Plan:
            return plan.with_hooks([*carried, *(tensor for group in groups for tensor in group)])

        def is_pure(tensors: HookTensors) -> bool:
            extra = [o for o in plan_for([tensors]).operations if o not in base]
            reads = [o.variable for o in extra if isinstance(o, VariableRead)]
            return all(type(o) in PURE_OPERATIONS and o.check is None for o in extra) and not store.uninitialized(reads)

        base = set(base_operations)
        if not all(map(is_pure, wanted)):
            return None
        cache_key = (*map(_key, plan.fetched), None, *map(_key, carried), None, *(tensor.key for tensor in plan.fed))
        if cache_key not in self._hook_tensors:
            self._hook_tensors[cache_key] = found = []
            for elements in self.declared:
                try:
                    tensors = tensors_of(elements, plan.with_hooks([*carried, *elements]))
                    if tensors and is_pure(tensors):
                        found.append(tensors)
                except (OpError, ValueError):  # It needs a placeholder that these runs do not feed.
                    continue
        seen = self._hook_tensors[cache_key]
        for tensors in wanted:
            if _keys(tensors) not in map(_keys, seen):
                seen.append(tensors)
        wants = set(map(_keys, wanted))
        unique = {_keys(tensors): tensors for tensors in seen}
        gated = tuple(unique.values())
        if not wanted and not _are_few_numbers(gated, base):
            return None
        return plan_for(gated), frozenset(base_operations), gated, [key in wants for key in unique]

    def _find_or_make(
        self,
        plan: Plan,
        outputs: Mapping[TensorKey, Tensor],
        for_hooks: Mapping[TensorKey, Tensor],
        store: VariableStore,
        max_steps: int,
        base_operations: frozenset[Operation] | None = None,
        gated: Sequence[HookTensors] = (),
    ) -> Program:
        inputs = input_tensors((*plan.device, *plan.remote_updates), lambda tensor: _is_input(plan, tensor))
        inputs += [tensor for tensor in (*outputs.values(), *for_hooks.values()) if _is_input(plan, tensor)]
        inputs = _in_order({tensor.key: tensor for tensor in [_as_input(plan, tensor) for tensor in inputs]}.values())
        out, hook_tensors = _in_order(outputs.values()), _in_order(for_hooks.values())
        key = (
            tuple(operation.index for operation in (*plan.device, *plan.remote_updates)),
            tuple(operation.index for operation in plan.device if operation in plan.caller_operations),
            *(tuple(tensor.key for tensor in tensors) for tensors in (inputs, out, hook_tensors, *gated)),
            max_steps,
        )
        found = self._made.get(key)
        if found is None:
            every = frozenset(plan.device) if base_operations is None else base_operations
            found = Program(plan, inputs, out, hook_tensors, store, every, gated, max_steps, self._warned)
            found.compilations.first_cause = self._cause(found, max_steps)
            self._made[key] = found
        return found

    def _cause(self, program: Program, max_steps: int) -> Callable[[], str]:
        """Returns a function for the cause of a program's compilation, compared with programs of the same variables.

        It is called when the program is first compiled, because earlier programs may have been planned only.
        """
        outputs = {t.key: t.name for t in program.outputs if t.key not in program.for_hooks}
        for_hooks = {t.key: t.name for t in program.outputs if t.key in program.for_hooks}
        inputs = {t.key: t.name for t in program.inputs}
        updates = [update for updates in program.plan.updates.values() for update in updates]
        writes = (
            any(u.is_initializer for u in updates),
            frozenset(v.op for v in (*program.written, *program.host_counters)),
        )

        def cause() -> str:
            is_first = writes not in self._seen
            seen = self._seen.setdefault(writes, (set(), set(), set(), set()))
            if is_first:
                found = "first run"
            elif max_steps not in seen[3]:
                found = f"up to {max_steps} steps a run" if max_steps > 1 else "a single step a run"
            elif new := [name for key, name in for_hooks.items() if key not in seen[1]]:
                found = f"hooks fetch {_format_names(new)}"
            elif new := [name for key, name in outputs.items() if key not in seen[0]]:
                found = f"a new fetch: {_format_names(new)}"
            elif new := [name for key, name in inputs.items() if key not in seen[2]]:
                found = f"a new input: {_format_names(new)}"
            else:
                found = "a new combination of fetches" if for_hooks or not seen[1] else "no hook fetches anything"
            for had, has in zip(seen, (outputs, for_hooks, inputs, {max_steps}), strict=True):
                had.update(has)  # type: ignore[arg-type]
            return found

        return cause


def _format_names(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _from_device(plan: Plan, elements: Iterable[Tensor | Operation]) -> dict[TensorKey, Tensor]:
    return {e.key: e for e in elements if isinstance(e, Tensor) and plan.needs_device(e)}


def _in_order(tensors: Iterable[Tensor]) -> list[Tensor]:
    return sorted(tensors, key=lambda tensor: (tensor.op.index, repr(tensor.path)))


def _is_input(plan: Plan, tensor: Tensor) -> bool:
    """Returns whether a tensor that the device needs is an argument of its program."""
    if plan.find_feed(tensor) is not None or isinstance(tensor.op, HostCall | SessionCall | Source):
        return True
    return isinstance(tensor.op, Constant) and (_is_large(tensor.op) or _is_placed(tensor.op))


def _as_input(plan: Plan, tensor: Tensor) -> Tensor:
    """Returns the argument that a tensor is, or is a part of: the fed tensor, or the whole value of its operation."""
    index = plan.find_feed(tensor)
    return plan.fed[index[0]] if index else tensor.op.output


def _is_placed(constant: Constant) -> bool:
    """Returns whether it has a sharding, which it would lose if it were compiled into the program."""
    return bool(constant.shardings) or any(
        specs.placed_sharding(leaf) is not None for leaf in jax.tree.leaves(constant.value)
    )


def _is_large(constant: Constant) -> bool:
    leaves = [] if constant.output.spec is specs.UNKNOWN else jax.tree.leaves(constant.output.spec)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) > _LARGE_CONSTANT_BYTES


def _key(element: Tensor | Operation) -> Any:
    return element.key if isinstance(element, Tensor) else element


def _are_few_numbers(gated: Iterable[HookTensors], base: set[Operation]) -> bool:
    """Returns whether hooks may fetch something, and only a few numbers that every run computes."""
    tensors = [tensor for group in gated for tensor in group]
    at_hand = all(t.op in base and specs.is_array(t.spec) and t.spec.shape == () for t in tensors)
    return at_hand and 0 < len(tensors) <= _FEW_NUMBERS


def _keys(tensors: HookTensors) -> frozenset[TensorKey]:
    return frozenset(tensor.key for tensor in tensors)
