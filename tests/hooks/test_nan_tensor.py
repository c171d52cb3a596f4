from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import pytest

from hookline import Graph, SessionConfig, Variable, get_default_graph, op, placeholder
from hookline.errors import AbortedError, NanLossDuringTrainingError
from hookline.testing import RecordingHook
from hookline.train import NanTensorHook, SessionRunHook, create_global_step, every, only_for

NAN, INF = float("nan"), float("inf")
LATE = SessionConfig().max_runs_ahead
BETWEEN_LOOKS = LATE // 2


@pytest.fixture
def x(model):
    return placeholder("float32", (), name="x")


@pytest.fixture
def loss(x):
    return op(lambda x: {"loss": x, "parts": (x * jnp.ones(3), 7)}, name="watched")(x)


@pytest.fixture
def feed(model, x):
    """Trains with these losses, one a run."""

    def run(losses, *hooks):
        with model.session(*hooks) as session:
            for value in losses:
                session.run(model.train, {x: value})
            return session.run(model.global_step, {x: losses[-1]})

    return run


def test_finite_loss_continues_the_training(feed, loss):
    assert feed([1.0] * 5, NanTensorHook(loss)) == 5


def test_nan_in_the_value_is_an_error_that_names_the_step(feed, loss):
    complaint = r"found NaN in watched:0 at step 3"
    with pytest.raises(NanLossDuringTrainingError, match=complaint):
        feed([1.0, 2.0, NAN, 1.0, 1.0], NanTensorHook(loss))


def test_nan_in_the_last_run_is_found_before_the_end(feed, loss):
    recorder = RecordingHook()
    with pytest.raises(NanLossDuringTrainingError, match="at step 1"):
        feed([NAN], recorder, NanTensorHook(loss))
    assert "end" not in recorder.callbacks


def test_fail_on_nan_loss_false_logs_a_warning_and_stops(model, loss, x, caplog):
    runs = 0
    with model.session(NanTensorHook(loss, fail_on_nan_loss=False)) as session:
        while not session.should_stop() and runs < 40:
            session.run(model.train, {x: NAN})
            runs += 1
    assert runs < 40
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "found NaN in watched:0 at step 1" in warnings[0].getMessage()


def test_infinity_is_accepted_by_default(feed, loss):
    assert feed([INF, INF], NanTensorHook(loss)) == 2


def test_infinity_is_found_on_request(feed, loss):
    with pytest.raises(NanLossDuringTrainingError, match="NaN or an infinity"):
        feed([-INF], NanTensorHook(loss, include_inf=True))


def test_strict_raises_in_the_same_run(model, loss, x):
    with model.session(NanTensorHook(loss, strict=True)) as session:
        session.run(model.train, {x: 1.0})
        with pytest.raises(NanLossDuringTrainingError, match="at step 2"):
            session.run(model.train, {x: NAN})
    with model.session(NanTensorHook(loss, fail_on_nan_loss=False, strict=True)) as session:
        session.run(model.train, {x: NAN})
        assert session.should_stop()


def test_integers_have_no_nan(model):
    assert model.train_until_stop(NanTensorHook(model.global_step, include_inf=True), at_most=2) == 2


def test_hook_does_not_wait_for_pending_runs(model, x):
    def slow(x):
        ones = jnp.full((400, 400), x)
        return jax.lax.fori_loop(0, 150, lambda _, y: y @ ones / 400, ones).sum()

    loss = op(slow)(x)
    with model.session(NanTensorHook(loss)) as session:
        session.run(model.train, {x: 1.0})
        session.run(model.train, {x: 1.0})
        (result,) = session.run((model.train, loss), {x: NAN})[1:]
        assert not result.is_ready()
        with pytest.raises(NanLossDuringTrainingError, match="at step 3"):
            session.close()


def until_nan(model, x, asked, *hooks, loading=None):
    """Runs fetches with losses, until the hooks raise; returns after how many, and the error."""
    runs = 0
    try:
        with model.session(*hooks) as session:
            for fetch, value in asked:
                session.run(fetch, {x: value})
                runs += 1
                if loading:
                    session.run_step_fn(lambda step_context: step_context.session.load(loading))
    except NanLossDuringTrainingError as error:
        return runs, str(error)
    return runs, ""


def test_nan_is_found_within_two_windows(model, loss, x):
    asked = [(model.train, NAN if number == 3 else 1.0) for number in range(1, 100)]
    runs, error = until_nan(model, x, asked, NanTensorHook(loss))
    assert runs <= 3 + LATE
    assert "at step 3" in error


def test_runs_without_a_step_are_checked(model, loss, x):
    asked = [(model.train, 1.0)] + [(model.global_step, NAN)] * 200
    runs, error = until_nan(model, x, asked, NanTensorHook(loss))
    assert runs <= 2 * LATE + 2
    assert "at step 1" in error


def test_error_names_the_step_of_the_first_bad_run(model, loss, x):
    leap = model.global_step.assign_add(10)
    asked = [(model.train, 1.0)] * 3 + [(leap, 1.0), (leap, NAN), (model.train, NAN), (leap, 1.0)]
    assert "at step 23" in until_nan(model, x, asked, NanTensorHook(loss))[1]


def test_recovery_resets_the_latch(feed, loss):
    lose_once = RecordingHook(failures={"before_run": [None, None, AbortedError(None, None, "lost")]})
    assert feed([1.0, NAN, 1.0, 1.0], NanTensorHook(loss), lose_once) == 2


def test_loaded_values_reset_the_latch(model, loss, x):
    with model.session(NanTensorHook(loss)) as session:
        session.run(model.train, {x: 1.0})
        session.run(model.train, {x: NAN})
        session.run_step_fn(lambda step_context: step_context.session.load({"weight": 1.0, "global_step": 7}))
        assert session.run(model.train, {x: 1.0}) is None
        assert session.run(model.global_step, {x: 1.0}) == 8


def test_loading_another_value_does_not_hide_a_nan(model, loss, x):
    asked = [(model.train, value) for value in (1.0, NAN, 1.0)]
    assert "at step 8" in until_nan(model, x, asked, NanTensorHook(loss), loading={"global_step": 7})[1]


def test_checked_loss_costs_no_output_and_compiles_one_program(model, loss, x, caplog):
    with model.session(NanTensorHook(loss)) as session, caplog.at_level(logging.INFO, "hookline"):
        for _ in range(200):
            session.run(model.train, {x: 1.0})
    told = [record.getMessage() for record in caplog.records if "Compiling" in record.getMessage()]
    assert len(told) == 1
    assert "outputs none" in told[0]


def test_only_for_checks_the_selected_runs(model, loss, x):
    other = model.global_step.assign_add(1)
    for values, found in (((NAN, 1.0), False), ((1.0, NAN), True)):
        asked = list(zip((other, model.train), values, strict=True)) * 100
        assert bool(until_nan(model, x, asked, only_for(model.train, NanTensorHook(loss)))[1]) == found


def test_check_is_added_once_per_graph_and_tensor(model):
    first = NanTensorHook("loss")
    first.begin()
    size = get_default_graph().version
    first.begin()
    NanTensorHook("loss:0", fail_on_nan_loss=False).begin()
    assert get_default_graph().version == size
    NanTensorHook("loss", include_inf=True).begin()
    assert get_default_graph().version == size + 2
    with Graph().as_default():
        create_global_step()
        Variable(1.0, name="loss")
        first.begin()
    first.begin()
    assert get_default_graph().version == size + 2


def test_preemption_is_recovered_with_the_hook(feed, loss):
    lose_once = RecordingHook(failures={"before_run": [None, None, AbortedError(None, None, "lost")]})
    with pytest.raises(NanLossDuringTrainingError, match="at step 1"):
        feed([1.0, 1.0, NAN], NanTensorHook(loss), lose_once)


@pytest.mark.parametrize("bad", [7, 90, 131])
def test_run_number_is_right_after_the_device_counter_restarts(model, loss, x, bad, monkeypatch):
    monkeypatch.setattr("hookline.session.running.latches._REBASE_RUNS", 30)  # For 2**30 runs, which take hours.
    asked = [(model.train, NAN if number == bad else 1.0) for number in range(1, 200)]
    runs, error = until_nan(model, x, asked, NanTensorHook(loss))
    assert f"at step {bad}" in error
    assert runs <= bad + LATE


@pytest.mark.parametrize("value", [1.0, NAN])
def test_failed_run_keeps_the_latch(model, loss, x, value):
    armed = []

    def fail(value):
        if armed:
            raise ValueError("bad value")
        return value

    watched = op(lambda value: jax.pure_callback(fail, jax.ShapeDtypeStruct((), jnp.float32), value))(x)

    def train_on():
        with model.session(NanTensorHook(loss)) as session:
            session.run(model.train, {x: value})
            armed.append(True)
            with pytest.raises(Exception, match="bad value"):
                session.run_step_fn(lambda step_context: step_context.session.run((watched, "nan_latch"), {x: 1.0}))
            armed.clear()
            for _ in range(3):
                session.run(model.train, {x: 1.0})
            assert session.raw_session().global_step == 4

    if value == 1.0:
        train_on()
    else:
        with pytest.raises(NanLossDuringTrainingError, match="at step 1"):
            train_on()


def test_nan_is_found_though_other_hooks_fire_in_polled_runs(model, loss, x):
    class Fires(SessionRunHook):
        trigger = every(BETWEEN_LOOKS)

        def on_trigger(self, firing):
            pass

    for bad in (100, 7 * BETWEEN_LOOKS, 7 * BETWEEN_LOOKS + 1, 161):
        asked = [(model.train, NAN if number == bad else 1.0) for number in range(1, 500)]
        runs, error = until_nan(model, x, asked, NanTensorHook(loss), Fires())
        assert f"at step {bad}" in error
        assert runs <= bad + LATE
