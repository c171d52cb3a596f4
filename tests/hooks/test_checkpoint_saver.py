from __future__ import annotations

import errno
import json
import os
import re
import threading

import pytest

from hookline import GraphKeys, Session, add_to_collection, summary
from hookline.checkpoint import PendingSave  # The result of a saver.
from hookline.errors import AbortedError, FailedPreconditionError, NanLossDuringTrainingError, OpError
from hookline.summary import FileWriterCache
from hookline.testing import FakeClock, RecordingHook, read_events
from hookline.train import (
    CheckpointSaverHook,
    CheckpointSaverListener,
    ChiefSessionCreator,
    MonitoredSession,
    NanTensorHook,
    Saver,
    Scaffold,
    latest_checkpoint,
)


class Listener(CheckpointSaverListener):
    """Records; has no `after_save`, so saves may go on in the background."""

    def __init__(self, events):
        self.events = events

    def begin(self):
        self.events.append("begin")

    def before_save(self, session, global_step):
        self.events.append(("before", global_step))

    def end(self, session, global_step):
        self.events.append(("end", global_step))


class CompleteListener(Listener):
    def __init__(self, events, directory, stop_at=None):
        super().__init__(events)
        self.directory, self.stop_at = directory, stop_at

    def after_save(self, session, global_step):
        path = latest_checkpoint(str(self.directory))
        self.events.append(("after", global_step, path and path.endswith(f"-{global_step}")))
        return global_step == self.stop_at


class CountingSaver(Saver):
    """Records the steps it was asked for, may hold the writing until released, and may fail."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.asked, self.released, self.failures = [], threading.Event(), {}
        self.released.set()

    def save_async(self, sess, save_path, global_step=None, latest_filename=None):
        self.asked.append(global_step)
        if global_step in self.failures:
            failure = self.failures.pop(global_step)

            def fail():
                self.released.wait(10)
                raise failure

            return PendingSave(f"{save_path}-{global_step}", fail)
        pending = super().save_async(sess, save_path, global_step, latest_filename)
        if self.released.is_set():
            return pending
        return PendingSave(pending.path, lambda: (self.released.wait(10), pending.wait()))


def saved_steps(directory):
    names = [name for name in os.listdir(directory) if name.startswith("model.ckpt-")]
    return sorted(int(name.removeprefix("model.ckpt-")) for name in names if name.split("-")[1].isdigit())


def session_logs(directory):
    FileWriterCache.get(str(directory)).flush()
    return [
        (summary.SessionLog.SessionStatus.Name(event.session_log.status), event.step)
        for event in read_events(directory)
        if event.HasField("session_log")
    ]


def resumed(directory, *hooks):
    return MonitoredSession(ChiefSessionCreator(checkpoint_dir=str(directory)), hooks=hooks)


def test_both_saver_and_scaffold_are_refused():
    with pytest.raises(ValueError, match="a saver or a scaffold, got both"):
        CheckpointSaverHook("somewhere", save_steps=1, saver=Saver(), scaffold=Scaffold())


@pytest.mark.parametrize("count", [0, 2])
def test_collection_without_exactly_one_saver_is_a_runtime_error(model, tmp_path, count):
    hook = CheckpointSaverHook(str(tmp_path), save_steps=1)
    hook.begin()
    for _ in range(count):
        add_to_collection(GraphKeys.SAVERS, Saver())
    with Session() as session, pytest.raises(RuntimeError, match=f"exactly one saver.*found {count}"):
        hook.after_create_session(session, None)


@pytest.mark.parametrize(("runs", "saved"), [(7, [0, 3, 6, 7]), (6, [0, 3, 6])])
def test_hook_saves_at_start_cadence_and_end_without_repeating_a_step(model, tmp_path, runs, saved):
    saver = CountingSaver(max_to_keep=None)
    model.train_until_stop(CheckpointSaverHook(str(tmp_path), save_steps=3, saver=saver), at_most=runs)
    assert saver.asked == saved
    assert saved_steps(tmp_path) == saved


def test_hook_saves_by_the_clock(model, tmp_path):
    saver = CountingSaver()
    with FakeClock() as clock, model.session(CheckpointSaverHook(str(tmp_path), save_secs=60, saver=saver)) as session:
        for secs in (0, 59, 1, 0, 60):
            clock.advance(secs)
            session.run(model.train)
    assert saver.asked == [0, 3, 5]


def test_both_cadences_may_be_combined(model, tmp_path):
    saver = CountingSaver()
    hook = CheckpointSaverHook(str(tmp_path), save_secs=60, save_steps=3, saver=saver)
    with FakeClock() as clock, model.session(hook) as session:
        for secs in (0, 0, 0, 60, 0, 0, 0):
            clock.advance(secs)
            session.run(model.train)
    assert saver.asked == [0, 3, 4, 6, 7]


def test_cadence_uses_the_step_after_the_run(model, tmp_path):
    saver = CountingSaver()
    with model.session(CheckpointSaverHook(str(tmp_path), save_steps=7, saver=saver)) as session:
        for fetches in (model.jump, model.loss, model.jump, model.loss, model.jump, model.jump):
            session.run(fetches)
    assert saver.asked == [0, 10, 20]


def test_saver_is_found_in_the_scaffold_or_the_collection(model, tmp_path):
    mine = CountingSaver()
    scaffold = Scaffold(saver=mine)
    with MonitoredSession(
        ChiefSessionCreator(scaffold), hooks=[CheckpointSaverHook(str(tmp_path), save_steps=1, scaffold=scaffold)]
    ):
        pass
    assert mine.asked == [0]
    model.train_until_stop(CheckpointSaverHook(str(tmp_path / "collection"), save_steps=1), at_most=1)
    assert saved_steps(tmp_path / "collection") == [0, 1]


def test_basename_is_an_argument(model, tmp_path):
    model.train_until_stop(CheckpointSaverHook(str(tmp_path), save_steps=1, checkpoint_basename="job"), at_most=1)
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / "job-1")


def test_checkpoint_has_the_values_after_the_run(model, tmp_path):
    model.train_until_stop(CheckpointSaverHook(str(tmp_path), save_steps=2), at_most=4)
    with resumed(tmp_path) as session:
        weight, step = session.run([model.weight, model.global_step])
        assert (float(weight), int(step)) == (16.0, 4)


def test_hook_writes_the_graph_and_a_session_log_per_checkpoint(model, tmp_path):
    model.train_until_stop(CheckpointSaverHook(str(tmp_path), save_steps=2), at_most=3)
    assert session_logs(tmp_path) == [("CHECKPOINT", 0), ("CHECKPOINT", 2), ("CHECKPOINT", 3)]
    assert "weight" in (tmp_path / "graph.txt").read_text()
    assert any(event.graph_def for event in read_events(tmp_path))


def test_hook_writes_no_graph_on_request(model, tmp_path):
    model.train_until_stop(CheckpointSaverHook(str(tmp_path), save_steps=2, save_graph_def=False), at_most=1)
    assert not (tmp_path / "graph.txt").exists()
    FileWriterCache.clear()
    assert not any(event.graph_def for event in read_events(tmp_path))


def test_listeners_are_called_in_order_around_every_save(model, tmp_path):
    events: list = []
    first, second = CompleteListener(events, tmp_path), Listener(events)
    hook = CheckpointSaverHook(str(tmp_path), save_steps=2, listeners=[first, second])
    model.train_until_stop(hook, at_most=3)
    around = [e for step in (0, 2, 3) for e in [("before", step), ("before", step), ("after", step, True)]]
    assert events == ["begin", "begin", *around, ("end", 3), ("end", 3)]


def test_listener_may_request_a_stop_after_a_save(model, tmp_path):
    listener = CompleteListener([], tmp_path, stop_at=4)
    assert model.train_until_stop(CheckpointSaverHook(str(tmp_path), save_steps=2, listeners=[listener])) == 4


def test_return_value_of_a_listener_at_the_first_and_last_save_is_ignored(model, tmp_path):
    listener = CompleteListener([], tmp_path, stop_at=0)
    hook = CheckpointSaverHook(str(tmp_path), save_steps=2, listeners=[listener])
    assert model.train_until_stop(hook, at_most=3) == 3


def test_resumed_job_calls_listeners_without_saving_its_step_again(model, tmp_path):
    model.train_until_stop(CheckpointSaverHook(str(tmp_path), save_steps=2), at_most=3)
    events: list = []
    saver = CountingSaver()
    hook = CheckpointSaverHook(str(tmp_path), save_steps=2, saver=saver, listeners=[CompleteListener(events, tmp_path)])
    with resumed(tmp_path, hook) as session:
        assert saver.asked == []
        assert events == ["begin", ("before", 3), ("after", 3, True)]
        session.run(model.train)
        session.run(model.train)
    assert saver.asked == [4, 5]  # The cadence keeps its phase: 0, 2, 4.


def test_training_continues_during_a_save(model, tmp_path):
    saver = CountingSaver()
    with model.session(CheckpointSaverHook(str(tmp_path), save_steps=2, saver=saver)) as session:
        session.run(model.train)
        saver.released.clear()
        for _ in range(2):
            session.run(model.train)
        assert saver.asked == [0, 2]
        assert ("CHECKPOINT", 2) not in session_logs(tmp_path)
        saver.released.set()
    assert session_logs(tmp_path)[-2:] == [("CHECKPOINT", 2), ("CHECKPOINT", 3)]


def test_session_log_follows_the_commit_and_waits_for_no_run(model, tmp_path):
    saver = Saver()
    hook = CheckpointSaverHook(str(tmp_path), save_steps=100, saver=saver)
    with model.session(hook):
        saver.wait()
        hook.summary_writer.flush()
        assert session_logs(tmp_path) == [("CHECKPOINT", 0)]


def test_failed_background_save_ends_the_training_with_its_cause(model, probe, tmp_path):
    saver = CountingSaver()
    saver.failures[0] = OSError("disk full")
    recorder = RecordingHook()
    pause = probe(lambda context: threading.Event().wait(0.001))
    hook = CheckpointSaverHook(str(tmp_path), save_steps=10**6, saver=saver)
    with pytest.raises(OSError, match="disk full"):
        model.train_until_stop(hook, recorder, pause, at_most=3000)
    assert recorder.callbacks[-1] == "end"
    assert recorder.callbacks.count("before_run") < 3000, "should_stop() was true before"
    assert len(saver.asked) == 2, "the last state was worth an attempt"


def test_failure_of_a_real_save_reaches_the_training(model, tmp_path):
    hook = CheckpointSaverHook(str(tmp_path), save_steps=2, listeners=[CompleteListener([], tmp_path)])
    (tmp_path / "model.ckpt-2").write_text("in the way")
    with pytest.raises(OpError, match=r"model.ckpt-2"):
        model.train_until_stop(hook, at_most=3)


def test_failed_save_is_noticed_at_the_end(model, tmp_path):
    saver = CountingSaver(max_to_keep=None)
    saver.failures[2] = OSError("disk full")
    session = model.session(CheckpointSaverHook(str(tmp_path), save_steps=2, saver=saver))
    saver.released.clear()
    for _ in range(2):
        session.run(model.train)
    saver.released.set()
    with pytest.raises(OSError, match="disk full"):
        session.close()
    assert saved_steps(tmp_path) == [0, 2], "the last state is worth another attempt"


def test_exception_waits_for_a_pending_save(model, tmp_path):
    saver = CountingSaver()
    saver.released.clear()
    threading.Timer(0.1, saver.released.set).start()
    fails = RecordingHook(failures={"after_run": KeyError("a hook")})
    with pytest.raises(KeyError, match="a hook"):
        model.train_until_stop(CheckpointSaverHook(str(tmp_path), save_steps=2, saver=saver), fails)
    assert session_logs(tmp_path) == [("CHECKPOINT", 0)]


def test_recovery_waits_for_a_pending_save(model, tmp_path):
    saver = CountingSaver()
    lose_once = RecordingHook(failures={"before_run": [None, None, AbortedError(None, None, "lost")]})
    hook = CheckpointSaverHook(str(tmp_path), save_steps=2, saver=saver)
    with model.session(hook, lose_once) as session:
        session.run(model.train)
        saver.released.clear()
        session.run(model.train)
        threading.Timer(0.1, saver.released.set).start()
        session.run(model.train)
    assert ("CHECKPOINT", 2) in session_logs(tmp_path)


def test_pending_save_that_failed_with_the_session_does_not_block_the_recovery(model, tmp_path, caplog):
    saver = CountingSaver()
    saver.failures[2] = AbortedError(None, None, "gone with the session")
    lose_once = RecordingHook(failures={"before_run": [None, None, AbortedError(None, None, "lost")]})
    hook = CheckpointSaverHook(str(tmp_path), save_steps=2, saver=saver)
    with model.session(hook, lose_once) as session:
        session.run(model.train)
        saver.released.clear()
        session.run(model.train)
        threading.Timer(0.05, saver.released.set).start()
        session.run(model.train)
    assert "is lost too: gone with the session" in caplog.text


@pytest.mark.parametrize("nan_hook_first", [True, False])
def test_state_with_a_nan_is_not_saved(model, probe, tmp_path, nan_hook_first):
    spoil = probe(lambda context: context.session.global_step == 1 and context.session.load({"weight": float("nan")}))
    saver = CountingSaver()
    hooks = [CheckpointSaverHook(str(tmp_path), save_steps=2, saver=saver), NanTensorHook("loss")]
    with pytest.raises(NanLossDuringTrainingError):
        model.train_until_stop(*(reversed(hooks) if nan_hook_first else hooks), spoil)
    assert saver.asked == [0], "the loss of the second run has the NaN"


def test_graph_that_cannot_be_written_ends_no_training_and_leaves_no_partial_file(model, tmp_path, monkeypatch, caplog):
    sync, fails = os.fsync, [True]

    def full_once(descriptor):
        if "graph.txt" in os.readlink(f"/proc/self/fd/{descriptor}") and fails.pop():
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full_once)
    (tmp_path / "graph.txt").write_text("of the run before")
    model.train_until_stop(CheckpointSaverHook(str(tmp_path), save_steps=1), at_most=2)
    assert fails == []
    assert re.search(r"could not write '.*/graph.txt', and continues without it: .*No space left", caplog.text)
    assert saved_steps(tmp_path) == [0, 1, 2]
    assert (tmp_path / "graph.txt").read_text() == "of the run before"
    assert not list(tmp_path.glob("*tmp"))


def test_graph_is_not_written_into_a_directory_of_another_process(model, tmp_path):
    class Taken(CheckpointSaverListener):
        def begin(self):
            owner = json.loads((tmp_path / ".hookline-owner").read_text())
            (tmp_path / ".hookline-owner").write_text(json.dumps({**owner, "token": "of another process"}))
            (tmp_path / ".hookline-lock").unlink()

    with pytest.raises(FailedPreconditionError, match="was taken over by process"):
        model.session(CheckpointSaverHook(str(tmp_path), save_steps=1, listeners=[Taken()]))
    assert not (tmp_path / "graph.txt").exists()


def test_listener_may_be_any_object_with_some_callbacks(model, tmp_path):
    steps: list = []

    class Before:
        def before_save(self, session, global_step):
            steps.append(("before", global_step))

    class After:
        def after_save(self, session, global_step):
            steps.append(("after", global_step))

    for listener, expected in ((Before(), "before"), (After(), "after")):
        steps.clear()
        directory = str(tmp_path / expected)
        hook = CheckpointSaverHook(directory, save_steps=2, listeners=[listener])
        model.train_until_stop(hook, at_most=2)
        assert steps == [(expected, 0), (expected, 2)]


@pytest.mark.parametrize("listener", [object(), Listener, None])
def test_object_that_is_no_listener_is_refused_with_its_index(listener):
    with pytest.raises(
        TypeError, match=r"listeners\[1\] must be an object with a callback of a CheckpointSaverListener"
    ):
        CheckpointSaverHook("somewhere", save_steps=1, listeners=[Listener([]), listener])
