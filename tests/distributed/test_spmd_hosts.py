"""SPMD processes on two hosts: a network that fails briefly, or for too long, and a host that vanishes."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from tests.stand_ins import ProcessTree

from hookline import clock

from .hosts import Host, connect, missing
from .targets import until

SCRIPT = Path(__file__).with_name("spmd_train.py")
HEARTBEAT_SECS = 10
LOST = (75, 134)
"""The exit statuses of who has lost another, as docs/spmd.md has them."""

pytestmark = pytest.mark.slow_distributed


class Cluster:
    """Two hosts that share a folder, and the training on both."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.starts = folder, 0
        self.hosts = [self._host(0), self._host(1)]
        connect(*self.hosts)

    def _host(self, index: int) -> Host:
        host = Host(f"10.231.8.{index + 1}", self.folder)
        # The name of a host leads to its address: there Gloo listens.
        names = self.folder / f"hosts-{index}"
        names.write_text(f"127.0.0.1 localhost\n{host.address} {socket.gethostname()}\n")
        host.run("mount", "--bind", str(names), "/etc/hosts")
        return host

    def start(self, step_secs: float = 0.05) -> list[ProcessTree]:
        """Starts the training on both."""
        self.starts += 1
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOOKLINE_")}
        address = f"{self.hosts[0].address}:{20000 + self.starts}"
        found = []
        for index, host in enumerate(self.hosts):
            own = {"HOOKLINE_COORDINATOR_ADDRESS": address, "HOOKLINE_PROCESS_ID": str(index)}
            env = {**kept, **own, "HOOKLINE_NUM_PROCESSES": "2", "JAX_PLATFORMS": "cpu", "STEP_SECS": str(step_secs)}
            with (self.folder / f"told-{self.starts}-{index}").open("w") as file:
                # A process that enters a host comes to its root.
                there = ["sh", "-c", 'cd "$0" && exec "$@"', str(self.folder)]
                command = [*host.enter, *there, sys.executable, str(SCRIPT)]
                found.append(ProcessTree(command, env, stdout=file, stderr=file))
        return found

    def step(self) -> int:
        """How far the slower of both has come."""
        try:
            return min(int((self.folder / f"step-{index}").read_text()) for index in (0, 1))
        except (FileNotFoundError, ValueError):
            return 0

    def told(self) -> str:
        """Returns the output of the last start."""
        names = [f"told-{self.starts}-{index}" for index in (0, 1)]
        return "\n".join(f"{name}:\n{(self.folder / name).read_text()[-3000:]}" for name in names)

    def vanish(self) -> None:
        """Takes the second host away without a word."""
        for host in self.hosts:
            host.link("down")
        self.hosts[1].group.kill()

    def put_another(self) -> None:
        """Replaces the host that has vanished."""
        self.hosts[1] = self._host(1)
        # The old cable goes when the system comes to it.
        self.hosts[0].run("sh", "-c", "ip link del eth0 2> /dev/null; true")
        connect(*self.hosts)

    def assert_whole(self) -> None:
        """Each step was made once."""
        for index in (0, 1):
            total, expected, count = (self.folder / f"ended-{index}").read_text().split()
            assert (total, count) == (expected, "2"), self.told()


@pytest.fixture
def cluster(tmp_path, members):
    if reason := missing("mount"):
        pytest.skip(reason)
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        for host in made.hosts:
            host.group.kill()
            until(lambda pid=host.group.pid: not members(pid))


def ended(groups: list[ProcessTree], within_secs: float) -> list[int | None]:
    deadline = clock.monotonic() + within_secs
    return [group.wait(max(0.1, deadline - clock.monotonic())) for group in groups]


def test_network_failure_of_five_seconds_ends_nothing(cluster):
    groups = cluster.start()
    until(lambda: cluster.step() >= 50)
    cluster.hosts[1].link("down")
    clock.sleep(5)
    cluster.hosts[1].link("up")
    assert ended(groups, 120) == [0, 0], cluster.told()
    cluster.assert_whole()


def test_network_failure_of_a_minute_ends_both_processes_and_they_resume(cluster):
    groups = cluster.start()
    until(lambda: cluster.step() >= 50)
    cluster.hosts[1].link("down")
    begun = clock.monotonic()
    statuses = ended(groups, 60)
    assert set(statuses) <= {*LOST}, cluster.told()
    assert clock.monotonic() - begun <= 2 * HEARTBEAT_SECS + 5
    clock.sleep(max(0, 60 - (clock.monotonic() - begun)))
    cluster.hosts[1].link("up")
    assert ended(cluster.start(0.001), 120) == [0, 0], cluster.told()
    cluster.assert_whole()


def test_job_resumes_with_a_new_host_after_one_vanishes(cluster):
    groups = cluster.start()
    until(lambda: cluster.step() >= 50)
    begun = clock.monotonic()
    cluster.vanish()
    assert groups[1].wait(10) == 137
    assert groups[0].wait(60) in LOST, cluster.told()
    assert clock.monotonic() - begun <= 2 * HEARTBEAT_SECS + 5
    cluster.put_another()
    assert ended(cluster.start(0.001), 120) == [0, 0], cluster.told()
    cluster.assert_whole()
