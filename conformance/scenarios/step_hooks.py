"""StopAtStepHook, GlobalStepWaiterHook, StepCounterHook and their timer."""

from __future__ import annotations

import threading
from typing import Any

from conformance.parts import aborted, counting, only, raised, recorder, scalars, train
from conformance.scenario import Record, scenario
from conformance.system import System


@scenario("stop_at_step.arguments")
def _(s: System) -> Record:
    """Exactly one of `num_steps` and `last_step` is required."""
    hook = s.train.StopAtStepHook
    return {"neither": raised(hook), "both": raised(hook, num_steps=1, last_step=1), "one": raised(hook, last_step=1)}


@scenario("stop_at_step.last_step")
def _(s: System) -> Record:
    """`last_step` is absolute."""
    _step, train_op = counting(s)
    with s.train.MonitoredSession(hooks=[s.train.StopAtStepHook(last_step=3)]) as sess:
        runs = train(sess, train_op)
    return {"runs": runs}


@scenario("stop_at_step.num_steps_counts_from_the_restored_step")
def _(s: System) -> Record:
    """`num_steps` counts from the global step that the session begins with."""
    step, train_op = counting(s)
    saver = s.train.Saver()
    scaffold = s.train.Scaffold(saver=saver)
    with s.Session() as sess:
        sess.run(s.global_variables_initializer())
        for _ in range(4):
            sess.run(train_op)
        saver.save(sess, f"{s.folder}/model", global_step=4)
    creator = s.train.ChiefSessionCreator(scaffold, checkpoint_dir=s.folder)
    seen: list[int] = []

    class Final(s.train.SessionRunHook):
        def end(self, session: Any) -> None:
            seen.append(int(session.run(step)))

    with s.train.MonitoredSession(creator, hooks=[s.train.StopAtStepHook(num_steps=3), Final()]) as sess:
        runs = train(sess, train_op)
    return {"runs": runs, "last": seen}


@scenario("stop_at_step.there_already")
def _(s: System) -> Record:
    """A training that is at its target when it begins."""
    step = s.Variable(5, name="global_step", trainable=False, collections=["variables", "global_step"])
    train_op = s.group(s.counted(step, 1))
    with s.train.MonitoredSession(hooks=[s.train.StopAtStepHook(last_step=5)]) as sess:
        runs = train(sess, train_op)
    return {"runs": runs}


@scenario("stop_at_step.passed_by_larger_steps")
def _(s: System) -> Record:
    """A run that counts by several steps may pass the target."""
    _step, train_op = counting(s, by=3)
    with s.train.MonitoredSession(hooks=[s.train.StopAtStepHook(last_step=10)]) as sess:
        runs = train(sess, train_op)
    return {"runs": runs}


@scenario("stop_at_step.runs_that_do_not_count")
def _(s: System) -> Record:
    """Runs that do not advance the global step do not bring the stop nearer."""
    step, train_op = counting(s)
    with s.train.MonitoredSession(hooks=[s.train.StopAtStepHook(num_steps=2)]) as sess:
        for _ in range(3):
            sess.run(step)
        stops = [sess.should_stop()]
        sess.run(train_op)
        sess.run(step)
        stops.append(sess.should_stop())
        sess.run(train_op)
        stops.append(sess.should_stop())
    return {"stops": stops}


@scenario("stop_at_step.no_global_step")
def _(s: System) -> Record:
    """A graph without a global step is refused."""
    s.constant(1.0)
    return {"error": raised(s.train.MonitoredSession, hooks=[s.train.StopAtStepHook(last_step=1)])}


@scenario("stop_at_step.recovery_keeps_the_target")
def _(s: System) -> Record:
    """A recovery does not move the target of `num_steps`."""
    step, train_op = counting(s)
    saver = s.train.Saver()
    hooks = [
        s.train.StopAtStepHook(num_steps=4),
        s.train.CheckpointSaverHook(s.folder, save_steps=1, saver=saver),
        recorder(s, [], fails={"before": [None, None, aborted(s)]}),
    ]
    creator = s.train.ChiefSessionCreator(s.train.Scaffold(saver=saver), checkpoint_dir=s.folder)
    last: list[int] = []

    class Final(s.train.SessionRunHook):
        def end(self, session: Any) -> None:
            last.append(int(session.run(step)))

    with s.train.MonitoredSession(creator, hooks=[*hooks, Final()]) as sess:
        runs = train(sess, train_op)
    return {"runs": runs, "last": last}


@scenario("stop_at_step.second_session")
def _(s: System) -> Record:
    """A hook with `num_steps` that serves a second session on the same graph."""
    _, train_op = counting(s)
    hook = s.train.StopAtStepHook(num_steps=2)
    runs = []
    for _ in range(2):
        with s.train.MonitoredSession(hooks=[hook]) as sess:
            runs.append(train(sess, train_op))
    return {"runs": runs}


@scenario("stop_at_step.step_set_by_hand")
def _(s: System) -> Record:
    """A global step that was assigned in a raw run counts."""
    step, train_op = counting(s)
    jump = step.assign(90)

    class Jump(s.train.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            run_context.session.run(jump)

    with s.train.MonitoredSession(hooks=[Jump(), s.train.StopAtStepHook(last_step=90)]) as sess:
        runs = train(sess, train_op)
    return {"runs": runs}


@scenario("stop_at_step.two_hooks")
def _(s: System) -> Record:
    """The nearer of two targets ends the training."""
    _, train_op = counting(s)
    hooks = [s.train.StopAtStepHook(last_step=5), s.train.StopAtStepHook(num_steps=2)]
    with s.train.MonitoredSession(hooks=hooks) as sess:
        return {"runs": train(sess, train_op)}


# The waiter -----------------------------------------------------------------------------------------------------------


@scenario("step_waiter.zero_never_waits")
def _(s: System) -> Record:
    """With 0 or less nothing is waited for, and nothing is logged."""
    _, train_op = counting(s)
    with s.train.MonitoredSession(hooks=[s.train.GlobalStepWaiterHook(0)]) as sess:
        sess.run(train_op)
    return {"log": only(s.log, "aiting", "step 0")}


@scenario("step_waiter.waits_for_the_step")
def _(s: System) -> Record:
    """The first run begins once somebody else has brought the global step there."""
    step, train_op = counting(s)
    sessions: list[Any] = []
    go = threading.Event()

    class Others(s.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            def work() -> None:
                go.wait(10)
                for _ in range(3):
                    session.run(train_op)

            thread = threading.Thread(target=work, daemon=True)
            coord.register_thread(thread)
            thread.start()

        def before_run(self, run_context: Any) -> None:
            sessions.append(1)
            go.set()

    hooks = [Others(), s.train.GlobalStepWaiterHook(3)]
    with s.train.MonitoredSession(hooks=hooks) as sess:
        return {"step": int(sess.run(step))}


@scenario("step_waiter.passed_already")
def _(s: System) -> Record:
    """A global step that is there already is not waited for; nor is a step that was started once."""
    step, train_op = counting(s)
    back = step.assign(0)

    class Before(s.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            for _ in range(2):
                session.run(train_op)

    with s.train.MonitoredSession(hooks=[Before(), s.train.GlobalStepWaiterHook(2)]) as sess:
        first = int(sess.run(step))
        sess.run(back)
        return {"first": first, "then": int(sess.run(step))}


@scenario("step_waiter.no_global_step")
def _(s: System) -> Record:
    """A graph without a global step is refused."""
    s.constant(1.0)
    return {"error": raised(s.train.MonitoredSession, hooks=[s.train.GlobalStepWaiterHook(1)])}


# The counter ----------------------------------------------------------------------------------------------------------


def _counted(s: System, runs: int, secs: float, by: int = 1, **cadence: Any) -> Record:
    _, train_op = counting(s, by)
    with s.clock() as clock:
        hook = s.train.StepCounterHook(output_dir=s.folder, **cadence)
        with s.train.MonitoredSession(hooks=[hook]) as sess:
            for _ in range(runs):
                clock.advance(secs)
                sess.run(train_op)
    s.summary.FileWriterCache.clear()
    return {"written": scalars(s.events(s.folder))}


@scenario("step_counter.every_n_steps")
def _(s: System) -> Record:
    """The rate is written under the name of the global step, not on the first firing."""
    return _counted(s, 11, 0.5, every_n_steps=5)


@scenario("step_counter.every_n_secs")
def _(s: System) -> Record:
    """With a cadence in seconds the rate is written when they have passed."""
    return _counted(s, 8, 2.0, every_n_steps=None, every_n_secs=5)


@scenario("step_counter.larger_steps")
def _(s: System) -> Record:
    """The rate counts global steps, not runs."""
    return _counted(s, 6, 1.0, by=4, every_n_steps=8)


@scenario("step_counter.logs_the_rate")
def _(s: System) -> Record:
    """The rate is logged with the name of the global step."""
    _counted(s, 6, 0.5, every_n_steps=5)
    return {"log": only(s.log, "sec: ")}


@scenario("step_counter.step_that_does_not_move")
def _(s: System) -> Record:
    """A global step that does not move is warned of."""
    step, _ = counting(s)
    with s.clock() as clock:
        hook = s.train.StepCounterHook(every_n_steps=None, every_n_secs=1, output_dir=s.folder)
        with s.train.MonitoredSession(hooks=[hook]) as sess:
            for _ in range(9):
                clock.advance(2.0)
                sess.run(step)
    return {"warned": len(only(s.log, "WARNING"))}


@scenario("step_counter.no_cadence")
def _(s: System) -> Record:
    """Both cadences, or none, are refused."""
    hook = s.train.StepCounterHook
    return {
        "both": raised(hook, every_n_steps=1, every_n_secs=1),
        "none": raised(hook, every_n_steps=None, every_n_secs=None),
    }


# The timer ------------------------------------------------------------------------------------------------------------


@scenario("timer.arguments")
def _(s: System) -> Record:
    """Exactly one cadence is required."""
    timer = s.train.SecondOrStepTimer
    return {"none": raised(timer), "both": raised(timer, every_secs=1.0, every_steps=1)}


@scenario("timer.steps")
def _(s: System) -> Record:
    """A timer fires at first, then so many steps after it last fired, and not twice at one step."""
    timer = s.train.SecondOrStepTimer(every_steps=3)
    fired, updates = [], []
    for step in (0, 0, 1, 2, 3, 3, 5, 6, 11, 12, 14):
        if timer.should_trigger_for_step(step):
            fired.append(step)
            updates.append(timer.update_last_triggered_step(step)[1])
    return {"fired": fired, "elapsed": updates, "last": timer.last_triggered_step()}


@scenario("timer.seconds")
def _(s: System) -> Record:
    """A timer of seconds fires at first, then when they have passed, and gives what passed."""
    fired, updates = [], []
    with s.clock() as clock:
        timer = s.train.SecondOrStepTimer(every_secs=10.0)
        for step in range(8):
            if timer.should_trigger_for_step(step):
                fired.append(step)
                updates.append(timer.update_last_triggered_step(step))
            clock.advance(4.0)
    return {"fired": fired, "elapsed": updates}


@scenario("timer.reset")
def _(s: System) -> Record:
    """A timer that was reset fires again at once."""
    timer = s.train.SecondOrStepTimer(every_steps=100)
    timer.update_last_triggered_step(5)
    before = timer.should_trigger_for_step(6)
    timer.reset()
    return {"before": before, "after": timer.should_trigger_for_step(6), "last": timer.last_triggered_step()}
