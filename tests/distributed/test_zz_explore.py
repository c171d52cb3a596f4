"""Two hosts, started as docs/distributed.md says, and a network between them that fails under real load.

A host is a process with a network, a list of processes and mounts of its own (Linux namespaces without a name): all
that runs on it ends with that process, which ends when its standard input does, also if pytest is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hookline import clock
from hookline.distributed.processes import ProcessGroup
from hookline.distributed.ray_cluster import LOOPBACK_VARIABLE, ray_environment, write_token

OWN = ["--net", "--pid", "--mount"]
UNSHARE = ["unshare", *OWN, "--fork", "--kill-child", "--mount-proc"]


def missing() -> str | None:
    """What these tests need and is not here."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "needs root on Linux, to make hosts with networks of their own"
    if tools := [tool for tool in ("ip", "tc", "unshare", "nsenter") if shutil.which(tool) is None]:
        return f"needs {', '.join(tools)} (iproute2 and util-linux)"
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return f"may not make a network of its own: {tried.stderr}" if tried.returncode else None


class Host:
    """A host, with one network interface that leads nowhere yet."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder = address, folder
        self.group = ProcessGroup([*UNSHARE, "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        children = Path(f"/proc/{self.group.pid}/task/{self.group.pid}/children")
        deadline = clock.monotonic() + 10
        while not (first := children.read_text().split()) or Path(f"/proc/{first[0]}/comm").read_text() != "cat\n":
            assert clock.monotonic() < deadline, "The host did not start."
            clock.sleep(0.02)
        self.pid = first[0]
        self.enter = ["nsenter", "--target", self.pid, *OWN]

    def run(self, *command: str, env: dict[str, str] | None = None) -> str:
        """Runs a command on the host and returns what it printed."""
        done = subprocess.run([*self.enter, *command], env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def link(self, state: str) -> None:
        """Takes its network "up" or "down"."""
        self.run("ip", "link", "set", "eth0", state)

    def processes(self, part: str) -> list[str]:
        """The command lines on it with a text in them."""
        return [line for line in self.run("ps", "-ww", "-eo", "args").splitlines() if part in line]


class Hosts:
    """Host `a` with the Ray head and the servers, host `b` with a Ray node for a worker.

    To `start_job` it is what a `PrivateRayCluster` is, but with no `address`: pytest is on neither host.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.address, self.hosts = folder, "", []
        self.token_path = str(folder / "token")
        write_token(Path(self.token_path))
        for number in (1, 2):
            self.hosts.append(Host(f"10.231.7.{number}", folder / str(number)))
        self.a, self.b = self.hosts
        ends = ["eth0", "netns", self.a.pid], ["eth0", "netns", self.b.pid]
        subprocess.run(["ip", "link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1]], check=True)
        for host in self.hosts:
            host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
            host.run("ip", "link", "set", "lo", "up")
            host.link("up")

    def environment(self) -> dict[str, str]:
        """What tasks need, by docs/distributed.md; and the address of other tests' clusters is not theirs."""
        head = {"HOOKLINE_ADDRESS": f"{self.a.address}:6379", "HOOKLINE_TOKEN_PATH": self.token_path}
        return {LOOPBACK_VARIABLE: "1", **ray_environment(self.token_path, loopback=False), **head}

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
        host.run(ray, "start", *role, *sizes, env={**env, **self.environment(), **settings})

    def stop(self) -> None:
        """Ends both hosts, and all that runs on them."""
        for host in self.hosts:
            host.group.kill()


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Two hosts with a Ray cluster. Nothing is left of them: namespaces and their links end with their processes."""
    if reason := missing():
        pytest.skip(reason)
    # Names of Ray's sockets are long and may have no more than 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="hookline-net-", dir="/tmp"))
    made = None
    try:
        made = Hosts(folder)
        yield made
    finally:
        if made is not None:
            made.stop()
        shutil.rmtree(folder)




QUICK = {"RAY_health_check_initial_delay_ms": "1000", "RAY_health_check_period_ms": "500", "RAY_health_check_timeout_ms": "1000", "RAY_health_check_failure_threshold": "3"}
def explore(hosts, start_job, secs, **env):
    hosts.start_ray(hosts.a, **env)
    hosts.start_ray(hosts.b, **env)
    job = start_job(hosts, workers=2, servers=2, last_step=3000, save_steps=500, pause_secs=0.01, call_secs=2)
    chief, worker = job.start(0, on=hosts.a.enter), job.start(1, on=hosts.b.enter)
    worker.await_step(30)
    t = clock.monotonic()
    hosts.b.link("down")
    up = False
    while clock.monotonic() < t + 75:
        now = clock.monotonic() - t
        if now > secs and not up:
            hosts.b.link("up"); up = True; print(f"{now:.1f} link up")
        st = worker.group.status()
        rl = hosts.b.processes("raylet/raylet")
        new = worker.events()[-1]
        print(f"{now:.1f} {st} raylet={len(rl)} {new['event']} {new.get('text','')[:160]} {new.get('step')}")
        if st is not None: break
        if new["event"] in ("done",): break
        clock.sleep(1)
    print(worker.story()[-5000:])
    for log in ("gcs_server.out", "raylet.out"):
        for p in hosts.folder.glob(f"[12]/session_2*/logs/{log}"):
            print(p); pass
    print(hosts.b.processes(""))
    if worker.group.status() is None: worker.kill()
    chief_step = chief.step(); print("chief at", chief_step, chief.group.status(), [e for e in chief.events("log")])
    t = clock.monotonic()
    if not up: hosts.b.link("up")
    if not hosts.b.processes("raylet/raylet"):
        hosts.start_ray(hosts.b, **env)
    again = job.start(1, on=hosts.b.enter)
    try:
        again.await_step(chief_step, 40)
        print("joined after", clock.monotonic() - t)
    finally:
        print(again.story())
    print(chief.end(), again.end(), len(job.steps()), len(set(job.steps())), max(job.steps()))

def test_y(hosts, start_job):
    explore(hosts, start_job, 40, **QUICK)

