"""Which summary writers a session closes with itself, and how a full disk under them affects the training."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading

import pytest

import hookline as hl
from hookline import errors, summary, train
from hookline.summary import FileWriterCache
from hookline.testing import read_events


@pytest.fixture(autouse=True)
def empty_cache():
    yield
    FileWriterCache.clear()


@pytest.fixture
def train_op():
    step = train.get_or_create_global_step()
    weight = hl.Variable(1.0, name="weight")
    summary.scalar("weight", weight)
    return hl.group(step.assign_add(1), weight.assign_add(1.0))


class Takes(train.SessionRunHook):
    """Takes the writer of a directory in one of its callbacks."""

    def __init__(self, logdir, callback="begin", then=None):
        self.logdir = logdir
        self.writer = None
        setattr(self, callback, self.take)
        self.then = then

    def take(self, *given):
        self.writer = FileWriterCache.get(self.logdir)
        if self.then is not None:
            raise self.then


def threads_of(directory):
    return [thread for thread in threading.enumerate() if str(directory) in thread.name]


def files_of(directory):
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # Another thread closes its file.
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in found if path.startswith(f"{directory}/")]


def left_of(directory):
    return threads_of(directory) + files_of(directory)


def test_closed_session_leaves_no_writer_open(tmp_path, train_op):
    with train.MonitoredTrainingSession(
        checkpoint_dir=str(tmp_path / "run"), summary_dir=str(tmp_path / "events"), save_summaries_steps=1
    ) as sess:
        sess.run(train_op)
        assert len(threads_of(tmp_path)) == 2
    assert left_of(tmp_path) == []
    assert [event for event in read_events(tmp_path / "events") if event.HasField("summary")]


@pytest.mark.parametrize(
    "callback", ["begin", "after_create_session", "before_run", "after_run", "end", "on_exception"]
)
@pytest.mark.parametrize("kind", [train.MonitoredSession, train.SingularMonitoredSession])
def test_writer_taken_in_any_callback_is_closed_with_its_session(tmp_path, train_op, callback, kind):
    hook = Takes(tmp_path, callback)
    failing = callback == "on_exception"
    try:
        with kind(hooks=[hook]) as sess:
            sess.run(train_op)
            if failing:
                raise ValueError("the body")
    except ValueError:
        assert failing
    assert hook.writer is not None
    assert hook.writer.closed
    assert left_of(tmp_path) == []


def test_writers_of_an_added_hook_and_a_step_function_belong_to_the_session(tmp_path, train_op):
    with train.MonitoredSession() as sess:
        sess.add_hook(Takes(tmp_path / "late"))
        sess.run_step_fn(lambda step_context: FileWriterCache.get(tmp_path / "step"))
        assert len(threads_of(tmp_path)) == 2
    assert left_of(tmp_path) == []


@pytest.mark.parametrize("callback", ["begin", "after_create_session"])
@pytest.mark.parametrize("kind", [train.MonitoredSession, train.SingularMonitoredSession])
def test_session_that_could_not_be_created_leaves_no_writer_open(tmp_path, train_op, callback, kind):
    with pytest.raises(ValueError, match="no session"):
        kind(hooks=[Takes(tmp_path / "a"), Takes(tmp_path / "b", callback, ValueError("no session"))])
    assert left_of(tmp_path) == []


def test_session_whose_creator_fails_leaves_no_writer_open(tmp_path, train_op):
    class Failing(train.SessionCreator):
        def create_session(self):
            FileWriterCache.get(tmp_path / "creator")
            raise ValueError("no session")

    with pytest.raises(ValueError, match="no session"):
        train.MonitoredSession(Failing(), hooks=[Takes(tmp_path / "hook")])
    assert left_of(tmp_path) == []


def test_two_sessions_on_one_directory_share_a_writer_until_both_are_closed(tmp_path, train_op):
    first = train.MonitoredSession(hooks=[Takes(tmp_path)])
    second = train.MonitoredSession(hooks=[hook := Takes(tmp_path)])
    first.close()
    assert not hook.writer.closed
    hook.writer.add_summary(b"", 1)
    second.close()
    assert hook.writer.closed
    assert left_of(tmp_path) == []


@pytest.mark.parametrize("earlier", [True, False])
def test_writer_taken_outside_of_a_session_stays_open(tmp_path, train_op, earlier):
    if earlier:
        mine = FileWriterCache.get(tmp_path)
    with train.MonitoredSession(hooks=[hook := Takes(tmp_path)]) as sess:
        if not earlier:
            mine = FileWriterCache.get(tmp_path)
        sess.run(train_op)
    assert mine is hook.writer
    assert not mine.closed
    mine.add_summary(b"", 1)


def test_nested_session_takes_its_own_writers(tmp_path, train_op):
    class Nested(train.SessionRunHook):
        def after_run(self, run_context, run_values):
            with hl.Graph().as_default():
                train.get_or_create_global_step()
                train.MonitoredSession(hooks=[Takes(tmp_path / "inner")]).close()
            assert left_of(tmp_path / "inner") == []
            FileWriterCache.get(tmp_path / "outer")

    with train.MonitoredSession(hooks=[Nested()]) as sess:
        sess.run(train_op)
        assert threads_of(tmp_path / "outer")
    assert left_of(tmp_path) == []


def test_summary_writer_works_before_and_after_the_close(tmp_path, train_op):
    with train.MonitoredSession(summary_dir=str(tmp_path)) as sess:
        sess.summary_writer.add_summary(b"", 1)
        before = sess.summary_writer
    assert before.closed
    assert left_of(tmp_path) == []
    sess.summary_writer.add_summary(b"", 2)
    assert FileWriterCache.get(tmp_path) is sess.summary_writer
    FileWriterCache.clear()
    assert [event.step for event in read_events(tmp_path) if event.HasField("summary")] == [1, 2]


def test_summary_writer_of_a_closed_session_belongs_to_the_caller(tmp_path, train_op):
    sess = train.MonitoredSession(summary_dir=str(tmp_path))
    sess.close()
    mine = sess.summary_writer
    del sess
    gc.collect()
    train.MonitoredSession(hooks=[Takes(tmp_path)]).close()
    assert not mine.closed


def test_hooks_get_a_new_writer_in_the_next_session(tmp_path, train_op):
    hooks = [
        train.SummarySaverHook(save_steps=1, output_dir=str(tmp_path), summary_op=summary.merge_all()),
        train.StepCounterHook(every_n_steps=1, output_dir=str(tmp_path)),
    ]
    for _ in range(2):
        with train.MonitoredSession(hooks=hooks) as sess:
            sess.run(train_op)
            sess.run(train_op)
    assert left_of(tmp_path) == []
    assert len([event for event in read_events(tmp_path) if event.HasField("summary")]) == 6


def test_recovery_keeps_the_writers(tmp_path, train_op, clock):
    lost = [errors.AbortedError(None, None, "lost")]

    class Loses(train.SessionRunHook):
        def after_run(self, run_context, run_values):
            if lost:
                raise lost.pop()

    hook = Takes(tmp_path)
    with train.MonitoredSession(hooks=[hook, Loses()]) as sess:
        sess.run(train_op)
        assert not hook.writer.closed
    assert hook.writer.closed


class FillsTheDisk(train.SessionRunHook):
    def __init__(self, disk, at_step):
        self.disk, self.at_step = disk, at_step

    def after_run(self, run_context, run_values):
        if run_context.session.global_step == self.at_step:
            FileWriterCache.sync()
            self.disk.fill()


def train_on(disk, **arguments):
    train_op = train.get_or_create_global_step().assign_add(1)
    summary.text("note", hl.host_op(lambda: "x" * 5000).node())
    hooks = [FillsTheDisk(disk, at_step=5), train.StopAtStepHook(last_step=20)]
    with train.MonitoredTrainingSession(
        summary_dir=str(disk.path / "events"), save_summaries_steps=1, hooks=hooks, **arguments
    ) as sess:
        while not sess.should_stop():
            last = sess.run(train_op)
    return last


def test_full_disk_under_the_events_does_not_end_a_training(small_disk, caplog):
    assert train_on(small_disk) == 20
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([message for message in warnings if "No space left on device" in message]) == 1
    assert [event.step for event in read_events(small_disk.path / "events") if event.HasField("summary")]


def test_full_disk_under_the_events_ends_a_training_on_request(small_disk):
    with pytest.raises(errors.ResourceExhaustedError, match="No space left on device"):
        train_on(small_disk, logging=train.LoggingOptions(raise_on_write_errors=True))
    assert left_of(small_disk.path) == []
