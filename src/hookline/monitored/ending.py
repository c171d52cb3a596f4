"""Ending: what becomes of a monitored session whose run or body has failed, or that is closed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable

from hookline import log
from hookline.coordination import peers
from hookline.data.iterator import BatchSource
from hookline.data.sequences import Restart
from hookline.errors import END_OF_INPUT, LEFT_IN_ORDER, OutOfRangeError
from hookline.graph.global_step import counted_global_step
from hookline.monitored.recoverable import RecoverableSession
from hookline.monitored.session_in_step import InStep
from hookline.monitored.starting.creators import ChiefSessionCreator
from hookline.monitored.starting.opening import Opening
from hookline.monitored.stop_request import StopRequest
from hookline.session import origin
from hookline.signals import preemption
from hookline.summary import FileWriterCache
from hookline.summary.writer_cache import WriterScope

logger = log.of(__name__)

_TOLD = "_hookline_told"
IN_ORDER = (*END_OF_INPUT, *LEFT_IN_ORDER)
"""Exceptions that leave a session in order, so that `end` is called."""


class Ending:
    """Ends a monitored session, in order or after a failure, and tells the hooks.

    Args:
        session: The session.
        opening: The hooks and the graph.
        stop: The request to stop.
        watch: The handling of signals.
        in_step: The agreement with the other processes; None if there are none.
        writers: The owner of the summary writers.
    """

    def __init__(
        self,
        session: RecoverableSession,
        opening: Opening,
        stop: StopRequest,
        watch: preemption.Watch,
        in_step: InStep | None,
        writers: WriterScope,
    ) -> None:
        self._session, self._opening, self._stop = session, opening, stop
        self._preemption, self._in_step, self._writers = watch, in_step, writers
        # Errors that hooks have been told of get this mark; keeping them would keep their tracebacks, and so fed
        # values.
        self._told = object()

    # A failure --------------------------------------------------------------------------------------------------

    def fail(self, exception: BaseException, *, saves: bool = True) -> None:
        """Saves the last state and tells the hooks, after a run or the body failed; not if the session ends in order.

        Args:
            exception: The error.
            saves: Whether the variables are those that the last run with hooks left.
        """
        if not isinstance(exception, IN_ORDER):
            if self._in_step is not None:
                self._in_step.tell_of(exception)
            if not self._knows(exception):
                if saves:
                    self._save_last(exception)
                self._deliver_arrived()
            self.notify(exception)

    def fail_run(self, exception: BaseException, *, saves: bool = True) -> BaseException:
        """Does the same after a run; returns its error, or that of another process, which has led to it."""
        other = None
        if self._in_step is not None and getattr(exception, "of_process", None) is None:
            other = self._in_step.failed_elsewhere()
        self.fail(other or exception, saves=saves)
        return other or exception

    def fail_opening(self, exception: BaseException) -> None:
        """Tells the hooks that the session could not be opened, and releases what it has; other errors are noted."""
        self._stop.closed = True
        if self._in_step is not None:
            self._in_step.tell_of(exception)
        if self._opening.raw is not None:
            self.notify(exception)
        for failure in self._release():
            exception.add_note(f"Releasing the session's resources failed as well: {failure!r}")

    def _deliver_arrived(self) -> None:
        """Delivers the arrived values to late hooks, because the session may not run again."""
        try:
            if self._session.failure is None:
                self._session.hooked.deliver_arrived()
        except BaseException as failure:  # The other hooks must still be told of the first one.
            logger.error("A late hook failed: %s: %s", type(failure).__name__, failure)

    def _save_last(self, exception: BaseException) -> None:
        """Lets the hooks that save write the state of the last completed run, after a run or the body failed."""
        if self._session.failure is not None or preemption.urgent():
            return
        if self._in_step is not None:
            return  # All processes save together, and a failed one is not at the same run as the others.
        savers, hooked = self._opening.hooks.savers, self._session.hooked
        if not savers or hooked.raw.closed or hooked.raw.lowlevel.shared or not hooked.at_rest:
            return
        try:
            hooked.settle()  # This raises a pending NaN error: such a state must not be kept.
            if hooked.raw.fault is not None:
                return
            for save_last in savers:
                save_last(hooked.raw, exception)
        except BaseException as failure:  # Also a second Ctrl-C: the hooks must still be told of the first error.
            logger.error(
                "After %s no last checkpoint was saved: %s: %s",
                type(exception).__name__,
                type(failure).__name__,
                failure,
            )

    def notify(self, exception: BaseException) -> None:
        """Tells the hooks about a failure, once: the error of a run usually leaves the `with` block too."""
        if not self._knows(exception) and not isinstance(exception, END_OF_INPUT):
            vars(exception)[_TOLD] = self._told
            assert self._opening.raw is not None, "A failure needs a session."
            self._opening.hooks.on_exception(self._opening.raw, exception)

    def _knows(self, exception: BaseException) -> bool:
        return vars(exception).get(_TOLD) is self._told

    # The end ----------------------------------------------------------------------------------------------------

    def finish(self, leaving: BaseException | None) -> list[BaseException]:
        """Ends or abandons the training and closes everything; returns the errors in order.

        Args:
            leaving: The exception that leaves the body.
        """
        self._stop.closed = self._stop.asked = True
        self._say_why_it_ends(leaving)
        ended = _errors_of(lambda: self._wind_up(leaving), self._agree_on_signals)
        # A Ctrl-C that was noted meanwhile comes last, so that it hides no other error.
        return [*ended, *self._release(), *_errors_of(preemption.raise_noted)]

    def _release(self) -> list[BaseException]:
        """Leaves the other processes, and gives back threads, session, files, signals, hooks and graph."""
        return _errors_of(
            *([] if self._in_step is None else [self._in_step.leave]),
            self._session.close,
            lambda: FileWriterCache.release(self._writers),
            self._preemption.close,
            self._opening.release,
        )

    def _wind_up(self, leaving: BaseException | None) -> list[BaseException]:
        lost = self._session.failure
        if leaving is not None and not isinstance(leaving, IN_ORDER):
            self.fail(leaving)
        elif lost is None:
            if isinstance(leaving, OutOfRangeError):
                self._warn_of_no_run(leaving)
            return self._end()
        elif not self._knows(lost):
            # should_stop() could not raise this.
            self.notify(lost)
            return [lost]
        return []

    def _end(self) -> list[BaseException]:
        raw, is_settled = self._session.raw, False
        while not is_settled:
            try:
                if isinstance(self._opening.creator, ChiefSessionCreator):
                    # No worker's update may come after the state that the hooks save and evaluate in `end`.
                    raw.lowlevel.seal()
                self._session.hooked.settle()
                is_settled = True
            except BaseException as exc:  # The hooks must be told: they give back what they hold.
                failure = raw.lowlevel.map_error(exc)
                # Errors of late hooks count as errors of the run. The end of the input is not a failure, and the loop
                # settles the rest.
                if not isinstance(failure, END_OF_INPUT):
                    self._deliver_arrived()
                    self.notify(failure)
                    return [failure]
        if self._in_step is not None:
            try:
                self._in_step.check_end()
            except Exception as exc:
                self.fail(exc)
                return [exc]
        return self._opening.hooks.end(raw)

    def _agree_on_signals(self) -> None:
        """Lets a signal that came after the last run, to any process, end all of them."""
        process, number = (0, None) if self._in_step is None else self._in_step.agree_on_signals()
        if number is not None:
            if self._preemption.number is None:
                self.say_why(f"process {process} has got {signal.Signals(number).name}")
            preemption.agree(number)

    # Words ------------------------------------------------------------------------------------------------------

    def say_why(self, why: str) -> None:
        """Logs, in processes that run in step, why the training stops; the chief does so for all."""
        if self._in_step is not None:
            try:
                place = f"step {self._session.raw.global_step}"
            except Exception:  # There is none, or it is lost.
                place = f"run {self._stop.runs}"
            logger.info("The training stops after %s: %s.", place, why)

    def _say_why_it_ends(self, leaving: BaseException | None) -> None:
        """Logs, in processes that run in step, why the session ends, unless they have agreed on a stop."""
        failure = leaving or self._session.failure
        if isinstance(failure, END_OF_INPUT):
            self.say_why("the data have ended")
        elif failure is not None and not isinstance(failure, LEFT_IN_ORDER):
            self.say_why(f"{type(failure).__name__}: {failure}")
        elif failure is None and not self._stop.requested and self._preemption.number is None:
            self.say_why("the script has left the session")

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


def _errors_of(*parts: Callable[[], Iterable[BaseException] | None]) -> list[BaseException]:
    """Calls functions, each even if others raise; returns the errors that they return or raise."""
    failures: list[BaseException] = []
    for part in parts:
        try:
            failures += part() or ()
        except BaseException as exc:  # Whatever it is, the other parts must be given back.
            failures.append(exc)
    return failures


def first(failures: list[BaseException]) -> BaseException:
    """Returns the first error, with the others noted on it."""
    found, *others = failures
    for other in others:
        if other is not found:
            logger.error("While closing the session: %s: %s", type(other).__name__, other)
            found.add_note(f"While closing the session, after that: {type(other).__name__}: {other}")
    return found
