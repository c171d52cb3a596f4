"""HookRecord: a session's record of a hook, with its forecast and its deferred firings."""

from __future__ import annotations

import collections
import math
from typing import Any, NamedTuple

from hookline import log
from hookline.graph import Graph, Operation
from hookline.hooks.base import Firing, SessionRunArgs, SessionRunHook
from hookline.hooks.trigger import Trigger
from hookline.hooks.triggers import Latched
from hookline.hooks.when import BoundHook, bare
from hookline.monitored.callbacks import Callback, describe, override
from hookline.monitored.forecast import Forecast
from hookline.monitored.hook_list import HookList
from hookline.session import DeferredResults, RunMetadata, RunOptions

_logger = log.of(__name__)


class DeferredFiring(NamedTuple):
    """A firing whose values have not arrived yet.

    Args:
        results: Its values.
        due_run: The run after which it is delivered; infinity if it is delivered when the values arrive.
        global_step: As in `Firing`, like the others.
        elapsed_steps: As in `Firing`.
        elapsed_secs: As in `Firing`.
        options: As in `Firing`.
        run_metadata: As in `Firing`.
    """

    results: DeferredResults
    due_run: float
    global_step: int | None
    elapsed_steps: int | None
    elapsed_secs: float | None
    options: RunOptions
    run_metadata: RunMetadata

    def values(self) -> Any:
        """Waits for the values, and returns them."""
        return self.results.get()

    def is_due(self, run: float) -> bool:
        """Returns whether it must be delivered after a run; with an infinite `run`, it always must."""
        return run >= self.due_run or (self.due_run == math.inf and self.results.is_ready())


class HookRecord:
    """A session's record of a hook.

    Args:
        hook: The hook, or its binding to some runs.
        place: Its index in the list.
        graph: The graph of the session.
        hooks: The list.

    Raises:
        TypeError: A `late` that is neither a bool nor a number of runs.

    Attributes:
        hook: The hook itself, not its binding.
        bit: Its index in the list, as a bit.
        forecast: When its trigger must be asked; None without a trigger.
        before: Its `before_run`, if its class overrides it and it has not retired.
        after: Its `after_run` likewise.
        fetches: The fetches that it declares.
        args: The request with these fetches; None without any.
        before_trigger: Its `before_trigger`, which returns the request in place of `args`; None without one.
        on_trigger: Its `on_trigger`; a function that does nothing if it has none.
        asks: Whether it requests anything when it fires.
        stacked: Whether it takes the values of all steps of a run, as rows.
        late: Its `late`, unless it is called on each run: such a hook waits for nothing.
        latches: The latches in its trigger, each with whether it has latched.
        binding: Its binding to some runs; None if it takes part in all.
        bound_to: The operations to whose runs it is bound.
        waiting: Its deferred firings.
        asked: The number of the attempt of a run in which it was last asked for its request.
        given: The number of the attempt in which it last fired.
    """

    def __init__(self, hook: Any, place: int, graph: Graph, hooks: HookList) -> None:
        self.hook = inner = bare(hook)
        self._look_up = hooks.of_a_run
        self.bit = 1 << place
        self.resume()
        self.fetches = getattr(inner, "fetches", None)
        self.before_trigger = self._look_up(inner, "before_trigger")
        self.on_trigger: Callback = self._look_up(inner, "on_trigger") or _nothing
        self.args = None if self.fetches is None else SessionRunArgs(self.fetches)
        self.asks = self.args is not None or self.before_trigger is not None
        self.late: bool | int = False if self.before or self.after else _checked_late(inner)
        self.stacked = bool(getattr(inner, "stacked", False))
        self.latches: dict[Latched, bool] = {}
        self.forecast: Forecast | None = None
        self.binding = hook if isinstance(hook, BoundHook) else None
        self.bound_to: set[Operation] = set() if self.binding is None else self.binding.operations(graph)
        self.asked = self.given = 0
        self.waiting: collections.deque[DeferredFiring] = collections.deque()

    def resume(self) -> None:
        """Looks up the callbacks of each run, also after `retire`."""
        self.before: Callback | None = self._look_up(self.hook, "before_run")
        self.after: Callback | None = self._look_up(self.hook, "after_run")

    def retire(self) -> bool:
        """Drops the callbacks of each run that no subclass overrides again; returns whether there were any."""
        had = self.before, self.after
        self.before = None if _is_own(self.hook, "before_run") else self.before
        self.after = None if _is_own(self.hook, "after_run") else self.after
        return had != (self.before, self.after)


def warn_of_incomplete(record: HookRecord, warned: set[str]) -> None:
    """Warns of a hook that has only a trigger or only an `on_trigger`, and so does nothing.

    Args:
        record: The hook.
        warned: Marks of earlier warnings, which are not repeated; the new one is added.
    """
    hook = record.hook
    is_called = override(hook, "on_trigger") is not None
    has_trigger = isinstance(getattr(hook, "trigger", None), Trigger)
    mark = f"{type(hook).__name__}.on_trigger"
    if record.before or record.after or record.before_trigger or is_called == has_trigger or mark in warned:
        return
    warned.add(mark)
    _logger.warning(
        "The %s has a trigger and no on_trigger: nothing is called when it fires. Define on_trigger(self, firing)."
        if has_trigger
        else "The %s has an on_trigger and no trigger: it never fires. Set trigger in the class, or at the latest "
        "in after_create_session; a subclass that overrides that calls super().",
        describe(hook),
    )


def _nothing(firing: Firing) -> None:
    """Does nothing, for hooks without `on_trigger`."""


def _is_own(hook: Any, name: str) -> bool:
    """Returns whether a callback comes from the first class that defines a run callback, and not from a subclass."""
    if name in getattr(hook, "__dict__", ()):
        return False
    kinds = [vars(kind) for kind in type(hook).__mro__ if kind is not SessionRunHook]
    around = [kind for kind in kinds if "before_run" in kind or "after_run" in kind]
    return not any(name in kind for kind in around[:-1])


def _checked_late(hook: Any) -> bool | int:
    late = getattr(hook, "late", False)
    if not isinstance(late, int) or late < 0:
        raise TypeError(f"The {describe(hook)} must have True, False or a number of runs as late, got {late!r}.")
    return late
