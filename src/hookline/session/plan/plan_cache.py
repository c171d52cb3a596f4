"""Caches the plans of a session, and warns about them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from hookline import log
from hookline.coordination import process_group
from hookline.graph.global_step import find_global_step
from hookline.graph.graph import Operation, Tensor, ancestors
from hookline.graph.variable import Update
from hookline.session.plan.feeds import feed_key
from hookline.session.plan.fetches import fetch_key, flatten_fetches
from hookline.session.plan.request import HookFetches, Request
from hookline.session.program.program_cache import ProgramCache
from hookline.session.running.cached_step import CachedStep
from hookline.session.running.repeated_step import RepeatedStep

logger = log.get_logger(__name__)

_MANY = 64
_MAX_LATEST = 16
_NO_LATEST: Any = (object(), None, None)


class PlanCache:
    """Cached steps by request, and the programs that they share.

    A training loop makes the same request each time, so the latest request is found without a key. The others are in
    two generations, so that a lookup is cheap. Steps are made in the young one, or moved there when they are used. When
    it is full, it becomes the old one, and the old one is dropped.
    """

    def __init__(self, session: Any, max_plans: int) -> None:
        self._session, self._graph = session, session.graph
        self._max_young = max(max_plans // 2, 1)
        self._young: dict[Hashable, CachedStep] = {}
        self._old: dict[Hashable, CachedStep] = {}
        self._programs = ProgramCache()
        self._warned_about: set[Operation] = set()
        self._num_made = 0
        self._last_made: Any = None
        # By hook fetches and largest number of steps: the latest fetches and fed tensors, with their step.
        self._latest: dict[tuple[HookFetches | None, int], tuple[Any, tuple[Any, ...], CachedStep]] = {}
        self._max_latest = min(_MAX_LATEST, max_plans)

    def declare_hook_fetches(self, hook_fetches: Iterable[Any]) -> list[int]:
        """Declares all fetches of hooks; see `Backend.declare_hook_fetches`."""
        found, missing = [], []
        for index, fetches in enumerate(hook_fetches):
            try:
                found.append(flatten_fetches(self._graph, fetches)[0])
            except (KeyError, TypeError, ValueError):
                missing.append(index)
        self._programs.declared = found
        return missing

    def find(self, fetches: Any, hook_fetches: HookFetches | None, feed_dict: Any, max_steps: int = 1) -> CachedStep:
        """Returns the cached step of a request, and makes it if there is none.

        Raises:
            ValueError: It cannot make `max_steps` steps in a run, because it needs more than a program and batches.
        """
        session = self._session
        # None: only the key of the plan distinguishes these feeds from others.
        fed = () if not feed_dict else tuple(feed_dict) if isinstance(feed_dict, dict) else None
        latest_fetches, latest_fed, latest = self._latest.get((hook_fetches, max_steps)) or _NO_LATEST
        if latest_fetches is fetches and latest_fed == fed and session.is_usable:
            return latest
        # Runs with equal keys share one plan.
        key = (fetch_key(fetches), hook_fetches and hook_fetches.key, feed_key(feed_dict), max_steps)
        found = self._young.get(key)
        if found is None or not session.is_usable:
            with session.lock:
                session.check_usable()
                found = self._young.get(key) or self._old.get(key)
                if found is None:
                    found = self._make(fetches, hook_fetches, feed_dict, max_steps)
                if found.is_cacheable:
                    if len(self._young) >= self._max_young and key not in self._young:
                        self._old, self._young = self._young, {}
                    self._young[key] = found
        # A structure may be changed in place.
        lasts = (hook_fetches is None or not hook_fetches.is_single_use) and isinstance(
            fetches, Tensor | Operation | str
        )
        if lasts and fed is not None and found.is_cacheable:
            if len(self._latest) >= self._max_latest:
                self._latest.clear()
            self._latest[hook_fetches, max_steps] = fetches, fed, found
        return found

    def _make(
        self,
        fetches: Any,
        hook_fetches: HookFetches | None,
        feed_dict: Mapping[Any, Any] | None,
        max_steps: int,
    ) -> CachedStep:
        request = Request(self._graph, fetches, hook_fetches, feed_dict, max_steps)
        step = (CachedStep if max_steps == 1 else RepeatedStep)(self._session, request, self._programs)
        self._warn_of_unknown_step(step)
        self._warn_of_lost_updates(step)
        self._warn_of_lost_values(step)
        self._warn_of_many(
            {
                "fetches": request.fetched,
                "hook fetches": request.hook_elements(),
                "fed tensors": request.fed,
            }
        )
        if isinstance(step, RepeatedStep):
            step.check()
        return step

    def _warn_of_many(self, asked: dict[str, Sequence[Tensor | Operation]]) -> None:
        self._num_made += 1
        latest, self._last_made = self._last_made, asked
        if self._num_made == _MANY:
            changes = ((name, latest[name], now) for name, now in asked.items() if now != latest[name])
            different = [f"{name} ({_names(before)}, then {_names(now)})" for name, before, now in changes]
            logger.warning(
                "This session has planned and compiled runs of %d different sets of fetches and feeds. The last two "
                "differ in %s. Make the tensors to fetch once, before the loop. Of more than %d, the least recently "
                "used are dropped (SessionConfig.max_plans).",
                _MANY,
                " and ".join(different) or "their structure",
                2 * self._max_young,
            )

    def _warn_of_unknown_step(self, made: CachedStep) -> None:
        step = find_global_step(self._graph)
        if made.step_delta is not None or step is None or step.op in self._warned_about:
            return
        if not any(update.is_initializer for update in made.plan.updates[step]):
            self._warned_about.add(step.op)
            logger.warning(
                "The global step %r changes by an amount that only the device knows: if hooks fire at steps, runs wait "
                "for it. Increment it by a constant, with assign_add(1) or minimize(global_step=...).",
                step.op.name,
            )

    def _warn_of_lost_updates(self, made: CachedStep) -> None:
        for update in made.plan.remote_updates:
            if update in self._warned_about or update.is_initializer or not update.overwrites:
                continue
            if ancestors(update.inputs).isdisjoint(variable.op for variable in update.variables):
                continue
            self._warned_about.add(update)
            logger.warning(
                "%s sets %s to a value computed here from its earlier value: other workers' writes in the meantime "
                "are lost. Use assign_add or hookline.update, which work on the value where it lives.",
                update.node_def,
                ", ".join(repr(variable.op.name) for variable in update.variables),
            )

    def _warn_of_lost_values(self, made: CachedStep) -> None:
        path, restored = self._session.restored
        initializers = [
            update for update in made.plan.operations if isinstance(update, Update) and update.is_initializer
        ]
        lost = sorted({variable.op.name for update in initializers for variable in update.variables} & restored)
        if lost and process_group.is_primary():
            self._session.restored = "", frozenset()
            logger.warning(
                "This run initialises %s again, restored from '%s': the trained values are lost. Leave out the "
                "initializer: a monitored session without a checkpoint runs it by itself (Scaffold(init_op=, init_fn=) "
                "for your own); with Saver.restore, run it before that. To start over, use another directory.",
                ", ".join(map(repr, lost[:3])) + (f" and {len(lost) - 3} more variables" if len(lost) > 3 else ""),
                path,
            )


def _names(elements: Sequence[Tensor | Operation]) -> str:
    return ", ".join(element.name for element in elements) or "nothing"
