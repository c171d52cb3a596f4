"""SessionSetup: creates the raw sessions of a monitored session, with its hooks around them."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from hookline import log
from hookline.coordination import Coordinator
from hookline.errors import PREEMPTION_ERRORS
from hookline.graph import Graph
from hookline.graph.registry import FINALIZED
from hookline.monitored.hooked.callbacks import call_after_create_session, describe, is_hook, overridden_callback
from hookline.monitored.hooked.fast_path import FastPath
from hookline.monitored.hooked.hook_list import HookList, is_claimed
from hookline.monitored.hooked.hook_schedule import step_of
from hookline.monitored.hooked.hooked_session import HookedSession
from hookline.monitored.spmd_sync import SpmdSync
from hookline.monitored.starting.creators import SessionCreator
from hookline.monitored.stop_request import StopRequest
from hookline.session import Session
from hookline.signals import preemption
from hookline.signals.interrupts import mark_user_function

logger = log.get_logger(__name__)

# The setups that keep a graph finalized, because it was not when the first of them claimed it.
_holders: weakref.WeakKeyDictionary[Graph, weakref.WeakSet[SessionSetup]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class SessionSetup:
    """Creates the raw sessions of a monitored session, each with its hooks around it, and claims graph and hooks.

    Args:
        creator: Creates a raw session.
        graph: The graph, which stays finalized until the last session on it is closed.
        hooks: The hooks.
        stop: The request to stop.
        fast_path: The fast path.
        steps_per_run: The maximum number of steps of a run.
        spmd: Synchronises the SPMD processes; None in a single process.
        grace_secs: The maximum wait for threads of a session that closes because a hook has failed.

    Attributes:
        creator: As above.
        graph: As above.
        hooks: The hooks; another list after a hook was added.
        raw: The last created raw session, even if a hook then failed; None before the first one.
    """

    def __init__(
        self,
        creator: SessionCreator,
        graph: Graph,
        hooks: HookList,
        stop: StopRequest,
        fast_path: FastPath,
        steps_per_run: int,
        spmd: SpmdSync | None,
        grace_secs: float,
    ) -> None:
        self.creator, self.graph, self.hooks = creator, graph, hooks
        self._stop, self._fast_path, self._steps_per_run, self._spmd = stop, fast_path, steps_per_run, spmd
        self._grace_secs = grace_secs
        mark_user_function(creator.create_session)
        self.raw: Session | None = None

    def claim(self) -> None:
        """Claims the hooks and the graph.

        Raises:
            RuntimeError: A hook or its trigger belongs to another open session, or is listed twice.
        """
        self.hooks.claim(self)
        with _lock:
            if not self.graph.finalized:
                _holders.setdefault(self.graph, weakref.WeakSet())
            if self.graph in _holders:
                _holders[self.graph].add(self)

    def create_session(self) -> tuple[HookedSession, Coordinator]:
        """Creates a raw session and calls every `after_create_session`; at the start and after each loss."""
        with self.graph.as_default():
            self.raw = raw = self.creator.create_session()
            preemption.reinstall_handlers()
            # A thread's OutOfRangeError is an error: the input ends a training only in a run that reads it.
            coord = Coordinator(clean_stop_exception_types=())
            coord.on_stop(lambda: self._stop.note_request(coord.stop_requested_by))
            hooked = HookedSession(raw, self.hooks, self._stop, self._fast_path, self._steps_per_run, self._spmd)
            try:
                raw.backend.attach_coordinator(coord)
                raw.backend.can_limit_step = lambda owner: is_claimed(owner) or not is_hook(owner)
                raw.backend.hook_states = lambda: self.hooks.states.collect(step_of(raw))
                self.hooks.states.restore(raw.backend.restored_hook_states, step_of(raw))
                self.hooks.after_create_session(raw, coord)
                hooked.set_hooks(self.hooks)
            except BaseException as exc:  # The session and its threads must be closed.
                mapped = raw.backend.map_error(exc)
                try:
                    close_session(hooked, coord, self._grace_secs)
                except Exception as closing:
                    if closing is not mapped:
                        mapped.add_note(f"Closing the session failed as well: {closing!r}")
                if mapped is exc:
                    raise
                raise mapped from mapped.__cause__
            return hooked, coord

    def add_hook(self, hook: Any, hooked: HookedSession, coord: Coordinator) -> None:
        """Adds a hook to the open session; see `MonitoredSession.add_hook`."""
        hooks = HookList([*self.hooks.hooks, hook], self.hooks.wrap_callback, self.hooks)
        hooks.claim(self)
        raw = hooked.raw
        try:
            with self.graph.as_default():
                _begin_added(hook)
                hooks.states.assign([hook], step_of(raw))
                call_after_create_session(hook, raw, coord)
            hooked.set_hooks(hooks)
        except BaseException as exc:  # The hook must be released.
            mapped = raw.backend.map_error(exc)
            hooks.release()
            added = HookList([hook])
            added.on_exception(raw, mapped)
            for failure in added.after_close():
                mapped.add_note(f"Releasing the hook's resources failed as well: {failure!r}")
            if mapped is exc:
                raise
            raise mapped from mapped.__cause__
        self.hooks.release()
        self.hooks = hooks

    def release(self) -> list[BaseException]:
        """Releases hooks and graph, and calls every `after_close`; returns the errors of these.

        The graph is no longer finalized if this was the last session on it, and it was not before the first one.
        """
        if self.raw is not None:
            self.raw.backend.hook_states = dict
        self.hooks.release()
        with _lock:
            holders = _holders.get(self.graph)
            if holders is not None:
                holders.discard(self)
                if not holders:
                    del _holders[self.graph]
                    self.graph.reopen()
        return self.hooks.after_close()


def close_session(hooked: HookedSession, coord: Coordinator, grace_secs: float) -> None:
    """Stops the threads of a raw session, waits for them at most `grace_secs`, and closes the session.

    A preemption error of closing is only logged, because the session is not needed any more.

    Raises:
        BaseException: The error that a thread has reported, or another error of closing.
    """
    coord.request_stop()
    raw = hooked.raw
    try:
        # After a signal, half of the time left is for the work after the threads have stopped.
        grace_secs = min(grace_secs, preemption.remaining_secs() / 2)
        coord.join(stop_grace_period_secs=grace_secs, ignore_live_threads=True)
    finally:
        hooked.end_fast_path()
        try:
            raw.close()
        except Exception as exc:
            mapped = raw.backend.map_error(exc)
            if not isinstance(mapped, PREEMPTION_ERRORS):
                raise
            logger.warning("Closing a lost session failed, which changes nothing: %s", mapped)


def _begin_added(hook: Any) -> None:
    """Calls the `begin` of an added hook."""
    begin = overridden_callback(hook, "begin")
    try:
        if begin is not None:
            begin()
    except RuntimeError as exc:
        if not str(exc).startswith(FINALIZED):
            raise
        raise RuntimeError(
            f"The {describe(hook)} cannot join an open session: its begin adds to the graph, which is final. "
            f"Pass it in hooks= where the session is made. {exc}"
        ) from exc
