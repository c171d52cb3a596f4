"""A private Ray cluster starts alone and ends whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hookline import clock, errors
from hookline.distributed import ray_cluster as module
from hookline.distributed.processes import ProcessGroup, stop_all
from hookline.distributed.ray_cluster import PrivateRayCluster

SLEEP = "import time; time.sleep(600)"


def gone(members, group: int, within_secs: float = 10) -> bool:
    deadline = clock.monotonic() + within_secs
    while members(group):
        if clock.monotonic() > deadline:
            return False
        clock.sleep(0.05)
    return True


def listening_elsewhere(pids: list[int]) -> list[str]:
    """Lines of /proc/net/tcp* of sockets that these processes listen on, on another address than loopback."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(link)
            except FileNotFoundError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    loopback = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes and not fields[1].startswith(loopback):
                found.append(line)
    return found


def test_everything_listens_on_loopback_and_reports_nothing(ray_cluster, members):
    pids = members(ray_cluster.head.pid)
    assert len(pids) > 3
    assert listening_elsewhere(pids) == []
    environ = Path(f"/proc/{ray_cluster.head.pid}/environ").read_bytes()
    assert b"RAY_USAGE_STATS_ENABLED=0" in environ
    assert b"RAY_AUTH_MODE=token" in environ


def test_a_stop_leaves_neither_a_process_nor_a_file_and_spares_others(ray_cluster, members):
    with PrivateRayCluster(object_store_bytes=100_000_000) as other:
        group, folder = other.head.pid, Path(other.token_path).parent
        assert other.address != ray_cluster.address
        before = members(ray_cluster.head.pid)
    assert gone(members, group)
    assert not folder.exists()
    assert set(before) <= set(members(ray_cluster.head.pid))
    other.stop()


@pytest.mark.slow_distributed
def test_a_cluster_ends_with_whoever_started_it(members):
    code = (
        "import sys; from hookline.distributed.ray_cluster import PrivateRayCluster as C\n"
        "c = C(object_store_bytes=100_000_000).start(); print(c.head.pid, c.token_path, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        group, token = owner.stdout.readline().split()
        owner.send_signal(signal.SIGKILL)
    assert gone(members, int(group), within_secs=20)
    assert not Path(token).parent.exists()


def test_a_start_that_fails_shows_what_ray_said_and_leaves_nothing(monkeypatch, tmp_path):
    head = tmp_path / "head.py"
    head.write_text("raise SystemExit('no shared memory here')")
    monkeypatch.setattr(module, "_HEAD", head)
    cluster = PrivateRayCluster()
    with pytest.raises(errors.UnavailableError, match="ended with status 1.*\n.*no shared memory here"):
        cluster.start()
    with pytest.raises(RuntimeError, match="not started"):
        _ = cluster.token_path


def test_a_start_ends_when_it_is_cancelled_and_when_it_takes_too_long(monkeypatch, tmp_path):
    head = tmp_path / "head.py"
    head.write_text(SLEEP)
    monkeypatch.setattr(module, "_HEAD", head)
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(errors.CancelledError):
        PrivateRayCluster().start(cancelled)
    with pytest.raises(errors.UnavailableError, match="is not ready"):
        PrivateRayCluster(start_timeout_secs=0.2).start()


def test_without_ray_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install 'hookline\\[ray\\]'"):
        PrivateRayCluster()


# Process groups


def test_children_that_a_process_left_behind_end_with_it(members):
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}])"
    group = ProcessGroup([sys.executable, "-c", code])
    assert group.wait(timeout_secs=60) == 0
    assert gone(members, group.pid)


def test_a_process_that_does_not_listen_is_killed_after_the_grace(members):
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); {SLEEP}"
    groups = [ProcessGroup([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    for group in groups:
        assert group.stdout is not None
        group.stdout.readline()
    stop_all(groups, grace_secs=0.2)
    assert [group.status() for group in groups] == [-signal.SIGKILL] * 2
    assert all(gone(members, group.pid) for group in groups)
    for group in groups:
        assert group.stdout is not None
        group.stdout.close()


def test_a_process_may_end_by_itself_when_asked_to():
    group = ProcessGroup([sys.executable, "-c", SLEEP])
    group.stop(grace_secs=30)
    assert group.status() == -signal.SIGTERM
    group.kill()
    group.signal(signal.SIGTERM)
