from __future__ import annotations

import threading

import pytest

from hookline import RunOptions, constant, group
from hookline.errors import AbortedError
from hookline.testing import RecordingHook
from hookline.train import (
    ChiefSessionCreator,
    MonitoredSession,
    RecoveryPolicy,
    Scaffold,
    SessionRunContext,
    SessionRunHook,
    StopAtStepHook,
)


def restored_to(step):
    return Scaffold(init_fn=lambda scaffold, session: session.load({"global_step": step}))


def session_at(step, *hooks):
    return MonitoredSession(ChiefSessionCreator(restored_to(step)), hooks=hooks)


def test_both_arguments_are_refused():
    with pytest.raises(ValueError, match="exactly one of num_steps or last_step, got both"):
        StopAtStepHook(num_steps=1, last_step=1)


@pytest.mark.parametrize("hook", [StopAtStepHook(num_steps=4), StopAtStepHook(last_step=4)])
def test_training_stops_after_the_run_that_reaches_the_target(model, hook):
    assert model.train_until_stop(hook) == 4


@pytest.mark.parametrize("target", [{"num_steps": 3}, {"last_step": 103}])
def test_num_steps_is_relative_to_the_first_step_and_last_step_is_absolute(model, target):
    runs = 0
    with session_at(100, StopAtStepHook(**target)) as session:
        while not session.should_stop():
            session.run(model.train)
            runs += 1
    assert runs == 3


@pytest.mark.parametrize("step", [7, 8])
def test_training_at_its_target_runs_no_step(model, step):
    with session_at(step, StopAtStepHook(last_step=7)) as session:
        assert session.should_stop()


def test_runs_without_a_step_do_not_stop_the_training(model):
    with model.session(StopAtStepHook(last_step=2)) as session:
        session.run(model.train)
        for _ in range(5):
            session.run(model.loss)
            assert not session.should_stop()
        session.run(model.train)
        assert session.should_stop()


@pytest.mark.parametrize(("last_step", "ends_at"), [(4, 5), (5, 5), (6, 10), (10, 10), (11, 15)])
def test_run_of_several_steps_may_pass_the_target(model, probe, last_step, ends_at):
    seen = probe()
    with model.session(StopAtStepHook(last_step=last_step), seen) as session:
        while not session.should_stop():
            session.run(model.jump)
        assert seen.session.global_step == ends_at


def in_a_raw_run(session, jump):
    session.run(jump)


def by_load(session, jump):
    session.load({"global_step": 50})


def in_another_thread(session, jump):
    thread = threading.Thread(target=session.run, args=[jump])
    thread.start()
    thread.join()


@pytest.mark.parametrize("way", [in_a_raw_run, by_load, in_another_thread])
@pytest.mark.parametrize("in_a_hook", [False, True])
@pytest.mark.parametrize("counted", [True, False])
def test_step_set_to_the_target_stops_at_the_next_run(model, probe, way, in_a_hook, counted):
    jump = model.global_step.assign(50)
    # A loop whose step increment only the device knows.
    uncounted = group(model.global_step.assign_add(constant(1)), model.weight.assign(1.0))
    train = model.train if counted else uncounted
    at_the_third = {3: lambda context: way(context.session, jump)}
    setter = probe(lambda context: at_the_third.get(len(setter.steps), lambda context: None)(context))
    runs = 0
    with model.session(StopAtStepHook(last_step=50), *([setter] if in_a_hook else [])) as session:
        while not session.should_stop():
            if runs == 3 and not in_a_hook:
                session.run_step_fn(lambda step_context: way(step_context.session, jump))
            session.run(train)
            runs += 1
    assert runs in (3, 4)


def test_recovery_does_not_move_the_target(model, probe):
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
    seen = []
    look = RecordingHook()
    look.after_run = lambda run_context, run_values: seen.append(run_values.options.last_step)
    with model.session(StopAtStepHook(last_step=3), look) as session:
        for _ in range(2):
            session.run(model.train)
        session.run(model.train, options=RunOptions(last_step=2))
        assert session.run(model.global_step) == 2
        session.run(model.jump)
    assert session.should_stop()


def test_workers_that_share_a_session_end_exactly_on_the_last_step(model, probe):
    """Each worker's check may be delayed; the limit is not."""
    at_the_second = {2: lambda context: context.session.run(model.train)}
    other = probe(lambda context: at_the_second.get(len(other.steps), lambda context: None)(context))
    with model.session(other, StopAtStepHook(last_step=3)) as session:
        while not session.should_stop():
            session.run(model.train)
        assert other.session.global_step == 3


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if "Nothing is trained" in record.getMessage()]


@pytest.mark.parametrize(("step", "word"), [(7, "reached already"), (8, "lower")])
def test_start_without_a_step_left_is_logged_with_a_remedy(model, caplog, step, word):
    with session_at(step, StopAtStepHook(last_step=7)):
        pass
    assert warnings(caplog) == [
        f"Nothing is trained: the training begins at global step {step} (newly initialised), and "
        f"last_step=7 is {word}. "
        "To continue training, raise last_step."
    ]


def test_zero_requested_steps_are_not_logged(model, caplog):
    with session_at(7, StopAtStepHook(num_steps=0)):
        pass
    assert warnings(caplog) == []


def test_recovery_at_the_target_is_not_logged_as_a_start(model, caplog):
    steps = iter([5, 7])

    class Loses(RecordingHook):
        def after_run(self, run_context, run_values):
            if run_context.session.global_step == 6:
                raise AbortedError(None, None, "lost")

    scaffold = Scaffold(init_fn=lambda scaffold, session: session.load({"global_step": next(steps)}))
    hook = StopAtStepHook(last_step=7)
    policy = RecoveryPolicy(initial_backoff_secs=0)
    with MonitoredSession(ChiefSessionCreator(scaffold), hooks=[hook, Loses()], recovery=policy) as session:
        while not session.should_stop():
            session.run(model.train)
    assert next(steps, None) is None
    assert warnings(caplog) == []


class Iterations(SessionRunHook):
    """Forwards to a StopAtStepHook of its own, and begins the next iteration where that one asks for a stop."""

    def __init__(self, hook):
        self.hook, self.ended_at = hook, []

    def begin(self):
        self.hook.begin()

    def after_create_session(self, session, coord):
        self.hook.after_create_session(session, coord)

    def before_run(self, run_context):
        self.own = SessionRunContext(run_context.original_args, run_context.session)
        return self.hook.before_run(self.own)

    def after_run(self, run_context, run_values):
        self.hook.after_run(self.own, run_values)
        if self.own.stop_requested:
            self.ended_at.append(run_context.session.global_step)


@pytest.mark.parametrize("begins_at", [0, 3, 5])
def test_forwarded_hook_requests_a_stop_without_a_limit_of_the_session(model, begins_at):
    outer = Iterations(StopAtStepHook(last_step=3))
    with session_at(begins_at, outer, StopAtStepHook(last_step=8)) as session:
        while not session.should_stop():
            session.run(model.train)
        assert session.raw_session().global_step == 8
    assert outer.ended_at[0] == max(3, begins_at + 1)


def test_hook_added_to_an_open_session_limits_it(model):
    with session_at(0) as session:
        session.run(model.train)
        session.add_hook(StopAtStepHook(last_step=3))
        while not session.should_stop():
            session.run(model.train)
        assert session.raw_session().step_limit == 3


def test_any_hook_may_limit_a_session(model):
    class Limits(SessionRunHook):
        def after_create_session(self, session, coord):
            session.set_last_step(2, owner="the quota")

    with session_at(0, Limits()) as session:
        for _ in range(4):
            session.run(model.train)
        assert session.raw_session().global_step == 2
