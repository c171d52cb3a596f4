"""SpmdSync: keeps the monitored sessions of all processes of a multi-process SPMD job at the same run."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Iterable
from typing import Any

import jax

from hookline import clock, log
from hookline.coordination import service
from hookline.coordination.agreement import FAILURE, Agreement, Decision
from hookline.coordination.process_group import ProcessGroup, job_failure
from hookline.errors import GRACEFUL_EXITS, OpError, UnauthenticatedError
from hookline.hooks.only_for import unwrap
from hookline.hooks.trigger import Trigger
from hookline.monitored.hooked.callbacks import Callback
from hookline.monitored.stop_request import StopRequest
from hookline.session.running import launch_log
from hookline.signals import preemption
from hookline.signals.signal_listener import try_start

_logger = log.get_logger(__name__)

_COMPARE_EVERY_RUNS = 1000
_REPORT_TIMEOUT_SECS, _POLL_SECS = 2.0, 0.5
# A live process answers in a thread, within milliseconds.
_ANSWER_TIMEOUT_SECS = 0.5
_STUCK_SECS, _BUSY_SECS = 5.0, 60.0
_session_numbers = itertools.count(1)

# Each process logs its own failures; warnings of hooks are the same in all processes.
_LEVELS = {"hooks": logging.ERROR, **dict.fromkeys(("loop", "monitored", "checkpoint"), logging.WARNING)}

STOP, SIGNAL, DUE = "stop", "signal", "due"
"""The proposals of a process, beside `FAILURE`: to stop, to act on a signal, to fire triggers that are due by time."""


class SpmdSync:
    """Keeps the monitored sessions of all processes of a multi-process SPMD job at the same run.

    A process proposes whatever it alone knows, such as a signal; the proposal takes effect before the same run in all
    processes. `should_stop`, or else the run itself, reserves each run first.

    Args:
        processes: The processes of the job.
        stop: The request to stop this process's session, which takes effect when all have agreed.
        say_why: Logs the reasons for a stop; called once all have agreed on it.

    Attributes:
        is_chief: Whether this process is the chief, which saves and writes.
        has_failed: Whether this or another process has failed.
        is_running: Whether a run is under way.
        is_in_hook: Returns whether a hook is being called.
        thread: The identifier of the thread that created the session, which also runs it.

    Raises:
        DeadlineExceededError: Another process has not created its session in time.
    """

    def __init__(self, processes: ProcessGroup, stop: StopRequest, say_why: Callable[[str], None]) -> None:
        self._process_group, self._stop, self._say_why, self._session_number = (
            processes,
            stop,
            say_why,
            next(_session_numbers),
        )
        found_launches = launch_log.current()
        assert found_launches is not None, "They are several."
        self._launch_log = found_launches
        processes.barrier("a session")
        if not self._launch_log.sessions:  # Another open session might have a run under way.
            processes.reset()
        self._launch_log.reset()
        self._agreement = Agreement(processes.store, processes.index, processes.count, str(self._session_number))
        self.is_in_hook: Callable[[], bool] = lambda: False
        self._reported_failure: tuple[int, str] | None = None
        self._is_reserved = self._has_left = self._has_lost_process = self._is_ending = False
        self._runs = 0
        self._timed_triggers: list[Trigger] = []
        self._proposed: set[int] = set()
        self._launch_mismatch: BaseException | None = None
        self._compare_thread: threading.Thread | None = None
        self.is_chief, self.has_failed = processes.is_chief, False
        if not processes.is_chief:
            _silence_logs()
        self._is_due = False
        self.is_running, self.thread = False, threading.get_ident()
        self._launch_log.sessions.append(self)
        self.receive_end(None, self._launch_log.tampering_error)  # The error may be older than this session.
        preemption.set_agreed_signal()
        stop.propose = functools.partial(self.propose, STOP)

    # Runs -------------------------------------------------------------------------------------------------------

    def reserve_run(self) -> None:
        """Reserves the next run, unless it is reserved already, and carries out the decisions before it.

        Raises:
            AbortedError: Another process has failed, or cannot be reached.
            FailedPreconditionError: The processes have launched different programs.
        """
        if self._is_reserved or self._has_left:
            return
        while (decision := self._agreement.before_run()) is not None:
            self._carry_out(decision)
        self._is_reserved = True
        self._runs += 1
        if self._runs % _COMPARE_EVERY_RUNS == 0:
            self._compare_launches()
        if self._launch_mismatch is not None:
            raise self._launch_mismatch

    def _carry_out(self, decision: Decision) -> None:
        """Carries out a decision; all processes do so before the same run."""
        for _, kind, value in decision.proposals:
            if kind == FAILURE:
                self.has_failed = True
                raise self._failure_error(*value)
        if describe_stop_reasons := _reasons(decision, self._process_group.count):
            self._say_why(describe_stop_reasons)
        for _, kind, value in decision.proposals:
            if kind == DUE:
                self._become_due(value)
            elif kind == SIGNAL:
                preemption.set_agreed_signal(value)
            elif kind == STOP:
                self._stop.apply(*_asked(value))

    def use_reservation(self) -> None:
        """Uses the reservation for a run that begins now."""
        self._is_reserved = False

    def propose(self, kind: str, value: Any = None) -> None:
        """Makes a proposal, from any thread; after one by the main thread, no run begins before the decision."""
        if not self._has_left:
            self._agreement.propose(kind, value)

    def report_failure(self, reason: str, process: int | None = None) -> None:
        """Notifies the other processes that this one has failed, or that `process` has, so that this one ends."""
        self.has_failed = True
        failed = self._process_group.index if process is None else process
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # An unreachable process is lost anyway.
            self.propose(FAILURE, [failed, reason])
            if not self._has_left:
                self._launch_log.broadcast([self._session_number, failed, reason])

    def report_error(self, exception: BaseException) -> None:
        """Notifies the other processes of this one's error, unless a failure is known already."""
        if self.failure_of_other_process() is not None or self.has_failed:
            return
        if service.is_connection_loss(exception):
            _logger.error("%s", self.end_for_lost_process(exception))
        else:
            if isinstance(exception, SystemExit) and not isinstance(exception, GRACEFUL_EXITS):
                service.skip_exit_barrier(service.exit_status_of(exception))
            self.report_failure(f"{type(exception).__name__}: {exception}", getattr(exception, "process_index", None))

    def end_for_lost_process(self, exception: BaseException) -> str:
        """Makes this process exit with status 75, for it cannot save alone; returns a sentence, which is a note too."""
        self.has_failed = self._has_lost_process = self._process_group.failure_suspected = True
        missing = ", ".join(map(str, self._launch_log.unresponsive(_ANSWER_TIMEOUT_SECS))) or "another"
        own = self._process_group.index
        text = f"Process {missing} is lost, and process {own} ends: only its last checkpoint remains."
        exception.add_note(text)
        service.skip_exit_barrier(os.EX_TEMPFAIL)
        return text

    def failure_behind(self, exception: BaseException) -> OpError | None:
        """Returns the error of another process that has failed or is lost, and so has caused this one's; else None."""
        if (other := self.failure_of_other_process()) is not None:
            return other
        if self.has_failed or not service.is_connection_loss(exception):
            return None
        error = job_failure(self.end_for_lost_process(exception))
        error.__cause__ = exception
        return error

    def failure_of_other_process(self) -> OpError | None:
        """Returns the error of another failed process, if it is known and not handled yet."""
        found = self._known_failure()
        if self.has_failed or (found is not None and found[0] == self._process_group.index):  # Its own error says more.
            return None
        error = self.known_failure()
        if error is None and (error := self._launch_log.difference) is not None:
            self.report_failure(str(error))
        self.has_failed = error is not None
        return error

    def known_failure(self) -> OpError | None:
        """Returns the error of a failed process, including this one, if any is known."""
        if self.has_failed:
            return job_failure("A process of this job has failed; nothing waits for the others any more.")
        found = self._known_failure()
        return None if found is None else self._failure_error(*found)

    def _known_failure(self) -> tuple[int, str] | None:
        """Returns the failed process and the reason, if a failure is known."""
        return self._reported_failure or self._agreement.failure()

    def _failure_error(self, process: int, reason: str) -> OpError:
        """Returns the error that ends this process because another has failed."""
        text = f"Process {process} has failed, and the others end with it: {reason}"
        return self._launch_log.difference or job_failure(text)

    def check_same_launches(self) -> None:
        """Compares the launched programs of all processes at the end of the training.

        Raises:
            FailedPreconditionError: The processes have launched different programs.
            AbortedError: Another process has failed.
        """
        if self._has_left or self.has_failed:
            return
        self._is_ending = True  # From here on, another process may end first.
        if self._compare_thread is not None:
            self._compare_thread.join()
        self._launch_log.begin_comparison("the end of a training")()

    def agree_on_signals(self) -> tuple[int, int | None]:
        """Returns a process and the signal it received by the end of the session, after the last run; or 0 and None."""
        if self._has_left or self.has_failed:
            return 0, None
        received = enumerate(self._process_group.all_gather("signals", preemption.received_signal()))
        return next(((process, number) for process, number in received if number), (0, None))

    def close(self) -> None:
        """Leaves the other processes at the end of the session."""
        self._stop.propose = None
        if not self._has_left:
            self._has_left = True
            if self._compare_thread is not None:
                self._compare_thread.join()
            if self._has_lost_process:  # A lost process does not answer.
                self._agreement.close(0)
            elif self.has_failed:
                self._agreement.close(_REPORT_TIMEOUT_SECS)
            else:
                self._agreement.close()
            self._launch_log.sessions.remove(self)

    def receive(self, message: Any) -> None:
        """Handles, in a thread, the failure of another process: with it, no decision can be made any more."""
        number, process, why = message
        if number == self._session_number and not self.has_failed and self._reported_failure is None:
            self._reported_failure = process, why
            self._agreement.record_failure(process, why)
            try_start(threading.Thread(target=self._exit_if_stuck, name="hookline-end", daemon=True))

    def receive_end(self, ended_process: int | None, tampering: UnauthenticatedError | None) -> None:
        """Handles, in a thread, the end of a process's script, or an entry of an unauthenticated writer."""
        if tampering is not None:
            self._agreement.abort(tampering)
        elif ended_process not in (None, self._process_group.index) and not self._is_ending:
            self.receive([self._session_number, ended_process, "it has ended its script, and left the session open"])

    def _exit_if_stuck(self) -> None:
        """Ends this process if its main thread, blocked by a collective, does not notice the failure of another."""
        waited = 0.0
        while not (self.has_failed or self._has_left):
            clock.sleep(_POLL_SECS)
            waited += _POLL_SECS
            if waited >= (_STUCK_SECS if self._is_computing() else _BUSY_SECS):
                process, why = self._reported_failure or (0, "")
                _logger.critical(
                    "Process %d has failed, and process %d ends at once, because its main thread does not answer: %s",
                    process,
                    self._process_group.index,
                    why,
                )
                service.exit_now(os.EX_TEMPFAIL)

    def _is_computing(self) -> bool:
        """Returns whether the main thread is in a run, outside of hooks, where a collective may block it."""
        return self.is_running and not self._launch_log.is_in_hook

    def _compare_launches(self) -> None:
        """Starts a thread that compares the programs which the processes have launched so far."""
        if self._compare_thread is not None:
            self._compare_thread.join()
        check = self._launch_log.begin_comparison(f"launches of session {self._session_number}")

        def compare() -> None:
            try:
                check()
            except Exception as error:
                self._launch_mismatch = error

        self._compare_thread = threading.Thread(target=compare, name="hookline-launches", daemon=True)
        self._compare_thread.start()

    def set_in_hooks(self, hooks_are_called: Callable[[], bool]) -> None:
        """Makes runs by hooks wait for the other processes first."""
        self.is_in_hook = hooks_are_called

    def set_fetching_hooks(self, hooks: str) -> None:
        """Sets the hooks with fetches in the next program, for the error message if the programs differ."""
        self._launch_log.requested_by = hooks

    # The clock --------------------------------------------------------------------------------------------------

    def detach_clocks(self, triggers: Iterable[Trigger]) -> None:
        """Detaches triggers from the local clock: the chief's clock decides for all processes when they are due."""
        self._timed_triggers = [leaf for trigger in triggers for leaf in trigger.leaves() if _uses_clock(leaf)]
        self._proposed.clear()
        for leaf in self._timed_triggers:
            leaf.agreed = bool(leaf.agreed)

    def agreed_time(self) -> float:
        """Returns infinity if a trigger has become due by agreement; else minus infinity.

        The chief reads its clock, and proposes the triggers that are due.
        """
        due: list[int] = []
        if self.is_chief:
            for number, leaf in enumerate(self._timed_triggers):
                if leaf.agreed:
                    self._proposed.discard(number)
                elif number not in self._proposed and leaf.secs_until_trigger() <= 0:
                    self._proposed.add(number)
                    due.append(number)
        if due:
            self._agreement.propose(DUE, due)
        is_due, self._is_due = self._is_due, False
        return math.inf if is_due else -math.inf

    def _become_due(self, numbers: Iterable[int]) -> None:
        """Makes these triggers due, as all processes have agreed."""
        for number in numbers:
            self._proposed.discard(number)
            if number < len(self._timed_triggers):
                self._timed_triggers[number].agreed = self._is_due = True


def _reasons(decision: Decision, count: int) -> str:
    """Describes the reasons for a stop and the processes that proposed it; empty if the decision is no stop."""
    found: dict[str, list[int]] = {}
    for process, kind, value in decision.proposals:
        if kind == STOP:
            found.setdefault(f"requested it ({_asked(value)[0]})", []).append(process)
        elif kind == SIGNAL:
            found.setdefault(f"received {signal.Signals(value).name}", []).append(process)
    return "; ".join(f"{_describe_processes(who, count)} {what}" for what, who in found.items())


def _asked(value: Any) -> tuple[str, str]:
    """Returns the code that requested a stop, and the reason if it is final, from an untrusted value."""
    by, final = value if isinstance(value, list) and len(value) == 2 else (value, "")
    return str(by), final if isinstance(final, str) else ""


def is_success_exit(exception: BaseException | None) -> bool:
    """Returns whether an exception comes from `sys.exit()` or `sys.exit(0)`."""
    return isinstance(exception, SystemExit) and exception.code in (None, 0)


def exit_as_stop_request(stop: StopRequest) -> Callable[[Any, str, Callback], Callback]:
    """Turns `sys.exit(0)` in a callback of a run into a request to stop, so that all processes stop together.

    Returns:
        A function that wraps a callback, given its hook and its name.
    """

    def wrap(hook: Any, name: str, callback: Callback) -> Callback:
        last: Any = None

        def call(*arguments: Any) -> Any:
            nonlocal last
            try:
                last = callback(*arguments)
            except SystemExit as exit:
                if not is_success_exit(exit):
                    raise
                stop.exit_error = stop.exit_error or exit
                stop.request(f"sys.exit() in {type(unwrap(hook)).__name__}.{name}")
            return last  # The other processes make this run with the hook's request, so this one does too.

        return call

    return wrap


def _describe_processes(processes: list[int], count: int) -> str:
    who = sorted(set(processes))
    if len(who) == count:
        return "all processes have"
    return f"process {who[0]} has" if len(who) == 1 else f"processes {', '.join(map(str, who))} have"


def _silence_logs() -> None:
    """Raises the log levels of this process, so that hooks log on the chief alone; keeps levels that are set."""
    for part, level in _LEVELS.items():
        logger = logging.getLogger(f"hookline.{part}")
        if logger.level == logging.NOTSET:
            logger.setLevel(level)


def _uses_clock(leaf: Trigger) -> bool:
    return type(leaf).secs_until_trigger is not Trigger.secs_until_trigger
