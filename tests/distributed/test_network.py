"""Two hosts, started as docs/distributed.md says, and a network between them that fails under real load.

A host is a process with a network, a list of processes and mounts of its own (Linux namespaces without a name): all
that runs on it ends with that process, which ends when its standard input does, also if pytest is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.stand_ins import ProcessTree

from hookline import clock

# How the command starts Ray, on hosts of a test.
from hookline.distributed.cluster.local_ray_cluster import LOOPBACK_VARIABLE, write_token

from .hosts import Host, connect
from .hosts import missing as hosts_are_missing
from .targets import until

pytestmark = pytest.mark.slow_distributed

HASTY = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
"""Ray declares a host dead that has not answered for about 5 seconds; otherwise for 15 to 65."""


def missing() -> str | None:
    """Returns the missing requirements of these tests."""
    return "needs Ray" if find_spec("ray") is None else hosts_are_missing("tc")


class Hosts:
    """Host `a` with the Ray head and the servers, host `b` with a Ray node for a worker.

    To `start_job` it is what a `LocalRayCluster` is, but with no `address`: pytest is on neither host.
    """

    def __init__(self, folder: Path) -> None:
        self.address, self.token_path = "", str(folder / "token")
        write_token(folder / "token")
        self.a = Host("10.231.7.1", folder / "a")
        self.b = Host("10.231.7.2", folder / "b")

    def connect(self) -> None:
        """Lays a cable between the two."""
        connect(self.a, self.b)

    def environment(self) -> dict[str, str]:
        """Returns the settings of tasks, as in docs/distributed.md."""
        head = {"HOOKLINE_ADDRESS": f"{self.a.address}:6379", "HOOKLINE_TOKEN_PATH": self.token_path}
        # pytest has joined the cluster of other tests, on the loopback interface.
        return {**head, LOOPBACK_VARIABLE: "1"}

    def start_ray(self, host: Host, **settings: str) -> None:
        """Starts the Ray head (host a) or a Ray node."""
        if host is self.a:
            role = ["--head", f"--node-ip-address={host.address}", "--port=6379", "--include-dashboard=false"]
        else:
            role = [f"--address={self.a.address}:6379"]
        # All hosts share /tmp here, and would share Ray's folder.
        sizes = ["--num-cpus=0", "--object-store-memory=100000000", f"--temp-dir={host.folder}"]
        ray = str(Path(sys.executable).with_name("ray"))
        env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": self.token_path}
        host.run(ray, "start", *role, *sizes, env={**env, **settings})


@pytest.fixture
def hosts(members) -> Iterator[Hosts]:
    """Two hosts and the network between them. All of it ends with their first processes."""
    if reason := missing():
        pytest.skip(reason)
    # Names of Ray's sockets are long and may have no more than 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="hookline-net-", dir="/tmp"))
    made = Hosts(folder)
    try:
        made.connect()
        yield made
    finally:
        for host in (made.a, made.b):
            host.group.kill()
            # The first process of a host is the last that ends.
            until(lambda pid=host.group.pid: not members(pid))
        shutil.rmtree(folder)


def check_end(job, tasks, last_step: int) -> None:
    """The tasks end well at the last step; each step up to it was made by one run, and servers end when asked to."""
    assert [task.end(120) for task in tasks] == [0] * len(tasks), "\n\n".join(task.story() for task in tasks)
    assert max(job.checkpoints()) == last_step
    assert tasks[0].events("end")[-1]["step"] == last_step
    for task in job.tasks:
        seen = [event["step"] for event in task.events() if "step" in event]
        assert seen == sorted(seen), task.story()
    hosts = job.ray
    assert len(hosts.a.processes("ray::ParameterServer")) == job.servers
    assert hosts.b.processes("ray::ParameterServer") == []
    hookline = [str(Path(sys.executable).with_name("hookline")), "stop", "--token-path", hosts.token_path]
    hosts.a.run(*hookline, "--address", f"{hosts.a.address}:6379", "--job", job.name)
    until(lambda: not hosts.a.processes("ray::ParameterServer"))


def test_command_on_a_stopped_host_finishes_after_it_continues(hosts, members):
    group = ProcessTree(
        [*hosts.a.enter, sys.executable, "-c", "print(input()); raise SystemExit(3)"], stdin=subprocess.PIPE
    )
    until(lambda: len(members(group.pid)) >= 2, within_secs=30)
    found = members(group.pid)
    for number in (signal.SIGSTOP, signal.SIGCONT) * 5:
        for pid in sorted(found, reverse=True):
            os.kill(pid, number)
        clock.sleep(0.05)
    group.stdin.write(b"\n")
    group.stdin.close()
    assert group.wait(30) == 3


def updates(task) -> int:
    """How many updates a task has made."""
    return len(task.applied())


def cut(chief, worker, begin, end) -> None:
    """Cuts a worker off for longer than its calls may take, while it trains."""
    made = updates(worker)
    worker.await_("progress", lambda: updates(worker) > made + 30)
    begin()
    try:
        step, made = chief.step(), updates(worker)
        clock.sleep(4)
        assert updates(worker) <= made + 2, worker.story()
    finally:
        end()
    assert chief.step() > step + 20, chief.story()


def test_worker_on_a_briefly_disconnected_host_continues(hosts, start_job):
    hosts.start_ray(hosts.a)
    hosts.start_ray(hosts.b)
    # With one server a run is one call: only its answer can be lost.
    job = start_job(hosts, workers=2, servers=1, last_step=2500, pause_secs=0.01)
    chief, worker = job.start(0, on=hosts.a.enter, pause_secs=0.03), job.start(1, on=hosts.b.enter, call_secs=2)
    cut(chief, worker, lambda: hosts.b.link("down"), lambda: hosts.b.link("up"))
    for _ in range(2):
        # The worker's messages are received, and applied; it gets no answer.
        cut(chief, worker, lambda: hosts.a.lose(1), hosts.a.lose_nothing)
    check_end(job, [chief, worker], 2500)
    assert chief.events("log") == []
    assert len(chief.events("session")) == 1
    assert len(worker.said("Whether the update was applied is not known")) > 1
    assert len(job.steps()) == 2500


def test_worker_disconnected_for_too_long_gets_an_error_and_rejoins(hosts, start_job):
    hosts.start_ray(hosts.a, **HASTY)
    hosts.start_ray(hosts.b)
    job = start_job(hosts, workers=3, servers=2, last_step=5000, pause_secs=0.05)
    chief, other = job.start(0, on=hosts.a.enter), job.start(2, on=hosts.a.enter)
    worker = job.start(1, on=hosts.b.enter, call_secs=2)
    for task in (chief, other, worker):
        task.await_("a start", lambda task=task: updates(task) > 20)
    began = clock.monotonic()
    hosts.b.link("down")
    step = chief.step()
    (error,) = worker.await_("an error", lambda: worker.events("error"))
    assert error["time"] - began < 30
    assert "has not answered for 15 seconds" in error["text"]
    assert "If only this host was disconnected, the other tasks continue: start this task again" in error["text"]
    assert chief.step() > step + 50, chief.story()
    hosts.b.link("up")
    assert worker.end(60) == 1
    ended = clock.monotonic()
    # Ray's node was declared dead, learns of it now, and ends.
    until(lambda: not hosts.b.processes("raylet/raylet"))
    print(f"told after {error['time'] - began:.1f} s, the task has ended after {ended - began:.1f} s")
    hosts.start_ray(hosts.b)
    again = job.start(1, on=hosts.b.enter, pause_secs=0)
    check_end(job, [chief, other, again], 5000)
    assert chief.events("log") == other.events("log") == []
    assert updates(again) > 100
    # No process asked for the outcome of the ended worker's last update.
    assert len(job.steps()) == len(set(job.steps())) >= 4999


def test_training_succeeds_over_a_lossy_network(hosts, start_job):
    hosts.start_ray(hosts.a)
    hosts.start_ray(hosts.b)
    job = start_job(hosts, workers=2, servers=2, last_step=1500, pause_secs=0.01)
    chief, worker = job.start(0, on=hosts.a.enter), job.start(1, on=hosts.b.enter, call_secs=2)
    worker.await_("a start", lambda: updates(worker) > 20)
    for host in (hosts.a, hosts.b):
        host.lose(0.05)
    cut(chief, worker, lambda: hosts.b.link("down"), lambda: hosts.b.link("up"))
    check_end(job, [chief, worker], 1500)
    assert updates(worker) > 100
    assert len(job.steps()) == 1500
