"""`hookline launch` and `stop`: a script as a chief and workers, on one machine; and the end of its servers."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator

from hookline import clock
from hookline.cli.guardian import Guardian
from hookline.cli.task import Echo, Signals, Task, as_of_shell, is_failure, restarts, say, started
from hookline.distributed.cluster.cluster import Cluster, ClusterOptions
from hookline.distributed.cluster.connection import await_head
from hookline.distributed.cluster.processes import ProcessGroup, stop_all
from hookline.distributed.cluster.ray_cluster import PrivateRayCluster, require_ray
from hookline.errors import CancelledError
from hookline.signals.preemption import KILLED

_LOOK_EVERY_SECS = 0.1
_STOP_SERVERS_SECS = 60.0


def run(what: argparse.Namespace) -> int:
    """Starts a job, shows the output of its tasks, and waits for its end.

    A failed worker is reported, and the others continue. Once the chief has ended, the workers have the grace period to
    end too; if the chief has failed for good, they are stopped. SIGINT and SIGTERM ask every task to save and end,
    within the grace period; a second signal ends everything at once. A task that ends because of its own such signal
    has not failed. If this process is killed, a guardian process stops everything, within the grace period or 5
    seconds.

    Returns:
        The exit status of the chief (128 plus the signal that ended it). If a signal has ended the job, 128 plus that
        signal if all tasks ended in order; else the status of a chief that failed, or 137 if a task was killed.

    Raises:
        UnavailableError: The private Ray cluster does not start, or no Ray head listens at the address.
        ModuleNotFoundError: Ray is not installed.
    """
    require_ray()
    job = what.job or f"hookline-{secrets.token_hex(4)}"
    with (
        Signals() as signals,
        Guardian(what.grace, _stop_command(what, job)) as guardian,
        _ray(what, job, signals) as environment,
    ):
        if signals.caught:
            return signals.exit_status
        return _Job(what, {**environment, "HOOKLINE_JOB": job}, signals, guardian).run()


def stop(arguments: argparse.Namespace) -> int:
    """Ends the parameter servers of a job, and returns the exit status."""
    options = ClusterOptions(token_path=arguments.token_path)
    count = Cluster(arguments.address, job=arguments.job, options=options).stop_servers()
    print(f"Ended {count} parameter servers of job {arguments.job!r}.")
    return 0


@contextlib.contextmanager
def _ray(what: argparse.Namespace, job: str, signals: Signals) -> Iterator[dict[str, str]]:
    """Yields the variables with the address of the Ray cluster; afterwards removes the job from the cluster."""
    if what.address is not None:
        Cluster(what.address, job=job)
        await_head(what.address, ClusterOptions().connect_secs)
        try:
            token = {} if what.token_path is None else {"HOOKLINE_TOKEN_PATH": os.path.abspath(what.token_path)}
            yield {"HOOKLINE_ADDRESS": what.address, **token}
        finally:
            _stop_servers(what, job)
        return
    private = PrivateRayCluster()
    try:
        with contextlib.suppress(CancelledError):
            private.start(signals.came)
        yield {} if signals.caught else private.environment()
    finally:
        private.stop()


def _stop_servers(what: argparse.Namespace, job: str) -> None:
    """Ends the servers of the job, in a separate process, because a process that joined Ray ends with the cluster."""
    stopper = ProcessGroup(_stop_command(what, job), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    if stopper.wait(_STOP_SERVERS_SECS) != 0:
        stopper.kill()
        say(f"the parameter servers of job {job!r} on {what.address} could not be ended. Do it with `hookline stop`.")


def _stop_command(what: argparse.Namespace, job: str) -> list[str]:
    """Returns the command that ends the job's servers; none for a private cluster, which ends with its servers."""
    if what.address is None:
        return []
    token = [] if what.token_path is None else ["--token-path", what.token_path]
    return [sys.executable, "-m", "hookline.cli", "stop", "--address", what.address, "--job", job, *token]


class _Job:
    """The tasks of a job."""

    def __init__(
        self, what: argparse.Namespace, environment: dict[str, str], signals: Signals, guardian: Guardian
    ) -> None:
        self._what, self._signals, self._guardian = what, signals, guardian
        self._environment = {**os.environ, **environment}
        self._environment.pop("TF_CONFIG", None)
        self._environment["PYTHONUNBUFFERED"] = "1"
        self._environment["HOOKLINE_NUM_WORKERS"] = str(what.workers)
        self._environment["HOOKLINE_NUM_SERVERS"] = str(what.servers)
        self._tasks: dict[str, Task] = {}
        self._echo = Echo(width=max(len(_name(rank)) for rank in range(what.workers)))

    def run(self) -> int:
        """Starts all tasks, waits, and leaves none running; returns the exit status."""
        try:
            for rank in range(self._what.workers):
                self._add(rank)
            status = self._wait(["chief"], None)
            for task in self._tasks.values():
                task.start_no_more()
            if status == 0:
                self._wait(list(self._tasks), self._what.grace)
            late = self._running()
            if self._signals.caught and not status:
                self._signals.stop(self._processes(), self._what.grace, lambda: not self._running())
                return self._status(late, self._signals.exit_status)
            if not status:
                if late:
                    secs = self._what.grace
                    say(f"{', '.join(late)} did not end within {secs:g} seconds after the chief: stopped.")
                return 0
            # Only a chief saves the results of workers.
            stop_all(self._processes(), self._what.grace, lambda: self._signals.again)
            return as_of_shell(status) if is_failure(status) else self._status(late, as_of_shell(status))
        finally:
            stop_all(self._processes())
            self._echo.finish()

    def _processes(self) -> list[ProcessGroup]:
        return [task.process for task in self._tasks.values()]

    def _add(self, rank: int) -> None:
        task = {"HOOKLINE_TASK_TYPE": "worker" if rank else "chief", "HOOKLINE_TASK_INDEX": str(max(rank - 1, 0))}
        environment = {**self._environment, **task}
        name = _name(rank)
        command = (sys.executable, str(self._what.script), *self._what.arguments)
        start = functools.partial(started, name, command, environment, self._guardian, self._echo)
        self._tasks[name] = Task(name, start, restarts(self._what), say)

    def _wait(self, names: list[str], timeout_secs: float | None) -> int | None:
        """Waits until the named tasks have ended for good, and returns the status of the first."""
        deadline = None if timeout_secs is None else clock.monotonic() + timeout_secs
        while not self._signals.caught:
            ended = {name for name, task in self._tasks.items() if task.status() is not None}
            if ended.issuperset(names) or (deadline is not None and clock.monotonic() >= deadline):
                break
            self._signals.wait(_LOOK_EVERY_SECS)
        return self._tasks[names[0]].status()

    def _running(self) -> list[str]:
        return [name for name, task in self._tasks.items() if task.status() is None]

    def _status(self, stopped: list[str], in_order: int) -> int:
        """Returns the exit status when these tasks were asked to end: `in_order` unless one failed or was killed."""
        statuses = {name: self._tasks[name].status() or 0 for name in stopped}
        chief = statuses.get("chief", 0)
        if is_failure(chief):
            return as_of_shell(chief)
        return KILLED if KILLED in map(as_of_shell, statuses.values()) else in_order


def _name(rank: int) -> str:
    return f"worker {rank - 1}" if rank else "chief"
