"""The contract of `sync`: files and their directories are on the disk when it returns."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hookline import errors
from hookline.summary import FileWriter, FileWriterCache

Steps = Callable[[Path], list[int]]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The synced paths, in order, with their sizes (0 for a directory). Each sync really happens."""
    calls, fsync = [], os.fsync

    def recorded(descriptor: int) -> None:
        fsync(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        calls.append((path, 0 if os.path.isdir(path) else os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", recorded)
    return calls


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[None]:
    yield
    FileWriterCache.clear()


def the_file(logdir: Path) -> Path:
    (file,) = logdir.glob("events*")
    return file


def test_sync_covers_the_file_and_each_directory_created_for_it(tmp_path: Path, synced: list[tuple[str, int]]):
    with FileWriter(tmp_path / "a" / "b") as writer:
        writer.add_summary(b"", 1)
        writer.sync()
        file = the_file(tmp_path / "a" / "b")
        assert synced[0] == (str(file), file.stat().st_size)
        assert sorted(synced[1:]) == [(str(tmp_path), 0), (str(tmp_path / "a"), 0), (str(tmp_path / "a" / "b"), 0)]


def test_only_new_data_are_synced_again(tmp_path: Path, synced: list[tuple[str, int]]):
    with FileWriter(tmp_path) as writer:
        writer.add_summary(b"", 1)
        writer.sync()
        synced.clear()
        writer.sync()
        assert synced == []
        writer.add_summary(b"", 2)
        writer.sync()
        file = the_file(tmp_path)
        assert synced == [(str(file), file.stat().st_size)]


def test_close_syncs(tmp_path: Path, synced: list[tuple[str, int]]):
    writer = FileWriter(tmp_path)
    writer.add_summary(b"", 1)
    writer.close()
    assert synced[0] == (str(the_file(tmp_path)), the_file(tmp_path).stat().st_size)
    synced.clear()
    writer.sync()
    assert synced == []


def test_sync_of_the_cache_covers_all_its_writers(tmp_path: Path, synced: list[tuple[str, int]]):
    for name in ("a", "b", "c"):
        FileWriterCache.get(tmp_path / name).add_summary(b"", 1)
    FileWriterCache.get(tmp_path / "c").close()
    synced.clear()
    FileWriterCache.sync()
    assert {path for path, size in synced if size} == {str(the_file(tmp_path / name)) for name in ("a", "b")}


def test_strict_writer_raises_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    writer = FileWriter(tmp_path)
    writer.add_summary(b"", 1)
    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(errors.UnknownError, match=r"could not write .*events.*Input/output error"):
        writer.sync()
    with pytest.raises(errors.UnknownError):
        writer.add_summary(b"", 2)
    writer.close()


def test_failed_sync_is_an_outage_of_other_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps, caplog: pytest.LogCaptureFixture
):
    failures = [OSError(5, "Input/output error")]

    def refused(descriptor: int) -> None:
        if failures:  # The kernel reports a failure once; the next sync succeeds, and the lost data stay lost.
            raise failures.pop()

    caplog.set_level(logging.INFO, logger="hookline")
    writer = FileWriterCache.get(tmp_path)
    writer.add_summary(b"", 1)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", refused)
        FileWriterCache.sync()
    writer.add_summary(b"", 2)
    FileWriterCache.sync()
    assert len(os.listdir(tmp_path)) == 2
    # The event that is counted as lost may have reached the disk all the same.
    assert steps(tmp_path) == [1, 2]
    (warning, info) = caplog.records
    assert (warning.levelname, info.levelname) == ("WARNING", "INFO")
    assert "lost so far: 1." in warning.getMessage()


def test_only_sync_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps):
    begun, go_on, fsync = threading.Event(), threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        begun.set()
        go_on.wait(60)
        fsync(descriptor)

    with FileWriter(tmp_path, max_queue=1_000_000) as writer:
        writer.add_summary(b"", 0)
        monkeypatch.setattr(os, "fsync", slow)
        syncing = threading.Thread(target=writer.sync)
        syncing.start()
        assert begun.wait(60)
        for step in range(1, 3000):
            writer.add_summary(b"", step)
        writer.flush()
        assert steps(tmp_path) == list(range(3000))
        assert syncing.is_alive()
        go_on.set()
        syncing.join(60)


def test_sync_may_run_concurrently_with_add_close_get_and_clear(tmp_path: Path, steps: Steps):
    failures, done = [], threading.Event()

    def again_and_again() -> None:
        try:
            while not done.is_set():
                FileWriterCache.sync()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=again_and_again) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for step in range(300):
            FileWriterCache.get(tmp_path).add_summary(b"", step)
            if step % 20 == 19:
                FileWriterCache.get(tmp_path).close()
            if step % 50 == 49:
                FileWriterCache.clear()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    FileWriterCache.clear()
    assert failures == []
    assert steps(tmp_path) == list(range(300))


def test_forked_child_syncs_nothing_of_its_parent(tmp_path: Path, steps: Steps):
    program = """if True:
        import os, sys
        from hookline.summary import FileWriterCache
        FileWriterCache.get(sys.argv[1], strict=True).add_summary(b"", 1)
        child = os.fork()
        if child == 0:
            FileWriterCache.sync()
            os._exit(0)
        os.waitpid(child, 0)
    """
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=120, check=True)
    assert steps(tmp_path) == [1]


def test_events_survive_a_power_cut_from_sync_on(tmp_path: Path, steps: Steps):
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux may mount an image of a disk")
    image, disk = tmp_path / "image", tmp_path / "disk"
    image.write_bytes(b"")
    os.truncate(image, 8 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    disk.mkdir()

    def with_image(used: Path, work: Callable[[], None]) -> None:
        subprocess.run(["mount", "-o", "loop", str(used), str(disk)], check=True)
        try:
            work()
        finally:
            subprocess.run(["umount", str(disk)], check=True)

    def write() -> None:
        with FileWriter(disk / "new" / "run", strict=False) as writer:
            writer.add_summary(b"", 1)
            writer.sync()
            writer.add_summary(b"", 2)
            writer.flush()
            shutil.copy(image, tmp_path / "as the power was cut")

    with_image(image, write)
    found = []
    with_image(tmp_path / "as the power was cut", lambda: found.extend(steps(disk / "new" / "run")))
    assert found[:1] == [1]
