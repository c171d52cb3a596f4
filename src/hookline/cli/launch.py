"""`hookline launch`: runs a script as a chief and workers on one machine; `hookline stop`: ends its servers."""

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
from hookline.cli.task import (
    OutputEcho,
    SignalCatcher,
    Task,
    is_failure,
    log_message,
    restart_policy,
    shell_status,
    start_process,
)
from hookline.distributed.cluster.cluster import Cluster, ClusterOptions
from hookline.distributed.cluster.local_ray_cluster import LocalRayCluster, require_ray
from hookline.distributed.cluster.process_tree import ProcessTree, stop_all
from hookline.distributed.cluster.ray_connection import wait_for_head
from hookline.errors import CancelledError
from hookline.signals.preemption import KILLED_STATUS

_POLL_SECS = 0.1
_STOP_SERVERS_SECS = 60.0


def run(what: argparse.Namespace) -> int:
    """Starts a job, prints the output of its tasks, and waits for its end.

    If a worker fails, a message is printed, and the others continue. When the chief has ended, the workers have the
    grace period to end, too; if the chief failed without a further restart, they are stopped. On SIGINT and SIGTERM
    every task saves and ends, within the grace period; a second signal ends everything at once. A task that ends on
    such a signal of its own has not failed. If this process is killed, a guardian process stops everything, within the
    grace period or 5 seconds, whichever is shorter.

    Returns:
        The exit status of the chief (128 plus the signal that ended it). If a signal ended the job: 128 plus that
        signal if all tasks ended gracefully; else the status of a chief that failed, or 137 if a task was killed.

    Raises:
        UnavailableError: The local Ray cluster does not start, or no Ray head listens at the address.
        ModuleNotFoundError: Ray is not installed.
    """
    require_ray()
    job = what.job or f"hookline-{secrets.token_hex(4)}"
    with (
        SignalCatcher() as signals,
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
def _ray(what: argparse.Namespace, job: str, signals: SignalCatcher) -> Iterator[dict[str, str]]:
    """Yields the environment variables with the address of the Ray cluster; then removes the job from the cluster."""
    if what.address is not None:
        Cluster(what.address, job=job)
        wait_for_head(what.address, ClusterOptions().connect_secs)
        try:
            token = {} if what.token_path is None else {"HOOKLINE_TOKEN_PATH": os.path.abspath(what.token_path)}
            yield {"HOOKLINE_ADDRESS": what.address, **token}
        finally:
            _stop_servers(what, job)
        return
    private = LocalRayCluster()
    try:
        with contextlib.suppress(CancelledError):
            private.start(signals.has_caught)
        yield {} if signals.caught else private.environment()
    finally:
        private.stop()


def _stop_servers(what: argparse.Namespace, job: str) -> None:
    """Ends the servers of the job, in a separate process, because a process that joined Ray ends with the cluster."""
    stopper = ProcessTree(_stop_command(what, job), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    if stopper.wait(_STOP_SERVERS_SECS) != 0:
        stopper.kill()
        log_message(
            f"the parameter servers of job {job!r} on {what.address} could not be ended. Do it with `hookline stop`."
        )


def _stop_command(what: argparse.Namespace, job: str) -> list[str]:
    """Returns the command that ends the job's servers; empty for a local cluster, which ends with its servers."""
    if what.address is None:
        return []
    token = [] if what.token_path is None else ["--token-path", what.token_path]
    return [sys.executable, "-m", "hookline.cli", "stop", "--address", what.address, "--job", job, *token]


class _Job:
    """Runs the tasks of a job."""

    def __init__(
        self, what: argparse.Namespace, environment: dict[str, str], signals: SignalCatcher, guardian: Guardian
    ) -> None:
        self._config, self._signals, self._guardian = what, signals, guardian
        self._environment = {**os.environ, **environment}
        self._environment.pop("TF_CONFIG", None)
        self._environment["PYTHONUNBUFFERED"] = "1"
        self._environment["HOOKLINE_NUM_WORKERS"] = str(what.workers)
        self._environment["HOOKLINE_NUM_SERVERS"] = str(what.servers)
        self._tasks: dict[str, Task] = {}
        self._echo = OutputEcho(width=max(len(_name(rank)) for rank in range(what.workers)))

    def run(self) -> int:
        """Starts all tasks, waits for their end, and stops the rest; returns the exit status."""
        try:
            for rank in range(self._config.workers):
                self._add(rank)
            status = self._wait(["chief"], None)
            for task in self._tasks.values():
                task.disable_restarts()
            if status == 0:
                self._wait(list(self._tasks), self._config.grace)
            left = self._running()
            if self._signals.caught and not status:
                self._signals.stop(self._processes(), self._config.grace, lambda: not self._running())
                return self._status(left, self._signals.exit_status)
            if not status:
                if left:
                    secs = self._config.grace
                    log_message(f"{', '.join(left)} did not end within {secs:g} seconds after the chief: stopped.")
                return 0
            # Without the chief the work of the workers would not be saved.
            stop_all(self._processes(), self._config.grace, lambda: self._signals.has_repeated)
            return shell_status(status) if is_failure(status) else self._status(left, shell_status(status))
        finally:
            stop_all(self._processes())
            self._echo.finish()

    def _processes(self) -> list[ProcessTree]:
        return [task.process for task in self._tasks.values()]

    def _add(self, rank: int) -> None:
        task = {"HOOKLINE_TASK_TYPE": "worker" if rank else "chief", "HOOKLINE_TASK_INDEX": str(max(rank - 1, 0))}
        environment = {**self._environment, **task}
        name = _name(rank)
        command = (sys.executable, str(self._config.script), *self._config.arguments)
        start = functools.partial(start_process, name, command, environment, self._guardian, self._echo)
        self._tasks[name] = Task(name, start, restart_policy(self._config), log_message)

    def _wait(self, names: list[str], timeout_secs: float | None) -> int | None:
        """Waits until the named tasks have ended without a further restart, and returns the status of the first."""
        deadline = None if timeout_secs is None else clock.monotonic() + timeout_secs
        while not self._signals.caught:
            ended = {name for name, task in self._tasks.items() if task.status() is not None}
            if ended.issuperset(names) or (deadline is not None and clock.monotonic() >= deadline):
                break
            self._signals.wait(_POLL_SECS)
        return self._tasks[names[0]].status()

    def _running(self) -> list[str]:
        return [name for name, task in self._tasks.items() if task.status() is None]

    def _status(self, stopped: list[str], in_order: int) -> int:
        """Returns the exit status of stopped tasks: `in_order` unless the chief failed or a task was killed."""
        statuses = {name: self._tasks[name].status() or 0 for name in stopped}
        chief = statuses.get("chief", 0)
        if is_failure(chief):
            return shell_status(chief)
        return KILLED_STATUS if KILLED_STATUS in map(shell_status, statuses.values()) else in_order


def _name(rank: int) -> str:
    return f"worker {rank - 1}" if rank else "chief"
