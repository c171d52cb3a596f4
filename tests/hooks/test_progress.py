"""ProgressHook when its output is no terminal: its lines, and when they come."""

from __future__ import annotations

import logging
import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl
from hookline import train
from hookline.testing import FakeClock


class Pipe:
    """Enter it for a `file` that writes into a real pipe; `lines` are its output, after the exit."""

    def __enter__(self):
        self._source, sink = os.pipe()
        self.file = os.fdopen(sink, "w", encoding="utf-8")
        self._received = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(self, *exc_info):
        self.file.close()
        self._reader.join()

    def _read(self):
        with os.fdopen(self._source, encoding="utf-8") as source:
            self._received += source

    @property
    def lines(self):
        assert all(line.endswith("\n") for line in self._received)
        return [line.rstrip("\n") for line in self._received]


def shown(model, *hooks, secs_a_step=1.0, steps=100, fetches=None, **arguments):
    """Trains with a ProgressHook, and returns its lines."""
    with Pipe() as pipe, FakeClock() as clock:
        session = model.session(*hooks, train.ProgressHook(file=pipe.file, **arguments))
        with session:
            while not session.should_stop() and steps:
                clock.advance(secs_a_step)
                session.run(model.train if fetches is None else fetches)
                steps -= 1
    return pipe.lines


def test_hook_shows_the_first_step_then_by_the_clock_and_the_last(model):
    assert shown(model, train.StopAtStepHook(last_step=25)) == [
        "step 1/25  4%",
        "step 11/25  44%  1 steps/s  0:14 left",
        "step 21/25  84%  1 steps/s  0:04 left",
        "step 25/25  100%  1 steps/s",
    ]


def test_training_without_a_last_step_shows_step_and_rate(model):
    assert shown(model, steps=15, secs_a_step=0.5, every_secs=5) == [
        "step 1",
        "step 11  2 steps/s",
        "step 15  2 steps/s",
    ]


def test_last_step_argument_overrides_the_limit_of_the_runs(model):
    lines = shown(model, train.StopAtStepHook(last_step=20), last_step=10, every_secs=100)
    assert [line.split("  ")[:2] for line in lines] == [
        ["step 1/10", "10%"],
        ["step 10/10", "100%"],
        ["step 20/10", "100%"],
    ]


def test_hook_counts_from_the_first_step_of_the_training(model):
    start = train.Scaffold(init_fn=lambda _, session: session.load({"global_step": 500}))
    with Pipe() as pipe, FakeClock() as clock:
        hooks = [train.StopAtStepHook(num_steps=20), train.ProgressHook(file=pipe.file)]
        with model.session(*hooks, session_creator=train.ChiefSessionCreator(start)) as session:
            while not session.should_stop():
                clock.advance(360)
                session.run(model.train)
    assert pipe.lines[0] == "step 501/520  96%"
    assert pipe.lines[9] == "step 510/520  98%  0.00278 steps/s  1:00:00 left"


def test_trigger_replaces_the_clock(model):
    lines = shown(model, trigger=train.every(10) | train.at_steps(3), steps=25)
    assert [line.split("  ")[0] for line in lines] == ["step 3", "step 10", "step 20", "step 25"]


def test_steps_of_one_run_count(model):
    assert shown(model, fetches=model.jump, steps=12, last_step=60)[1] == "step 55/60  91%  5 steps/s  0:01 left"


def test_rate_covers_the_last_half_minute(model):
    with Pipe() as pipe, FakeClock() as clock, model.session(train.ProgressHook(file=pipe.file)) as session:
        for secs in [1.0] * 50 + [5.0] * 10:
            clock.advance(secs)
            session.run(model.train)
    rates = [line.split("  ")[-1] for line in pipe.lines]
    assert rates[4] == "1 steps/s"
    assert rates[-1] == "0.2 steps/s"


def test_rate_of_less_than_a_second_is_not_shown(model):
    assert shown(model, train.StopAtStepHook(last_step=20), secs_a_step=0.05)[-1] == "step 20/20  100%"
    assert shown(model, train.StopAtStepHook(last_step=23), secs_a_step=0.05)[-1] == "step 23/23  100%  20 steps/s"


def test_compilation_at_the_start_does_not_lower_the_rate(model):
    with Pipe() as pipe, FakeClock() as clock, model.session(train.ProgressHook(file=pipe.file)) as session:
        for secs in [600, 600, 600] + [1] * 20:
            clock.advance(secs)
            session.run(model.train)
    assert pipe.lines[-1] == "step 23  1 steps/s"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.25, "0.2500"),
        (np.float32(1234.5678), "1235."),
        (3e-7, "3.000e-07"),
        (float("nan"), "nan"),
        (jnp.bfloat16(0.5), "0.5000"),
        (7, "7"),
        (True, "True"),
        (np.array([[1, 2], [3, 4]]), "[[1 2] [3 4]]"),
    ],
)
def test_value_is_shown_after_its_tag(model, value, text):
    hl.constant(value, name="value")
    assert shown(model, values={"it": "value"}, steps=1) == [f"step 1  it {text}"]


def test_text_is_a_value_too_and_values_keep_their_order(model):
    hl.host_op(lambda: "fine\n  weather", name="report").node()
    assert shown(model, values=["report", model.global_step], steps=1) == [
        "step 1  report fine weather  global_step:0 0"
    ]


def test_values_are_fetched_only_in_shown_runs_and_once_at_the_start(model):
    asked = []
    hl.host_op(lambda step: asked.append(int(step)) or int(step), name="asked")(model.global_step)
    lines = shown(model, values={"before": "asked"}, last_step=35, steps=35)
    assert asked == [0, 2, 10, 20, 30, 34]
    assert [line.split("  ")[2] for line in lines] == [f"before {step}" for step in (0, 10, 20, 30, 34)]


def slow(x):
    """Takes the device a tenth of a second or more."""
    ones = jnp.ones((400, 400))
    return jax.lax.fori_loop(0, 100, lambda _, y: y @ ones / 400, x * ones).mean()


def test_loop_does_not_wait_and_a_line_shows_a_computed_step(tmp_path):
    step = train.get_or_create_global_step()
    loss = hl.op(slow, name="loss")(hl.op(lambda step: step + 1.0)(step))
    in_words = hl.host_op(lambda loss: f"about {loss:.0f}")(loss)
    train_op = hl.group(step.assign_add(1), loss.op)
    path = tmp_path / "out"
    with open(path, "w") as file:
        hook = train.ProgressHook({"loss": loss, "in words": in_words}, every_secs=0, file=file)
        with train.MonitoredSession(hooks=[hook]) as session:
            session.run(train_op)
            assert path.read_text() == "", "the first run returned before its loss was there"
            for _ in range(5):
                session.run(train_op)
    lines = [line.split("  ")[:3] for line in path.read_text().splitlines()]
    assert lines == [[f"step {n}", f"loss {n}.000", f"in words about {n}"] for n in range(1, 7)]


def test_training_without_a_run_shows_nothing(model):
    assert shown(model, train.StopAtStepHook(last_step=0)) == []
    assert shown(model, steps=0) == []


def test_task_without_a_run_of_its_own_shows_nothing(model):
    with Pipe() as pipe, model.session(train.ProgressHook(file=pipe.file)) as session:
        session.raw_session().run(model.jump)
    assert pipe.lines == []


def test_end_before_the_last_step_shows_the_newest_values_with_their_step(model):
    assert shown(model, values=["loss"], steps=1) == ["step 1  loss 0.5000"]
    assert shown(model, values=["loss"], steps=5, secs_a_step=0)[1:] == ["step 5  at step 3: loss 2.000"]
    assert shown(model, values=["loss"], steps=15)[1:] == [
        "step 11  loss 512.0  1 steps/s",
        "step 15  at step 11: loss 512.0  1 steps/s",
    ]


def test_recovery_continues_from_the_earlier_step(model):
    with Pipe() as pipe, FakeClock() as clock:
        session, lose = model.session_to_lose(train.ProgressHook(file=pipe.file, every_secs=1), restored_step=3)
        with session:
            for number in range(20):
                clock.advance(0.25)
                session.run([model.train, lose] if number == 10 else model.train)
    steps = [int(line.split()[1]) for line in pipe.lines]
    assert steps == [1, 5, 9, 6, 10, 13]
    assert pipe.lines[-1] == "step 13  4 steps/s"


def test_same_hook_works_in_a_second_session(model):
    with Pipe() as pipe, FakeClock():
        hook = train.ProgressHook(file=pipe.file)
        for last_step in (2, 3):
            with model.session(train.StopAtStepHook(last_step), hook) as session:
                while not session.should_stop():
                    session.run(model.train)
    assert [line.split("  ")[0] for line in pipe.lines] == ["step 1/2", "step 2/2", "step 1/3", "step 3/3"]


def test_added_hook_loses_no_line(model):
    with Pipe() as pipe, FakeClock(), model.session(train.ProgressHook(file=pipe.file)) as session:
        for _ in range(5):
            session.run(model.train)
        session.add_hook(train.GlobalStepWaiterHook(wait_until_step=0))
    assert [line.split()[1] for line in pipe.lines] == ["1", "5"]


def test_closed_pipe_ends_no_training(model, caplog):
    source, sink = os.pipe()
    os.close(source)
    file = os.fdopen(sink, "w")
    with FakeClock(), model.session(train.ProgressHook(file=file, every_secs=0)) as session:
        for _ in range(5):
            session.run(model.train)
        assert session.raw_session().global_step == 5
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        "ProgressHook shows no more progress, but the training continues: BrokenPipeError: [Errno 32] Broken pipe"
    ]
    with pytest.raises(BrokenPipeError):
        file.close()


@pytest.mark.parametrize(
    ("arguments", "kind", "complaint"),
    [
        (
            {"values": "loss"},
            TypeError,
            "ProgressHook requires a dict or a list of tensors, got 'loss'. Put it in a list",
        ),
        ({"last_step": 0}, ValueError, "ProgressHook requires last_step >= 1, got 0"),
        ({"last_step": "100"}, TypeError, "ProgressHook requires a whole number as last_step, got '100'"),
        ({"every_secs": -1}, ValueError, "ProgressHook requires every_secs >= 0, got -1"),
        ({"every_secs": 1, "trigger": train.every(2)}, ValueError, "every_secs or trigger, got every_secs, trigger"),
        ({"trigger": 100}, TypeError, r"ProgressHook requires a Trigger \(or None\) as trigger, got 100"),
    ],
)
def test_wrong_arguments_are_refused(arguments, kind, complaint):
    with pytest.raises(kind, match=complaint):
        train.ProgressHook(**arguments)


def test_value_of_another_graph_is_refused_at_begin(model):
    with pytest.raises(KeyError, match="nowhere"):
        model.session(train.ProgressHook(["nowhere"]))
