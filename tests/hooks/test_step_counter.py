from __future__ import annotations

import logging

import pytest

import hookline as hl
from hookline.errors import AbortedError
from hookline.summary import FileWriterCache
from hookline.testing import FakeClock, RecordingHook, read_events
from hookline.train import StepCounterHook


def rates(directory):
    FileWriterCache.clear()
    return [
        (event.step, value.tag, pytest.approx(value.simple_value))
        for event in read_events(directory)
        for value in event.summary.value
    ]


def train(model, hook, count, clock, secs_a_step=0.5):
    with model.session(hook) as session:
        for _ in range(count):
            clock.advance(secs_a_step)
            session.run(model.train)


def test_hook_writes_and_logs_the_rate_from_the_second_firing(model, tmp_path, caplog):
    caplog.set_level(logging.INFO, "hookline")
    with FakeClock() as clock:
        train(model, StepCounterHook(every_n_steps=4, output_dir=str(tmp_path)), 10, clock)
    assert rates(tmp_path) == [(5, "global_step/sec", 2.0), (9, "global_step/sec", 2.0)]
    assert [r.getMessage() for r in caplog.records if "/sec" in r.getMessage()] == ["global_step/sec: 2"] * 2


def test_hook_writes_by_the_clock(model, tmp_path):
    with FakeClock() as clock:
        hook = StepCounterHook(every_n_steps=None, every_n_secs=2, output_dir=str(tmp_path))
        train(model, hook, 9, clock)
    assert rates(tmp_path) == [(5, "global_step/sec", 2.0), (9, "global_step/sec", 2.0)]


def test_no_elapsed_time_gives_no_rate(model, tmp_path):
    hook = StepCounterHook(every_n_steps=1, output_dir=str(tmp_path))
    with FakeClock() as clock, model.session(hook) as session:
        for secs in (0.5, 0, 0.25):
            clock.advance(secs)
            session.run(model.train)
    assert rates(tmp_path) == [(3, "global_step/sec", 4.0)]


def test_per_step_amounts_are_counted_per_second(model, tmp_path, caplog):
    caplog.set_level(logging.INFO, "hookline")
    with FakeClock() as clock:
        told = {"per_step": {"tokens": 100, "flops": 3e6}, "peak_flops": 1e7, "memory": True}
        train(model, StepCounterHook(every_n_steps=4, output_dir=str(tmp_path), **told), 5, clock)
    found = [("global_step/sec", 2.0), ("tokens/sec", 200.0), ("flops/sec", 6e6), ("peak_share", 0.6)]
    assert rates(tmp_path) == [(5, tag, pytest.approx(value)) for tag, value in found], "a CPU shows no memory"
    assert "global_step/sec: 2, tokens/sec: 200, flops/sec: 6e+06, 60.0% of the peak" in caplog.text


def test_several_steps_in_one_run_count_as_several(model, tmp_path):
    with FakeClock() as clock, model.session(StepCounterHook(every_n_steps=4, output_dir=str(tmp_path))) as session:
        for _ in range(3):
            clock.advance(1)
            session.run(model.jump)
    assert rates(tmp_path) == [(10, "global_step/sec", 5.0), (15, "global_step/sec", 5.0)]


def test_no_rate_is_negative_after_a_recovery_to_an_earlier_step(model, tmp_path):
    lose_once = RecordingHook(failures={"before_run": [None] * 5 + [AbortedError(None, None, "lost")]})
    with FakeClock() as clock:
        hook = StepCounterHook(every_n_steps=2, output_dir=str(tmp_path))
        with model.session(hook, lose_once) as session:
            for _ in range(10):
                clock.advance(0.5)
                session.run(model.train)
    assert rates(tmp_path) == [(step, "global_step/sec", 2.0) for step in (3, 5, 3, 5)]


def test_hook_warns_at_most_five_times_about_a_constant_step(model, caplog):
    with model.session(StepCounterHook(every_n_steps=None, every_n_secs=60)) as session:
        for _ in range(20):
            session.run(model.loss)
    assert sum("has stayed at 0" in record.getMessage() for record in caplog.records) == 5


@pytest.mark.parametrize("every_n_steps", [1, 3, 100])
@pytest.mark.parametrize("restored_step", [0, 1, 3, 4, 5])
def test_step_repeated_after_a_recovery_gives_no_warning(model, caplog, restored_step, every_n_steps):
    session, lose = model.session_to_lose(StepCounterHook(every_n_steps), restored_step=restored_step)
    with session:
        for _ in range(5):
            session.run(model.train)
        session.run([model.train, lose])
        for _ in range(5):
            session.run(model.train)
    assert "Recovered from AbortedError: lost" in caplog.text
    assert "has stayed" not in caplog.text


def test_step_constant_since_a_recovery_gives_a_warning(model, caplog):
    session, lose = model.session_to_lose(StepCounterHook(), restored_step=2)
    with session:
        for _ in range(5):
            session.run(model.train)
        for _ in range(2):
            session.run(lose)
    assert "has stayed at 2 over two runs" in caplog.text


def test_user_writer_gets_messages():
    class Keeping:
        def __init__(self):
            self.tags = []

        def add_summary(self, summary, global_step):
            self.tags += [value.tag for value in summary.value]

        def flush(self):
            pass

    increment, writer = hl.train.get_or_create_global_step().assign_add(1), Keeping()
    hook = hl.train.StepCounterHook(every_n_steps=2, summary_writer=writer)
    with hl.train.MonitoredSession(hooks=[hook]) as session:
        for _ in range(5):
            session.run(increment)
    assert writer.tags == ["global_step/sec"] * 2
