"""Opening: creates the raw session of a monitored session with its hooks, and adds hooks to an open one."""

from __future__ import annotations

import threading
from typing import Any

from hookline.coordination import Coordinator
from hookline.graph.registry import FINALIZED
from hookline.monitored.callbacks import checked_hooks, create_for, describe, is_hook, override
from hookline.monitored.coordinated import CoordinatedSession
from hookline.monitored.ending import CLOSED
from hookline.monitored.fast_path import FastPath
from hookline.monitored.guard import Claim
from hookline.monitored.hook_list import HookList, is_claimed
from hookline.monitored.hooked import HookedSession
from hookline.monitored.stopping import Stopping
from hookline.session import Session

_INSIDE = (
    "A monitored session cannot {what} from inside one of its runs or callbacks. In a hook, run_context.session.run "
    "runs without hooks; in a step function, step_context.run_with_hooks runs with them."
)


class Opening(Stopping):
    """The part of a monitored session that opens raw sessions, adds hooks to an open one, and admits callers."""

    _fast_path: FastPath
    _steps_per_run: int
    _stepping: CoordinatedSession | None

    def _create(self) -> CoordinatedSession:
        """Creates a raw session and calls every `after_create_session`; at the start and after each loss."""
        self._stepping = None
        with self._graph.as_default():
            self._raw = raw = self._creator.create_session()
            self._preemption.renew()
            # A thread's OutOfRangeError is an error of the session: only its consumer ends the training quietly.
            coord = Coordinator(clean_stop_exception_types=())
            coord.on_stop(lambda: self._stop.ask(coord.asked_by))
            hooked = HookedSession(raw, self._hooks, self._stop, self._fast_path, self._steps_per_run, self._in_step)
            session = CoordinatedSession(hooked, coord, self._grace_secs)
            try:
                raw.lowlevel.serve(coord)
                raw.lowlevel.may_limit = lambda owner: is_claimed(owner) or not is_hook(owner)
                raw.lowlevel.hook_states = lambda: self._hooks.states.taken(_step_of(raw))
                self._hooks.states.restore(raw.lowlevel.restored_hook_states, _step_of(raw))
                self._hooks.after_create_session(raw, coord)
                hooked.use(self._hooks)
            except BaseException as exc:
                mapped = raw.lowlevel.map_error(exc)
                try:
                    session.close()
                except Exception as closing:
                    if closing is not mapped:
                        mapped.add_note(f"Closing the session failed as well: {closing!r}")
                if mapped is exc:
                    raise
                raise mapped from mapped.__cause__
            return session

    def add_hook(self, hook: Any) -> None:
        """Adds a hook, from the next run on.

        Its `begin` and `after_create_session` are called at once. It comes last, unless a hook declares another order.

        Args:
            hook: A hook whose `begin` adds nothing to the graph.

        Raises:
            TypeError: It is not a hook.
            ValueError: It or a hook of the session keeps a state, and both have the same identity.
            RuntimeError: Its `begin` adds to the graph, which is finalized by now; a run is under way; it already
                serves a session; or the session is closed.
            BaseException: A callback of the hook raised. The hook then gets `on_exception`, and is not added.
        """
        (hook,) = checked_hooks([hook])
        if any(hook is known for known in self._hooks.hooks):
            raise RuntimeError(f"The {describe(hook)} serves this session already.")
        with Claim(self._guard) as claim, claim:
            self._take_alone(claim, "take another hook")
            hooks = HookList([*self._hooks.hooks, hook], self._hooks.wraps, self._hooks)
            hooks.claim(self)
            raw = self._session.live().hooked.raw
            try:
                with self._graph.as_default():
                    self._begin_added(hook)
                    hooks.states.give([hook], _step_of(raw))
                    create_for(hook, raw, self._session.current.coord)
                self._session.current.hooked.use(hooks)
            except BaseException as exc:
                mapped = raw.lowlevel.map_error(exc)
                hooks.release()
                added = HookList([hook])
                added.on_exception(raw, mapped)
                for failure in added.after_close():
                    mapped.add_note(f"Releasing the hook's resources failed as well: {failure!r}")
                if mapped is exc:
                    raise
                raise mapped from mapped.__cause__
            self._hooks.release()
            self._hooks = hooks
            if not self._spans_cells:
                self._catch_signals()

    def _begin_added(self, hook: Any) -> None:
        """Calls the `begin` of an added hook."""
        begin = override(hook, "begin")
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

    def _take_alone(self, claim: Claim, what: str) -> None:
        """Keeps other threads out of this session."""
        if not claim.take():
            raise self._occupied(what)
        if self._closed:
            raise RuntimeError(CLOSED)
        self._session.live()

    def _occupied(self, what: str) -> RuntimeError:
        """Returns the error for a call that comes while the session is busy."""
        if self._closed:
            return RuntimeError(CLOSED)
        if self._guard.is_mine:
            return RuntimeError(_INSIDE.format(what=what))
        if self._guard.is_awaited:
            return RuntimeError(f"A monitored session that is being closed cannot {what}; ask should_stop() before.")
        return RuntimeError(
            f"A monitored session does one thing at a time, and {self._guard.owner} is inside: it cannot {what} for "
            f"{threading.current_thread().name} now. Let one thread run it; others may run raw_session() instead."
        )


def _step_of(session: Session) -> int | None:
    try:
        return session.global_step
    except (RuntimeError, TypeError):  # The graph has none, or one that cannot be counted.
        return None
