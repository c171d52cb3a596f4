"""The plans that a session has made so far, and what it says once about them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hookline.graph.global_step import counted_global_step
from hookline.graph.graph import Graph, Operation, Tensor, ancestors
from hookline.session.execution import Execution
from hookline.session.feeds import feed_key, flat_feeds, resolve_feeds
from hookline.session.fetches import Assemble, fetch_key, flatten
from hookline.session.getters import Run
from hookline.session.latches import Latches
from hookline.session.programs import Programs, Request
from hookline.session.store import VariableStore
from hookline.session.watched import Watched

logger = logging.getLogger(__name__)

_MANY = 64
_NOTHING = Watched(())


class Prepared(NamedTuple):
    """An execution, and the functions that put its values into the structures of the caller and of the hooks.

    Args:
        execution: As above.
        assemble: For the caller.
        assemble_watched: For the hooks.
        has_structures: Whether a key of the feeds is a structure of tensors.
        nothing: The results of both, if each fetches operations, which have no values; else None.
        late_alone: If nothing but what is late has a value, what gives the results of the hooks; else None.
    """

    execution: Execution
    assemble: Assemble
    assemble_watched: Callable[[Sequence[Any], Run, Any], tuple[Any, ...]]
    has_structures: bool
    nothing: tuple[None, tuple[Any, ...]] | None
    late_alone: Callable[[Run, Any], tuple[Any, ...]] | None


def plan_key(fetches: Any, watched: Watched | None, feed_dict: Mapping[Any, Any] | None) -> Hashable:
    """Returns what two runs have in common that one plan serves."""
    return (fetch_key(fetches), watched and watched.key, feed_key(feed_dict))


class PlanCache:
    """Executions by what was asked for, and the programs that they share.

    It has two generations, so that finding one costs one look: what was made or used since the older one was closed,
    and that one, which is forgotten when the younger one is full.

    Args:
        graph: The graph that is run.
        max_plans: How many to remember at most.
        latches: What the latches of the session hold.
    """

    def __init__(self, graph: Graph, max_plans: int, latches: Latches) -> None:
        self._graph, self._latches = graph, latches
        self._max_young = max(max_plans // 2, 1)
        self._young: dict[Hashable, Prepared] = {}
        self._old: dict[Hashable, Prepared] = {}
        self._programs = Programs()
        self._told: set[Operation] = set()
        self._made = 0
        self._latest: Any = None
        self.get = self._young.get

    def expect(self, watched: Iterable[Any]) -> list[int]:
        """Says what hooks may ever fetch; see `Session.expect`."""
        found, missing = [], []
        for place, fetches in enumerate(watched):
            try:
                found.append(flatten(self._graph, fetches)[0])
            except (KeyError, TypeError, ValueError):
                missing.append(place)
        self._programs.sharing.declare(found)
        return missing

    def find(self, key: Hashable) -> Prepared | None:
        """Returns one of either generation, which is young from then on; None if there is none."""
        found = self._young.get(key) or self._old.get(key)
        if found is not None:
            self._keep(key, found)
        return found

    def _keep(self, key: Hashable, prepared: Prepared) -> None:
        if len(self._young) >= self._max_young and key not in self._young:
            self._old, self._young = self._young, {}
            self.get = self._young.get
        self._young[key] = prepared

    def make(
        self,
        key: Hashable,
        store: VariableStore,
        fetches: Any,
        watched: Watched | None,
        feed_dict: Mapping[Any, Any] | None,
    ) -> Prepared:
        """Plans a run and remembers the plan.

        Args:
            key: That of `plan_key`.
            store: Where the variables live.
            fetches: What the caller asks for.
            watched: What hooks ask for, if they do.
            feed_dict: What is fed.
        """
        elements, assemble = flatten(self._graph, fetches)
        watched = watched or _NOTHING
        asking = [i for i, asked in enumerate(watched.fetches) if asked is not None]
        now, late = ([i for i in asking if (i in watched.late) is is_late] for is_late in (False, True))
        wanted, assemble_now = flatten(self._graph, [watched.fetches[i] for i in now])
        waiting, assemble_late = flatten(self._graph, [watched.fetches[i] for i in late])
        by_hook = [flatten(self._graph, watched.fetches[i])[0] for i in asking]
        flat = flat_feeds(feed_dict)
        fed = resolve_feeds(self._graph, flat or {})
        step = counted_global_step(self._graph)
        request = Request(elements, wanted, waiting, by_hook, fed)
        execution = Execution(request, self._programs, self._latches, step, store)
        self._warn_of_unknown_step(execution)
        self._warn_of_lost_updates(execution)

        def those_now(values: Sequence[Any]) -> list[Any]:
            results: list[Any] = [None] * len(watched.fetches)
            if now:
                for place, result in zip(now, assemble_now(values[len(elements) :]), strict=True):
                    results[place] = result
            return results

        def with_late(known: Sequence[Any], run: Run, session: Any) -> tuple[Any, ...]:
            results = [*known]
            if late:
                whole = execution.late_results(run, session, assemble_late)
                for part, place in enumerate(late):
                    results[place] = whole.part(part)
            return tuple(results)

        nothing = late_alone = None
        if isinstance(fetches, Operation) and all(_is_constant(watched.fetches[i]) for i in now):
            known = those_now([None] * (1 + len(wanted)))
            nothing = None if late else (None, tuple(known))
            late_alone = functools.partial(with_late, known) if late else None
        self._warn_of_many(
            {"fetches": elements, "what hooks fetch": [*wanted, *waiting], "the tensors that are fed": fed}
        )
        prepared = Prepared(
            execution,
            assemble,
            lambda values, run, session: with_late(those_now(values), run, session),
            flat is not feed_dict,
            nothing,
            late_alone,
        )
        self._keep(key, prepared)
        return prepared

    def _warn_of_many(self, asked: dict[str, Sequence[Tensor | Operation]]) -> None:
        self._made += 1
        latest, self._latest = self._latest, asked
        if self._made == _MANY:
            changes = ((name, latest[name], now) for name, now in asked.items() if now != latest[name])
            different = [f"{name} ({_names(before)}, then {_names(now)})" for name, before, now in changes]
            logger.warning(
                "This session was asked for %d different things, and has planned and compiled each of them. The last "
                "two differ in %s. Make what is fetched once, before the loop. Beyond %d the ones used least lately "
                "are forgotten (SessionConfig.max_plans).",
                _MANY,
                " and ".join(different) or "the form in which they were asked for",
                2 * self._max_young,
            )

    def _warn_of_unknown_step(self, execution: Execution) -> None:
        step = counted_global_step(self._graph)
        if execution.step_gain is not None or step is None or step.op in self._told:
            return
        if not any(update.initialises for update in execution.plan.updates[step]):
            self._told.add(step.op)
            logger.warning(
                "The global step %r changes in a way that only the device knows: runs wait for it where hooks fire at "
                "steps. Increment it by a constant, with assign_add(1) or minimize(global_step=...).",
                step.op.name,
            )

    def _warn_of_lost_updates(self, execution: Execution) -> None:
        for update in execution.plan.remote:
            if update in self._told or update.initialises or not update.overwrites:
                continue
            if ancestors(update.inputs).isdisjoint(variable.op for variable in update.variables):
                continue
            self._told.add(update)
            logger.warning(
                "%s sets %s to a value computed here from its earlier value: what other workers write meanwhile is "
                "lost. Use assign_add or hookline.update, which work on the value where it lives.",
                update.node_def,
                ", ".join(repr(variable.op.name) for variable in update.variables),
            )


def _is_constant(fetches: Any) -> bool:
    """Whether the results are the same in each run, and nobody can change them: operations, or tuples of them."""
    return isinstance(fetches, Operation) or (type(fetches) is tuple and all(map(_is_constant, fetches)))


def _names(elements: Sequence[Tensor | Operation]) -> str:
    return ", ".join(element.name for element in elements) or "nothing"
