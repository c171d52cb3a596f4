"""A local Ray cluster starts alone and ends whole."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.stand_ins import ProcessTree

from hookline import errors
from hookline.distributed import LocalRayCluster

# Processes of Ray that must end.
from hookline.distributed.cluster import local_ray_cluster as module
from hookline.distributed.cluster.process_tree import stop_all

from .targets import until

SLEEP = "import time; time.sleep(600)"


def open_files(pids: list[int]) -> Iterator[tuple[str, int]]:
    """Returns the paths that processes have open, and how."""
    for pid in pids:
        try:
            links = os.listdir(f"/proc/{pid}/fd")
        except FileNotFoundError:  # It has ended since its number was read.
            continue
        for link in links:
            with suppress(FileNotFoundError):
                flags = Path(f"/proc/{pid}/fdinfo/{link}").read_text().split("flags:")[1].split()[0]
                yield os.readlink(f"/proc/{pid}/fd/{link}"), int(flags, 8)


def listening_elsewhere(pids: list[int]) -> list[str]:
    """Lines of /proc/net/tcp* of sockets that these processes listen on, on another address than loopback."""
    inodes = {target[8:-1] for target, _ in open_files(pids) if target.startswith("socket:[")}
    loopback = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes and not fields[1].startswith(loopback):
                found.append(line)
    return found


def test_local_cluster_listens_on_loopback_and_sends_no_usage_statistics(ray_cluster, members):
    pids = members(ray_cluster.head.pid)
    assert len(pids) > 3
    assert listening_elsewhere(pids) == []
    environ = Path(f"/proc/{ray_cluster.head.pid}/environ").read_bytes()
    assert b"RAY_USAGE_STATS_ENABLED=0" in environ
    assert b"RAY_AUTH_MODE=token" in environ


# Other users of the machine


def paths_of(cluster, members) -> list[Path]:
    """Everything in a cluster's folder, and every file and socket elsewhere that its processes have open to write."""
    paths = set(Path(cluster.token_path).parent.rglob("*"))
    inodes = set()
    for target, flags in open_files(members(cluster.head.pid)):
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
        elif flags & os.O_ACCMODE and Path(target).is_file():
            paths.add(Path(target))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[6] in inodes:
            paths.add(Path(fields[7]))
    return sorted(paths)


def others_come_to(path: Path) -> bool:
    """Returns whether a user who owns nothing on the way, and is in no group of it, can reach a path."""
    return all(os.stat(parent).st_mode & stat.S_IXOTH for parent in path.parents)


def test_other_users_cannot_reach_files_of_a_local_cluster(ray_cluster, members):
    paths = paths_of(ray_cluster, members)
    sockets = [path for path in paths if path.is_socket()]
    assert {path.name for path in sockets} >= {"raylet", "plasma_store"}
    # Names of sockets may have 107 characters. In some of them Ray writes its pid, which may get longer.
    assert max(len(str(path)) for path in sockets) <= 107 - 7
    assert len(paths) > 20
    assert [str(path) for path in paths if others_come_to(path)] == []
    folder = Path(ray_cluster.token_path).parent
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert os.stat(folder).st_uid == os.getuid()


@pytest.mark.slow_distributed
def test_restarted_cluster_is_as_closed_as_before(members):
    cluster, folders = LocalRayCluster(object_store_bytes=100_000_000), set()
    for _ in range(2):
        with cluster:
            folders.add(cluster.token_path)
            assert [str(path) for path in paths_of(cluster, members) if others_come_to(path)] == []
    assert len(folders) == 2


OTHER_USER = """
import json, os, socket, sys
folder, paths = json.load(sys.stdin)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)

def connect(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)

to_change = [os.listdir, os.remove, lambda p: os.chmod(p, 0o777), lambda p: os.rename(p, p + ".old")]
to_use = [os.stat, open, lambda p: os.open(p, os.O_WRONLY), connect, lambda p: os.symlink("/nowhere", p + ".new")]

def can(path, attempts):
    for attempt in attempts:
        try:
            attempt(path)
            return True
        except OSError:
            pass

print(json.dumps([p for p in paths if can(p, to_use + to_change)] + [p for p in [folder] if can(p, to_change)]))
"""


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="needs root, to become another user")
def test_other_user_can_neither_read_nor_replace_files_of_a_local_cluster(ray_cluster, members):
    folder = Path(ray_cluster.token_path).parent
    paths = [str(path) for path in (*paths_of(ray_cluster, members), folder / "absent")]
    given = json.dumps([str(folder), paths])
    ran = subprocess.run([sys.executable, "-c", OTHER_USER], input=given, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "[]\n"), ran.stderr


def test_folder_that_others_may_rename_is_refused(monkeypatch, tmp_path):
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setattr(module.os, "access", lambda path, mode: False)
    with pytest.raises(errors.PermissionDeniedError, match=rf"{place} .*chmod \+t"):
        LocalRayCluster().start()
    assert list(place.iterdir()) == []
    place.chmod(0o1777)
    with pytest.raises(errors.CancelledError):
        LocalRayCluster().start(lambda: True)


@pytest.mark.campaign  # The fixture `ray_cluster` checks its leftovers at the end of all tests.
def test_stop_leaves_no_process_or_file_and_spares_others(ray_cluster, members):
    with LocalRayCluster(object_store_bytes=100_000_000) as other:
        group, folder = other.head.pid, Path(other.token_path).parent
        assert other.address != ray_cluster.address
        before = members(ray_cluster.head.pid)
    until(lambda: not members(group), within_secs=10)
    assert not folder.exists()
    assert set(before) <= set(members(ray_cluster.head.pid))
    other.stop()


@pytest.mark.campaign
@pytest.mark.parametrize(
    "part",
    [
        "raylet/raylet",
        pytest.param("ray::RuntimeEnvAgent", marks=pytest.mark.campaign),
        pytest.param("gcs_server", marks=pytest.mark.slow_distributed),
    ],
)
def test_cluster_that_loses_a_process_ends_as_a_whole_with_an_error(members, caplog, part):
    with LocalRayCluster(object_store_bytes=100_000_000) as cluster:
        group, address = cluster.head.pid, cluster.address
        (pid,) = [pid for pid in members(group) if part.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(pid, signal.SIGKILL)
        # A killed process with threads counts as gone a moment before its end can be waited for.
        until(lambda: not members(group) and cluster.head.status() is not None, within_secs=20)
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    name = "GCS" if part == "gcs_server" else "raylet"
    ended = f"The local Ray cluster at {address} has ended by itself."
    assert said == f"{ended} Its last output: The {name} of the cluster died."
    assert cluster.address == ""


@pytest.mark.slow_distributed
def test_cluster_ends_with_the_process_that_started_it(members):
    code = (
        "import sys; from hookline.distributed.cluster.local_ray_cluster import LocalRayCluster as C\n"
        "c = C(object_store_bytes=100_000_000).start(); print(c.head.pid, c.token_path, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        group, token = owner.stdout.readline().split()
        owner.send_signal(signal.SIGKILL)
    until(lambda: not members(int(group)), within_secs=20)
    assert not Path(token).parent.exists()


def test_failed_start_shows_rays_output_and_leaves_nothing(monkeypatch, tmp_path):
    head = tmp_path / "head.py"
    head.write_text("raise SystemExit('no shared memory here')")
    monkeypatch.setattr(module, "_HEAD", head)
    cluster = LocalRayCluster()
    with pytest.raises(errors.UnavailableError, match="ended with status 1.*\n.*no shared memory here"):
        cluster.start()
    with pytest.raises(RuntimeError, match="not started"):
        _ = cluster.token_path


def test_start_ends_on_cancellation_and_timeout(monkeypatch, tmp_path):
    head = tmp_path / "head.py"
    head.write_text(SLEEP)
    monkeypatch.setattr(module, "_HEAD", head)
    with pytest.raises(errors.CancelledError):
        LocalRayCluster().start(lambda: True)
    with pytest.raises(errors.UnavailableError, match="is not ready"):
        LocalRayCluster(start_timeout_secs=0.2).start()


def test_missing_ray_names_what_to_install(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install ray"):
        LocalRayCluster()


# Process groups


def test_orphaned_children_end_with_the_process(members):
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}])"
    group = ProcessTree([sys.executable, "-c", code])
    assert group.wait(timeout_secs=60) == 0
    until(lambda: not members(group.pid), within_secs=10)


def test_stubborn_process_is_killed_after_the_grace_period(members):
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); {SLEEP}"
    groups = [ProcessTree([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    for group in groups:
        assert group.stdout is not None
        group.stdout.readline()
    stop_all(groups, grace_secs=0.2)
    assert [group.status() for group in groups] == [-signal.SIGKILL] * 2
    until(lambda: not any(members(group.pid) for group in groups), within_secs=10)
    for group in groups:
        assert group.stdout is not None
        group.stdout.close()


def test_process_may_end_by_itself_when_asked():
    group = ProcessTree([sys.executable, "-c", SLEEP])
    stop_all([group], grace_secs=30)
    assert group.status() == -signal.SIGTERM
    group.kill()
    group.ask_to_end()
