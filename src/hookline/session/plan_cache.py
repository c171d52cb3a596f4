"""The plans that a session has made so far, and its warnings about them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hookline import log
from hookline.coordination import peers
from hookline.graph.global_step import counted_global_step
from hookline.graph.graph import Graph, Operation, Tensor, ancestors
from hookline.graph.variable import Update
from hookline.session.cached_step import CachedStep
from hookline.session.feeds import feed_key, flat_feeds, resolve_feeds
from hookline.session.fetches import fetch_key, flatten
from hookline.session.getters import Run
from hookline.session.hook_fetches import HookFetches
from hookline.session.program_cache import ProgramCache, Request
from hookline.session.repeated_step import RepeatedStep

logger = log.of(__name__)

_MANY = 64
_MOST_LATEST = 16
_NOTHING = HookFetches(())
_NOT_YET: Any = (object(), None, None)


def plan_key(
    fetches: Any, hook_fetches: HookFetches | None, feed_dict: Mapping[Any, Any] | None, capacity: int
) -> Hashable:
    """Returns the cache key of a run: runs with equal keys share one plan."""
    return (fetch_key(fetches), hook_fetches and hook_fetches.key, feed_key(feed_dict), capacity)


class PlanCache:
    """Cached steps by request, and the programs that they share.

    A training loop makes the same request each time, so the latest request needs no key. The others are in two
    generations, so that a lookup is cheap: steps made or used since the older generation was closed, and the older one,
    which is forgotten when the younger one is full.
    """

    def __init__(self, graph: Graph, max_plans: int) -> None:
        self._graph = graph
        self._max_young = max(max_plans // 2, 1)
        self._young: dict[Hashable, CachedStep] = {}
        self._old: dict[Hashable, CachedStep] = {}
        self._programs = ProgramCache()
        self._told: set[Operation] = set()
        self._made = 0
        self._last_made: Any = None
        # By hooks and capacity: the latest fetches and fed tensors, with their step.
        self._latest: dict[tuple[HookFetches | None, int], tuple[Any, tuple[Any, ...], CachedStep]] = {}
        self._most_latest = min(_MOST_LATEST, max_plans)

    def expect(self, hook_fetches: Iterable[Any]) -> list[int]:
        """Declares all fetches that hooks may ask for; see `LowLevel.expect`."""
        found, missing = [], []
        for place, fetches in enumerate(hook_fetches):
            try:
                found.append(flatten(self._graph, fetches)[0])
            except (KeyError, TypeError, ValueError):
                missing.append(place)
        self._programs.sharing.declare(found)
        return missing

    def find(
        self, session: Any, fetches: Any, hook_fetches: HookFetches | None, feed_dict: Any, capacity: int = 1
    ) -> CachedStep:
        """Returns the cached step of a request, and makes it if there is none.

        Raises:
            ValueError: It cannot make `capacity` steps in a run, because it is more than a program and batches.
        """
        # None: only the plan key distinguishes these feeds from others.
        fed = () if not feed_dict else tuple(feed_dict) if isinstance(feed_dict, dict) else None
        latest_fetches, latest_fed, latest = self._latest.get((hook_fetches, capacity)) or _NOT_YET
        if latest_fetches is fetches and latest_fed == fed and session.usable:
            return latest
        key = plan_key(fetches, hook_fetches, feed_dict, capacity)
        found = self._young.get(key)
        if found is None or not session.usable:
            with session.lock:
                session.check_usable()
                found = self._young.get(key) or self._old.get(key)
                if found is None:
                    found = self._make(session, fetches, hook_fetches, feed_dict, capacity)
                if found.is_kept:
                    self._keep(key, found)
        # A structure may be changed in place.
        lasts = (hook_fetches is None or not hook_fetches.once) and isinstance(fetches, Tensor | Operation | str)
        if lasts and fed is not None and found.is_kept:
            if len(self._latest) >= self._most_latest:
                self._latest.clear()
            self._latest[hook_fetches, capacity] = fetches, fed, found
        return found

    def _keep(self, key: Hashable, step: CachedStep) -> None:
        if len(self._young) >= self._max_young and key not in self._young:
            self._old, self._young = self._young, {}
        self._young[key] = step

    def _make(
        self,
        session: Any,
        fetches: Any,
        hook_fetches: HookFetches | None,
        feed_dict: Mapping[Any, Any] | None,
        capacity: int,
    ) -> CachedStep:
        elements, assemble = flatten(self._graph, fetches)
        hook_fetches = hook_fetches or _NOTHING
        asking = [i for i, asked in enumerate(hook_fetches.fetches) if asked is not None]
        of_kind = lambda is_deferred, in_rows: [  # noqa: E731
            i
            for i in asking
            if (i in hook_fetches.deferred) is is_deferred and (i in hook_fetches.rows and capacity > 1) is in_rows
        ]
        now = [self._flattened(hook_fetches, of_kind(False, in_rows)) for in_rows in (False, True)]
        deferred = [self._flattened(hook_fetches, of_kind(True, in_rows)) for in_rows in (False, True)]
        by_hook = [flatten(self._graph, hook_fetches.fetches[i])[0] for i in (*now[0].places, *deferred[0].places)]
        flat = flat_feeds(feed_dict)
        fed = resolve_feeds(self._graph, flat or {})

        def of_hooks(values: Sequence[Any], run: Run | None) -> tuple[Any, ...]:
            results: list[Any] = [None] * len(hook_fetches.fetches)
            start = len(elements)
            for part in now:
                end = start + len(part.elements)
                part.put(values[start:end], results)
                start = end
            if deferred_places and run is not None:
                whole = step.deferred_results(run, all_deferred)
                for place in deferred_places:
                    results[place] = whole.part(place)
            return tuple(results)

        deferred_places = [place for part in deferred for place in part.places]

        def all_deferred(values: Sequence[Any]) -> list[Any]:
            results: list[Any] = [None] * len(hook_fetches.fetches)
            middle = len(deferred[0].elements)
            deferred[0].put(values[:middle], results)
            deferred[1].put(values[middle:], results)
            return results

        wanted, rows, waiting, deferred_rows = (part.elements for part in (*now, *deferred))
        nothing = None
        asked_now = [hook_fetches.fetches[i] for part in now for i in part.places]
        if isinstance(fetches, Operation) and not deferred_places and all(map(_is_constant, asked_now)):
            nothing = None, of_hooks([None] * (1 + len(wanted) + len(rows)), None)
        kind = CachedStep if capacity == 1 else RepeatedStep
        step = kind(
            session,
            Request(elements, wanted, waiting, by_hook, fed, rows, deferred_rows),
            self._programs,
            lambda values, run: (assemble(values), of_hooks(values, run)),
            nothing,
            has_structures=flat is not feed_dict,
            capacity=capacity,
        )
        self._warn_of_unknown_step(step)
        self._warn_of_lost_updates(step)
        self._warn_of_lost_values(session, step)
        self._warn_of_many(
            {
                "fetches": elements,
                "hook fetches": [*wanted, *waiting, *rows, *deferred_rows],
                "fed tensors": fed,
            }
        )
        if isinstance(step, RepeatedStep):
            step.check()
        return step

    def _flattened(self, hook_fetches: HookFetches, places: Sequence[int]) -> _Part:
        elements, assemble = flatten(self._graph, [hook_fetches.fetches[i] for i in places])
        return _Part(places, elements, assemble)

    def _warn_of_many(self, asked: dict[str, Sequence[Tensor | Operation]]) -> None:
        self._made += 1
        latest, self._last_made = self._last_made, asked
        if self._made == _MANY:
            changes = ((name, latest[name], now) for name, now in asked.items() if now != latest[name])
            different = [f"{name} ({_names(before)}, then {_names(now)})" for name, before, now in changes]
            logger.warning(
                "This session has planned and compiled runs of %d different sets of fetches and feeds. The last two "
                "differ in %s. Make the tensors to fetch once, before the loop. Of more than %d, the least recently "
                "used are forgotten (SessionConfig.max_plans).",
                _MANY,
                " and ".join(different) or "their structure",
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
                "%s sets %s to a value computed here from its earlier value: other workers' writes in the meantime "
                "are lost. Use assign_add or hookline.update, which work on the value where it lives.",
                update.node_def,
                ", ".join(repr(variable.op.name) for variable in update.variables),
            )

    def _warn_of_lost_values(self, session: Any, made: CachedStep) -> None:
        path, restored = session.restored
        anew = [update for update in made.plan.operations if isinstance(update, Update) and update.initialises]
        lost = sorted({variable.op.name for update in anew for variable in update.variables} & restored)
        if lost and peers.speaks():
            session.restored = "", frozenset()
            logger.warning(
                "This run initialises %s anew, restored from '%s': the trained values are lost. Leave out the "
                "initializer: a monitored session without a checkpoint runs it by itself (Scaffold(init_op=, init_fn=) "
                "for your own); with Saver.restore, run it before that. To begin anew, use another directory.",
                ", ".join(map(repr, lost[:3])) + (f" and {len(lost) - 3} more variables" if len(lost) > 3 else ""),
                path,
            )


class _Part(NamedTuple):
    """The fetches of some hooks: their places, the elements, and a function from values to results."""

    places: Sequence[int]
    elements: Sequence[Tensor | Operation]
    assemble: Callable[[Sequence[Any]], Any]

    def put(self, values: Sequence[Any], results: list[Any]) -> None:
        """Puts the results at their places."""
        if self.places:
            for place, result in zip(self.places, self.assemble(values), strict=True):
                results[place] = result


def _is_constant(fetches: Any) -> bool:
    """Returns whether the results never change and are immutable: those of operations, or tuples of them."""
    return isinstance(fetches, Operation) or (type(fetches) is tuple and all(map(_is_constant, fetches)))


def _names(elements: Sequence[Tensor | Operation]) -> str:
    return ", ".join(element.name for element in elements) or "nothing"
