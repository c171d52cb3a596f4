"""StopAtStepHook."""

from __future__ import annotations

from typing import Any

from conformance.parts import aborted, counting, raised, recorder, train
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
