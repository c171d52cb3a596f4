"""A writer that is not strict, where nothing can be written for a while: a really full disk, or a deleted directory."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import summaries

from hookline import errors
from hookline.summary import FileWriter, FileWriterCache
from hookline.testing import FakeClock

Steps = Callable[[Path], list[int]]

RETRY_SECS = 10.0


@pytest.fixture(autouse=True)
def info_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO, logger="hookline")
    yield
    FileWriterCache.clear()


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def add(writer: FileWriter, *steps: int) -> None:
    for step in steps:
        writer.add_summary(summaries.text("note", "x" * 5000), step)  # More than the rest of the last block.
    writer.flush()


def test_events_are_lost_while_the_disk_is_full_and_written_afterwards(
    small_disk: Any, steps: Steps, caplog: pytest.LogCaptureFixture
):
    writer = FileWriterCache.get(small_disk.path / "run")
    add(writer, 1)
    small_disk.fill()
    add(writer, *range(2, 12))
    add(writer, 12)
    ((level, message),) = logged(caplog)
    assert level == "WARNING"
    assert f"could not write {small_disk.path}/run/events" in message
    assert "No space left on device" in message
    lost_at_first = 10 - (len(steps(small_disk.path / "run")) - 1)
    assert f"lost so far: {lost_at_first}." in message
    assert "The program continues." in message

    small_disk.free()
    add(writer, 13)
    (_, (level, message)) = logged(caplog)
    assert level == "INFO"
    assert f"continues in {small_disk.path}/run/events" in message
    assert f"lost: {lost_at_first + 1}," in message
    writer.close()
    written = steps(small_disk.path / "run")
    assert written == [*range(1, len(written)), 13]
    assert len(written) == 13 - lost_at_first - 1
    assert len(logged(caplog)) == 2


def test_events_that_were_written_but_cannot_be_synced_are_counted_as_lost(
    small_disk: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    def refused(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    writer = FileWriterCache.get(small_disk.path)
    add(writer, 1)
    small_disk.fill()
    monkeypatch.setattr(os, "fsync", refused)
    add(writer, 2)
    assert "lost so far: 2." in logged(caplog)[0][1]


def test_writer_thread_retries_after_an_outage_but_not_at_every_event(
    small_disk: Any, steps: Steps, caplog: pytest.LogCaptureFixture
):
    with FakeClock() as clock:
        writer = FileWriterCache.get(small_disk.path / "run")
        small_disk.fill()
        add(writer, 1)
        small_disk.free()
        for step in range(2, 5002):
            writer.add_summary(b"", step)
        clock.advance(RETRY_SECS)
        pause = threading.Event()
        for step in range(5002, 10_000):
            writer.add_summary(b"", step)
            if any(level == "INFO" for level, _ in logged(caplog)):
                break
            pause.wait(0.01)
        writer.close()
    written = steps(small_disk.path / "run")
    assert written
    assert written[0] == 5002
    (_, (_, message)) = logged(caplog)
    assert f"lost: {written[0] - 1}," in message


def test_writer_thread_loses_no_event_that_the_next_attempt_can_write(small_disk: Any, steps: Steps):
    with FakeClock():
        writer = FileWriter(small_disk.path / "run", max_queue=1, strict=False)
        small_disk.fill()
        add(writer, 1)
        pause = threading.Event()
        for step in range(2, 22):
            writer.add_summary(b"", step)
            pause.wait(0.005)  # The thread handles each.
        small_disk.free()
        writer.flush()
        writer.close()
    assert steps(small_disk.path / "run") == list(range(2, 22))


def test_full_disk_at_the_start_is_an_outage(small_disk: Any, steps: Steps, caplog: pytest.LogCaptureFixture):
    small_disk.fill()
    writer = FileWriterCache.get(small_disk.path)
    add(writer, 1)
    assert not list(small_disk.path.glob("events*"))
    small_disk.free()
    add(writer, 2)
    assert steps(small_disk.path) == [2]
    assert [level for level, _ in logged(caplog)] == ["WARNING", "INFO"]
    assert "lost: 1," in logged(caplog)[1][1]


def test_close_in_an_outage_logs_the_number_of_lost_events(small_disk: Any, caplog: pytest.LogCaptureFixture):
    writer = FileWriterCache.get(small_disk.path)
    small_disk.fill()
    add(writer, 1)
    add(writer, 2, 3)
    small_disk.free()
    writer.close()
    assert [level for level, _ in logged(caplog)] == ["WARNING", "INFO"]
    assert "closed before it could write again" in logged(caplog)[1][1]
    assert "lost: 3," in logged(caplog)[1][1]


def test_failed_attempts_leave_no_empty_files(small_disk: Any):
    writer = FileWriterCache.get(small_disk.path)
    add(writer, 1)
    small_disk.fill()
    for step in range(2, 30):
        add(writer, step)
    assert len(list(small_disk.path.glob("events*"))) == 1


def test_strict_cached_writer_raises(small_disk: Any):
    FileWriterCache.get(small_disk.path)
    writer = FileWriterCache.get(small_disk.path, strict=True)
    assert FileWriterCache.get(small_disk.path) is writer
    assert writer.strict
    small_disk.fill()
    with pytest.raises(errors.ResourceExhaustedError, match=r"events.*No space left on device"):
        add(writer, 1)
    FileWriterCache.sync()
    with pytest.raises(errors.ResourceExhaustedError):
        add(writer, 2)


def test_writer_made_strict_in_an_outage_raises_when_it_cannot_write(small_disk: Any):
    writer = FileWriterCache.get(small_disk.path)
    small_disk.fill()
    add(writer, 1)
    assert FileWriterCache.get(small_disk.path, strict=True) is writer
    with pytest.raises(errors.ResourceExhaustedError):
        add(writer, 2)


def test_strict_writer_needs_disk_space_at_the_start(small_disk: Any):
    small_disk.fill()
    with pytest.raises(errors.ResourceExhaustedError, match="No space left"):
        FileWriter(small_disk.path)
    assert not list(small_disk.path.glob("events*"))


def test_sync_does_not_raise_in_an_outage(small_disk: Any, steps: Steps):
    writer = FileWriterCache.get(small_disk.path)
    small_disk.fill()
    writer.add_summary(summaries.text("note", "x" * 5000), 1)
    FileWriterCache.sync()
    small_disk.free()
    writer.add_summary(b"", 2)
    FileWriterCache.sync()
    assert steps(small_disk.path) == [2]


def test_deleted_file_is_replaced_and_no_new_event_is_lost(
    tmp_path: Path, steps: Steps, caplog: pytest.LogCaptureFixture
):
    writer = FileWriter(tmp_path / "run", strict=False)
    add(writer, 1)
    shutil.rmtree(tmp_path / "run")
    add(writer, 2, 3)
    writer.close()
    assert steps(tmp_path / "run") == [2, 3]
    assert [level for level, _ in logged(caplog)] == ["WARNING", "INFO"]
    assert "deleted while it was being written" in logged(caplog)[0][1]
    assert "lost: 0," in logged(caplog)[1][1]


def test_close_does_not_recreate_a_deleted_directory(tmp_path: Path):
    writer = FileWriter(tmp_path / "run", strict=False)
    writer.add_summary(b"", 1)
    shutil.rmtree(tmp_path / "run")
    writer.close()
    assert not (tmp_path / "run").exists()


def test_new_file_is_created_in_the_first_ones_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps):
    monkeypatch.chdir(tmp_path)
    writer = FileWriter("run", strict=False)
    shutil.rmtree("run")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    add(writer, 1)
    writer.close()
    assert steps(tmp_path / "run") == [1]
    assert writer.get_logdir() == "run"


def test_file_at_its_size_limit_is_followed_by_another(tmp_path: Path, steps: Steps, python: Callable[..., Any]):
    program = """
        import resource, sys
        from hookline.summary import FileWriterCache, Summary
        writer = FileWriterCache.get(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        for step in range(100):
            writer.add_summary(Summary(value=[Summary.Value(tag="loss", simple_value=step)]), step)
            writer.flush()
    """
    done = python(program, tmp_path)
    assert done.returncode == 0
    assert "File too large" in done.stderr
    assert steps(tmp_path) == list(range(100))
