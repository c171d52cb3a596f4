from __future__ import annotations

import pytest

from hookline import host_op, summary
from hookline.errors import AbortedError
from hookline.summary import FileWriter, FileWriterCache
from hookline.testing import FakeClock, RecordingHook, read_events
from hookline.train import ChiefSessionCreator, MonitoredSession, Scaffold, SessionRunHook, SummarySaverHook


@pytest.fixture
def merged(model):
    return summary.scalar("half", model.loss)


def written(directory):
    """Returns the events of a directory as (kind, step)."""
    FileWriterCache.clear()
    out = []
    for event in read_events(directory):
        if event.HasField("session_log"):
            out.append((summary.SessionLog.SessionStatus.Name(event.session_log.status), event.step))
        for value in event.summary.value:
            out.append((value.tag, event.step))
    return out


def test_hook_needs_exactly_one_of_scaffold_and_summary_op():
    with pytest.raises(ValueError, match="exactly one of scaffold or summary_op, got neither"):
        SummarySaverHook(save_steps=1)
    with pytest.raises(ValueError, match="exactly one of scaffold or summary_op, got both"):
        SummarySaverHook(save_steps=1, scaffold=Scaffold(), summary_op="s:0")


def test_hook_writes_the_first_run_and_each_save_steps(model, merged, tmp_path):
    model.train_until_stop(SummarySaverHook(save_steps=3, output_dir=str(tmp_path), summary_op=merged), at_most=8)
    assert written(tmp_path) == [("START", 1), ("half", 1), ("half", 4), ("half", 7)]


def test_start_precedes_other_summaries_of_the_first_run(model, merged, tmp_path):
    class Early(SessionRunHook):
        def after_run(self, run_context, run_values):
            value = summary.Summary.Value(tag="early", simple_value=1)
            FileWriterCache.get(str(tmp_path)).add_summary(summary.Summary(value=[value]), 1)

    savers = [SummarySaverHook(save_steps=1, output_dir=str(tmp_path), summary_op=merged) for _ in range(2)]
    model.train_until_stop(Early(), *savers, at_most=1)
    assert written(tmp_path) == [("START", 1), ("START", 1), ("early", 1), ("half", 1), ("half", 1)]


def test_hook_writes_each_save_secs(model, merged, tmp_path):
    with (
        FakeClock() as clock,
        model.session(SummarySaverHook(save_secs=10, output_dir=str(tmp_path), summary_op=merged)) as session,
    ):
        for secs in (0, 5, 5, 9, 1):
            clock.advance(secs)
            session.run(model.train)
    assert written(tmp_path) == [("START", 1), ("half", 1), ("half", 3), ("half", 5)]


def test_summary_is_computed_only_in_written_runs(model, tmp_path):
    calls = []

    def record(loss):
        calls.append(float(loss))
        return summary.Summary(value=[summary.Summary.Value(tag="x", simple_value=1)]).SerializeToString()

    hook = SummarySaverHook(save_steps=4, output_dir=str(tmp_path), summary_op=host_op(record)(model.loss))
    model.train_until_stop(hook, at_most=7)
    assert len(calls) == 2


def test_several_summaries_are_given_as_a_list(model, merged, tmp_path):
    other = summary.scalar("full", model.weight)
    hook = SummarySaverHook(save_steps=10, output_dir=str(tmp_path), summary_op=[merged, other])
    model.train_until_stop(hook, at_most=1)
    assert written(tmp_path) == [("START", 1), ("half", 1), ("full", 1)]


def test_run_without_a_step_is_not_written_twice(model, merged, tmp_path):
    with model.session(SummarySaverHook(save_steps=1, output_dir=str(tmp_path), summary_op=merged)) as session:
        for fetches in (model.train, model.loss, model.loss, model.train):
            session.run(fetches)
    assert written(tmp_path) == [("START", 1), ("half", 1), ("half", 2)]


def test_first_run_that_does_not_train_is_written_at_step_zero(model, merged, tmp_path):
    with model.session(SummarySaverHook(save_steps=2, output_dir=str(tmp_path), summary_op=merged)) as session:
        for fetches in (model.loss, model.train, model.train):
            session.run(fetches)
    assert written(tmp_path) == [("START", 1), ("half", 0), ("half", 2)]


def test_runs_of_several_steps_are_written_once_due(model, merged, tmp_path):
    with model.session(SummarySaverHook(save_steps=7, output_dir=str(tmp_path), summary_op=merged)) as session:
        for _ in range(6):
            session.run(model.jump)
    steps = [step for what, step in written(tmp_path) if what == "half"]
    assert steps == [5, 15, 25]


def test_scaffold_is_read_after_it_was_finalized(model, tmp_path):
    scaffold = Scaffold()
    hook = SummarySaverHook(save_steps=1, output_dir=str(tmp_path), scaffold=scaffold)
    summary.scalar("late", model.loss)
    with MonitoredSession(ChiefSessionCreator(scaffold), hooks=[hook]) as session:
        session.run(model.train)
    assert written(tmp_path) == [("START", 1), ("late", 1)]


def test_scaffold_without_summaries_writes_nothing(model, tmp_path):
    scaffold = Scaffold()
    hook = SummarySaverHook(save_steps=1, output_dir=str(tmp_path), scaffold=scaffold)
    with MonitoredSession(ChiefSessionCreator(scaffold), hooks=[hook]) as session:
        for _ in range(3):
            session.run(model.train)
    assert written(tmp_path) == [("START", 1)]


def test_given_writer_is_used_and_the_directory_ignored(model, merged, tmp_path):
    with FileWriter(str(tmp_path / "given")) as writer:
        ignored = str(tmp_path / "ignored")
        hook = SummarySaverHook(save_steps=1, output_dir=ignored, summary_writer=writer, summary_op=merged)
        model.train_until_stop(hook, at_most=1)
    assert written(tmp_path / "given") == [("START", 1), ("half", 1)]
    assert not (tmp_path / "ignored").exists()


def test_hook_without_writer_and_directory_warns_and_writes_nothing(model, merged, caplog):
    model.train_until_stop(SummarySaverHook(save_steps=1, summary_op=merged), at_most=2)
    assert "SummarySaverHook writes nothing" in caplog.text


def test_end_flushes_the_writer(model, merged, tmp_path):
    with model.session(SummarySaverHook(save_steps=1, output_dir=str(tmp_path), summary_op=merged)) as session:
        session.run(model.train)
    assert [value.tag for event in read_events(tmp_path) for value in event.summary.value] == ["half"]


def test_recovery_to_an_earlier_step_writes_start_again_and_keeps_the_phase(model, merged, tmp_path):
    lose_once = RecordingHook(failures={"before_run": [None] * 6 + [AbortedError(None, None, "lost")]})
    hook = SummarySaverHook(save_steps=2, output_dir=str(tmp_path), summary_op=merged)
    scaffold = Scaffold(init_fn=lambda scaffold, session: session.load({"global_step": 2 if hook_was_used else 0}))
    hook_was_used = []
    with MonitoredSession(ChiefSessionCreator(scaffold), hooks=[hook, lose_once]) as session:
        hook_was_used.append(True)
        for _ in range(9):
            session.run(model.train)
    assert written(tmp_path) == [
        *[("START", 1), ("half", 1), ("half", 3), ("half", 5)],
        *[("START", 3), ("half", 3), ("half", 5)],
    ]


@pytest.mark.parametrize("restored_step", [0, 5, 10, 15, 20, 25])
def test_runs_of_several_steps_are_written_on_the_grid_after_a_recovery(model, merged, tmp_path, restored_step):
    hook = SummarySaverHook(save_steps=10, output_dir=str(tmp_path), summary_op=merged)
    session, lose = model.session_to_lose(hook, restored_step=restored_step)
    with session:
        for _ in range(6):
            session.run(model.jump)
        session.run([model.jump, lose])
        for _ in range(restored_step + 10, 51, 5):
            session.run(model.jump)
    uninterrupted = [5, 15, 25, 35, 45]
    assert written(tmp_path) == [
        *[("START", 1), ("half", 5), ("half", 15), ("half", 25)],
        *[("START", restored_step + 1), *[("half", step) for step in uninterrupted if step > restored_step]],
    ]
