from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import summaries

import hookline as hl
from hookline import errors
from hookline.summary import Event, FileWriter, FileWriterCache, SessionLog, Summary
from hookline.testing import FakeClock, read_events

Steps = Callable[[Path], list[int]]
Accumulate = Callable[[Path], Any]
AtOnce = Callable[[Callable[[int], None], int], None]


def test_tensorboard_shows_scalars_with_step_value_and_time(tmp_path: Path, accumulate: Accumulate):
    with FakeClock(start=1234.5) as fake, FileWriter(tmp_path) as writer:
        writer.add_summary(summaries.scalar("loss", 0.5), 1)
        fake.advance(1)
        writer.add_summary(summaries.scalar("loss", 0.25), np.int64(300))
    points = accumulate(tmp_path).Scalars("loss")
    assert [(p.wall_time, p.step, p.value) for p in points] == [(1234.5, 1, 0.5), (1235.5, 300, 0.25)]


def test_file_has_tensorboards_name_and_first_event(tmp_path: Path):
    with FakeClock(start=77.0):
        FileWriter(tmp_path / "new" / "run", filename_suffix=".mine").close()
    (name,) = os.listdir(tmp_path / "new" / "run")
    assert name.startswith("events.out.tfevents.0000000077_000000.")
    assert name.endswith(".mine")
    (first,) = read_events(tmp_path / "new" / "run")
    assert (first.file_version, first.wall_time) == ("brain.Event:2", 77.0)


def test_every_kind_of_event_is_read_back(tmp_path: Path):
    with FileWriter(tmp_path) as writer:
        writer.add_summary(Summary(value=[Summary.Value(tag="a", simple_value=1.0)]), 3)
        writer.add_summary(b"", 4)
        writer.add_session_log(SessionLog(status=SessionLog.START), 5)
        writer.add_event(Event(wall_time=9.0, step=6, file_version="x"))
    events = read_events(tmp_path)[1:]
    assert [event.WhichOneof("what") for event in events] == ["summary", "summary", "session_log", "file_version"]
    assert [event.step for event in events] == [3, 4, 5, 6]
    assert events[2].session_log.status == SessionLog.START
    assert events[3].wall_time == 9.0


def test_flush_writes_everything_before_it_returns(tmp_path: Path, steps: Steps):
    with FileWriter(tmp_path, max_queue=1000, flush_secs=10_000) as writer:
        writer.add_summary(summaries.scalar("loss", 0.5), 1)
        assert steps(tmp_path) == []
        writer.flush()
        assert steps(tmp_path) == [1]


def happens(happened: Callable[[], bool]) -> bool:
    pause = threading.Event()
    return any(happened() or pause.wait(0.01) for _ in range(1000))


def test_pending_events_are_written_without_a_flush_when_the_queue_is_full(tmp_path: Path, steps: Steps):
    with FileWriter(tmp_path, max_queue=3, flush_secs=10_000) as writer:
        for step in range(3):
            writer.add_summary(b"", step)
        assert happens(lambda: steps(tmp_path) == [0, 1, 2])


def test_pending_events_are_written_without_a_flush_after_flush_secs(tmp_path: Path, steps: Steps):
    with FileWriter(tmp_path, max_queue=1000, flush_secs=0.02) as writer:
        writer.add_summary(b"", 1)
        assert happens(lambda: steps(tmp_path) == [1])


def test_many_threads_lose_nothing_and_each_keeps_its_order(tmp_path: Path, accumulate: Accumulate, at_once: AtOnce):
    with FileWriter(tmp_path) as writer:

        def write(thread: int) -> None:
            for step in range(1000):
                writer.add_summary(summaries.scalar(f"thread{thread}", step), step)
                if step % 400 == 0:
                    writer.flush()

        at_once(write, 4)
    accumulator = accumulate(tmp_path)
    for thread in range(4):
        assert [(p.step, p.value) for p in accumulator.Scalars(f"thread{thread}")] == [(i, i) for i in range(1000)]


def test_closed_writer_refuses_events_with_the_remedy(tmp_path: Path):
    writer = FileWriter(tmp_path)
    writer.close()
    writer.close()
    writer.flush()
    assert writer.closed
    with pytest.raises(RuntimeError, match=r"closed; reopen\(\) it"):
        writer.add_summary(b"", 1)
    with pytest.raises(RuntimeError, match="closed"):
        writer.add_event(Event())
    with pytest.raises(RuntimeError, match="closed"):
        writer.add_session_log(SessionLog())


def test_reopen_continues_in_a_new_file_read_after_the_old_one(tmp_path: Path, steps: Steps):
    writer = FileWriter(tmp_path)
    for step in range(12):
        writer.add_summary(b"", step)
        writer.close()
        writer.reopen()
    writer.reopen()
    writer.close()
    assert len(os.listdir(tmp_path)) == 13
    assert steps(tmp_path) == list(range(12))


def test_wrong_arguments_are_refused_at_once(tmp_path: Path):
    with pytest.raises(ValueError, match="directory"):
        FileWriter("")
    with pytest.raises(ValueError, match="gs://bucket/run"):
        FileWriter("gs://bucket/run")
    with pytest.raises(ValueError, match="max_queue"):
        FileWriter(tmp_path, max_queue=0)
    with FileWriter(tmp_path) as writer, pytest.raises(TypeError, match="requires a Summary message"):
        writer.add_summary("loss=1")  # pyright: ignore[reportArgumentType]


def test_garbage_collected_writer_releases_its_thread_and_file(tmp_path: Path, steps: Steps):
    def kept() -> int:
        gc.collect()
        return sum(str(type(known)).startswith("<class 'hookline.summary.") for known in gc.get_objects())

    before = kept()
    writer = FileWriter(tmp_path, flush_secs=0.01)
    (thread,) = [t for t in threading.enumerate() if str(tmp_path) in t.name]
    writer.add_summary(b"", 1)
    del writer
    thread.join(10)
    assert not thread.is_alive()
    assert steps(tmp_path) == [1]
    del thread
    assert kept() <= before


def test_run_metadata_is_written_as_text_or_as_a_message(tmp_path: Path, accumulate: Accumulate):
    import dataclasses

    from tensorboard.compat.proto import config_pb2

    @dataclasses.dataclass
    class Metadata:
        compile_secs: float = 1.5

    with FileWriter(tmp_path) as writer:
        writer.add_run_metadata(Metadata(), "first", 3)
        writer.add_run_metadata(config_pb2.RunMetadata(), "second", 4)  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(ValueError, match="'first'"):
            writer.add_run_metadata(Metadata(), "first", 5)
    accumulator = accumulate(tmp_path)
    assert accumulator.Tensors("first")[0].tensor_proto.string_val == [b"compile_secs: 1.5"]
    assert accumulator.Tags()["run_metadata"] == ["second"]


def test_one_writer_serves_a_directory_under_any_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps
):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    try:
        writer = FileWriterCache.get("run")
        assert FileWriterCache.get(tmp_path / "run") is writer
        assert FileWriterCache.get("./link/") is writer
        assert FileWriterCache.get("other") is not writer
        writer.close()
        assert FileWriterCache.get("run").closed is False
        FileWriterCache.get("run").add_summary(b"", 1)
    finally:
        FileWriterCache.clear()
    assert writer.closed
    assert steps(tmp_path / "run") == [1]
    assert FileWriterCache.get("run") is not writer
    FileWriterCache.clear()


def test_threads_that_get_one_directory_at_once_get_one_writer(tmp_path: Path, at_once: AtOnce):
    threads_at_once = 8
    together = threading.Barrier(threads_at_once)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for directory in range(10):
            found = []

            def ask(_: int, found: list[FileWriter] = found, path: Path = tmp_path / str(directory)) -> None:
                together.wait(10)
                found.append(FileWriterCache.get(path))

            at_once(ask, threads_at_once)
            assert len(found) == threads_at_once
            assert len(set(map(id, found))) == 1
            FileWriterCache.clear()
            assert len(list((tmp_path / str(directory)).iterdir())) == 1
    finally:
        sys.setswitchinterval(interval)
        FileWriterCache.clear()


def test_an_unusable_directory_is_an_error_at_construction(tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(errors.AlreadyExistsError, match=f"got '{file}'"):
        FileWriter(file)
    with pytest.raises(errors.FailedPreconditionError, match=f"got '{file}/run'"):
        FileWriter(file / "run")
    with pytest.raises(errors.OpError, match="/proc/nowhere"):
        FileWriter("/proc/nowhere")


def test_graph_may_be_given_at_construction(tmp_path: Path, accumulate: Accumulate):
    x = hl.constant(1.0, name="x")
    hl.op(lambda x: x, name="same")(x)
    with FileWriter(tmp_path / "a", hl.get_default_graph(), 5, 60):
        pass
    (graph_def,) = [event.graph_def for event in read_events(tmp_path / "a") if event.HasField("graph_def")]
    with FileWriter(tmp_path / "b", graph=hl.get_default_graph(), filename_suffix=None):
        pass
    nodes = {node.name for node in accumulate(tmp_path / "b").Graph().node}
    assert nodes == {"x", "same"}
    assert graph_def
    (name,) = os.listdir(tmp_path / "b")
    assert not name.endswith("None")
    with pytest.raises(TypeError, match=r"requires a hookline\.Graph as its graph, got 10"):
        FileWriter(tmp_path / "c", 10)  # type: ignore[arg-type]
    with FileWriter(tmp_path / "d") as writer, pytest.raises(TypeError, match=r"requires a hookline\.Graph, got 5"):
        writer.add_graph(5)  # type: ignore[arg-type]


def test_files_of_one_instant_sort_in_order_of_creation(tmp_path: Path, steps: Steps, python: Callable[..., Any]):
    program = """
        import os, sys
        from hookline.summary import FileWriter
        from hookline.testing import FakeClock
        with FakeClock(start=77.0):
            for step in range(5):
                # Each child has a greater number than its parent, which writes after it.
                child = os.fork()
                if child:
                    os.waitpid(child, 0)
                with FileWriter(sys.argv[1]) as writer:
                    writer.add_summary(b"", 2 * step + bool(child))
                if not child:
                    os._exit(0)
    """
    assert python(program, tmp_path).returncode == 0
    assert len({name.partition("_")[0] for name in os.listdir(tmp_path)}) == 1
    assert steps(tmp_path) == list(range(10))


@pytest.mark.parametrize("earlier", ["0000000077.10.9.0001", "0000000077.zz.9.0001.mine", "0000000078.v.1.0"])
def test_new_file_sorts_after_those_of_earlier_versions_and_a_clock_set_back(tmp_path: Path, earlier: str):
    (tmp_path / f"events.out.tfevents.{earlier}").touch()
    with FakeClock(start=77.9):
        FileWriter(tmp_path).close()
    names = sorted(os.listdir(tmp_path))
    assert len(names) == 2
    assert names[0].endswith(earlier)


def test_new_file_sorts_before_those_of_the_next_second(tmp_path: Path):
    with FakeClock(start=77.999999):
        FileWriter(tmp_path).close()
    (name,) = os.listdir(tmp_path)
    assert name < "events.out.tfevents.0000000078.0"


def test_threads_that_create_files_at_the_same_time_get_one_each(tmp_path: Path, steps: Steps, at_once: AtOnce):
    def write(step: int) -> None:
        with FileWriter(tmp_path) as writer:
            writer.add_summary(b"", step)

    with FakeClock():
        at_once(write, 16)
    assert sorted(steps(tmp_path)) == list(range(16))
    assert len(os.listdir(tmp_path)) == 16
