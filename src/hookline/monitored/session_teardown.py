"""SessionTeardown: handles failures of a monitored session, and closes it."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Iterable

from hookline import log, summary
from hookline.coordination import process_group
from hookline.data.iterator import BatchSource
from hookline.data.sequences import RestartAdvice
from hookline.errors import END_OF_INPUT, GRACEFUL_EXITS, OutOfRangeError
from hookline.graph.global_step import find_global_step
from hookline.hooks.epochs import known_epochs
from hookline.monitored.recoverable import RecoverableSession
from hookline.monitored.spmd_sync import SpmdSync
from hookline.monitored.starting.creators import ChiefSessionCreator
from hookline.monitored.starting.session_setup import SessionSetup
from hookline.monitored.stop_request import FINAL_STOP_KEY, StopRequest
from hookline.session import Session, origin
from hookline.signals import preemption
from hookline.summary import FileWriterCache
from hookline.summary.writer_cache import WriterScope, find_writer

logger = log.get_logger(__name__)

_NOTIFIED = "_hookline_notified"
# The code that requests a stop, as `caller` describes it, if it is a callback of a hook.
_CALLBACK = re.compile(r"(\w+)\.(?:on_trigger|after_run|before_run|after_create_session), ")
# A point before a capital letter, but not that of "e.g." or "vs.".
_END_OF_SENTENCE = re.compile(r"(?<!\bvs)(?<!\be\.g)(?<!\bi\.e)\. (?=[A-Z])")
CLEAN_EXITS = (*END_OF_INPUT, *GRACEFUL_EXITS)
"""The exceptions after which a session closes gracefully: the hooks get `end`."""


class SessionTeardown:
    """Closes a monitored session, gracefully or after a failure, and notifies the hooks.

    Args:
        session: The session.
        setup: The hooks and the graph.
        stop: The request to stop.
        signals: The handling of signals.
        spmd: The agreement with the other processes; None if there are none.
        writers: The scope of the summary writers.
        summary_dir: The directory of the shared summary writer; None without one.
    """

    def __init__(
        self,
        session: RecoverableSession,
        setup: SessionSetup,
        stop: StopRequest,
        signals: preemption.SessionSignals,
        spmd: SpmdSync | None,
        writers: WriterScope,
        summary_dir: str | None,
    ) -> None:
        self._session, self._setup, self._stop = session, setup, stop
        self._signals, self._spmd, self._writers, self._summary_dir = signals, spmd, writers, summary_dir
        # Marks the errors that hooks were notified of: references to them would keep their tracebacks, and so fed
        # values.
        self._notified_mark = object()

    # A failure --------------------------------------------------------------------------------------------------

    def handle_failure(self, exception: BaseException, *, save_state: bool = True) -> None:
        """Saves the last state and notifies the hooks, after an error of a run or the body that is no clean exit.

        Args:
            exception: The error.
            save_state: Whether to save; not if a step function has changed variables outside of runs with hooks.
        """
        if not isinstance(exception, CLEAN_EXITS):
            if self._spmd is not None:
                self._spmd.report_error(exception)
            if not self._is_notified(exception):
                if save_state:
                    self._save_on_failure(exception)
                self._deliver_ready()
            self.notify_hooks(exception)

    def handle_run_failure(self, exception: BaseException, *, save_state: bool = True) -> BaseException:
        """Does the same after a run; returns its error, or the error of another process that caused it."""
        other = None
        if self._spmd is not None and getattr(exception, "process_index", None) is None:
            other = self._spmd.failure_behind(exception)
        self.handle_failure(other or exception, save_state=save_state)
        return other or exception

    def handle_setup_failure(self, exception: BaseException) -> None:
        """Notifies the hooks that the session could not open, and releases its resources; errors become notes."""
        self._stop.closed = True
        if self._spmd is not None:
            self._spmd.report_error(exception)
        if self._setup.raw is not None:
            self.notify_hooks(exception)
        for failure in self._release():
            exception.add_note(f"Releasing the session's resources failed as well: {failure!r}")

    def _deliver_ready(self) -> None:
        """Calls the deferred hooks whose values are ready, because the session may not run again."""
        try:
            if self._session.failure is None:
                self._session.hooked.deliver_ready()
        except BaseException as failure:  # The other hooks must still be notified of the first error.
            logger.error("A deferred hook failed: %s: %s", type(failure).__name__, failure)

    def _save_on_failure(self, exception: BaseException) -> None:
        """Calls every `save_on_failure`, if the variables are those after the last completed run."""
        if self._session.failure is not None or preemption.must_exit_now():
            return
        if self._spmd is not None:
            return  # All processes save together, and a failed one may be at another run than the others.
        savers, hooked = self._setup.hooks.save_on_failure_callbacks, self._session.hooked
        if not savers or hooked.raw.closed or hooked.raw.backend.shared or not hooked.is_state_consistent:
            return
        try:
            hooked.deliver_pending()  # This raises a pending NaN error: such a state must not be kept.
            if hooked.raw.invalid_reason is not None:
                return
            for save_on_failure in savers:
                save_on_failure(hooked.raw, exception)
        except BaseException as failure:  # Also after a second Ctrl-C the hooks must be notified of the first error.
            logger.error(
                "After %s no last checkpoint was saved: %s: %s",
                type(exception).__name__,
                type(failure).__name__,
                failure,
            )

    def notify_hooks(self, exception: BaseException) -> None:
        """Notifies the hooks of an error once: the error of a run usually leaves the `with` block too."""
        if not self._is_notified(exception) and not isinstance(exception, END_OF_INPUT):
            self._set_reason(exception)
            vars(exception)[_NOTIFIED] = self._notified_mark
            assert self._setup.raw is not None, "A failure needs a session."
            self._setup.hooks.on_exception(self._setup.raw, exception)

    def _is_notified(self, exception: BaseException) -> bool:
        return vars(exception).get(_NOTIFIED) is self._notified_mark

    # The end ----------------------------------------------------------------------------------------------------

    def finish(self, body_error: BaseException | None) -> list[BaseException]:
        """Ends the training, or handles its failure, and closes everything; returns the errors in order.

        Args:
            body_error: The exception of the body, if any.
        """
        self._stop.closed = self._stop.was_ever_requested = True
        self._set_reason(body_error or self._session.failure or self._session.reported_error())
        self._log_end_reason(body_error)
        ended = _collect_errors(lambda: self._end_or_fail(body_error), self._agree_on_signals)
        # A pending Ctrl-C comes last, so that it hides no other error.
        return [*ended, *self._release(), *_collect_errors(preemption.raise_pending_interrupt)]

    def _release(self) -> list[BaseException]:
        """Leaves the SPMD processes, and releases threads, session, files, signals, hooks and graph."""
        return _collect_errors(
            *([] if self._spmd is None else [self._spmd.close]),
            self._session.close,
            lambda: FileWriterCache.release(self._writers),
            self._signals.close,
            self._setup.release,
        )

    def _end_or_fail(self, body_error: BaseException | None) -> list[BaseException]:
        lost = self._session.failure
        if body_error is not None and not isinstance(body_error, CLEAN_EXITS):
            self.handle_failure(body_error)
        elif lost is None:
            if isinstance(body_error, OutOfRangeError):
                self._warn_no_runs(body_error)
            failures = self._end_hooks()
            is_interrupted = isinstance(body_error, GRACEFUL_EXITS) or self._signals.shutdown_signal is not None
            if not failures and not is_interrupted and (self._final_reason() or not self._stopped_by()):
                self._write_stop()
            return failures
        elif not self._is_notified(lost):
            # should_stop() met this error, and never raises.
            self.notify_hooks(lost)
            return [lost]
        return []

    def _end_hooks(self) -> list[BaseException]:
        raw, is_delivered = self._session.raw, False
        while not is_delivered:
            try:
                if isinstance(self._setup.creator, ChiefSessionCreator):
                    # No worker's update may come after the state that the hooks save and evaluate in `end`.
                    raw.backend.end_training()
                self._session.hooked.deliver_pending()
                is_delivered = True
            except BaseException as exc:  # The hooks must be notified, so that they release their resources.
                failure = raw.backend.map_error(exc)
                # Errors of deferred hooks count as errors of the run. The end of the input is no failure: the loop then
                # delivers the remaining results.
                if not isinstance(failure, END_OF_INPUT):
                    self._deliver_ready()
                    self.notify_hooks(failure)
                    return [failure]
        if self._spmd is not None:
            try:
                self._spmd.check_same_launches()
            except Exception as exc:
                self.handle_failure(exc)
                return [exc]
        return self._setup.hooks.end(raw)

    def _write_stop(self) -> None:
        """Writes `SessionLog(STOP)`, which distinguishes a finished training from one that a restart would continue."""
        writer = find_writer(self._summary_dir) if self._summary_dir and process_group.is_primary() else None
        if writer is not None:
            raw = self._session.raw
            step = None if find_global_step(raw.graph) is None else raw.global_step
            writer.add_session_log(summary.SessionLog(status=summary.SessionLog.STOP), step)

    def _agree_on_signals(self) -> None:
        """Ends all SPMD processes if one has received a signal after the last run."""
        process, number = (0, None) if self._spmd is None else self._spmd.agree_on_signals()
        if number is not None:
            if self._signals.shutdown_signal is None:
                self.log_stop_reason(f"process {process} has received {signal.Signals(number).name}")
            preemption.set_agreed_signal(number)

    # The reason -------------------------------------------------------------------------------------------------

    def _set_reason(self, failure: BaseException | None) -> None:
        """Sets `stop_reason`, for hooks and for the user."""
        self._stop.reason = self._describe_reason(failure)
        if self._setup.raw is not None:
            self._setup.raw.stop_reason = self._stop.reason

    def _describe_reason(self, failure: BaseException | None) -> str:
        if isinstance(failure, END_OF_INPUT):
            raw = self._session.raw
            epochs = None if raw is None else known_epochs(raw)
            if raw is not None and epochs and (epochs.total or 0) > 1:
                return _excess_epochs(raw) or f"{epochs.total} epochs are done"
            return "the data have ended"
        if failure is not None and not isinstance(failure, GRACEFUL_EXITS):
            first_sentence = _first_sentence(_describe_error(failure).partition("\n")[0])
            return first_sentence.removesuffix(": ")  # The error, with all of its message, is raised.
        if (number := self._signals.shutdown_signal) is not None:
            return f"{signal.Signals(number).name} was received"
        if failure is not None:
            return "the cell was interrupted"
        if (raw := self._session.raw) is not None and raw.is_invalid:
            return _first_sentence(f"{raw.invalid_reason}")
        if requested_by := self._stopped_by():
            final_reason = self._final_reason()
            return f"{requested_by} has requested it{': ' * bool(final_reason)}{final_reason}"
        limit = self._session.raw.step_limit
        return f"the last step, {limit}, is reached" if self._is_at_limit() else "the script has left the session"

    def _is_at_limit(self) -> bool:
        raw = self._session.raw
        with contextlib.suppress(Exception):  # The step may be on a parameter server, which may be lost.
            return raw.step_limit is not None and raw.global_step >= raw.step_limit
        return False

    def _final_reason(self) -> str:
        """Returns the reason of a final stop, in a run or before the first; empty without one."""
        raw = self._session.raw
        return self._stop.final_reason or ("" if raw is None else raw.hook_data.get(FINAL_STOP_KEY, ""))

    def _stopped_by(self) -> str:
        """Returns the hook or the code that has requested a stop before the last step; empty without one."""
        if self._is_at_limit():
            return ""
        coord = self._session.coord
        requested_by = self._stop.requested_by or (coord.stop_requested_by if coord.should_stop() else "")
        hook = _CALLBACK.match(requested_by)
        return hook[1] if hook else requested_by

    # Logs -------------------------------------------------------------------------------------------------------

    def log_stop_reason(self, reason: str) -> None:
        """Logs why the training of SPMD processes stops; the chief does so for all."""
        if self._spmd is not None:
            try:
                position = f"step {self._session.raw.global_step}"
            except Exception:  # The graph has no global step, or it is lost.
                position = f"run {self._stop.runs}"
            logger.info("The training stops after %s: %s.", position, reason)

    def _log_end_reason(self, body_error: BaseException | None) -> None:
        """Logs why the session of SPMD processes ends, unless they have agreed on a stop."""
        failure = body_error or self._session.failure
        if isinstance(failure, END_OF_INPUT):
            self.log_stop_reason("the data have ended")
        elif failure is not None and not isinstance(failure, GRACEFUL_EXITS):
            self.log_stop_reason(_describe_error(failure))
        elif failure is None and not self._stop.requested and self._signals.shutdown_signal is None:
            self.log_stop_reason("the script has left the session")

    def _warn_no_runs(self, ended: OutOfRangeError) -> None:
        """Warns that the data ended before the first step, as when an earlier training run has read them all."""
        raw = self._session.raw
        if self._stop.runs or not process_group.is_primary() or find_global_step(raw.graph) is None:
            return
        restart_advice = origin.restart_advice(raw)
        words = ended.op.sequence.restart if isinstance(ended.op, BatchSource) else RestartAdvice()
        logger.warning(
            "No step was trained: %s, %s. %s%s.",
            _excess_epochs(raw) or "the data ended before the first step",
            origin.describe_session(raw),
            f"To continue training, {words.more}"
            if restart_advice
            else "Give a source that has batches; if it is an iterator that was used up, a function that makes it",
            restart_advice,
        )


def _excess_epochs(raw: Session) -> str:
    """Returns that more epochs are done than this start asks for; empty if not, or if it need not have asked."""
    epochs = known_epochs(raw)
    if epochs is None or (epochs.total or 0) < 2:
        return ""
    done = epochs.done_at(raw.global_step)
    return f"{done} epochs are done already, and epochs={epochs.total} is lower" if done > (epochs.total or 0) else ""


def _collect_errors(*parts: Callable[[], Iterable[BaseException] | None]) -> list[BaseException]:
    """Calls all functions, even if some raise; returns the errors that they return or raise."""
    failures: list[BaseException] = []
    for part in parts:
        try:
            failures += part() or ()
        except BaseException as exc:  # After any error, the other parts must be released.
            failures.append(exc)
    return failures


def first_with_notes(failures: list[BaseException]) -> BaseException:
    """Returns the first error, with the others as notes."""
    found, *others = failures
    for other in others:
        if other is not found and not process_group.is_job_failure(other):  # It follows from the first one.
            logger.error("While closing the session: %s: %s", type(other).__name__, other)
            found.add_note(f"While closing the session, after that: {_describe_error(other)}")
    return found


def _describe_error(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # The user's `__str__` has failed.
        return type(error).__name__


def _first_sentence(text: str) -> str:
    return _END_OF_SENTENCE.split(text, maxsplit=1)[0]
