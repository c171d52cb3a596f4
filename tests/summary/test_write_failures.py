"""The files on disk, and the errors of the caller, when writes fail."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hookline import errors
from hookline.extend import frame
from hookline.summary import FileWriter, FileWriterCache

Steps = Callable[[Path], list[int]]
Python = Callable[..., subprocess.CompletedProcess[str]]


def redirect(logdir: Path, target: str) -> None:
    """Redirects this process's open event file in `logdir` to another file, such as one on a full disk."""
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if path.startswith(str(logdir)):
            new = os.open(target, os.O_WRONLY)
            os.dup2(new, int(name))
            os.close(new)


def test_killed_process_leaves_all_flushed_events(python: Python, tmp_path: Path, steps: Steps):
    done = python(
        """
        import os, signal, sys
        from hookline.summary import FileWriter
        writer = FileWriter(sys.argv[1], max_queue=1_000_000, flush_secs=10_000)
        for step in range(500):
            writer.add_summary(b"", step)
        writer.flush()
        writer.add_summary(b"", 500)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path,
    )
    assert done.returncode == -signal.SIGKILL
    assert steps(tmp_path) == list(range(500))


def test_program_without_close_loses_nothing(python: Python, tmp_path: Path, steps: Steps):
    done = python(
        """
        import sys
        from hookline.summary import FileWriter
        writer = FileWriter(sys.argv[1], max_queue=1_000_000, flush_secs=10_000)
        for step in range(500):
            writer.add_summary(b"", step)
        sys.exit("an error")
        """,
        tmp_path,
    )
    assert done.returncode == 1
    assert done.stderr == "an error\n"
    assert steps(tmp_path) == list(range(500))


def test_forked_child_does_not_write_its_parents_events_again(python: Python, tmp_path: Path, steps: Steps):
    done = python(
        """
        import os, sys
        from hookline.summary import FileWriter
        writer = FileWriter(sys.argv[1], max_queue=1_000_000, flush_secs=10_000)
        writer.add_summary(b"", 1)
        child = os.fork()
        if child == 0:
            sys.exit(0)
        os.waitpid(child, 0)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert steps(tmp_path) == [1]


def test_full_disk_is_raised_by_flush_and_by_every_later_call(tmp_path: Path, steps: Steps):
    writer = FileWriter(tmp_path)
    writer.add_summary(b"", 1)
    writer.flush()
    redirect(tmp_path, "/dev/full")
    writer.add_summary(b"", 2)
    with pytest.raises(errors.ResourceExhaustedError, match=rf"{tmp_path}/events\.out.*No space left") as raised:
        writer.flush()
    assert isinstance(raised.value.__cause__, OSError)
    with pytest.raises(errors.ResourceExhaustedError):
        writer.add_summary(b"", 3)
    writer.close()
    with pytest.raises(RuntimeError, match="closed"):
        writer.add_summary(b"", 4)
    assert steps(tmp_path) == [1]
    writer.reopen()
    writer.add_summary(b"", 5)
    writer.close()
    assert steps(tmp_path) == [1, 5]


def test_close_raises_an_unreported_failure(tmp_path: Path):
    writer = FileWriter(tmp_path)
    redirect(tmp_path, "/dev/full")
    writer.add_summary(b"", 1)
    with pytest.raises(errors.ResourceExhaustedError):
        writer.close()
    writer.close()


def test_background_failure_is_raised_by_the_next_call(tmp_path: Path):
    writer = FileWriter(tmp_path, max_queue=1)
    redirect(tmp_path, "/dev/full")

    def go_on() -> None:
        pause = threading.Event()
        for step in range(1000):
            writer.add_summary(b"", step)
            pause.wait(0.01)

    with pytest.raises(errors.ResourceExhaustedError):
        go_on()
    writer.close()


def test_interrupted_write_leaves_only_complete_records(python: Python, tmp_path: Path, steps: Steps):
    done = python(
        """
        import resource, sys
        from hookline import errors
        from hookline.summary import FileWriter, Summary
        writer = FileWriter(sys.argv[1], max_queue=1_000_000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        for step in range(100):
            writer.add_summary(Summary(value=[Summary.Value(tag="loss", simple_value=step)]), step)
        try:
            writer.flush()
        except errors.ResourceExhaustedError as error:
            print(error)
        """,
        tmp_path,
    )
    assert "File too large" in done.stdout, done.stderr
    (file,) = tmp_path.iterdir()
    written = steps(tmp_path)
    assert written == list(range(len(written)))
    # 40 bytes of the file's first event, then 49 or so a scalar; no torn bytes behind the last whole one.
    assert 950 < file.stat().st_size <= 1000
    with open(file, "ab") as handle:
        handle.write(frame(b"\x10\x07\x2a\x00"))
    assert steps(tmp_path) == [*written, 7]


def test_removed_directory_is_detected(tmp_path: Path):
    writer = FileWriter(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    writer.add_summary(b"", 1)
    with pytest.raises(errors.NotFoundError, match="deleted while it was being written"):
        writer.flush()
    writer.close()


def test_cached_writer_continues_in_a_new_file_after_its_directory_was_deleted(tmp_path: Path, steps: Steps):
    try:
        writer = FileWriterCache.get(tmp_path / "run")
        shutil.rmtree(tmp_path / "run")
        assert FileWriterCache.get(tmp_path / "run") is writer
        writer.add_summary(b"", 1)
        writer.flush()
        assert steps(tmp_path / "run") == [1]
    finally:
        FileWriterCache.clear()


def test_failure_at_exit_is_one_line_without_a_stack_trace(python: Python, tmp_path: Path):
    done = python(
        """
        import shutil, sys
        from hookline.summary import FileWriter
        writer = FileWriter(sys.argv[1])
        writer.add_summary(b"", 1)
        shutil.rmtree(sys.argv[1])
        """,
        tmp_path / "run",
    )
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 1
    assert "was deleted while it was being written" in done.stderr
