"""The programs of a session: one for each kind of device work, shared by all requests for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hookline.graph import placement
from hookline.graph import spec as specs
from hookline.graph.graph import Operation, Tensor
from hookline.graph.nodes import Constant, HostCall, SessionCall, Source
from hookline.session.plan import Key, Plan, input_tensors
from hookline.session.program import Program
from hookline.session.sharing import HookTensors, Sharing
from hookline.session.store import VariableStore

# Larger constants are handed to the program as arguments; smaller ones are compiled into it.
_LARGE_CONSTANT_BYTES = 4096


class Request(NamedTuple):
    """The elements that a run is asked for.

    Args:
        fetched: The caller's fetches.
        hook_fetches: The fetches of hooks, computed in the run.
        deferred: The deferred fetches of hooks.
        by_hook: The fetches of each hook, of both kinds.
        fed: The fed tensors.
        rows: The fetches of hooks that want each of several steps; for the others the result is that of the last step.
        deferred_rows: The deferred ones among those.
    """

    fetched: Sequence[Tensor | Operation]
    hook_fetches: Sequence[Tensor | Operation]
    deferred: Sequence[Tensor | Operation]
    by_hook: Sequence[Sequence[Tensor | Operation]]
    fed: tuple[Tensor, ...]
    rows: Sequence[Tensor | Operation] = ()
    deferred_rows: Sequence[Tensor | Operation] = ()


class ProgramCache:
    """The programs that a session has made, kept as long as a plan uses them.

    Attributes:
        constants: Large constants, on the device.
        sharing: The tensors that hooks have fetched so far.
    """

    def __init__(self) -> None:
        self._warned: set[str] = set()
        # By the variables that they write or initialise: the outputs of programs so far, those for hooks, the inputs,
        # and how many steps they make.
        self._seen: dict[Hashable, tuple[set[Key], set[Key], set[Key], set[int]]] = {}
        self.constants: MutableMapping[Constant, Any] = weakref.WeakKeyDictionary()
        self.sharing = Sharing()
        self._made: MutableMapping[Any, Program] = weakref.WeakValueDictionary()

    def choose(
        self, plan: Plan, request: Request, pulled: Iterable[Tensor], store: VariableStore, capacity: int = 1
    ) -> tuple[Program | None, tuple[jax.Array, ...]]:
        """Returns the program for the plan of a request and a mask, or None if the device has nothing to do.

        A program is made once. `pulled` are the tensors that the host takes from it, and `capacity` is its largest
        number of steps. The mask selects the fetches of hooks that this run computes. There is no program of several
        steps if hooks fetch something in the last one that changes state or comes from outside.
        """
        outputs = _from_device(plan, request.fetched)
        for_host = {tensor.key: tensor for tensor in pulled}
        if capacity == 1:
            # Inputs of a caller's host operation belong to the caller; those of a hook's belong to the hook.
            callers = {t.key for o in plan.after if o in plan.trained for t in o.inputs}
            outputs |= {key: tensor for key, tensor in for_host.items() if key in callers}
        for_hooks = _from_device(plan, [*request.hook_fetches, *request.deferred]) | for_host
        rows = _from_device(plan, [*request.rows, *request.deferred_rows])
        if capacity == 1:  # With several steps an output has the values of all, and a hook's tensor that of the last.
            for_hooks = {key: tensor for key, tensor in for_hooks.items() if key not in outputs}
        if not plan.device and not plan.remote and not outputs and not for_hooks:
            return None, ()
        shared = None
        if for_hooks or (capacity == 1 and self.sharing.has_declared):
            steady = [*request.rows, *request.deferred_rows]
            known = outputs if capacity == 1 else ()
            shared = self.sharing.shared(plan, steady, request.by_hook, known, store)
        if shared is None:
            if for_hooks and capacity > 1:
                return None, ()
            return self._program(plan, request.fed, outputs, for_hooks | rows, store, capacity=capacity), ()
        mask = placement.put_all(tuple(map(jnp.asarray, shared.mask)), store.home)
        extra = shared.always, shared.masked, capacity
        return self._program(shared.plan, request.fed, outputs, rows, store, *extra), mask

    def _program(
        self,
        plan: Plan,
        fed: tuple[Tensor, ...],
        outputs: Mapping[Key, Tensor],
        for_hooks: Mapping[Key, Tensor],
        store: VariableStore,
        always: frozenset[Operation] | None = None,
        masked: Sequence[HookTensors] = (),
        capacity: int = 1,
    ) -> Program:
        inputs = input_tensors((*plan.device, *plan.remote), lambda tensor: _is_input(plan, tensor))
        inputs += [tensor for tensor in (*outputs.values(), *for_hooks.values()) if _is_input(plan, tensor)]
        inputs = _in_order({_input_key(plan, tensor): _as_input(plan, tensor, fed) for tensor in inputs}.values())
        out, looks = _in_order(outputs.values()), _in_order(for_hooks.values())
        key = (
            tuple(operation.index for operation in (*plan.device, *plan.remote)),
            tuple(operation.index for operation in plan.device if operation in plan.trained),
            *(tuple(tensor.key for tensor in tensors) for tensors in (inputs, out, looks, *masked)),
            capacity,
        )
        found = self._made.get(key)
        if found is None:
            every = frozenset(plan.device) if always is None else always
            found = Program(plan, inputs, out, looks, store, every, masked, capacity, self._warned)
            found.compilations.first_cause = self._cause(found, capacity)
            self._made[key] = found
        return found

    def _cause(self, program: Program, capacity: int) -> Callable[[], str]:
        """Returns a function that says why a program is compiled beside those that write the same variables.

        It is called when the program is first compiled: those before it may have been planned only.
        """
        outputs = {t.key: t.name for t in program.outputs if t.key not in program.for_hooks}
        for_hooks = {t.key: t.name for t in program.outputs if t.key in program.for_hooks}
        inputs = {t.key: t.name for t in program.inputs}
        updates = [update for updates in program.plan.updates.values() for update in updates]
        writes = any(u.initialises for u in updates), frozenset(v.op for v in (*program.written, *program.hosted))

        def cause() -> str:
            is_first = writes not in self._seen
            seen = self._seen.setdefault(writes, (set(), set(), set(), set()))
            if is_first:
                found = "first run"
            elif capacity not in seen[3]:
                found = f"up to {capacity} steps a run" if capacity > 1 else "a single step a run"
            elif new := [name for key, name in for_hooks.items() if key not in seen[1]]:
                found = f"hooks ask for {_shown(new)}"
            elif new := [name for key, name in outputs.items() if key not in seen[0]]:
                found = f"a new fetch: {_shown(new)}"
            elif new := [name for key, name in inputs.items() if key not in seen[2]]:
                found = f"a new input: {_shown(new)}"
            else:
                found = "other fetches together" if for_hooks or not seen[1] else "no hook asks for anything"
            for had, has in zip(seen, (outputs, for_hooks, inputs, {capacity}), strict=True):
                had.update(has)  # type: ignore[arg-type]
            return found

        return cause


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _from_device(plan: Plan, elements: Iterable[Tensor | Operation]) -> dict[Key, Tensor]:
    return {e.key: e for e in elements if isinstance(e, Tensor) and plan.needs_device(e)}


def _in_order(tensors: Iterable[Tensor]) -> list[Tensor]:
    return sorted(tensors, key=lambda tensor: (tensor.op.index, repr(tensor.path)))


def _is_input(plan: Plan, tensor: Tensor) -> bool:
    """Returns whether a tensor that the device needs is an argument of its program."""
    if plan.fed_place(tensor) is not None or isinstance(tensor.op, HostCall | SessionCall | Source):
        return True
    return isinstance(tensor.op, Constant) and (_is_large(tensor.op) or _is_placed(tensor.op))


def _input_key(plan: Plan, tensor: Tensor) -> Key:
    place = plan.fed_place(tensor)
    return (tensor.op, tensor.path[: place[1]] if place else ())


def _as_input(plan: Plan, tensor: Tensor, fed: tuple[Tensor, ...]) -> Tensor:
    place = plan.fed_place(tensor)
    return fed[place[0]] if place else tensor.op.output


def _is_placed(constant: Constant) -> bool:
    """Returns whether it has a sharding: compiled in, it would be where JAX puts it."""
    return bool(constant.places) or any(specs.place_of(leaf) is not None for leaf in jax.tree.leaves(constant.value))


def _is_large(constant: Constant) -> bool:
    leaves = [] if constant.output.spec is specs.UNKNOWN else jax.tree.leaves(constant.output.spec)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) > _LARGE_CONSTANT_BYTES
