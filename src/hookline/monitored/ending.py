"""Ending: closes a monitored session, in order or after a failure."""

from __future__ import annotations

import signal
from types import TracebackType
from typing import Any, Self

from hookline import log, notebooks, preemption
from hookline.coordination import peers, service
from hookline.data.iterator import BatchSource
from hookline.data.sequences import Restart
from hookline.errors import END_OF_INPUT, LEFT_IN_ORDER, OutOfRangeError
from hookline.graph import Graph
from hookline.graph.front_end import OfFrontEnd
from hookline.graph.global_step import counted_global_step
from hookline.monitored import finalized
from hookline.monitored.creators import ChiefSessionCreator, WorkerSessionCreator
from hookline.monitored.guard import Claim, SessionGuard
from hookline.monitored.hook_list import HookList
from hookline.monitored.in_step import InStep
from hookline.monitored.recoverable import RecoverableSession
from hookline.monitored.stop_request import StopRequest
from hookline.session import Session, origin
from hookline.summary import FileWriterCache
from hookline.summary.writer_cache import WriterScope

logger = log.of(__name__)

CLOSED = "Session is already closed."
_CLOSED_INSIDE = (
    "A monitored session cannot be closed from inside one of its runs or callbacks. To end the training, call "
    "run_context.request_stop() in a hook, or step_context.request_stop() in a step function."
)


class Ending(OfFrontEnd):
    """The part of a monitored session that closes it; `MonitoredLifecycle` sets the attributes."""

    _closed: bool
    _creator: Any
    _grace_secs: float
    _graph: Graph
    _hooks: HookList
    _in_step: InStep | None
    _spans_cells: bool
    _preemption: preemption.Watch
    _raw: Session | None
    _session: RecoverableSession
    _stop: StopRequest
    _told: object
    _guard: SessionGuard
    _writers: WriterScope
    _written_in_step: int | None

    def _catch_signals(self) -> None:
        """Catches signals if leaving in order is worthwhile."""
        # A worker saves nothing; it leaves in order for those that continue. In step all leave together.
        is_worth_it = self._hooks.savers or isinstance(self._creator, WorkerSessionCreator) or self._in_step is not None
        if is_worth_it or notebooks.shell() is not None:  # In a notebook the objects outlive the cell.
            self._preemption.open()

    def _leave_cells(self) -> None:
        """Has an interrupt end the session from now on: it is in a `with` block, or being closed."""
        if self._spans_cells:
            self._spans_cells = False
            self._catch_signals()

    def __enter__(self) -> Self:
        if self._closed:
            raise RuntimeError(CLOSED)
        self._leave_cells()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        ended = exception is None or isinstance(exception, _IN_ORDER)
        with Claim(self._guard) as claim, claim:
            try:
                self._take_last(claim)
            except BaseException as waiting:
                if ended or exception is None:
                    raise
                self._notify(exception)
                exception.add_note(f"While leaving the session: {waiting}")
                return False
            failures = [] if self._closed else self._finish(exception)
        if exception is not None and (not ended or isinstance(exception, LEFT_IN_ORDER)):
            _first([exception, *failures])
            return False
        if failures:
            raise _first(failures)
        self._leave()
        return True

    def close(self) -> None:
        """Calls every hook's `end`, stops the threads and closes the session.

        If another thread is running the session, this requests a stop and waits for the end of that run, at most as
        long as for the threads.

        Raises:
            Preempted: A signal asked the process to end; everything is closed.
            RuntimeError: The session is already closed. Or this was called inside a hook's callback or a step function,
                or the run of another thread did not end in time; then nothing has been closed.
            BaseException: The first error of a late hook or an `end`, of a thread, or of closing; others are noted
                on it.
        """
        if self._closed:
            raise RuntimeError(CLOSED)
        self._leave_cells()
        with Claim(self._guard) as claim, claim:
            self._take_last(claim)
            # Other code may have closed it in the meantime, as desired.
            failures = [] if self._closed else self._finish(None)
        if failures:
            raise _first(failures)
        self._leave()

    def _leave(self) -> None:
        """Raises `Preempted` once everything is closed, if a signal was the reason."""
        preempted = self._preemption.error()
        if preempted is not None:
            raise preempted

    def _take_last(self, claim: Claim) -> None:
        """Keeps other threads out for good; waits for the run of a thread that is inside."""
        if self._guard.is_mine:
            raise RuntimeError(_CLOSED_INSIDE)
        if claim.take():
            return
        if not self._closed:
            self._session.request_stop()
        if not claim.take(self._grace_secs):
            raise RuntimeError(
                f"The session cannot be closed: a run in {self._guard.owner} did not end within {self._grace_secs:g} s."
            )

    def _finish(self, leaving: BaseException | None) -> list[BaseException]:
        """Ends or abandons the training and closes everything; returns the errors in order."""
        self._closed = self._stop.asked = True
        failures: list[BaseException] = []
        self._say_why_it_ends(leaving)
        # Whatever happens in between, even a second Ctrl-C: threads, session, files and graph are not left behind.
        for part in (
            lambda: failures.extend(self._wind_up(leaving)),
            self._agree_on_signals,
            self._leave_step,
            self._session.close,
            lambda: FileWriterCache.release(self._writers),
            self._preemption.close,
            self._give_back,
        ):
            try:
                part()
            except BaseException as exc:
                failures.append(exc)
        return failures

    def _say_why_it_ends(self, leaving: BaseException | None) -> None:
        """Logs, in processes that run in step, why the session ends, unless they have agreed on a stop."""
        failure = leaving or self._session.failure
        if isinstance(failure, END_OF_INPUT):
            self._say_why("the data have ended")
        elif failure is not None and not isinstance(failure, LEFT_IN_ORDER):
            self._say_why(f"{type(failure).__name__}: {failure}")
        elif failure is None and not self._stop.requested and self._preemption.number is None:
            self._say_why("the script has left the session")

    def _say_why(self, why: str) -> None:
        """Logs, in processes that run in step, why the training stops; the chief does so for all."""
        if self._in_step is not None:
            try:
                place = f"step {self._session.raw.global_step}"
            except Exception:  # There is none, or it is lost.
                place = f"run {self._stop.runs}"
            logger.info("The training stops after %s: %s.", place, why)

    def _agree_on_signals(self) -> None:
        """Lets a signal that came after the last run, to any process, end all of them."""
        process, number = (0, None) if self._in_step is None else self._in_step.agree_on_signals()
        if number is not None:
            if self._preemption.number is None:
                self._say_why(f"process {process} has got {signal.Signals(number).name}")
            preemption.agree(number)

    def _leave_step(self) -> None:
        if self._in_step is not None:
            self._stop.agree = None
            self._in_step.leave()

    def _wind_up(self, leaving: BaseException | None) -> list[BaseException]:
        lost = self._session.failure
        if leaving is not None and not isinstance(leaving, _IN_ORDER):
            self._fail(leaving)
        elif lost is None:
            if isinstance(leaving, OutOfRangeError):
                self._warn_of_no_run(leaving)
            return self._end()
        elif not self._knows(lost):
            # should_stop() could not raise this.
            self._notify(lost)
            return [lost]
        return []

    def _warn_of_no_run(self, ended: OutOfRangeError) -> None:
        """Warns that the data ended before the first run, as after a training that has read them all."""
        raw = self._session.raw
        if self._stop.runs or not peers.speaks() or counted_global_step(raw.graph) is None:
            return
        begin_anew = origin.to_begin_anew(raw)
        words = ended.op.sequence.restart if isinstance(ended.op, BatchSource) else Restart()
        logger.warning(
            "Nothing was run: the data ended before the first run, %s. %s%s.",
            origin.where(raw),
            f"To train on, {words.more}"
            if begin_anew
            else "Give a source that has batches; if it is an iterator that was used up, a function that makes it",
            begin_anew,
        )

    def _end(self) -> list[BaseException]:
        raw, is_settled = self._session.raw, False
        while not is_settled:
            try:
                if isinstance(self._creator, ChiefSessionCreator):
                    # No worker's update may come after the state that the hooks save and evaluate in `end`.
                    raw.lowlevel.seal()
                self._session.current.hooked.settle()
                is_settled = True
            except BaseException as exc:
                failure = raw.lowlevel.map_error(exc)
                # Errors of late hooks count as errors of the run. The end of the input is not a failure, and the loop
                # settles the rest.
                if not isinstance(failure, END_OF_INPUT):
                    self._deliver_arrived()
                    self._notify(failure)
                    return [failure]
        if self._in_step is not None:
            try:
                self._in_step.check_end()
            except Exception as exc:
                self._fail(exc)
                return [exc]
        return self._hooks.end(raw)

    def _fail(self, exception: BaseException) -> None:
        """Saves the last state and tells the hooks, after a run or the body failed with this error."""
        if not isinstance(exception, _IN_ORDER):
            self._tell_of(exception)
            self._save_last(exception)
            if not self._knows(exception):
                self._deliver_arrived()
            self._notify(exception)

    def _tell_of(self, exception: BaseException) -> None:
        """Tells the processes that run in step with this one that it has failed."""
        if self._in_step is None or self._in_step.failed_elsewhere() is not None or self._in_step.has_failed:
            return
        if service.is_loss(exception):
            self._in_step.lose(exception)
        else:
            if isinstance(exception, SystemExit) and not isinstance(exception, LEFT_IN_ORDER):
                service.leave_at_once(service.status_of(exception))
            of_process = getattr(exception, "of_process", None)
            self._in_step.fail(f"{type(exception).__name__}: {exception}", of_process)

    def _failed_elsewhere(self, exception: BaseException) -> BaseException | None:
        """Returns the error of another failed process, unless this error already names its process."""
        if self._in_step is None or getattr(exception, "of_process", None) is not None:
            return None
        return self._in_step.failed_elsewhere()

    def _deliver_arrived(self) -> None:
        """Delivers the arrived values to late hooks, because the session may not run again."""
        try:
            if self._session.failure is None:
                self._session.current.hooked.deliver_arrived()
        except BaseException as failure:  # The first error is the one to report.
            logger.error("A late hook failed: %s: %s", type(failure).__name__, failure)

    def _save_last(self, exception: BaseException) -> None:
        """Lets the hooks that save write the state of the last completed run, after a run or the body failed."""
        if self._knows(exception) or self._session.failure is not None or preemption.urgent():
            return
        if self._in_step is not None:
            return  # All processes save together, and a failed one is not at the same run as the others.
        savers = self._hooks.savers
        hooked = self._session.current.hooked
        if not savers or hooked.raw.closed or hooked.raw.lowlevel.shared or not hooked.at_rest:
            return
        if self._written_in_step is not None and hooked.raw.lowlevel.writes != self._written_in_step:
            return  # The step function changed variables itself.
        try:
            hooked.settle()  # This raises a pending NaN error: such a state must not be kept.
            if hooked.raw.fault is not None:
                return
            for save_last in savers:
                save_last(hooked.raw, exception)
        except BaseException as failure:  # A Ctrl-C too, because the first error is the one to report.
            logger.error(
                "After %s no last checkpoint was saved: %s: %s",
                type(exception).__name__,
                type(failure).__name__,
                failure,
            )

    def _notify(self, exception: BaseException) -> None:
        """Tells the hooks about a failure, once: the error of a run usually leaves the `with` block too."""
        if not self._knows(exception) and not isinstance(exception, END_OF_INPUT):
            vars(exception)[_TOLD] = self._told
            raw = self._raw
            assert raw is not None, "A failure needs a session."
            self._hooks.on_exception(raw, exception)

    def _knows(self, exception: BaseException) -> bool:
        return vars(exception).get(_TOLD) is self._told

    def _give_back(self) -> None:
        if self._raw is not None:
            self._raw.lowlevel.hook_states = dict
        self._hooks.release()
        finalized.release(self._graph, self)
        if failures := self._hooks.after_close():
            raise _first(failures)


_TOLD = "_hookline_told"
# Exceptions that leave a session in order, so that `end` is called.
_IN_ORDER = (*END_OF_INPUT, *LEFT_IN_ORDER)


def is_success(exception: BaseException | None) -> bool:
    """Returns whether an exception is that of `sys.exit()` or `sys.exit(0)`."""
    return isinstance(exception, SystemExit) and exception.code in (None, 0)


def _first(failures: list[BaseException]) -> BaseException:
    """Returns the first error, with the others noted on it."""
    first, *others = failures
    for other in others:
        if other is not first:
            logger.error("While closing the session: %s: %s", type(other).__name__, other)
            first.add_note(f"While closing the session, after that: {type(other).__name__}: {other}")
    return first
