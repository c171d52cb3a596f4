from __future__ import annotations

import inspect

import pytest

from hookline import Graph, op, summary
from hookline.errors import DeadlineExceededError
from hookline.hooks.reporting.account import AccountHook
from hookline.monitored.replaying.advice import AdviceHook
from hookline.summary import FileWriterCache
from hookline.testing import FakeClock
from hookline.train import (
    CheckpointSaverHook,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
    StepCounterHook,
    StopAtStepHook,
    SummarySaverHook,
)

pytestmark = pytest.mark.usefixtures("clock")


class Mine(SessionRunHook):
    pass


class Chiefs(SessionRunHook):
    pass


@pytest.fixture(autouse=True)
def _writers():
    yield
    FileWriterCache.clear()


@pytest.fixture
def built(monkeypatch):
    """The hooks that were built, as `kind(cadence)`, without opening a session, which would not name them."""

    def of(**arguments):
        seen = {}

        def catch(creator, hooks, *rest, **more):
            seen.update(creator=creator, hooks=list(hooks), rest=rest, more=more)

        with monkeypatch.context() as patched:
            patched.setattr("hookline.monitored.training_session.MonitoredSession", catch)
            MonitoredTrainingSession(**arguments)
        return seen

    return of


def kinds(hooks):
    return [type(hook) for hook in hooks]


def cadence(hook):
    """Returns (seconds, steps) of a hook, found by trying: when does its timer fire again after step 1?"""
    with FakeClock() as clock:
        timer = hook.trigger
        timer.reset()
        timer.update_last_triggered_step(1)
        steps = next((n for n in range(1, 2000) if timer.should_trigger_for_step(1 + n)), None)
        secs = 0
        while steps != 1 and secs < 2000 and not timer.should_trigger_for_step(2):
            clock.advance(1)
            secs += 1
    return (secs if secs < 2000 else None), steps


def test_signature_is_the_documented_one():
    parameters = list(inspect.signature(MonitoredTrainingSession).parameters)
    assert parameters == [
        "master", "is_chief", "checkpoint_dir", "scaffold", "hooks", "chief_only_hooks", "save_checkpoint_secs",
        "save_summaries_steps", "save_summaries_secs", "config", "stop_grace_period_secs", "log_step_count_steps",
        "max_wait_secs", "save_checkpoint_steps", "summary_dir", "save_graph_def", "steps_per_run",
        "progress", "checkpoints", "logging", "preemption",
    ]  # fmt: skip


def test_chief_gets_its_hooks_in_order(built, tmp_path):
    seen = built(checkpoint_dir=str(tmp_path), hooks=[Mine()], chief_only_hooks=[Chiefs()])
    *hooks, advice, account = kinds(seen["hooks"])
    assert hooks == [Chiefs, StepCounterHook, SummarySaverHook, CheckpointSaverHook, Mine]
    assert (advice, account) == (AdviceHook, AccountHook)
    assert seen["more"]["summary_dir"] == str(tmp_path)


def test_worker_gets_only_the_users_hooks(built, tmp_path):
    seen = built(is_chief=False, checkpoint_dir=str(tmp_path), hooks=[Mine()], chief_only_hooks=[Chiefs()])
    assert kinds(seen["hooks"]) == [Mine]
    assert type(seen["creator"]).__name__ == "WorkerSessionCreator"


def test_without_directories_there_are_only_the_users_hooks(built):
    assert kinds(built(hooks=[Mine()], chief_only_hooks=[Chiefs()])["hooks"]) == [Chiefs, Mine]


def test_summary_directory_alone_saves_no_checkpoints(built, tmp_path):
    assert kinds(built(summary_dir=str(tmp_path))["hooks"]) == [StepCounterHook, SummarySaverHook, AccountHook]


@pytest.mark.parametrize(
    ("arguments", "summary_cadence", "checkpoint_cadence"),
    [
        ({}, (None, 100), (600, None)),
        ({"save_summaries_steps": 7}, (None, 7), (600, None)),
        ({"save_summaries_secs": 7}, (7, None), (600, None)),
        ({"save_summaries_secs": 7, "save_summaries_steps": 5}, (7, 5), (600, None)),
        ({"save_summaries_secs": None}, None, (600, None)),
        ({"save_summaries_steps": None}, None, (600, None)),
        ({"save_summaries_steps": 0}, None, (600, None)),
        ({"save_summaries_steps": None, "save_summaries_secs": 7}, (7, None), (600, None)),
        ({"save_checkpoint_steps": 7}, (None, 100), (None, 7)),
        ({"save_checkpoint_secs": 7}, (None, 100), (7, None)),
        ({"save_checkpoint_secs": 7, "save_checkpoint_steps": 5}, (None, 100), (7, 5)),
        ({"save_checkpoint_secs": None}, (None, 100), None),
        ({"save_checkpoint_steps": None}, (None, 100), None),
        ({"save_checkpoint_secs": -1, "save_checkpoint_steps": 0}, (None, 100), None),
        ({"save_checkpoint_secs": 0, "save_checkpoint_steps": 9}, (None, 100), (None, 9)),
    ],
    ids=str,
)
def test_defaults_apply_only_without_a_given_cadence(built, tmp_path, arguments, summary_cadence, checkpoint_cadence):
    hooks = {type(hook): hook for hook in built(checkpoint_dir=str(tmp_path), **arguments)["hooks"]}
    for kind, expected in ((SummarySaverHook, summary_cadence), (CheckpointSaverHook, checkpoint_cadence)):
        assert (kind in hooks) == (expected is not None)
        if expected is not None:
            assert cadence(hooks[kind]) == expected


@pytest.mark.parametrize(("steps", "expected"), [(100, 1), (7, 1), (None, 0), (0, 0), (-1, 0)])
def test_the_step_counter_can_be_turned_off(built, tmp_path, steps, expected):
    hooks = built(checkpoint_dir=str(tmp_path), log_step_count_steps=steps)["hooks"]
    assert kinds(hooks).count(StepCounterHook) == expected


def test_mistakes_in_the_hook_lists_name_the_list():
    with Graph().as_default():
        with pytest.raises(TypeError, match=r"chief_only_hooks\[0\] is the class Mine"):
            MonitoredTrainingSession(chief_only_hooks=[Mine])
        with pytest.raises(TypeError, match="hooks must be a list"):
            MonitoredTrainingSession(hooks=Mine())  # type: ignore[arg-type]


def test_job_stops_resumes_and_writes_events(training, tmp_path):
    from hookline.testing import read_events

    with training.graph.as_default():
        summary.scalar("twice", op(lambda step: 2.0 * step)(training.global_step))

    def train(last_step):
        runs = 0
        with MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path),
            hooks=[StopAtStepHook(last_step=last_step)],
            save_summaries_steps=2,
            save_checkpoint_steps=4,
        ) as sess:
            assert isinstance(sess, MonitoredSession)
            assert sess.summary_writer is FileWriterCache.get(str(tmp_path))
            while not sess.should_stop():
                sess.run(training.train_op)
                runs += 1
        return runs

    assert train(6) == 6
    FileWriterCache.clear()
    assert train(9) == 3
    FileWriterCache.clear()
    points = {
        event.step for event in read_events(str(tmp_path)) for value in event.summary.value if value.tag == "twice"
    }
    assert {1, 3, 5, 7, 9} <= points
    assert (tmp_path / "model.ckpt-9").exists()


@pytest.mark.parametrize("given", [(), ("summary_dir",)])
def test_rate_is_written_into_the_summary_directory(training, tmp_path, clock, given):
    from hookline.testing import read_events

    directories = {name: str(tmp_path / name) for name in ("checkpoint_dir", *given)}
    with MonitoredTrainingSession(
        hooks=[StopAtStepHook(last_step=5)], log_step_count_steps=2, save_summaries_steps=None, **directories
    ) as sess:
        while not sess.should_stop():
            clock.advance(0.5)
            sess.run(training.train_op)
    FileWriterCache.clear()
    rates = {
        name: [event.step for event in read_events(path) for value in event.summary.value if "/sec" in value.tag]
        for name, path in directories.items()
    }
    assert rates.pop(list(directories)[-1]) == [3, 5]
    assert not any(rates.values())


def test_worker_timeout_names_the_missing_chief(training):
    with pytest.raises(DeadlineExceededError, match=r"the chief to make the model ready .*global_step"):
        MonitoredTrainingSession(is_chief=False, max_wait_secs=3)
    assert not training.graph.finalized
