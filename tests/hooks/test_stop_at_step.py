from __future__ import annotations

import pytest

from hookline.errors import AbortedError
from hookline.graph import Graph
from hookline.hooks import StopAtStepHook
from hookline.monitored import MonitoredSession, Scaffold
from hookline.testing import RecordingHook


def restored_to(step):
    return Scaffold(init_fn=lambda scaffold, session: session.load({"global_step": step}))


def session_at(step, *hooks):
    from hookline.monitored import ChiefSessionCreator

    return MonitoredSession(ChiefSessionCreator(restored_to(step)), hooks=hooks)


def test_it_wants_num_steps_or_last_step():
    with pytest.raises(ValueError, match="exactly one of num_steps or last_step, got neither"):
        StopAtStepHook()


def test_it_does_not_want_both():
    with pytest.raises(ValueError, match="exactly one of num_steps or last_step, got both"):
        StopAtStepHook(num_steps=1, last_step=1)


def test_a_graph_without_a_global_step_is_refused_by_name():
    with Graph().as_default(), pytest.raises(RuntimeError, match="StopAtStepHook requires a global step"):
        StopAtStepHook(num_steps=1).begin()


@pytest.mark.parametrize("hook", [StopAtStepHook(num_steps=4), StopAtStepHook(last_step=4)])
def test_it_stops_after_the_run_that_reaches_the_target(model, hook):
    assert model.train_until_stop(hook) == 4


def test_num_steps_count_from_the_step_the_session_was_created_with(model):
    runs = 0
    with session_at(100, StopAtStepHook(num_steps=10)) as session:
        while not session.should_stop():
            session.run(model.train)
            runs += 1
    assert runs == 10


def test_last_step_is_absolute(model):
    runs = 0
    with session_at(100, StopAtStepHook(last_step=103)) as session:
        while not session.should_stop():
            session.run(model.train)
            runs += 1
    assert runs == 3


@pytest.mark.parametrize("step", [7, 8])
def test_a_training_at_its_target_runs_no_step(model, step):
    with session_at(step, StopAtStepHook(last_step=7)) as session:
        assert session.should_stop()


def test_runs_that_leave_the_step_where_it_is_do_not_stop_it(model):
    with model.session(StopAtStepHook(last_step=2)) as session:
        session.run(model.train)
        for _ in range(5):
            session.run(model.loss)
            assert not session.should_stop()
        session.run(model.train)
        assert session.should_stop()


def test_a_run_that_gains_several_steps_stops_it_at_or_past_the_target(model):
    with model.session(StopAtStepHook(last_step=5)) as session:
        session.run(model.jump)
        assert session.should_stop()


@pytest.mark.parametrize("last_step", [6, 7, 12, 13])
def test_a_training_that_can_only_pass_its_target_ends_all_the_same(model, last_step):
    runs = 0
    with model.session(StopAtStepHook(last_step=last_step)) as session:
        while not session.should_stop() and runs < 10:
            session.run(model.jump)
            runs += 1
    assert runs < 10


def test_a_recovery_does_not_move_the_target(model, probe):
    lose_once = RecordingHook(failures={"before_run": [None, None, AbortedError(None, None, "lost")]})
    seen = probe()
    with model.session(StopAtStepHook(num_steps=4), lose_once, seen) as session:
        while not session.should_stop():
            session.run(model.train)
        assert seen.session.global_step == 4


def test_begin_resets_num_steps(model):
    hook = StopAtStepHook(num_steps=3)
    assert model.train_until_stop(hook) == 3
    with session_at(100, hook) as session:
        for _ in range(3):
            assert not session.should_stop()
            session.run(model.train)
        assert session.should_stop()


def test_every_run_is_limited_to_the_target(model):
    hook = StopAtStepHook(last_step=7)
    with model.session(hook) as session:
        session.run(model.train)
        args = hook.before_run(None)
        assert args is not None
        assert args.fetches is None
        assert args.options.last_step == 7
        assert hook.before_run(None) is args


def test_workers_that_share_a_session_end_exactly_on_the_last_step(model, probe):
    """Each worker's check may come late; the limit does not."""
    late = probe()
    with model.session(late, StopAtStepHook(last_step=3)) as session:
        session.run(model.train)
        session.run(model.train)
        # Another worker takes the last step between this worker's before_run and its run.
        options = StopAtStepHook(last_step=3)
        options.begin()
        options.after_create_session(late.session, late.coord)
        limit = options.before_run(None).options
        late.session.run(model.train, options=limit)
        late.session.run(model.train, options=limit)
        assert late.session.global_step == 3


def test_it_says_how_many_steps_are_left(model):
    hook = StopAtStepHook(last_step=10)
    with model.session(hook):
        assert [hook.steps_until_trigger(step) for step in (0, 8, 9, 10, 11)] == [10, 2, 1, 1, 1]
    assert StopAtStepHook(num_steps=10).steps_until_trigger(0) == 1
