"""A sink that fails, hangs or is slow: the training continues, and lost points are logged."""

from __future__ import annotations

import threading

import pytest
from tests import summaries

from hookline import errors
from hookline.sinks import Sink

# Sinks that fail at each call, without a training.
from hookline.sinks.sink_thread import SinkSet
from hookline.testing import FakeClock


class Noting(Sink):
    """Records its arguments; `trouble` may raise, by the name of the method."""

    close_secs = 10.0

    def __init__(self, trouble=lambda what: None):
        self.got, self.calls, self.trouble = [], [], trouble

    def _call(self, what):
        self.calls.append(what)
        self.trouble(what)

    def open(self, start):
        self._call(f"open {start.step}")

    def write(self, points):
        self._call("write")
        self.got += [(point.step, point.tag) for point in points]

    def flush(self):
        self._call("flush")

    def close(self, failed):
        self._call("close, failed" if failed else "close")


class Away(Exception):
    pass


@pytest.fixture
def fed():
    """Makes a feeding of sinks, which is begun; closed in the end if it was not."""
    made = []

    def feed(*sinks, strict=False, hparams=None, step=0):
        made.append(feeding := SinkSet(sinks, None, strict))
        feeding.begin(step, hparams or {}, is_new=True)
        return feeding, feeding.writer_without_files("")

    yield feed
    for feeding in made:
        feeding.close(failed=True)


def put(writer, *steps):
    for step in steps:
        writer.add_summary(summaries.scalar("loss", 0.5), step)


def test_points_arrive_in_order_from_another_thread_and_sync_waits_for_them(fed):
    threads = set()
    sink = Noting(lambda what: threads.add((what, threading.current_thread().name)))
    feeding, writer = fed(sink)
    put(writer, 1, 2, 3)
    writer.sync()
    assert sink.got == [(1, "loss"), (2, "loss"), (3, "loss")]
    put(feeding.writer_without_files("eval"), 3)
    feeding.close(failed=False)
    assert sink.got[3:] == [(3, "eval/loss")]
    assert sink.calls == ["open 0", "write", "flush", "write", "close"]
    assert {name for what, name in threads if what != "open 0"} == {"hookline-sink:Noting"}


def test_failing_client_loses_its_points_and_is_retried_later(fed, said):
    away = True

    def trouble(what):
        if what == "write" and away:
            raise Away("no route")

    with FakeClock() as clock:
        sink, other = Noting(trouble), Noting()
        feeding, writer = fed(sink, other)
        put(writer, 1, 2)
        writer.sync()
        (line,) = said()
        assert line.startswith("WARNING: Noting has failed with Away: no route. The program continues. Summaries lost")
        assert line.endswith(" so far: 2. Further ones wait, up to 10,000. A retry follows about every 10 s.")
        put(writer, 3)
        writer.sync()
        assert sink.calls.count("write") == 1, "it is left alone for a while"
        away = False
        clock.advance(10)
        put(writer, 4)
        writer.sync()
        assert said()[1:] == ["INFO: Noting can write again. Summaries lost: 2, in 10 s."]
        feeding.close(failed=False)
    assert sink.got == [(3, "loss"), (4, "loss")], "what came meanwhile has waited"
    assert [step for step, _ in other.got] == [1, 2, 3, 4]
    assert said()[2:] == ["WARNING: Noting: summaries lost in this session: 2."]


def test_client_that_fails_to_the_end_is_retried_once_and_lost_points_are_counted(fed, said):
    def trouble(what):
        if what == "write":
            raise Away("no route")

    sink = Noting(trouble)
    feeding, writer = fed(sink)
    put(writer, 1, 2)
    writer.sync()
    put(writer, 3, 4)
    feeding.close(failed=True)
    assert sink.calls == ["open 0", "write", "write", "close, failed"]
    assert said()[-1] == "WARNING: Noting: summaries lost in this session: 4."


@pytest.mark.parametrize(("fails", "lost"), [("close", 0), ("write", 2)])
def test_failure_at_the_end_is_not_logged_as_retried(fed, said, fails, lost):
    def trouble(what):
        if what == fails:
            raise Away("no route")

    feeding, writer = fed(Noting(trouble))
    put(writer, 1, 2)
    feeding.close(failed=False)
    first, *rest = said()
    assert first == ("WARNING: Noting has failed with Away: no route. There is no retry, because the session ends.")
    assert rest == [f"WARNING: Noting: summaries lost in this session: {lost}."] * bool(lost)


def test_neither_the_step_nor_the_end_waits_forever_for_a_hanging_sink(fed, said, monkeypatch):
    goes_on = threading.Event()
    sink = Noting(lambda what: goes_on.wait(20) if what == "write" else None)
    sink.close_secs = 0.05
    monkeypatch.setattr("hookline.sinks.sink_thread._SYNC_SECS", 0.05)
    feeding, writer = fed(sink)
    put(writer, 1)
    writer.sync()
    put(writer, 2, 3)
    writer.sync()
    assert [line[:70] for line in said()] == ["WARNING: Noting has not written all summaries before a checkpoint with"]
    feeding.close(failed=False)
    assert "Noting has not closed within 0.05 s" in said()[1]
    assert said()[1].endswith(": 3."), "two wait, and one was given to it"
    goes_on.set()


def test_slow_sink_loses_points_beyond_the_queue(fed, said, monkeypatch):
    writes, goes_on = threading.Event(), threading.Event()
    sink = Noting(lambda what: (writes.set(), goes_on.wait(20)) if what == "write" else None)
    monkeypatch.setattr("hookline.sinks.sink_thread._MAX_QUEUED", 3)
    monkeypatch.setattr("hookline.sinks.sink_thread._BATCH_SECS", 0)
    feeding, writer = fed(sink)
    put(writer, 0)
    assert writes.wait(20)
    put(writer, *range(1, 10))
    goes_on.set()
    feeding.close(failed=False)
    assert [step for step, _ in sink.got] == [0, 1, 2, 3]
    first, last = said()
    assert first.startswith("WARNING: Noting is too slow: 3 summaries wait for it.")
    assert last == "WARNING: Noting: summaries lost in this session: 6."


def test_unsupported_points_of_a_sink_are_logged_once(fed, said):
    sink = Noting()
    feeding, writer = fed(sink, hparams={"rate": 0.1})
    for step in (1, 2):
        writer.add_summary(summaries.text("note", "x"), step)
        put(writer, step)
    writer.add_summary(b"no message", 3)
    feeding.close(failed=False)
    assert sink.got == [(1, "loss"), (2, "loss")]
    assert said() == [
        "INFO: Noting does not take these kinds, and leaves them out: hparams.",
        "INFO: Noting does not take these kinds, and leaves them out: invalid summary, text.",
    ]


def test_session_with_raise_on_write_errors_ends_with_the_error(fed):
    def trouble(what):
        if what == "write":
            raise Away("no route")

    feeding, writer = fed(Noting(trouble), strict=True)
    put(writer, 1)
    writer.sync()
    with pytest.raises(errors.UnknownError, match="Noting has failed with Away: no route") as caught:
        put(writer, 2)
    assert isinstance(caught.value.__cause__, Away)
    with pytest.raises(errors.UnknownError, match="no route"):
        feeding.close(failed=True)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("no such project"), ValueError),
        (PermissionError(13, "Permission denied", "a/b.csv"), errors.PermissionDeniedError),
    ],
)
def test_sink_that_can_never_open_is_an_error_at_once(error, raised):
    def trouble(what):
        raise error

    before, sink = Noting(), Noting(trouble)
    feeding = SinkSet([before, sink], None, strict=False)
    with pytest.raises(raised, match="no such project|Noting cannot open 'a/b.csv': Permission denied"):
        feeding.begin(0, {}, is_new=True)
    feeding.close(failed=True)
    put(feeding.writer_without_files(""), 1)
    assert before.calls == ["open 0", "close, failed"]
    assert sink.calls == ["open 0"]


def test_server_unreachable_at_the_start_is_retried(fed, said):
    errors_left = [ConnectionRefusedError(111, "Connection refused")]

    def trouble(what):
        if what == "open 7" and errors_left:
            raise errors_left.pop()

    with FakeClock() as clock:
        sink = Noting(trouble)
        feeding, writer = fed(sink, step=7)
        put(writer, 8)
        writer.sync()
        clock.advance(10)
        put(writer, 9)
        writer.sync()
        assert sink.got == [(8, "loss"), (9, "loss")]
        assert sink.calls == ["open 7", "open 7", "write", "flush"]
        feeding.close(failed=False)
    first, last = said()
    assert first.startswith("WARNING: Noting has failed with ConnectionRefusedError: [Errno 111] Connection refused.")
    assert last == "INFO: Noting can write again. Summaries lost: 0, in 10 s."


def test_sink_is_reopened_at_the_restored_step_after_a_recovery(fed):
    sink = Noting()
    feeding, writer = fed(sink)
    put(writer, 1, 2)
    feeding.begin(1, {}, is_new=False)
    put(writer, 2)
    feeding.close(failed=False)
    assert sink.calls == ["open 0", "write", "open 1", "write", "close"]
    assert [step for step, _ in sink.got] == [1, 2, 2]


def test_sink_is_used_in_one_session_at_a_time(fed):
    sink = Noting()
    feeding, _ = fed(sink)
    with pytest.raises(RuntimeError, match="Noting serves another session"):
        fed(sink)
    with pytest.raises(RuntimeError, match="given twice"):
        fed(*[Noting()] * 2)
    feeding.close(failed=False)
    fed(sink)
    assert sink.calls == ["open 0", "close", "open 0"]
