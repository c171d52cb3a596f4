"""`hookline launch --spmd`: runs a script in several synchronous processes on one machine."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import math
import os
import re
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hookline import clock
from hookline.cli.guardian import Guardian
from hookline.cli.task import (
    STOP_SIGNALS,
    OutputEcho,
    SignalCatcher,
    describe_exit,
    is_failure,
    log_message,
    restart_policy,
    shell_status,
    start_process,
)
from hookline.coordination import heartbeat
from hookline.coordination.heartbeat import Heartbeats
from hookline.distributed.cluster.initialize import environment
from hookline.distributed.cluster.process_tree import ProcessTree, stop_all
from hookline.hooks.control.watchdog import STALLED
from hookline.monitored import RecoveryPolicy, launcher_hooks
from hookline.monitored.launcher_hooks import Failure
from hookline.summary.account import mark_stall

_SPMD_COMMAND = (sys.executable, str(Path(__file__).with_name("spmd_script.py")))

_POLL_SECS = 0.02
# Without the failed process the others cannot save. Those in a collective get an error, and end by themselves.
_AFTER_FAILURE_SECS, _BY_THEMSELVES_SECS = 3.0, 1.0
# The statuses of a process that ends because another one is lost: JAX aborts it, or it exits by itself.
_LOST_ANOTHER = (-signal.SIGABRT, 128 + signal.SIGABRT, os.EX_TEMPFAIL)
# The status of a process that the timer of `faulthandler` has ended.
_FAULTHANDLER = 1
_LEFT = tuple(128 + number for number in STOP_SIGNALS)

# Gloo prints this message from C++, possibly in the middle of a line.
_GLOO_MESSAGE = re.compile(rb"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\.[^\n]*? : \d+")


@dataclasses.dataclass(frozen=True)
class SpmdLaunchConfig:
    """The settings of the job to start.

    Attributes:
        command: The script and its arguments.
        processes: The number of processes.
        grace_secs: The time for processes to save and end after a signal.
        check_every_launch: Whether the processes compare each program before its launch.
        restarts: The number of restarts of all processes, and the waits before them; None for no restart.
        stall_secs: Seconds without progress that end all processes; None for no limit.
        variables: Environment variables for the processes.
    """

    command: tuple[str, ...]
    processes: int
    grace_secs: float = 30.0
    check_every_launch: bool = False
    restarts: RecoveryPolicy | None = None
    stall_secs: float | None = None
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


def run(arguments: argparse.Namespace) -> int:
    """Starts the processes, waits, and returns the exit status."""
    return launch_spmd(
        SpmdLaunchConfig(
            command=(str(arguments.script), *arguments.arguments),
            processes=arguments.processes,
            grace_secs=arguments.grace,
            check_every_launch=arguments.check_every_launch,
            restarts=restart_policy(arguments),
            stall_secs=arguments.stall_secs,
        )
    )


def launch_spmd(config: SpmdLaunchConfig) -> int:
    """Runs a script in several synchronous processes, prints their output, and waits for their end.

    The processes find each other on the loopback interface. If one fails, the others get SIGTERM, and are killed after
    3 seconds or the grace period, whichever is shorter, because they may wait for the missing one. With `restarts` all
    are then restarted, and resume from their last checkpoint. On SIGINT and SIGTERM every process saves and ends,
    within the grace period; a second signal ends everything at once. If this process is killed, a guardian process ends
    all, within the grace period or 5 seconds, whichever is shorter. With `stall_secs` each process ends itself if it
    stalls, as with a `WatchdogHook`; one whose threads do not run is killed.

    Returns:
        The exit status of the process that failed first (128 plus the signal that ended it), else 0. If a signal ended
        the job: 128 plus that signal if all processes ended gracefully; else the status of the first process that did
        not, 137 if it was killed.
    """
    with SignalCatcher() as signals, Guardian(config.grace_secs) as guardian, _restart_folder(config) as folder:
        policy, attempt = config.restarts, 0
        generator, before = None if policy is None else policy.generator(), None
        while True:
            with _reserved_port() as port:
                job = _Job(config, port, folder, signals, guardian)
                status = job.run()
            attempt += 1
            if policy is None or generator is None or attempt > policy.max_attempts:
                return status
            if signals.caught or not is_failure(status):
                return status
            failure = job.failure()
            if failure is not None and failure.repeats(before):
                _log_repeated(failure)
                return status
            before = failure
            wait_secs = policy.backoff_secs(attempt, generator)
            log_message(f"all processes are restarted in {wait_secs:.1f} s ({attempt} of {policy.max_attempts} times).")
            if signals.wait(wait_secs):
                return signals.exit_status


def _log_repeated(failure: Failure) -> None:
    """Logs that another start would end in the same way."""
    begun_at = failure.begun_at
    begun = f"both times the training had begun at step {begun_at[-1]}" if begun_at else "no training had begun"
    first, *more = failure.error.splitlines()
    log_message(
        f"the job is not restarted again: it has failed with the same error twice in a row, and {begun}. Remove the "
        f"cause: {first}{' [...]' if more else ''}"
    )


@contextlib.contextmanager
def _restart_folder(what: SpmdLaunchConfig) -> Iterator[str | None]:
    """Yields a folder for what a start leaves to the next one; None without restarts."""
    if what.restarts is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="hookline-restarts-") as folder:
        yield folder


def _failure_path(folder: str, index: int) -> str:
    return os.path.join(folder, f"failure-{index}")


def _compilation_cache(folder: str) -> dict[str, str]:
    """Returns the environment variables of a compilation cache, so that restarted processes need not compile again."""
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return {}
    path = os.path.join(folder, "compiled")
    return {"JAX_COMPILATION_CACHE_DIR": path, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


@contextlib.contextmanager
def _reserved_port() -> Iterator[int]:
    """Yields a port for process 0, and keeps it bound, so that the system gives it to no other program."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class _Job:
    """Runs the processes of a job, once."""

    def __init__(
        self,
        what: SpmdLaunchConfig,
        port: int,
        folder: str | None,
        signals: SignalCatcher,
        guardian: Guardian,
    ) -> None:
        self._config, self._folder, self._signals, self._guardian = what, folder, signals, guardian
        self._address = f"127.0.0.1:{port}"
        self._secret = secrets.token_hex(32)  # New for each start, so processes left from an earlier start cannot join.
        self._echo = OutputEcho(width=len(str(what.processes - 1)), removed_pattern=_GLOO_MESSAGE)
        self._groups: list[ProcessTree] = []
        self._ended: list[int] = []
        self._heartbeats = Heartbeats(what.stall_secs or math.inf)
        self._stalled: set[int] = set()

    def failure(self) -> Failure | None:
        """Returns the failure of the process that failed first; None if it has noted none."""
        if self._folder is None or not any(self._statuses()):
            return None
        return launcher_hooks.read_failure(_failure_path(self._folder, self._first_failed()[0]))

    def run(self) -> int:
        """Starts all processes, waits for their end, and stops the rest; returns the exit status."""
        try:
            for index in range(self._config.processes):
                self._start(index)
            self._wait(is_enough=lambda: any(self._statuses()))
            if self._signals.caught:
                self._signals.stop(self._groups, self._config.grace_secs)
                return self._end_in_order(self._signals.exit_status)
            return self._end_after_failure() if any(self._statuses()) else 0
        finally:
            stop_all(self._groups)
            self._echo.finish()
            self._heartbeats.close()

    def _start(self, index: int) -> None:
        command = [*_SPMD_COMMAND, *self._config.command]
        own = environment(
            self._address,
            self._config.processes,
            index,
            check_every_launch=self._config.check_every_launch,
            secret=self._secret,
        )
        # With different hash seeds, processes would iterate over sets, and so trace operations, in different orders.
        fixed = {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
        variables = {**os.environ, **self._config.variables, **own, **fixed}
        if self._folder is not None:
            path = _failure_path(self._folder, index)
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)  # It is that of the start before.
            variables |= _compilation_cache(self._folder) | launcher_hooks.environment(path)
        started = functools.partial(start_process, str(index), command)
        if (stall_secs := self._config.stall_secs) is None:
            group = started(variables, self._guardian, self._echo)
        else:
            with self._heartbeats.pipe(index) as pipe:
                variables |= heartbeat.environment(stall_secs, pipe)
                group = started(variables, self._guardian, self._echo, [pipe])
        self._groups.append(group)

        def note_end() -> None:
            group.block()
            self._ended.append(index)

        threading.Thread(target=note_end, name=f"hookline-process-{index}", daemon=True).start()

    def _statuses(self) -> list[int | None]:
        found = [group.status() for group in self._groups]
        return [STALLED if index in self._stalled and each else each for index, each in enumerate(found)]

    def _end_stalled(self) -> None:
        """Kills the processes whose threads have ceased to run, and names these and those that have ended for it."""
        self._heartbeats.receive()
        silent = self._heartbeats.silent()
        for index, group in enumerate(self._groups):
            has_exited = group.status() == _FAULTHANDLER and self._heartbeats.has_stalled(index)
            if index not in self._stalled and (has_exited or (index in silent and group.status() is None)):
                self._stalled.add(index)
                group.kill()
                how = "and it has ended" if has_exited else "and it is killed"
                log_message(f"process {index} has stalled: none of its threads has run for a while, {how}.")
                if (path := self._heartbeats.accounts.get(index)) is not None:
                    mark_stall(path, group.pid, f"none of its threads has run, {how}")

    def _wait(self, until: float = math.inf, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Waits until all processes have ended, a signal is caught, `is_enough()`, or the time `until` has come."""
        while None in self._statuses() and not (self._signals.caught or is_enough()) and clock.monotonic() < until:
            self._signals.wait(_POLL_SECS)
            self._end_stalled()

    def _end_after_failure(self) -> int:
        """Ends the other processes, and returns the exit status of the process that failed first."""
        begun, secs = clock.monotonic(), min(self._config.grace_secs, _AFTER_FAILURE_SECS)
        by_themselves = begun + min(secs, _BY_THEMSELVES_SECS)
        # A process closes its connections a moment before it has ended, so the others may end before it.
        self._wait(by_themselves, lambda: not {None, 0, *_LOST_ANOTHER}.issuperset(self._statuses()))
        first, status = self._first_failed()
        if status in _LEFT:
            # All leave together; another signal would interrupt those that are still saving.
            log_message(f"process {first} {describe_exit(status)}.")
            deadline = clock.monotonic() + self._config.grace_secs
            while None in self._statuses() and not self._signals.has_repeated and clock.monotonic() < deadline:
                clock.sleep(_POLL_SECS)
        elif None in self._statuses():
            log_message(f"process {first} {describe_exit(status)}. The others are ended, within {secs:g} s.")
            self._wait(by_themselves)
            self._log_other_failures(first)
            left = max(begun + secs - clock.monotonic(), 0)
            others = [group for group in self._groups if group.status() is None]
            stop_all(others, left, lambda: bool(self._signals.caught))
        else:
            log_message(f"process {first} {describe_exit(status)}.")
            self._log_other_failures(first)
        return shell_status(status) if is_failure(status) else self._end_in_order(shell_status(status))

    def _log_other_failures(self, first: int) -> None:
        """Names the processes that have failed too, and not because of the first one."""
        for index, status in enumerate(self._statuses()):
            if index != first and status and is_failure(status) and status not in (*_LOST_ANOTHER, STALLED):
                log_message(f"process {index} {describe_exit(status)}, too.")

    def _first_failed(self) -> tuple[int, int]:
        """Returns the process that failed first, else one that ended on a signal; and its exit status."""
        statuses = {index: status for index, status in enumerate(self._statuses()) if status}
        order = [*self._ended, *range(len(self._groups))]

        def rank(index: int) -> tuple[bool, bool, int]:
            status = statuses[index]
            return not is_failure(status), status in _LOST_ANOTHER, order.index(index)

        first = min(statuses, key=rank)
        return first, statuses[first]

    def _end_in_order(self, status: int) -> int:
        """Kills running processes; returns `status` if all ended gracefully, else the status of the first failure."""
        stop_all(self._groups)
        failed = {index: each for index, each in enumerate(self._statuses()) if each and is_failure(each)}
        for index, each in failed.items():
            log_message(f"process {index} {describe_exit(each)}.")
        return shell_status(self._first_failed()[1]) if failed else status
