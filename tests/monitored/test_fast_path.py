"""Runs without a firing go straight to the raw session; other changes are noticed, and errors are the same."""

from __future__ import annotations

import gc
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl
from hookline import errors, train
from hookline.summary import FileWriterCache


class Due(train.SessionRunHook):
    """Fires every 50 steps; records firings, ends and exceptions."""

    def __init__(self):
        self.trigger, self.seen, self.exceptions = train.every(50), [], []

    def on_trigger(self, firing):
        self.seen.append((firing.global_step, firing.context.runs))

    def on_exception(self, session, exception):
        self.exceptions.append(exception)


@pytest.fixture
def train_op():
    weights = hl.Variable(np.zeros(3, "float32"), name="weights")
    with hl.control_dependencies([weights.assign_add(np.ones(3, "float32"))]):
        return train.get_or_create_global_step().assign_add(1).op


def run(session, fetches, times=30, before=lambda number: None):
    for number in range(times):
        before(number)
        session.run(fetches)


def steps_of(hook):
    return [step for step, _ in hook.seen]


def test_hooks_are_called_in_due_runs_with_the_run_number(train_op):
    hook = Due()
    with train.MonitoredSession(hooks=[hook, train.StopAtStepHook(last_step=175)]) as session:
        runs = 0
        while not session.should_stop():
            session.run(train_op)
            runs += 1
        assert runs == 175
    assert steps_of(hook) == [50, 100, 150]
    assert all(step == run + 1 for step, run in hook.seen)


@pytest.mark.parametrize("number", [20, 49, 50, 51, 90])
def test_runs_of_the_raw_session_in_between_are_counted(train_op, number):
    hook = Due()
    with train.MonitoredSession(hooks=[hook]) as session:
        for run in range(120):
            if run == number:
                for _ in range(7):
                    session.raw_session().run(train_op)
            session.run(train_op)
    steps = steps_of(hook)
    for due in (50, 100):
        assert any(due <= step <= due + 7 for step in steps), steps


def test_runs_continue_from_values_loaded_in_between(train_op):
    hook = Due()
    with train.MonitoredSession(hooks=[hook]) as session:
        run(session, train_op)
        session.raw_session().load({"global_step": 1000, "weights": np.zeros(3, "float32")})
        run(session, train_op)
        assert session.raw_session().global_step == 1030
        np.testing.assert_array_equal(session.raw_session().snapshot()["weights"], [30, 30, 30])
    assert any(1000 < step <= 1002 for step in steps_of(hook))


def test_read_only_run_may_come_between_fast_runs(train_op):
    with train.MonitoredSession() as session:
        raw = session.raw_session()
        for number in range(1, 40):
            session.run(train_op)
            np.testing.assert_array_equal(raw.run("weights:0"), np.full(3, number))
            assert raw.run("global_step:0") == number


def test_fed_run_takes_the_fast_path():
    x = hl.placeholder("float32", [], name="x")
    total = hl.Variable(0.0, name="total")
    with hl.control_dependencies([total.assign_add(x)]):
        train_op = train.get_or_create_global_step().assign_add(1)
    hook = Due()
    with train.MonitoredSession(hooks=[hook]) as session:
        for number in range(120):
            session.run(train_op, {x: float(number)})
        with pytest.raises(errors.InvalidArgumentError, match="x:0"):
            session.run(train_op, {x: np.ones(2, "float32")})
        assert float(session.raw_session().run(total)) == sum(range(120))
    assert steps_of(hook) == [50, 100]


class AsksNowAndThen(train.SessionRunHook):
    """Fetches the weights in some runs, and records its results in each."""

    def __init__(self, every):
        self.args, self.every, self.got = train.SessionRunArgs("weights:0"), every, []

    def before_run(self, run_context):
        return None if run_context.runs % self.every else self.args

    def after_run(self, run_context, run_values):
        self.got.append(None if run_values.results is None else float(run_values.results[0]))


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_hook_that_fetches_in_some_runs_gets_its_values_on_the_fast_path(train_op, every):
    """The fast path restarts every five steps: after a run with a fetch, and after one without."""
    due = Due()
    due.trigger = train.every(5)
    hook = AsksNowAndThen(every)
    with train.MonitoredSession(hooks=[hook, due]) as session:
        run(session, train_op, times=70)
    assert hook.got == [None if runs % every else runs for runs in range(70)]


class Trouble:
    """A host operation that does something when it is called for the n-th time."""

    def __init__(self):
        self.at, self.action, self.calls = 20, lambda: None, 0

    def __call__(self):
        self.calls += 1
        if self.calls == self.at:
            self.action()

    def fails_with(self, error):
        def fail():
            raise error

        self.action = fail
        return error


@pytest.fixture
def troubled(train_op):
    trouble = Trouble()
    with hl.control_dependencies([hl.host_op(trouble)()]):
        return trouble, train.get_or_create_global_step().assign_add(1).op


def test_error_on_the_fast_path_is_raised_like_any_other(troubled):
    trouble, train_op = troubled
    error, hook = trouble.fails_with(RuntimeError("disk on fire")), Due()
    with pytest.raises(RuntimeError, match="disk on fire"), train.MonitoredSession(hooks=[hook]) as session:
        run(session, train_op)
    assert hook.exceptions == [error]
    assert trouble.calls == 20


def test_lost_fast_run_is_recovered_and_repeated(troubled):
    trouble, train_op = troubled
    trouble.fails_with(errors.AbortedError(None, None, "lost"))
    with train.MonitoredSession(recovery=train.RecoveryPolicy(initial_backoff_secs=0)) as session:
        run(session, train_op)
        assert session.raw_session().global_step == 11  # Initialised again: there is no checkpoint.


def test_error_after_a_recovery_has_no_context_of_the_loss(troubled):
    trouble, train_op = troubled

    def lose_then_burn():
        trouble.fails_with(RuntimeError("disk on fire"))
        trouble.at += 1
        raise errors.AbortedError(None, None, "lost")

    trouble.action = lose_then_burn
    policy = train.RecoveryPolicy(initial_backoff_secs=0)
    with (
        pytest.raises(RuntimeError, match="disk on fire") as raised,
        train.MonitoredSession(recovery=policy) as session,
    ):
        run(session, train_op)
    assert raised.value.__context__ is None


def test_ctrl_c_on_the_fast_path_reaches_the_hooks_and_the_caller(troubled):
    trouble, train_op = troubled
    error, hook = trouble.fails_with(KeyboardInterrupt()), Due()
    with pytest.raises(KeyboardInterrupt), train.MonitoredSession(hooks=[hook]) as session:
        run(session, train_op)
    assert hook.exceptions == [error]


def test_failed_program_on_the_fast_path_loses_the_session(train_op):
    armed = []

    def check(value):
        if armed:
            raise ValueError("bad value")
        return value

    def fragile(old):
        return jax.pure_callback(check, jax.ShapeDtypeStruct((), jnp.float32), old)

    value = hl.Variable(0.0, name="value")
    with hl.control_dependencies([hl.update(value, fragile), train_op]):
        both = hl.no_op(name="both")
    hook = Due()
    with pytest.raises(errors.OpError), train.MonitoredSession(hooks=[hook], recovery=None) as session:
        run(session, both, times=200, before=lambda number: armed.append(True) if number == 20 else None)
    assert len(hook.exceptions) == 1


def test_other_thread_is_refused_during_a_fast_run(troubled):
    trouble, train_op = troubled
    refused = []

    def intrude():
        try:
            session.run(train_op)
        except RuntimeError as error:
            refused.append(str(error))

    def wait_for_intruder():
        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()

    trouble.action = wait_for_intruder
    with train.MonitoredSession() as session:
        run(session, train_op, times=25)
    assert len(refused) == 1
    assert "one thread at a time" in refused[0]


def test_writers_taken_by_a_host_operation_are_closed_with_the_session(tmp_path, train_op):
    taken = []

    def write():
        taken.append(FileWriterCache.get(str(tmp_path)))

    with hl.control_dependencies([hl.host_op(write)(), train_op]):
        both = hl.no_op(name="both")
    with train.MonitoredSession(hooks=[Due()]) as session:
        run(session, both)
        assert not taken[-1].closed
    assert all(writer.closed for writer in taken)


def test_no_run_is_made_after_a_stop(train_op):
    with train.MonitoredSession(hooks=[train.StopAtStepHook(last_step=50)]) as session:
        run(session, train_op, times=50)
        with pytest.raises(RuntimeError, match="should_stop"):
            session.run(train_op)
    with pytest.raises(RuntimeError, match="closed"):
        session.run(train_op)


def test_hook_added_between_fast_runs_is_called_in_the_next_one(train_op):
    with train.MonitoredSession() as session:
        run(session, train_op)
        hook = Due()
        hook.trigger = train.first_run()
        session.add_hook(hook)
        session.run(train_op)
        assert steps_of(hook) == [31]


def test_step_increment_is_determined_again_for_other_feeds():
    step = train.get_or_create_global_step()
    small, large = step.assign_add(1), step.assign_add(10)
    train_op = hl.group(small, hl.op(lambda value: value)(large))
    with train.MonitoredSession(hooks=[train.StopAtStepHook(last_step=60)]) as session:
        for _ in range(3):
            session.run(train_op, {large: 0})
        while not session.should_stop():
            session.run(train_op)
        assert session.raw_session().global_step == 3 + 6 * 11


def test_signal_in_a_failing_run_does_not_hide_the_error(troubled, tmp_path):
    trouble, train_op = troubled
    hook, error = Due(), RuntimeError("disk on fire")

    def fail():
        signal.raise_signal(signal.SIGTERM)
        raise error

    trouble.action = fail
    saves = train.CheckpointSaverHook(str(tmp_path), save_steps=1000)
    with pytest.raises(RuntimeError, match="disk on fire"), train.MonitoredSession(hooks=[hook, saves]) as session:
        run(session, train_op)
    assert hook.exceptions == [error]


def test_error_is_reported_although_another_thread_waits_to_close(troubled, clock):
    trouble, train_op = troubled
    hook, error = Due(), RuntimeError("disk on fire")

    def fail():
        thread.start()
        clock.await_waiters()
        raise error

    trouble.action = fail
    session = train.MonitoredSession(hooks=[hook])
    thread = threading.Thread(target=session.close)
    with pytest.raises(RuntimeError, match="disk on fire"):
        run(session, train_op)
    thread.join()
    assert hook.exceptions == [error]


def test_closed_session_keeps_no_values():
    size = 12345
    weights = hl.Variable(lambda: jnp.zeros(size), name="weights")
    train_op = hl.group(hl.update(weights, lambda old: old + 1), train.get_or_create_global_step().assign_add(1))

    def trained():
        with train.MonitoredSession() as session:
            run(session, train_op)
            return session, sum(array.size == size for array in jax.live_arrays())

    session, before = trained()
    gc.collect()
    assert before > 0
    assert not any(array.size == size for array in jax.live_arrays())
    assert session.should_stop()


def lose_before(losses, session, number, *run):
    """Makes a run; if its number is among the losses, the session is lost before it, once."""

    def step(step_context):
        if number in losses:
            losses.remove(number)
            raise errors.AbortedError(None, None, "preempted")
        return step_context.run_with_hooks(*run)

    if number in losses:
        session.run_step_fn(step)
    else:
        session.run(*run)


@pytest.mark.parametrize("counted", [True, False], ids=["with a global step", "without"])
@pytest.mark.parametrize("hooks", [list, lambda: [Due()]], ids=["none", "due each 50 steps"])
def test_fast_runs_between_two_losses_are_progress(hooks, counted, clock):
    fetches = hl.Variable(np.zeros(3, "float32"), name="weights").assign_add(np.ones(3, "float32")).op
    if counted:
        fetches = hl.group(fetches, train.get_or_create_global_step().assign_add(1))
    policy, losses = train.RecoveryPolicy(max_attempts=2, initial_backoff_secs=1), [10, 40, 130, 370]
    made = hooks() if counted else []  # Due asks for the global step.
    with train.MonitoredSession(hooks=made, recovery=policy) as session:
        for number in range(400):
            lose_before(losses, session, number, fetches)
    assert not losses


def test_hooks_continue_to_count_runs_over_a_recovery(train_op, clock):
    """As in TensorFlow: each tenth run of the caller's is logged, whichever sessions are lost in between."""
    number, logged, due = hl.placeholder("int32", []), [], Due()
    shown = number + 0

    class Keeping(train.LoggingTensorHook):
        def log(self, values, elapsed_secs):
            logged.append(int(values["number"]))

    class EachRun(train.SessionRunHook):
        def begin(self):
            self.runs = []

        def after_run(self, run_context, run_values):
            self.runs.append(run_context.runs)

    every = EachRun()
    for hooks in ([Keeping({"number": shown}, every_n_iter=10), due], [every]):
        losses = [9, 27]
        with train.MonitoredSession(hooks=hooks, recovery=train.RecoveryPolicy(initial_backoff_secs=1)) as session:
            for at in range(45):
                lose_before(losses, session, at, train_op, {number: at})
    assert logged == [0, 10, 20, 30, 40]
    assert every.runs == list(range(45))
