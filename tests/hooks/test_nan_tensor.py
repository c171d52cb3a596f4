from __future__ import annotations

import logging
from typing import Any

import jax.numpy as jnp
import pytest

from hookline.coordination import Coordinator
from hookline.errors import AbortedError, NanLossDuringTrainingError
from hookline.graph import Graph, Variable, create_global_step, get_default_graph, op, placeholder
from hookline.hooks import NanTensorHook, SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookline.testing import RecordingHook

NAN, INF = float("nan"), float("inf")


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


class Late:
    """The bool of a run that the device has not computed yet."""

    def __init__(self, value: bool, ready: bool = False) -> None:
        self.value, self.ready, self.waited = value, ready, False

    def is_ready(self) -> bool:
        return self.ready

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        import numpy as np

        self.waited = self.waited or not self.ready
        return np.array(self.value)


class Steps:
    """A session as far as the hook looks at it."""

    global_step = 0


def after_run(hook, check):
    session = Steps()
    session.global_step = after_run.step = after_run.step + 1
    context = SessionRunContext(SessionRunArgs(None), session)
    hook.after_run(context, SessionRunValues(check, None, None))
    return context


@pytest.fixture
def begun(model):
    after_run.step = 0

    def make(**arguments):
        hook = NanTensorHook(model.loss, **arguments)
        hook.begin()
        hook.after_create_session(None, Coordinator())
        return hook

    return make


def test_a_graph_without_a_global_step_is_refused_by_name():
    with Graph().as_default():
        Variable(1.0, name="loss")
        with pytest.raises(RuntimeError, match="NanTensorHook requires a global step"):
            NanTensorHook("loss").begin()


def test_a_finite_loss_trains_on(feed, loss):
    assert feed([1.0] * 5, NanTensorHook(loss)) == 5


def test_a_nan_anywhere_in_the_value_is_an_error_that_names_the_step(feed, loss):
    complaint = r"found NaN in watched:0, in the run that led to global step 3"
    with pytest.raises(NanLossDuringTrainingError, match=complaint):
        feed([1.0, 2.0, NAN, 1.0, 1.0], NanTensorHook(loss))


def test_a_nan_of_the_last_run_is_found_before_any_end(feed, loss):
    recorder = RecordingHook()
    with pytest.raises(NanLossDuringTrainingError, match="global step 1"):
        feed([NAN], recorder, NanTensorHook(loss))
    assert "end" not in recorder.callbacks


def test_or_it_is_a_warning_and_a_stop(model, loss, x, caplog):
    runs = 0
    with model.session(NanTensorHook(loss, fail_on_nan_loss=False)) as session:
        while not session.should_stop() and runs < 40:
            session.run(model.train, {x: NAN})
            runs += 1
    assert runs < 40
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "found NaN in watched:0, in the run that led to global step 1. Stopping." in warnings[0].getMessage()


def test_infinities_are_let_through(feed, loss):
    assert feed([INF, INF], NanTensorHook(loss)) == 2


def test_infinities_count_on_request(feed, loss):
    with pytest.raises(NanLossDuringTrainingError, match="NaN or an infinity"):
        feed([-INF], NanTensorHook(loss, include_inf=True))


def test_strict_reports_in_the_very_run(model, loss, x):
    with model.session(NanTensorHook(loss, strict=True)) as session:
        session.run(model.train, {x: 1.0})
        with pytest.raises(NanLossDuringTrainingError, match="global step 2"):
            session.run(model.train, {x: NAN})
    with model.session(NanTensorHook(loss, fail_on_nan_loss=False, strict=True)) as session:
        session.run(model.train, {x: NAN})
        assert session.should_stop()


def test_integers_have_no_nan(model):
    assert model.train_until_stop(NanTensorHook(model.global_step, include_inf=True), at_most=2) == 2


def test_it_does_not_wait_for_a_run_that_is_under_way(begun):
    hook, checks = begun(), [Late(False) for _ in range(10)]
    for check in checks:
        after_run(hook, check)
    assert not any(check.waited for check in checks)


def test_a_late_nan_is_reported_with_the_step_where_it_happened(begun):
    hook = begun()
    late = Late(True)
    after_run(hook, late)
    after_run(hook, Late(False))
    late.ready = True
    with pytest.raises(NanLossDuringTrainingError, match="global step 1"):
        after_run(hook, Late(False))


def test_it_is_never_more_than_a_window_late(begun):
    hook = begun()
    after_run(hook, Late(True))
    for _ in range(31):
        after_run(hook, Late(False))
    with pytest.raises(NanLossDuringTrainingError, match="global step 1"):
        after_run(hook, Late(False))


def test_settling_waits_for_what_is_under_way(begun):
    hook = begun()
    after_run(hook, Late(False))
    after_run(hook, Late(True))
    with pytest.raises(NanLossDuringTrainingError, match="global step 2"):
        hook.settle(None)


def test_settling_without_failing_stops_the_coordinator(begun):
    hook, coord = begun(fail_on_nan_loss=False), Coordinator()
    hook.after_create_session(None, coord)
    after_run(hook, Late(True))
    hook.settle(None)
    assert coord.should_stop()


def test_what_happened_before_a_recovery_is_forgotten(begun):
    hook = begun()
    forgotten = Late(True)
    after_run(hook, forgotten)
    hook.after_create_session(None, Coordinator())
    hook.settle(None)
    assert not forgotten.waited


@pytest.mark.parametrize("nan_hook_first", [True, False])
def test_a_hook_that_settles_first_makes_nothing_permanent_that_has_a_nan(feed, loss, nan_hook_first):
    saved = []

    class Saves(SessionRunHook):
        def after_run(self, run_context, run_values):
            run_context.settle()
            saved.append(run_context.session.global_step)

    hooks = [NanTensorHook(loss), Saves()]
    with pytest.raises(NanLossDuringTrainingError):
        feed([1.0, NAN], *(hooks if nan_hook_first else reversed(hooks)))
    assert saved == [1]


def test_the_check_is_added_once_a_graph_and_tensor(model):
    first = NanTensorHook("loss")
    first.begin()
    size = get_default_graph().version
    first.begin()
    NanTensorHook("loss:0", fail_on_nan_loss=False).begin()
    assert get_default_graph().version == size
    NanTensorHook("loss", include_inf=True).begin()
    assert get_default_graph().version == size + 1
    with Graph().as_default():
        create_global_step()
        Variable(1.0, name="loss")
        first.begin()
    first.begin()
    assert get_default_graph().version == size + 1


def test_the_same_arguments_are_asked_for_each_time(begun):
    hook = begun()
    assert hook.before_run(None) is hook.before_run(None)


def test_a_preemption_is_recovered_with_the_hook_aboard(feed, loss):
    lose_once = RecordingHook(failures={"before_run": [None, None, AbortedError(None, None, "lost")]})
    with pytest.raises(NanLossDuringTrainingError, match="global step 1"):
        feed([1.0, 1.0, NAN], NanTensorHook(loss), lose_once)
