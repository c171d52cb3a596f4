"""Sharing: the runs with hook fetches use one program, in which unwanted values are not computed.

Each distinct set of outputs is a compilation, which takes minutes for a large model. So the runs with hook fetches, but
the same fetches and feeds of the caller, share one program. It can compute everything that hooks have fetched so far or
have declared. The values for a hook are under a `lax.cond` there; each run selects through a mask the values it wants.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from hookline.errors import OpError
from hookline.graph import spec as specs
from hookline.graph.gradient import Gradient
from hookline.graph.graph import Function, Operation, Tensor
from hookline.graph.nodes import Constant, Group
from hookline.graph.variable import VariableRead
from hookline.session.plan import Key, Plan, input_tensors
from hookline.session.store import VariableStore

HookTensors = tuple[Tensor, ...]
"""The device tensors that one hook fetches."""

# Operations without side effects: no update, no latch, no draw of a random key, nothing from outside. (Nor may they
# have a check, which needs a latch.)
PURE = (Function, Gradient, VariableRead, Constant, Group)


# To hand out a number takes a run about a microsecond, so many are not worth the one compilation that they save.
_FEW_NUMBERS = 16


class Shared(NamedTuple):
    """A shared program's plan, and the selection of one run.

    Args:
        plan: The plan of everything.
        always: The operations that every run computes.
        masked: The tensors that each hook may fetch.
        mask: For each of `masked`, whether this run wants it.
    """

    plan: Plan
    always: frozenset[Operation]
    masked: tuple[HookTensors, ...]
    mask: tuple[bool, ...]


class Sharing:
    """The tensors that hooks have fetched so far in one session, by the fetches and feeds of their runs."""

    def __init__(self) -> None:
        self._declared: list[Sequence[Tensor | Operation]] = []
        self._families: dict[Hashable, list[HookTensors]] = {}

    @property
    def has_declared(self) -> bool:
        """Whether hooks have declared fetches."""
        return bool(self._declared)

    def declare(self, fetches: Iterable[Sequence[Tensor | Operation]]) -> None:
        """Declares the fetches of each hook: shared programs have it from the start."""
        self._declared = list(fetches)

    def shared(
        self,
        plan: Plan,
        steady: Sequence[Tensor | Operation],
        by_hook: Sequence[Sequence[Tensor | Operation]],
        outputs: Iterable[Key],
        store: VariableStore,
    ) -> Shared | None:
        """Returns the shared program for a run; None if it cannot share, or has nothing to share.

        A run without hook fetches shares only if hooks have declared no more than a few numbers that it has anyway: the
        step then has one program.

        `by_hook` are the fetches of each hook, `steady` those that hooks want of each step, and `outputs` the tensors
        that the program returns for the caller.
        """
        if plan.remote:
            return None
        every = (element for elements in by_hook for element in elements)
        carried = [*dict.fromkeys(element for element in every if isinstance(element, Operation)), *steady]
        always = plan.needed([*plan.fetched, *carried])
        known = set(outputs)

        def tensors_of(elements: Sequence[Tensor | Operation], among: Plan) -> HookTensors:
            hosts = among.needed(elements)
            pulled = input_tensors([o for o in among.after if o in set(hosts)], among.needs_device)
            tensors = [*(e for e in elements if isinstance(e, Tensor) and among.needs_device(e)), *pulled]
            return tuple({tensor.key: tensor for tensor in tensors if tensor.key not in known}.values())

        wanted = [found for elements in by_hook if (found := tensors_of(elements, plan))]

        def plan_for(groups: Iterable[HookTensors]) -> Plan:
            return plan.with_hooks([*carried, *(tensor for group in groups for tensor in group)])

        def is_pure(tensors: HookTensors) -> bool:
            extra = [o for o in plan_for([tensors]).operations if o not in base]
            reads = [o.variable for o in extra if isinstance(o, VariableRead)]
            return all(type(o) in PURE and o.check is None for o in extra) and not store.uninitialized(reads)

        base = set(always)
        if not all(map(is_pure, wanted)):
            return None
        family = (*map(_key, plan.fetched), None, *map(_key, carried), None, *(tensor.key for tensor in plan.fed))
        if family not in self._families:
            self._families[family] = found = []
            for elements in self._declared:
                try:
                    tensors = tensors_of(elements, plan.with_hooks([*carried, *elements]))
                    if tensors and is_pure(tensors):
                        found.append(tensors)
                except (OpError, ValueError):  # It needs a placeholder that these runs do not feed.
                    continue
        seen = self._families[family]
        for tensors in wanted:
            if _keys(tensors) not in map(_keys, seen):
                seen.append(tensors)
        wants = set(map(_keys, wanted))
        unique = {_keys(tensors): tensors for tensors in seen}
        masked = tuple(unique.values())
        if not wanted and not _are_few_numbers(masked, base):
            return None
        return Shared(plan_for(masked), frozenset(always), masked, tuple(key in wants for key in unique))


def _key(element: Tensor | Operation) -> Any:
    return element.key if isinstance(element, Tensor) else element


def _are_few_numbers(masked: Iterable[HookTensors], always: set[Operation]) -> bool:
    """Returns whether hooks may fetch something, and only a few numbers that every run computes."""
    tensors = [tensor for group in masked for tensor in group]
    at_hand = all(t.op in always and specs.is_array(t.spec) and t.spec.shape == () for t in tensors)
    return at_hand and 0 < len(tensors) <= _FEW_NUMBERS


def _keys(tensors: HookTensors) -> frozenset[Key]:
    return frozenset(tensor.key for tensor in tensors)
