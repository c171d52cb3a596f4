"""The addresses that SPMD processes listen on, on a machine whose name has an address that others can reach."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .hosts import missing

SCRIPT = Path(__file__).with_name("spmd_ports.py")
NAMED = "10.231.9.1"


def listening(folder: Path, *command: object) -> list[list[str]]:
    """Runs a command on a machine of its own, and returns the addresses on which each process listens."""
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{NAMED} {socket.gethostname()}\n")
    setup = f'ip link set lo up; ip address add {NAMED}/32 dev lo; mount --bind "{hosts}" /etc/hosts; exec "$@"'
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOOKLINE_")}
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-ec", setup, "sh", *map(str, command)],
        env={**kept, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = sorted(line for line in done.stdout.splitlines() if "listens on" in line)
    lines = [line.rpartition("listens on ")[2].split() for line in told]
    assert len(lines) == 2, done.stdout + done.stderr
    return lines


@pytest.fixture(autouse=True)
def _namespaces():
    if reason := missing("mount"):
        pytest.skip(reason)


def test_processes_of_the_launcher_listen_only_on_loopback(tmp_path):
    chief, other = listening(
        tmp_path, sys.executable, "-m", "hookline.cli", "launch", "--spmd", "--processes", 2, SCRIPT
    )
    assert (set(chief), set(other)) == ({"127.0.0.1"}, {"127.0.0.1"})


def test_processes_of_several_hosts_listen_on_the_hosts_address(tmp_path):
    both = 'for me in 1 0; do "$0" "$1" "$2" $me & done; wait'
    chief, other = listening(tmp_path, "sh", "-c", both, sys.executable, SCRIPT, f"{NAMED}:20000")
    assert (set(chief), set(other)) == ({"::", NAMED}, {NAMED})
