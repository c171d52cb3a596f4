"""InStep: keeps a monitored session in step with the sessions of other processes."""

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
from hookline.coordination.peers import Peers
from hookline.errors import LEFT_IN_ORDER, AbortedError, OpError, UnauthenticatedError
from hookline.hooks.trigger import Trigger
from hookline.hooks.when import bare
from hookline.monitored.hooked.callbacks import Callback
from hookline.monitored.stop_request import StopRequest
from hookline.session.running import launches
from hookline.signals import preemption
from hookline.signals.signal_listener import start_if_possible

_logger = log.of(__name__)

_COMPARE_EVERY_RUNS = 1000
_TELL_SECS, _LOOK_EVERY_SECS = 2.0, 0.5
# A live process answers in a thread, within milliseconds.
_ANSWER_SECS = 0.5
_STUCK_SECS, _BUSY_SECS = 5.0, 60.0
_numbers = itertools.count(1)

# Each process logs its own failures; warnings of hooks are the same in all.
_LEVELS = {"hooks": logging.ERROR, **dict.fromkeys(("loop", "monitored", "checkpoint"), logging.WARNING)}

STOP, SIGNAL, DUE = "stop", "signal", "due"
"""The proposals of processes, beside `FAILURE`: to stop; to act on a signal; that triggers have become due in time."""


class InStep:
    """Keeps a monitored session in step (synchronous) with the sessions of other processes of the same script.

    A fact that one process alone knows is proposed, and takes effect before the same run in all of them. Each run is
    reserved first: by `should_stop`, or by the run itself.

    Args:
        found: The processes.
        stop: The request to stop of this process's session, which takes effect when all have agreed.
        say_why: Called with the reasons for a stop, once all have agreed on it.

    Attributes:
        is_chief: Whether this process decides, saves and writes.
        has_failed: Whether this or another process has failed.
        is_running: Whether a run is under way.
        is_inside: Returns whether a hook is being called.
        thread: The thread that runs the session, which is the one that made it.

    Raises:
        DeadlineExceededError: Another process has not made its session in time.
    """

    def __init__(self, found: Peers, stop: StopRequest, say_why: Callable[[str], None]) -> None:
        self._peers, self._stop, self._say_why, self._number = found, stop, say_why, next(_numbers)
        found_launches = launches.current()
        assert found_launches is not None, "They are several."
        self._launches = found_launches
        found.meet("a session")
        if not self._launches.sessions:  # No other session is open, which might have a run under way.
            found.begin_anew()
        self._launches.begin()
        self._agreement = Agreement(found.board, found.index, found.count, str(self._number))
        self.is_inside: Callable[[], bool] = lambda: False
        self._told: tuple[int, str] | None = None
        self._is_reserved = self._is_left = self._is_lost = self._is_ending = False
        self._runs = 0
        self._leaves: list[Trigger] = []
        self._proposed: set[int] = set()
        self._difference: BaseException | None = None
        self._comparing: threading.Thread | None = None
        self.is_chief, self.has_failed = found.is_chief, False
        if not found.is_chief:
            _be_quiet()
        self._is_due = False
        self.is_running, self.thread = False, threading.get_ident()
        self._launches.sessions.append(self)
        self.hear_end(None, self._launches.distrusted)  # It may have come before.
        preemption.agree()
        stop.agree = functools.partial(self.propose, STOP)

    # Runs -------------------------------------------------------------------------------------------------------

    def reserve(self) -> None:
        """Reserves the next run, unless it is reserved; carries out the decisions before it.

        Raises:
            AbortedError: Another process has failed, or cannot be reached.
            FailedPreconditionError: The processes have launched different programs.
        """
        if self._is_reserved or self._is_left:
            return
        while (decision := self._agreement.before_run()) is not None:
            self._carry_out(decision)
        self._is_reserved = True
        self._runs += 1
        if self._runs % _COMPARE_EVERY_RUNS == 0:
            self._compare()
        if self._difference is not None:
            raise self._difference

    def _carry_out(self, decision: Decision) -> None:
        """Carries out a decision, before the same run in all processes."""
        for _, kind, value in decision.proposals:
            if kind == FAILURE:
                self.has_failed = True
                raise self._error_of(*value)
        if reasons := _reasons(decision, self._peers.count):
            self._say_why(reasons)
        for _, kind, value in decision.proposals:
            if kind == DUE:
                self._become_due(value)
            elif kind == SIGNAL:
                preemption.agree(value)
            elif kind == STOP:
                self._stop.hold(_asked(value)[1])

    def use(self) -> None:
        """Uses up the reservation, for a run that begins now."""
        self._is_reserved = False

    def propose(self, kind: str, value: Any = None) -> None:
        """Makes a proposal, from any thread; after one by the main thread, no run begins before it is decided."""
        if not self._is_left:
            self._agreement.suggest(kind, value)

    def fail(self, why: str, process: int | None = None) -> None:
        """Tells the others that this process has failed, or that it ends because of `process`."""
        self.has_failed = True
        failed = self._peers.index if process is None else process
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # A process that cannot be reached is lost.
            self.propose(FAILURE, [failed, why])
            if not self._is_left:
                self._launches.tell([self._number, failed, why])

    def tell_of(self, exception: BaseException) -> None:
        """Tells the others that this process has failed with an error, unless a process is known to have failed."""
        if self.failed_elsewhere() is not None or self.has_failed:
            return
        if service.is_loss(exception):
            self.lose(exception)
        else:
            if isinstance(exception, SystemExit) and not isinstance(exception, LEFT_IN_ORDER):
                service.leave_at_once(service.status_of(exception))
            self.fail(f"{type(exception).__name__}: {exception}", getattr(exception, "of_process", None))

    def lose(self, exception: BaseException) -> None:
        """Logs the number of a lost process, and ends this one with status 75: without the other it cannot save."""
        self.has_failed = self._is_lost = self._peers.is_in_vain = True
        missing = ", ".join(map(str, self._launches.silent(_ANSWER_SECS))) or "another"
        text = f"Process {missing} is lost, and process {self._peers.index} ends: only its last checkpoint remains."
        exception.add_note(text)
        _logger.error("%s", text)
        service.leave_at_once(os.EX_TEMPFAIL)

    def failed_elsewhere(self) -> OpError | None:
        """Returns the error of another failed process, if it is known and was not handled yet."""
        found = self._failure()
        if self.has_failed or (found is not None and found[0] == self._peers.index):  # Its own error says more.
            return None
        error = self.known_failure()
        if error is None and (error := self._launches.difference) is not None:
            self.fail(str(error))
        self.has_failed = error is not None
        return error

    def known_failure(self) -> OpError | None:
        """Returns the error of a failed process, this one or another, if it is known."""
        if self.has_failed:
            return AbortedError.from_message("This process has failed, or another: nothing is awaited any more.")
        found = self._failure()
        return None if found is None else self._error_of(*found)

    def _failure(self) -> tuple[int, str] | None:
        """Returns the failed process and the reason, if a failure is known."""
        return self._told or self._agreement.failure()

    def _error_of(self, process: int, why: str) -> OpError:
        """Returns the error with which this process ends because another has failed."""
        text = f"Process {process} has failed, and the others end with it: {why}"
        return self._launches.difference or AbortedError.from_message(text)

    def check_end(self) -> None:
        """Compares the launched programs of all processes at the end of the training.

        Raises:
            FailedPreconditionError: The processes have launched different programs.
            AbortedError: Another process has failed.
        """
        if self._is_left or self.has_failed:
            return
        self._is_ending = True  # From here on, another process may have ended sooner.
        if self._comparing is not None:
            self._comparing.join()
        self._launches.check("the end of a training")()

    def agree_on_signals(self) -> tuple[int, int | None]:
        """Returns a process and the signal that it has heard by the end of the session, after the last run; or None."""
        if self._is_left or self.has_failed:
            return 0, None
        heard = enumerate(self._peers.gather("signals", preemption.heard()))
        return next(((process, number) for process, number in heard if number), (0, None))

    def leave(self) -> None:
        """Ends the participation of this process: the session is over."""
        self._stop.agree = None
        if not self._is_left:
            self._is_left = True
            if self._comparing is not None:
                self._comparing.join()
            if self._is_lost:  # A lost process does not answer.
                self._agreement.close(0)
            elif self.has_failed:
                self._agreement.close(_TELL_SECS)
            else:
                self._agreement.close()
            self._launches.sessions.remove(self)

    def hear(self, news: Any) -> None:
        """Notes, in a thread, that a process has failed: if this one waits for it, no decision can be made."""
        number, process, why = news
        if number == self._number and not self.has_failed and self._told is None:
            self._told = process, why
            self._agreement.fail(process, why)
            start_if_possible(threading.Thread(target=self._await_end, name="hookline-end", daemon=True))

    def hear_end(self, gone: int | None, distrusted: UnauthenticatedError | None) -> None:
        """Notes, in a thread, that a process has ended its script, or that a stranger has written on the board."""
        if distrusted is not None:
            self._agreement.lose(distrusted)
        elif gone not in (None, self._peers.index) and not self._is_ending:
            self.hear([self._number, gone, "it has ended its script, and left the session open"])

    def _await_end(self) -> None:
        """Ends this process, if its main thread does not notice that another has failed, as in a collective."""
        waited = 0.0
        while not (self.has_failed or self._is_left):
            clock.sleep(_LOOK_EVERY_SECS)
            waited += _LOOK_EVERY_SECS
            if waited >= (_STUCK_SECS if self._is_computing() else _BUSY_SECS):
                process, why = self._told or (0, "")
                _logger.critical(
                    "Process %d has failed, and process %d ends at once, because its main thread does not answer: %s",
                    process,
                    self._peers.index,
                    why,
                )
                service.end_now(os.EX_TEMPFAIL)

    def _is_computing(self) -> bool:
        """Returns whether the main thread is in a run, outside of hooks: it may hang in a collective."""
        return self.is_running and not self._launches.is_inside

    def _compare(self) -> None:
        """Starts a thread that compares the programs launched by the processes so far."""
        if self._comparing is not None:
            self._comparing.join()
        check = self._launches.check(f"launches of session {self._number}")

        def compare() -> None:
            try:
                check()
            except Exception as error:
                self._difference = error

        self._comparing = threading.Thread(target=compare, name="hookline-launches", daemon=True)
        self._comparing.start()

    def meet_while(self, hooks_are_called: Callable[[], bool]) -> None:
        """Makes runs that hooks make themselves meet the other processes first."""
        self.is_inside = hooks_are_called

    def asks(self, who: str) -> None:
        """Notes the hooks with fetches in the next program, for the error if it differs."""
        self._launches.asked_by = who

    # The clock --------------------------------------------------------------------------------------------------

    def hold(self, triggers: Iterable[Trigger]) -> None:
        """Detaches these triggers from the clock: the chief's clock decides for all processes when they are due."""
        self._leaves = [leaf for trigger in triggers for leaf in trigger.leaves() if _looks_at_clock(leaf)]
        self._proposed.clear()
        for leaf in self._leaves:
            leaf.held = bool(leaf.held)

    def now(self) -> float:
        """Returns infinity if a trigger has become due by agreement; else minus infinity.

        The chief reads its clock, and proposes the triggers that are due.
        """
        due: list[int] = []
        if self.is_chief:
            for number, leaf in enumerate(self._leaves):
                if leaf.held:
                    self._proposed.discard(number)
                elif number not in self._proposed and leaf.secs_until_trigger() <= 0:
                    self._proposed.add(number)
                    due.append(number)
        if due:
            self._agreement.suggest(DUE, due)
        is_due, self._is_due = self._is_due, False
        return math.inf if is_due else -math.inf

    def _become_due(self, numbers: Iterable[int]) -> None:
        """Notes that these triggers are due, as all processes have agreed."""
        for number in numbers:
            self._proposed.discard(number)
            if number < len(self._leaves):
                self._leaves[number].held = self._is_due = True


def _reasons(decision: Decision, count: int) -> str:
    """Returns the reasons for a stop with those who have proposed it; an empty text if it is none."""
    found: dict[str, list[int]] = {}
    for process, kind, value in decision.proposals:
        if kind == STOP:
            found.setdefault(f"asked for it ({_asked(value)[0]})", []).append(process)
        elif kind == SIGNAL:
            found.setdefault(f"got {signal.Signals(value).name}", []).append(process)
    return "; ".join(f"{_named(who, count)} {what}" for what, who in found.items())


def _asked(value: Any) -> tuple[Any, str]:
    """Returns who has asked for a stop, and the reason if it is final; a stranger may have written anything else."""
    by, final = value if isinstance(value, list) and len(value) == 2 else (value, "")
    return by, final if isinstance(final, str) else ""


def is_success(exception: BaseException | None) -> bool:
    """Returns whether an exception is that of `sys.exit()` or `sys.exit(0)`."""
    return isinstance(exception, SystemExit) and exception.code in (None, 0)


def deferring(stop: StopRequest) -> Callable[[Any, str, Callback], Callback]:
    """Makes `sys.exit(0)` in the callbacks of runs a request to stop: this process leaves with the others.

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
                if not is_success(exit):
                    raise
                stop.exit = stop.exit or exit
                stop.request(f"sys.exit() in {type(bare(hook)).__name__}.{name}")
            return last  # This run still needs what the hook requests in the other processes.

        return call

    return wrap


def _named(processes: list[int], count: int) -> str:
    who = sorted(set(processes))
    if len(who) == count:
        return "all processes have"
    return f"process {who[0]} has" if len(who) == 1 else f"processes {', '.join(map(str, who))} have"


def _be_quiet() -> None:
    """Raises the log levels of this process, so that hooks log on the chief alone; leaves levels that were set."""
    for part, level in _LEVELS.items():
        logger = logging.getLogger(f"hookline.{part}")
        if logger.level == logging.NOTSET:
            logger.setLevel(level)


def _looks_at_clock(leaf: Trigger) -> bool:
    return type(leaf).secs_until_trigger is not Trigger.secs_until_trigger
