"""The plans that a session has made so far, and what it says once about them."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from hookline.graph.global_step import counted_global_step
from hookline.graph.graph import Graph, Operation, Tensor, ancestors
from hookline.session.cached_step import CachedStep
from hookline.session.feeds import feed_key, flat_feeds, resolve_feeds
from hookline.session.fetches import fetch_key, flatten
from hookline.session.getters import Run
from hookline.session.programs import Programs, Request
from hookline.session.repeated_step import RepeatedStep
from hookline.session.watched import Watched

logger = logging.getLogger(__name__)

_MANY = 64
_MOST_LATEST = 16
_NOTHING = Watched(())


def plan_key(fetches: Any, watched: Watched | None, feed_dict: Mapping[Any, Any] | None) -> Hashable:
    """Returns what two runs have in common that one plan serves."""
    return (fetch_key(fetches), watched and watched.key, feed_key(feed_dict))


class PlanCache:
    """Cached steps by what was asked for, and the programs that they share.

    A training loop asks for the same each time, so what was asked for last needs no key. The others are in two
    generations, so that finding one costs one look: what was made or used since the older one was closed, and that one,
    which is forgotten when the younger one is full.
    """

    def __init__(self, graph: Graph, max_plans: int) -> None:
        self._graph = graph
        self._max_young = max(max_plans // 2, 1)
        self._young: dict[Hashable, CachedStep] = {}
        self._old: dict[Hashable, CachedStep] = {}
        self._programs = Programs()
        self._told: set[Operation] = set()
        self._made = 0
        self._last_made: Any = None
        # By hooks the latest fetches, and the tensors that were fed, with their step.
        self._latest: dict[Watched | None, tuple[Any, tuple[Any, ...], CachedStep]] = {}
        self._most_latest = min(_MOST_LATEST, max_plans)

    def expect(self, watched: Iterable[Any]) -> list[int]:
        """Says what hooks may ever fetch; see `LowLevel.expect`."""
        found, missing = [], []
        for place, fetches in enumerate(watched):
            try:
                found.append(flatten(self._graph, fetches)[0])
            except (KeyError, TypeError, ValueError):
                missing.append(place)
        self._programs.sharing.declare(found)
        return missing

    def find_repeated(self, session: Any, fetches: Any, watched: Watched | None, capacity: int) -> RepeatedStep:
        """Returns the step of a request that can be made so often in one run, made now or before."""
        key = (capacity, plan_key(fetches, watched, None))
        with session.lock:
            session.check_usable()
            found = self._young.get(key) or self._old.get(key)
            if found is None:
                found = self._make(session, fetches, watched, None, capacity)
            assert isinstance(found, RepeatedStep), "No other has such a key."
            self._keep(key, found)
            return found

    def find(self, session: Any, fetches: Any, watched: Watched | None, feed_dict: Any) -> CachedStep:
        """Returns the step of a request, made now or before."""
        # None: only the plan key tells these feeds from others.
        fed = () if not feed_dict else tuple(feed_dict) if isinstance(feed_dict, dict) else None
        latest = self._latest.get(watched)
        if latest is not None and latest[0] is fetches and latest[1] == fed and session.usable:
            return latest[2]
        key = plan_key(fetches, watched, feed_dict)
        found = self._young.get(key)
        if found is None or not session.usable:
            with session.lock:
                session.check_usable()
                found = self._young.get(key) or self._old.get(key) or self._make(session, fetches, watched, feed_dict)
                if found.is_kept:
                    self._keep(key, found)
        # A structure may be changed in place.
        lasts = (watched is None or not watched.once) and isinstance(fetches, Tensor | Operation | str)
        if lasts and fed is not None and found.is_kept:
            if len(self._latest) >= self._most_latest:
                self._latest.clear()
            self._latest[watched] = fetches, fed, found
        return found

    def _keep(self, key: Hashable, step: CachedStep) -> None:
        if len(self._young) >= self._max_young and key not in self._young:
            self._old, self._young = self._young, {}
        self._young[key] = step

    def _make(
        self,
        session: Any,
        fetches: Any,
        watched: Watched | None,
        feed_dict: Mapping[Any, Any] | None,
        capacity: int = 1,
    ) -> CachedStep:
        elements, assemble = flatten(self._graph, fetches)
        watched = watched or _NOTHING
        asking = [i for i, asked in enumerate(watched.fetches) if asked is not None]
        now, late = ([i for i in asking if (i in watched.late) is is_late] for is_late in (False, True))
        wanted, assemble_now = flatten(self._graph, [watched.fetches[i] for i in now])
        waiting, assemble_late = flatten(self._graph, [watched.fetches[i] for i in late])
        by_hook = [flatten(self._graph, watched.fetches[i])[0] for i in asking]
        flat = flat_feeds(feed_dict)
        fed = resolve_feeds(self._graph, flat or {})

        def of_hooks(values: Sequence[Any], run: Run | None) -> tuple[Any, ...]:
            results: list[Any] = [None] * len(watched.fetches)
            if now:
                for place, result in zip(now, assemble_now(values[len(elements) :]), strict=True):
                    results[place] = result
            if late and run is not None:
                whole = step.late_results(run, assemble_late)
                for part, place in enumerate(late):
                    results[place] = whole.part(part)
            return tuple(results)

        nothing = None
        if isinstance(fetches, Operation) and not late and all(_is_constant(watched.fetches[i]) for i in now):
            nothing = None, of_hooks([None] * (1 + len(wanted)), None)
        kind = CachedStep if capacity == 1 else RepeatedStep
        step = kind(
            session,
            Request(elements, wanted, waiting, by_hook, fed),
            self._programs,
            lambda values, run: (assemble(values), of_hooks(values, run)),
            nothing,
            has_structures=flat is not feed_dict,
            capacity=capacity,
        )
        self._warn_of_unknown_step(step)
        self._warn_of_lost_updates(step)
        self._warn_of_many(
            {"fetches": elements, "what hooks fetch": [*wanted, *waiting], "the tensors that are fed": fed}
        )
        return step

    def _warn_of_many(self, asked: dict[str, Sequence[Tensor | Operation]]) -> None:
        self._made += 1
        latest, self._last_made = self._last_made, asked
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

    def _warn_of_unknown_step(self, made: CachedStep) -> None:
        step = counted_global_step(self._graph)
        if made.gain is not None or step is None or step.op in self._told:
            return
        if not any(update.initialises for update in made.plan.updates[step]):
            self._told.add(step.op)
            logger.warning(
                "The global step %r changes in a way that only the device knows: runs wait for it where hooks fire at "
                "steps. Increment it by a constant, with assign_add(1) or minimize(global_step=...).",
                step.op.name,
            )

    def _warn_of_lost_updates(self, made: CachedStep) -> None:
        for update in made.plan.remote:
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
