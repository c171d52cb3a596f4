"""Stopping: handles requests to stop a monitored session, from hooks, threads, signals and other processes."""

from __future__ import annotations

import threading
from typing import Any

from hookline import arguments, preemption
from hookline.coordination.agreement import FAILURE, Decision
from hookline.coordination.coordinator import caller
from hookline.hooks.when import bare
from hookline.monitored import in_step
from hookline.monitored.callbacks import Callback
from hookline.monitored.ending import CLOSED, Ending, is_success
from hookline.monitored.guard import Claim
from hookline.monitored.in_step import InStep


class Stopping(Ending):
    """The part of a monitored session that handles requests to stop, and decisions of the processes in step."""

    _exit: BaseException | None = None

    def _is_stopped(self) -> bool:
        """Returns whether a requested stop is in effect: a recovery may have made it unnecessary."""
        if self._closed or self._preemption.number is not None:
            return True
        if self._in_step is not None:
            return self._in_step_should_stop(self._in_step)
        if self._session.goes_on():
            return False
        with Claim(self._guard) as claim, claim:
            return self._session.should_stop() if claim.take() else self._session.looks_stopped()

    def _in_step_should_stop(self, others: InStep) -> bool:
        """Reserves the next run, unless the processes have agreed to stop before it; other threads only check."""
        with Claim(self._guard) as claim, claim:
            if others.thread == threading.get_ident() and claim.take() and self._session.failure is None:
                try:
                    if (error := self._session.current.reported_error()) is not None:
                        raise error
                    others.reserve()
                except Exception as error:
                    self._tell_of(error)
                    self._session.failure = error
        return self._stop.requested or self._session.failure is not None or self._preemption.number is not None

    def request_stop(self, *, final: str | None = None) -> None:
        """Makes `should_stop()` true and tells the threads to stop.

        In processes that run in step this takes effect before the next run that none of them has begun.

        Args:
            final: The reason why the training is complete, as in `SessionRunContext.request_stop`.

        Raises:
            RuntimeError: The session is closed.
        """
        why: str = arguments.text("request_stop", "final", final, optional=True) or ""
        if self._closed:
            raise RuntimeError(CLOSED)
        if self._in_step is not None:
            self._in_step.propose(in_step.STOP, [caller(), why])
            return
        self._stop.final = self._stop.final or why
        self._session.request_stop()

    # sys.exit(0) in one of the processes in step ----------------------------------------------------------------

    def _deferring(self, hook: Any, name: str, callback: Callback) -> Callback:
        """Makes `sys.exit(0)` in a callback of a run a request to stop: this process leaves with the others."""
        last: Any = None

        def call(*arguments: Any) -> Any:
            nonlocal last
            try:
                last = callback(*arguments)
            except SystemExit as exit:
                if not is_success(exit):
                    raise
                self._exit = self._exit or exit
                self._stop.request(f"sys.exit() in {type(bare(hook)).__name__}.{name}")
            return last  # This run still needs what the hook requests in the other processes.

        return call

    def _leave(self) -> None:
        super()._leave()
        if self._exit is not None:
            raise self._exit

    def _wake(self) -> None:
        """Asks threads, and waits on the coordinator, to stop because of a signal."""
        if self._in_step is not None:
            self._in_step.propose(in_step.SIGNAL, preemption.heard())
            return
        session = getattr(self, "_session", None)
        if session is not None and not self._closed:
            session.request_stop()

    def _act(self, decision: Decision) -> None:
        """Carries out a decision of the processes that run in step, before the same run in all of them."""
        assert self._in_step is not None, "It calls this."
        for _, kind, value in decision.proposals:
            if kind == FAILURE:
                raise self._in_step.end_with(*value)
        if reasons := in_step.reasons(decision, self._in_step.count):
            self._say_why(reasons)
        for _, kind, value in decision.proposals:
            if kind == in_step.DUE:
                self._in_step.become_due(value)
            elif kind == in_step.SIGNAL:
                preemption.agree(value)
            elif kind == in_step.STOP:
                self._stop.hold(in_step.asked(value)[1])

    def _doing(self) -> str:
        """Returns the session's activity when a signal comes, for the log."""
        if self._closed:
            return "the end of the session"
        if not hasattr(self, "_session"):
            return "the start of the session"
        return "the run under way" if self._guard.is_entered else "the next run"
