"""Sharing: the watched runs use one program, in which unwanted values are not computed.

Each distinct set of outputs is a compilation, which takes minutes for a large model. So the watched runs of the same
fetches and feeds share one program, which can compute everything that hooks have watched so far or have declared. The
values that a hook watches are under a `lax.cond` there; each run selects through a mask the values it wants.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from hookline.errors import OpError
from hookline.graph.gradient import Gradient
from hookline.graph.graph import Function, Operation, Tensor
from hookline.graph.nodes import Constant, Group
from hookline.graph.variable import VariableRead
from hookline.session.plan import Key, Plan, input_tensors
from hookline.session.store import VariableStore

Watch = tuple[Tensor, ...]
"""The device tensors that one hook watches."""

# Operations without side effects: no update, no latch, no draw of a random key, nothing from outside. (Nor may they
# have a fault, which is a latch.)
PURE = (Function, Gradient, VariableRead, Constant, Group)


class Shared(NamedTuple):
    """A shared program's plan, and the selection of one run.

    Args:
        plan: The plan of everything.
        always: The operations that every run computes.
        watches: The tensors that each hook may watch.
        mask: For each of `watches`, whether this run wants it.
    """

    plan: Plan
    always: frozenset[Operation]
    watches: tuple[Watch, ...]
    mask: tuple[bool, ...]


class Sharing:
    """The tensors that hooks have watched so far in one session, by the fetches and feeds of their runs."""

    def __init__(self) -> None:
        self._declared: list[Sequence[Tensor | Operation]] = []
        self._families: dict[Hashable, list[Watch]] = {}

    def copied(self) -> Sharing:
        """Returns another one that has seen the same so far."""
        other = Sharing()
        other._declared = self._declared
        other._families = {family: [*watches] for family, watches in self._families.items()}
        return other

    def declare(self, watches: Iterable[Sequence[Tensor | Operation]]) -> None:
        """Declares all that each hook may watch: shared programs have it from the start."""
        self._declared = list(watches)

    def shared(
        self,
        plan: Plan,
        fetched: Sequence[Tensor | Operation],
        steady: Sequence[Tensor | Operation],
        watched: Sequence[Sequence[Tensor | Operation]],
        fed: Sequence[Tensor],
        outputs: Iterable[Key],
        store: VariableStore,
    ) -> Shared | None:
        """Returns the sharing of a program for a watched run; None if it cannot share, or has nothing to share.

        `watched` are the fetches of each hook, `steady` those that hooks want of each step, and `outputs` the tensors
        that the program returns for the caller.
        """
        if plan.remote:
            return None
        every = (element for elements in watched for element in elements)
        carried = [*dict.fromkeys(element for element in every if isinstance(element, Operation)), *steady]
        always = plan.needed([*fetched, *carried])
        known = set(outputs)

        def watch_of(elements: Sequence[Tensor | Operation], among: Plan) -> Watch:
            hosts = among.needed(elements)
            late = input_tensors([o for o in among.late if o in set(hosts)], among.needs_device)
            tensors = [*(e for e in elements if isinstance(e, Tensor) and among.needs_device(e)), *late]
            return tuple({tensor.key: tensor for tensor in tensors if tensor.key not in known}.values())

        wanted = [watch for elements in watched if (watch := watch_of(elements, plan))]
        if not wanted:
            return None

        def plan_for(watches: Iterable[Watch]) -> Plan:
            return Plan(fetched, [*carried, *(tensor for watch in watches for tensor in watch)], fed, store.is_remote)

        def is_pure(watch: Watch) -> bool:
            extra = [o for o in plan_for([watch]).operations if o not in base]
            reads = [o.variable for o in extra if isinstance(o, VariableRead)]
            return all(type(o) in PURE and o.fault is None for o in extra) and not store.uninitialized(reads)

        base = set(always)
        if not all(map(is_pure, wanted)):
            return None
        family = (*(_key(e) for e in fetched), None, *map(_key, carried), None, *(tensor.key for tensor in fed))
        if family not in self._families:
            self._families[family] = found = []
            for elements in self._declared:
                try:
                    watch = watch_of(elements, Plan(fetched, [*carried, *elements], fed, store.is_remote))
                    if watch and is_pure(watch):
                        found.append(watch)
                except (OpError, ValueError):  # It needs a placeholder that these runs do not feed.
                    continue
        seen = self._families[family]
        for watch in wanted:
            if _keys(watch) not in map(_keys, seen):
                seen.append(watch)
        wants = set(map(_keys, wanted))
        unique = {_keys(watch): watch for watch in seen}
        watches = tuple(unique.values())
        return Shared(plan_for(watches), frozenset(always), watches, tuple(key in wants for key in unique))


def _key(element: Tensor | Operation) -> Any:
    return element.key if isinstance(element, Tensor) else element


def _keys(watch: Watch) -> frozenset[Key]:
    return frozenset(tensor.key for tensor in watch)
