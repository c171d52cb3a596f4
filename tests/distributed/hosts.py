"""Hosts: processes that have a network, a list of processes and mounts of their own, and cables between them.

All that runs on a host ends with its first process, which ends when its standard input does, also if pytest is killed.
They are Linux namespaces without a name, and need root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.stand_ins import ProcessTree

from hookline import clock

OWN = ["--net", "--pid", "--mount"]
UNSHARE = ["unshare", *OWN, "--fork", "--kill-child", "--mount-proc"]


def missing(*tools: str) -> str | None:
    """Returns the missing requirements of hosts, beside these tools."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "needs root on Linux, to make hosts with networks of their own"
    if absent := [tool for tool in ("ip", "unshare", "nsenter", *tools) if shutil.which(tool) is None]:
        return f"needs {', '.join(absent)} (iproute2 and util-linux)"
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return f"may not make a network of its own: {tried.stderr}" if tried.returncode else None


class Host:
    """A host, with one network interface that leads nowhere yet."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder = address, folder
        self.group = ProcessTree([*UNSHARE, "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        children = Path(f"/proc/{self.group.pid}/task/{self.group.pid}/children")
        deadline = clock.monotonic() + 10
        while not (first := children.read_text().split()) or Path(f"/proc/{first[0]}/comm").read_text() != "cat\n":
            assert clock.monotonic() < deadline, "The host did not start."
            clock.sleep(0.02)
        self.pid = first[0]
        # The shell waits, because nsenter stops itself whenever its command is stopped: if somebody has stopped and
        # continued both, it can stay stopped for ever, and the command seems never to end.
        self.enter = ["nsenter", "--no-fork", "--target", self.pid, *OWN, "sh", "-c", '"$@"; exit $?', "sh"]

    def run(self, *command: str, env: dict[str, str] | None = None) -> str:
        """Runs a command on the host and returns its output."""
        done = subprocess.run([*self.enter, *command], env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def link(self, state: str) -> None:
        """Takes its network "up" or "down"."""
        self.run("ip", "link", "set", "eth0", state)

    def lose(self, share: float) -> None:
        """Loses this share of all packets that it sends, by chance."""
        self.run("tc", "qdisc", "add", "dev", "eth0", "clsact")
        # A classic BPF program: load a random number (-4096 + 56); if it is less, return 2 (drop), else 0 (send).
        program = f"4,32 0 0 4294963256,53 1 0 {min(int(share * 2**32), 2**32 - 1)},6 0 0 2,6 0 0 0"
        self.run("tc", "filter", "add", "dev", "eth0", "egress", "bpf", "da", "bytecode", program)

    def lose_nothing(self) -> None:
        """Ends `lose`."""
        self.run("tc", "qdisc", "del", "dev", "eth0", "clsact")

    def processes(self, part: str) -> list[str]:
        """The command lines on it with a text in them."""
        return [line for line in self.run("ps", "-ww", "-eo", "args").splitlines() if part in line]


def connect(a: Host, b: Host) -> None:
    """Lays a cable between two hosts."""
    ends = ["eth0", "netns", a.pid], ["eth0", "netns", b.pid]
    subprocess.run(["ip", "link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1]], check=True)
    for host in (a, b):
        host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "lo", "up")
        host.link("up")
