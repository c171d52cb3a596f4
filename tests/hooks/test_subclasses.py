"""Methods that published code overrides in the built-in hooks, each by its public name, in a session."""

from __future__ import annotations

import logging

import pytest

from hookline import GraphKeys, summary
from hookline.testing import FakeClock, read_events
from hookline.train import (
    CheckpointSaverHook,
    LoggingTensorHook,
    Saver,
    StepCounterHook,
    StopAtStepHook,
    SummarySaverHook,
    every,
    list_variables,
)


def test_step_counter_may_record_other_values(model, tmp_path):
    recorded = []

    class Examples(StepCounterHook):
        def record(self, elapsed_steps, elapsed_secs, global_step):
            recorded.append((elapsed_steps, elapsed_secs, global_step, self.tag))
            super().record(32 * elapsed_steps, elapsed_secs, global_step)

    with FakeClock() as clock, model.session(Examples(every_n_steps=4, output_dir=str(tmp_path))) as session:
        for _ in range(9):
            clock.advance(0.5)
            session.run(model.train)
    assert recorded == [(4, 2.0, 5, "global_step/sec"), (4, 2.0, 9, "global_step/sec")]
    rates = [value.simple_value for event in read_events(str(tmp_path)) for value in event.summary.value]
    assert rates == [64.0, 64.0]


def test_saver_hook_may_extend_save_and_choose_the_saver(model, tmp_path):
    saved = []

    class Weights(CheckpointSaverHook):
        def get_saver(self, graph):
            return Saver(graph.get_collection(GraphKeys.TRAINABLE_VARIABLES))

        def save(self, session, global_step):
            saved.append(global_step)
            return super().save(session, global_step)

    with model.session(Weights(str(tmp_path), save_steps=3)) as session:
        for _ in range(7):
            session.run(model.train)
    assert saved == [0, 3, 6, 7]
    assert [name for name, _ in list_variables(f"{tmp_path}/model.ckpt-7")] == ["weight"]


def test_saver_hook_may_save_nothing(model, tmp_path):
    class Remote(CheckpointSaverHook):
        def save(self, session, global_step):
            return global_step == 4

    hook = Remote(str(tmp_path), save_steps=2, saver=Saver())
    with model.session(hook) as session:
        while not session.should_stop():
            session.run(model.train)
        assert session.raw_session().global_step == 4
    assert not list(tmp_path.glob("model*"))


def test_summary_hook_may_choose_summaries_and_write_elsewhere(model, tmp_path):
    written = []
    one, two = summary.scalar("one", model.loss), summary.scalar("two", model.loss)

    class Own(SummarySaverHook):
        def get_summary_op(self):
            return [two, *super().get_summary_op()]

        def write(self, summaries, global_step):
            written.append((global_step, [summary.Summary.FromString(s).value[0].tag for s in summaries]))
            super().write(summaries[:1], global_step)

    with model.session(Own(save_steps=2, output_dir=str(tmp_path), summary_op=[one])) as session:
        for _ in range(4):
            session.run(model.train)
    assert written == [(1, ["two", "one"]), (3, ["two", "one"])]
    tags = [value.tag for event in read_events(str(tmp_path)) for value in event.summary.value]
    assert tags == ["two", "two"]


def test_logging_hook_may_format_and_log_elsewhere(model, caplog):
    kept = []

    class Own(LoggingTensorHook):
        def format_line(self, values, elapsed_secs):
            return f"{sorted(values)} after {elapsed_secs}"

        def log(self, values, elapsed_secs):
            kept.append(float(values["loss"]))
            super().log(values, elapsed_secs)

    caplog.set_level(logging.INFO, logger="hookline")
    with FakeClock() as clock, model.session(Own({"loss": model.loss}, every_n_iter=2)) as session:
        for _ in range(3):
            clock.advance(1)
            session.run(model.train)
    assert len(kept) == 2
    assert [line for line in caplog.messages if "after" in line] == ["['loss'] after None", "['loss'] after 2.0"]


def test_step_in_the_results_compiles_nothing(model, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="hookline")
    with model.session() as session:
        session.run(model.train)
    assert "Compiling" in caplog.text
    caplog.clear()
    hooks = [StepCounterHook(trigger=every(1)), CheckpointSaverHook(str(tmp_path), trigger=every(1), saver=Saver())]
    with model.session(*hooks, StopAtStepHook(last_step=9)) as session:
        for _ in range(9):
            session.run(model.train)
    assert "Compiling" not in caplog.text


@pytest.mark.parametrize("on_disk", [False, True])
def test_overridden_save_is_called_once_per_step_also_for_a_step_on_disk(model, tmp_path, on_disk):
    saved = []

    class Own(CheckpointSaverHook):
        def save(self, session, global_step):
            saved.append("skipped" if self.trigger.last_triggered_step() is None else global_step)

    if on_disk:
        with model.session(CheckpointSaverHook(str(tmp_path), save_steps=100, saver=Saver())):
            pass
    with model.session(Own(str(tmp_path), save_steps=3, saver=Saver())) as session:
        for _ in range(6):
            session.run(model.train)
    assert saved == ["skipped", 3, 6]


def test_failed_save_of_the_last_step_is_retried_at_the_end(model, tmp_path):
    tried = []

    class Fails(CheckpointSaverHook):
        def save(self, session, global_step):
            tried.append(global_step)
            if tried == [0, 2]:
                raise OSError("no room")
            return super().save(session, global_step)

    session = model.session(hook := Fails(str(tmp_path), save_steps=2, saver=Saver()))
    session.run(model.train)
    with pytest.raises(OSError, match="no room"):
        session.run(model.train)
    hook.end(session.raw_session())
    assert tried == [0, 2, 2]
    session.close()


def test_requested_summaries_are_always_a_list(model):
    assert SummarySaverHook(save_steps=1, summary_op="one:0").get_summary_op() == ["one:0"]
    assert SummarySaverHook(save_steps=1, summary_op=("one:0", "two:0")).get_summary_op() == ["one:0", "two:0"]

    class Own(SummarySaverHook):
        def get_summary_op(self):
            return "one:0"

    with pytest.raises(TypeError, match="Own.get_summary_op must return a list of summaries .* got 'one:0'"):
        model.session(Own(save_steps=1, summary_op="one:0"))


def test_only_true_requests_a_stop(model, tmp_path):
    class Counting(CheckpointSaverHook):
        def save(self, session, global_step):
            super().save(session, global_step)
            return 17  # bytes, say

    class Telling:
        def after_save(self, session, global_step_value):
            return "saved"

    hooks = [
        Counting(str(tmp_path / "a"), save_steps=2, saver=Saver()),
        CheckpointSaverHook(str(tmp_path / "b"), save_steps=2, saver=Saver(), listeners=[Telling()]),
    ]
    with model.session(*hooks) as session:
        for _ in range(5):
            session.run(model.train)
        assert not session.should_stop()


def test_get_saver_without_a_saver_is_an_error(model, tmp_path):
    class None_(CheckpointSaverHook):
        def get_saver(self, graph):
            pass

    with pytest.raises(TypeError, match=r"None_.get_saver must return a Saver, got None"):
        model.session(None_(str(tmp_path), save_steps=2))


def test_summary_hook_that_writes_elsewhere_needs_no_directory(model, caplog):
    written = []

    class Elsewhere(SummarySaverHook):
        def write(self, summaries, global_step):
            written.append((global_step, len(summaries)))

    with model.session(Elsewhere(save_steps=2, summary_op=[summary.scalar("loss", model.loss)])) as session:
        for _ in range(4):
            session.run(model.train)
    assert written == [(1, 1), (3, 1)]
    assert not caplog.records
