"""What hooks have asked for is written when it has arrived, in order, and the training waits for none of it."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import pytest

import hookline as hl
from hookline import summary, train
from hookline.session import LateResults
from hookline.testing import read_events


def slow(x):
    """Takes the device a tenth of a second or more."""
    ones = jnp.ones((400, 400))
    return jax.lax.fori_loop(0, 300, lambda _, y: y @ ones / 400, x * ones).mean()


@pytest.fixture
def training():
    """A step whose loss is late, and is the number of the step."""
    step = train.get_or_create_global_step()
    loss = hl.op(slow, name="loss")(hl.op(lambda step: step + 1.0)(step))
    return hl.group(step.assign_add(1), loss.op), loss


class Timing(train.SessionRunHook):
    """Records, behind the other hooks, what had been written after each run."""

    def __init__(self, written):
        self.written, self.counts = written, []

    def after_run(self, run_context, run_values):
        self.counts.append(len(self.written()))


def test_a_line_is_logged_once_its_values_are_there(training, caplog):
    train_op, loss = training
    caplog.set_level(logging.INFO, "hookline.hooks.logging_tensor")
    timing = Timing(lambda: caplog.records)
    hooks = [train.LoggingTensorHook({"loss": loss}, every_n_iter=2, formatter=lambda values: f"{values['loss']:.0f}")]
    with train.MonitoredSession(hooks=[*hooks, timing]) as session:
        for _ in range(6):
            session.run(train_op)
    assert timing.counts[0] == 0, "the first run returned before its loss was there"
    assert [record.getMessage() for record in caplog.records] == ["1", "3", "5"]


class Late:
    """What a device would still have to compute, until it is told to be there."""

    def __init__(self):
        self.there = False

    def is_ready(self):
        return self.there

    def block_until_ready(self):
        return self


class Waiting(train.SessionRunHook):
    """Asks for something on the first run, and waits for it."""

    def __init__(self, late):
        self.late, self.called, self.read = late, [], []
        self.values = train.LateValues(lambda value: self.read.append((value, self.called[-1])))

    def after_run(self, run_context, run_values):
        self.called.append(run_context.runs)
        if self.called == [0]:
            self.values.add(LateResults(lambda: "value", [self.late]))
        self.values.write_ready()

    def steps_until_trigger(self, global_step):
        return 1000

    def waits_for(self):
        return self.values.first


@pytest.mark.parametrize("beside", [[], [train.SessionRunHook()], [Timing(list)]], ids=["alone", "idle", "every run"])
def test_a_hook_that_waits_is_called_on_the_run_that_begins_when_its_results_are_there(beside):
    train_op = train.get_or_create_global_step().assign_add(1)
    hook = Waiting(Late())
    with train.MonitoredSession(hooks=[hook, *beside]) as session:
        for _ in range(20):
            session.run(train_op)
        assert hook.called == [0]
        hook.late.there = True
        for _ in range(20):
            session.run(train_op)
    assert hook.called == [0, 20]
    assert hook.read == [("value", 20)]


def test_a_hook_that_waits_for_something_else_than_late_results_is_told_so():
    class Wrong(Waiting):
        def waits_for(self):
            return 3

        def steps_until_trigger(self, global_step):
            return 1000

    train_op = train.get_or_create_global_step().assign_add(1)
    with (
        pytest.raises(TypeError, match="hook Wrong must return a LateResults .or None. from waits_for, got 3"),
        train.MonitoredSession(hooks=[Wrong(Late())]) as session,
    ):
        session.run(train_op)


def test_no_hook_rides_while_the_device_computes_what_it_asked_for(training, tmp_path):
    train_op, loss = training
    summary.scalar("loss", loss)
    asked = []

    class Counting(train.LoggingTensorHook):
        def before_run(self, run_context):
            asked.append(run_context.runs)
            return super().before_run(run_context)

        def steps_until_trigger(self, global_step):
            return super().steps_until_trigger(global_step)

    hooks = [
        Counting({"loss": loss}, every_n_iter=100),
        train.SummarySaverHook(save_steps=100, output_dir=str(tmp_path), summary_op=summary.merge_all()),
        train.ProgressHook({"loss": loss}, every_secs=1000),
    ]
    with train.MonitoredSession(hooks=hooks) as session:
        for _ in range(12):
            session.run(train_op)
    assert len(asked) < 6, f"called on the runs {asked}, of which one was due and one brought its value"


def test_summaries_are_encoded_once_they_are_there(training, tmp_path):
    train_op, loss = training
    threads, encoded = set(), []

    def note(value):
        encoded.append(float(value))
        return b""

    op = summary.merge([summary.scalar("loss", loss), hl.host_op(note).node(loss)])
    timing = Timing(lambda: encoded)
    saver = train.SummarySaverHook(save_steps=2, output_dir=str(tmp_path), summary_op=op)
    with train.MonitoredSession(hooks=[saver, timing]) as session:
        for _ in range(5):
            session.run(train_op)
    assert timing.counts[0] == 0
    assert encoded == [1.0, 3.0, 5.0]
    points = [(e.step, v.simple_value) for e in read_events(str(tmp_path)) for v in e.summary.value]
    assert points == [(1, 1.0), (3, 3.0), (5, 5.0)]
    assert not threads


def test_a_save_waits_for_what_was_asked_for_before(training, tmp_path, caplog):
    train_op, loss = training
    caplog.set_level(logging.INFO, "hookline.hooks.logging_tensor")
    lines = []

    class Listener(train.CheckpointSaverListener):
        def before_save(self, session, global_step):
            lines.append((global_step, [record.getMessage() for record in caplog.records]))

    hooks = [
        train.CheckpointSaverHook(str(tmp_path), save_steps=2, listeners=[Listener()]),
        train.LoggingTensorHook([loss], every_n_iter=1, formatter=lambda values: f"{values['loss:0']:.0f}"),
    ]
    with train.MonitoredSession(hooks=hooks) as session:
        for _ in range(2):
            session.run(train_op)
    assert lines == [(0, []), (2, ["1", "2"])]


def test_the_seconds_in_a_line_are_those_between_the_firings(training, caplog):
    train_op, loss = training
    caplog.set_level(logging.INFO, "hookline.hooks.logging_tensor")
    from hookline.testing import FakeClock

    with FakeClock() as clock, train.MonitoredSession(hooks=[train.LoggingTensorHook([loss], 1)]) as session:
        session.run(train_op)
        clock.advance(3)
        session.run(train_op)
        clock.advance(50)
    assert caplog.records[-1].getMessage().endswith("(3.000 sec)")


def test_what_an_error_leaves_behind_is_logged_if_it_has_arrived(training, caplog):
    train_op, loss = training
    caplog.set_level(logging.INFO, "hookline.hooks")

    def fail():
        with train.MonitoredSession(hooks=[train.LoggingTensorHook([loss], every_n_iter=10)]) as session:
            session.run(train_op)
            jax.block_until_ready(session.run(loss))
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        fail()
    assert [record.getMessage() for record in caplog.records] == ["loss:0 = 1.0"]


def test_an_error_of_a_host_operation_that_nobody_waited_for_is_raised_with_its_place(training, tmp_path):
    train_op, loss = training

    def fail(value):
        raise ValueError("cannot encode")

    op = hl.host_op(fail, name="encoding").node(loss)
    saver = train.SummarySaverHook(save_steps=1, output_dir=str(tmp_path), summary_op=op)
    session = train.MonitoredSession(hooks=[saver])

    def until_it_has_arrived():
        for _ in range(20):
            session.run(train_op)
            jax.block_until_ready(session.run_step_fn(lambda step_context: step_context.session.run(loss)))

    with pytest.raises(ValueError, match="cannot encode") as told:
        until_it_has_arrived()
    assert any("encoding" in note for note in told.value.__notes__)
    session.close()


def test_what_has_not_arrived_when_its_session_is_gone_is_dropped_with_a_line(caplog):
    written = []
    late = train.LateValues(lambda results, step: written.append((step, results)))
    very_late = jax.jit(lambda x: jax.lax.fori_loop(0, 4, lambda _, x: slow(x), x))
    very_late(1.0)
    late.add({"done": jnp.ones(()).block_until_ready()}, 1)
    late.add({"loss": very_late(2.0)}, 2)
    late.add({"done": jnp.ones(())}, 3)
    late.salvage()
    assert written == [(1, {"done": 1.0})], "in order, so nothing of what came behind"
    assert caplog.messages == ["2 values that were asked for are dropped with their session."]
    assert not late


class PrintsLate(train.SessionRunHook):
    """A user's hook, as the documentation advises."""

    def __init__(self, fetches):
        self.fetches, self.seen = fetches, []
        self._late = train.LateValues(lambda results, step: self.seen.append((step, results)))

    def before_run(self, run_context):
        return train.SessionRunArgs(self.fetches, late=True)

    def after_run(self, run_context, run_values):
        self._late.add(run_values.results, run_context.session.global_step)
        self._late.write_ready()

    def settle(self, session):
        self._late.write_all()


def test_a_hook_of_ones_own_gets_values_of_every_kind_late(training):
    train_op, loss = training
    text = hl.host_op(lambda value: f"loss {value:.0f}", name="text").node(loss)
    hook, plain = PrintsLate({"loss": loss, "text": text, "op": train_op}), PrintsLate([loss])
    with train.MonitoredSession(hooks=[hook, plain]) as session:
        for _ in range(3):
            session.run(train_op)
    assert [(step, results["text"], results["op"]) for step, results in hook.seen] == [
        (n, f"loss {n}", None) for n in (1, 2, 3)
    ]
    assert [float(loss) for _, (loss,) in plain.seen] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("kind", [train.LoggingTensorHook, train.SummarySaverHook])
def test_a_subclass_with_an_after_run_of_its_own_gets_the_results_themselves(training, tmp_path, kind):
    train_op, loss = training
    seen = []

    class Own(kind):
        def after_run(self, run_context, run_values):
            seen.append(run_values.results)
            super().after_run(run_context, run_values)

    logging_arguments = {"tensors": {"loss": loss}, "every_n_iter": 2}
    merged = summary.merge([summary.scalar("loss", loss)])
    saving_arguments = {"save_steps": 2, "output_dir": str(tmp_path), "summary_op": merged}
    hook = Own(**(logging_arguments if kind is train.LoggingTensorHook else saving_arguments))
    with train.MonitoredSession(hooks=[hook]) as session:
        for _ in range(3):
            session.run(train_op)
    values = [results for results in seen if results is not None]
    assert len(values) == 2
    if kind is train.LoggingTensorHook:
        assert [float(results["loss"]) for results in values] == [1.0, 3.0]
    else:
        assert all(isinstance(results[0], bytes) for results in values)


@pytest.mark.parametrize("is_late", [False, True])
def test_what_a_hook_does_to_its_results_of_one_run_is_not_in_those_of_the_next(training, is_late):
    train_op, loss = training
    seen = []

    class Marks(train.SessionRunHook):
        def before_run(self, run_context):
            return train.SessionRunArgs({"op": loss.op})

        def after_run(self, run_context, run_values):
            seen.append(dict(run_values.results))
            run_values.results["mine"] = 1

    class Asks(train.SessionRunHook):
        def before_run(self, run_context):
            return train.SessionRunArgs(loss, late=True) if is_late else None

    with train.MonitoredSession(hooks=[Marks(), Asks()]) as session:
        for _ in range(3):
            session.run(train_op)
    assert seen == [{"op": None}] * 3


def test_a_failed_run_is_an_error_where_its_results_are_read_though_they_are_ready():
    class Failed:
        def is_ready(self):
            return True

        def block_until_ready(self):
            raise RuntimeError("the run failed")

    results = LateResults(lambda: ["never read"], [Failed()])
    part = results.part(0)
    assert part.is_ready()
    for late in (part, results):
        with pytest.raises(RuntimeError, match="the run failed"):
            late.get()
