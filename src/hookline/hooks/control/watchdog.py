"""WatchdogHook: logs where a training hangs, and ends it."""

from __future__ import annotations

import faulthandler
import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn, TypeVar

from hookline import arguments, clock, jax_internals, log
from hookline.checkpoint.saving.save_operation import bytes_under_way, saves_under_way
from hookline.coordination import Coordinator, process_group, progress
from hookline.coordination.heartbeat import Pulse
from hookline.coordination.roll_call import Place, RollCall, describe_places, elsewhere
from hookline.coordination.stacks import describe_line, is_in_own_code, stacks_of_all_threads
from hookline.data.prefetcher import READER_NAME
from hookline.hooks.base import Firing, SessionRunHook
from hookline.hooks.triggers import FirstRun
from hookline.session import Session
from hookline.session.running import launch_log
from hookline.signals import signal_listener

_logger = log.get_logger(__name__)

STALLED = 79
"""The exit status of a process that has stalled."""

_POLLS_PER_STALL, _LONGEST_POLL_SECS = 4, 10.0
# A log, or the file of the account, may be what hangs.
_REPORT_SECS = 5.0
_STDERR = 2
_DOING = {
    "data": "reading a batch",
    "compilation": "compiling a program",
    "save": "saving a checkpoint",
    "evaluation": "in an evaluation",
    "restore": "restoring a checkpoint",
}
_numbers = itertools.count()
T = TypeVar("T")


class WatchdogHook(SessionRunHook):
    """Logs what hangs, with the stacks of the threads, if a training stalls, and may end the process.

    A stall is `stall_secs` without *progress*, which is a run, a batch that was read, a batch of an evaluation, a part
    of a save or restore, or a compilation. A thread polls it every `stall_secs / 4`, at most 10 s, so runs do not
    become slower. SPMD processes, which must all have this hook, call the roll before: if one of them makes progress,
    the others wait for it. Choose `stall_secs` longer than any one call of your code takes (a hook, the read of a
    batch), and than the 28 steps (`SessionConfig.max_runs_ahead`) that the host may be ahead of the device.

    The time begins with the session, before a restore, and ends when it is closed. Without `end`, a stall is logged
    once, and the next progress ends it.

    The log names the SPMD process that hangs, and only that one adds its stacks. With `end`, the account of the run
    gets an event `stall`, and all processes end at once with status 79, without a save. Start them again to resume;
    `hookline launch --restart on-failure` does so. While C code holds Python's lock no thread can do this: then
    `faulthandler` prints the stacks, and exits with status 1. Its timer is one per process, so do not use
    `faulthandler.dump_traceback_later` beside it. A process that is stopped (SIGSTOP, Ctrl-Z) for longer than that is
    ended by `hookline launch --spmd --stall-secs`, with SIGKILL, and else by that timer as soon as it goes on. One that
    waits in the kernel uninterruptibly, for example for a dead NFS server, is ended by nothing until that wait ends.

    Callbacks: `begin`, `after_create_session`, `on_trigger` (after the first run), `after_close`.

    Args:
        stall_secs: Seconds without progress that count as a stall.
        end: Whether a stall ends the process.
        compilation_secs: Seconds after which a compilation is a stall; None for no limit.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: `stall_secs` or `compilation_secs` is not greater than 0.

    Example:
        >>> hook = WatchdogHook(stall_secs=600, end=True)

    References:
        None in `tf.train`. `faulthandler.dump_traceback_later` has no notion of steps.
    """

    def __init__(self, stall_secs: float, *, end: bool = False, compilation_secs: float | None = None) -> None:
        self._stall_secs = _positive("stall_secs", stall_secs)
        self._compilation_secs = None if compilation_secs is None else _positive("compilation_secs", compilation_secs)
        self._ends = arguments.check_optional("WatchdogHook", "end", end, bool, optional=False)
        self._pipe: int | None = None
        self._watch: _Watch | None = None
        self.trigger = FirstRun()

    def begin(self) -> None:
        """Starts the threads."""
        self._watch = _Watch(self._stall_secs, self._compilation_secs, self._ends, self._pipe)
        # The threads hold no reference to the hook, so that they end with a session that is dropped.
        weakref.finalize(self, self._watch.stop).atexit = False
        self._watch.start()

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Watches this raw session."""
        if self._watch is not None:
            self._watch.session, self._watch.coord = weakref.ref(session), coord

    def on_trigger(self, firing: Firing) -> None:
        """Tells the launcher now where the account of the run is: the process may stop before the next heartbeat."""
        if self._watch is not None:
            self._watch.beat()

    def after_close(self) -> None:
        """Ends the threads."""
        if self._watch is not None:
            self._watch.stop()
            self._watch.join()
            self._watch = None

    @classmethod
    def of_launcher(cls, stall_secs: float, pipe: int) -> WatchdogHook:
        """Returns a hook that ends a process, and sends heartbeats to the launcher."""
        hook = cls(stall_secs, end=True)
        hook._pipe = pipe
        return hook


def _positive(name: str, secs: float) -> float:
    if arguments.check_number("WatchdogHook", name, secs) <= 0:
        raise ValueError(f"WatchdogHook requires {name} > 0, got {secs}.")
    return secs


class _Watch:
    """Polls the progress of a session from a thread.

    Attributes:
        session: Returns the raw session, if it exists.
        coord: Its coordinator.
    """

    def __init__(self, stall_secs: float, compilation_secs: float | None, ends: bool, pipe: int | None) -> None:
        self.session: Callable[[], Session | None] = lambda: None
        self.coord = Coordinator()
        self._stall_secs, self._compilation_secs, self._ends = stall_secs, compilation_secs, ends
        self._poll_secs = min(stall_secs / _POLLS_PER_STALL, _LONGEST_POLL_SECS)
        self._owner, self._stop = threading.get_ident(), threading.Event()
        self._bytes = 0
        self._seen, self._polled_at, self._idle_secs = self._progress(), clock.monotonic(), 0.0
        self._compiling_since: float | None = None
        self._has_reported = False
        self._pulse = Pulse(stall_secs, pipe, self._account_path) if ends else None
        group, number = process_group.current(), next(_numbers)
        self._roll = None if group is None else RollCall(group, str(number), 2 * self._poll_secs + 1)
        self._thread = threading.Thread(target=self._run, name="hookline-watchdog", daemon=True)
        # A disk that hangs must stop only this thread.
        self._sizes = threading.Thread(target=self._watch_sizes, name="hookline-sizes", daemon=True)

    def start(self) -> None:
        """Starts the threads."""
        self._thread.start()
        self._sizes.start()
        if self._pulse is not None:
            self._pulse.start()

    def beat(self) -> None:
        """Sends a heartbeat to the launcher."""
        if self._pulse is not None:
            self._pulse.beat()

    def stop(self) -> None:
        """Ends the threads."""
        self._stop.set()
        if self._pulse is not None:
            self._pulse.stop()

    def join(self) -> None:
        """Waits until the threads have ended, which takes no longer than the poll that is under way."""
        self._thread.join(_REPORT_SECS)
        self._sizes.join(_REPORT_SECS)
        if self._pulse is not None:
            self._pulse.join(_REPORT_SECS)

    def _run(self) -> None:
        while not clock.wait(self._stop, self._poll_secs):
            self._poll()

    def _watch_sizes(self) -> None:
        while not clock.wait(self._stop, self._poll_secs):
            self._bytes = bytes_under_way()

    def _poll(self) -> None:
        now, seen, frames = clock.monotonic(), self._progress(), sys._current_frames()
        # If this thread itself did not run in the meantime, nothing could.
        self._idle_secs += min(now - self._polled_at, 2 * self._poll_secs)
        self._polled_at = now
        is_compiling = any(map(jax_internals.is_compiling, frames.values()))
        if seen != self._seen:
            if self._has_reported:
                _logger.warning("WatchdogHook: the stall is over, after %.0f s.", self._idle_secs)
            self._seen, self._idle_secs, self._has_reported, self._compiling_since = seen, 0.0, False, None
        self._compiling_since = (self._compiling_since or now) if is_compiling else None
        if self._compiling_since is not None:
            is_too_long = self._compilation_secs is not None and now - self._compiling_since >= self._compilation_secs
            self._idle_secs = max(now - self._compiling_since, self._stall_secs) if is_too_long else 0.0
        is_stalled = self._idle_secs >= self._stall_secs and not self._has_reported
        if self._roll is None:
            if is_stalled:
                self._report([])
            return
        try:
            if is_stalled or self._roll.is_called():
                self._call_roll(self._roll, frames)
        except Exception as error:  # The process with the key-value store does not answer.
            if is_stalled:
                _logger.error("WatchdogHook: the other processes cannot be asked: %s", error)
                self._report([])

    def _call_roll(self, roll: RollCall, frames: dict[int, FrameType]) -> None:
        places = roll.call(self._place(frames))
        idle_secs = min((place.idle_secs for place in places if place is not None), default=self._idle_secs)
        if idle_secs >= self._stall_secs:
            self._report(places, functools.partial(roll.leave_together, places))
        else:  # This one waits for another.
            self._idle_secs = min(self._idle_secs, idle_secs)

    def _progress(self) -> tuple[int, ...]:
        session = self.session()
        # Imports, such as that of Orbax before a restore, may take long from a network.
        runs = 0 if session is None else session.backend.write_count
        return progress.count, runs, self._bytes, len(sys.modules)

    def _place(self, frames: dict[int, FrameType]) -> Place:
        launches, doing = launch_log.current(), _DOING.get(self._under_way(), "")
        main = frames.get(self._owner)
        callbacks = [frame for frame in frames.values() if jax_internals.is_in_callback(frame)]
        running = callbacks or [frame for frame in (main, *self._readers(frames)) if frame and is_in_own_code(frame)]
        if callbacks:
            doing = "in a host callback of a program"
        shown = next(iter(running), main)
        where = "after the end of its thread" if shown is None else describe_line(shown)
        return Place(self._idle_secs, 0 if launches is None else launches.count, where, doing, bool(running))

    def _under_way(self) -> str:
        session = self.session()
        if self._compiling_since is not None:
            return "compilation"
        return "" if session is None else session.activity.under_way

    def _readers(self, frames: dict[int, FrameType]) -> list[FrameType]:
        """Returns the threads that read batches, if the session waits for one."""
        if self._under_way() != "data":
            return []
        idents = [thread.ident for thread in threading.enumerate() if thread.name.startswith(READER_NAME)]
        return [frames[ident] for ident in idents if ident in frames]

    def _account_path(self) -> str:
        session = self.session()
        return "" if session is None else session.activity.account_path

    def _report(self, places: list[Place | None], wait_for_others: Callable[[], None] = lambda: None) -> None:
        self._has_reported = True
        if not self._ends:
            self._log(places)
            return
        # Under the stacks of the process another one must not begin.
        if not _within(_REPORT_SECS, lambda: self._log(places) or self._mark(places) or True):
            faulthandler.dump_traceback(_STDERR)
        _within(_REPORT_SECS, wait_for_others)
        _exit()

    def _log(self, places: list[Place | None]) -> None:
        told = self._describe(places)
        told.append(f"There was no progress for {self._idle_secs:.0f} s.")
        hanging, group = elsewhere(places), process_group.current()
        is_waiting = bool(hanging) and group is not None and group.index not in hanging
        if not is_waiting and (session := self.session()) is not None:
            told.append(_state(session, self.coord))
        if self._ends:
            told.append(f"The process ends with status {STALLED}.")
        stacks = [] if is_waiting else [stacks_of_all_threads(first=self._owner)]
        _logger.error("WatchdogHook: %s", "\n".join([" ".join(told), *stacks]))

    def _describe(self, places: list[Place | None]) -> list[str]:
        return describe_places(places) or [f"The process hangs {self._place(sys._current_frames())}."]

    def _mark(self, places: list[Place | None]) -> None:
        """Writes the stall into the account of the run."""
        if (session := self.session()) is not None:
            doing, hanging = session.activity.under_way, elsewhere(places)
            told = self._describe(places)[: 1 if hanging else None]
            reason, idle_secs = " ".join(told).removesuffix("."), round(self._idle_secs, 3)
            session.activity.listener("stall", reason=reason, under_way=doing, elsewhere=hanging, idle_secs=idle_secs)


def _within(secs: float, function: Callable[[], T]) -> T | None:
    """Returns the result of a function, which is called in a thread; None if it takes longer."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()), name="hookline-stall", daemon=True)
    if signal_listener.try_start(thread):
        thread.join(secs)
    return found[0] if found else None


def _exit() -> NoReturn:
    signal_listener.exit_now(STALLED)


def _state(session: Session, coord: Coordinator) -> str:
    """Returns the known state of a session without waiting, because a thread that hangs may hold its lock."""
    try:
        step = session.backend.known_step
    except RuntimeError:  # The session is being closed.
        step = None
    facts = [
        f"Newest step that it has started: {'not known on the host' if step is None else step}",
        f"stop requested: {'yes' if coord.should_stop() else 'no'}",
        f"checkpoints being written: {', '.join(saves_under_way()) or 'none'}",
    ]
    return "; ".join(facts) + "."
