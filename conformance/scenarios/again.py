"""Hooks in a second session, and after a recovery."""

from __future__ import annotations

from typing import Any

from conformance.parts import aborted, counting, raised, recorder, report, scalars, train
from conformance.scenario import Record, scenario
from conformance.system import System


def _restored(s: System, hook: Any, saver: Any, train_op: Any, runs: int = 9, fails_at: int = 7) -> None:
    """Trains with a hook, saves each 4 steps, and is preempted once."""
    hooks = [
        s.train.CheckpointSaverHook(f"{s.folder}/saved", save_steps=4, saver=saver),
        hook,
        recorder(s, [], fails={"before": [None] * fails_at + [aborted(s)]}),
    ]
    creator = s.train.ChiefSessionCreator(s.train.Scaffold(saver=saver), checkpoint_dir=f"{s.folder}/saved")
    with s.train.MonitoredSession(creator, hooks=hooks) as sess:
        for _ in range(runs):
            sess.run(train_op)


@scenario("again.summary_hook_in_a_second_session")
def _(s: System) -> Record:
    """A summary hook that serves a second session writes its first run and its start again."""
    _, train_op = counting(s)
    hook = s.train.SummarySaverHook(
        save_steps=3, output_dir=s.folder, summary_op=s.summary.scalar("x", s.constant(1.0))
    )
    for _ in range(2):
        with s.train.MonitoredSession(hooks=[hook]) as sess:
            for _ in range(5):
                sess.run(train_op)
    s.summary.FileWriterCache.clear()
    return {"steps": sorted(step for step, _, _ in scalars(s.events(s.folder)))}


@scenario("again.summary_hook_after_a_recovery")
def _(s: System) -> Record:
    """After a recovery the summary hook goes on from the step that was restored."""
    _, train_op = counting(s)
    summary, saver = s.summary.scalar("x", s.constant(1.0)), s.train.Saver()
    hook = s.train.SummarySaverHook(save_steps=3, output_dir=s.folder, summary_op=summary)
    _restored(s, hook, saver, train_op)
    s.summary.FileWriterCache.clear()
    return {"steps": [step for step, _, _ in scalars(s.events(s.folder))]}


@scenario("again.step_counter_after_a_recovery")
def _(s: System) -> Record:
    """After a recovery no rate is negative."""
    _, train_op = counting(s)
    saver = s.train.Saver()
    with s.clock() as clock:

        class Second(s.train.SessionRunHook):
            def before_run(self, run_context: Any) -> None:
                clock.advance(1.0)

        counter = s.train.StepCounterHook(every_n_steps=2, output_dir=s.folder)
        hooks = [
            s.train.CheckpointSaverHook(f"{s.folder}/saved", save_steps=4, saver=saver),
            Second(),
            counter,
            recorder(s, [], fails={"before": [None] * 7 + [aborted(s)]}),
        ]
        creator = s.train.ChiefSessionCreator(s.train.Scaffold(saver=saver), checkpoint_dir=f"{s.folder}/saved")
        with s.train.MonitoredSession(creator, hooks=hooks) as sess:
            for _ in range(12):
                sess.run(train_op)
    s.summary.FileWriterCache.clear()
    rates = scalars(s.events(s.folder))
    return {"positive": all(rate > 0 for _, _, rate in rates), "last": rates[-1]}


@scenario("again.stop_at_step_after_a_recovery_without_a_checkpoint")
def _(s: System) -> Record:
    """A recovery that starts over brings all steps again before the stop."""
    _, train_op = counting(s)
    hooks = [s.train.StopAtStepHook(last_step=5), recorder(s, [], fails={"before": [None] * 3 + [aborted(s)]})]
    with s.train.MonitoredSession(hooks=hooks) as sess:
        return {"runs": train(sess, train_op)}


@scenario("again.waiter_does_not_wait_after_a_recovery")
def _(s: System) -> Record:
    """A waiter that has let its worker begin does not wait again after a recovery."""
    step, train_op = counting(s)

    class Before(s.train.SessionRunHook):
        first = True

        def after_create_session(self, session: Any, coord: Any) -> None:
            for _ in range(3 if self.first else 0):
                session.run(train_op)
            self.first = False

    hooks = [
        Before(),
        s.train.GlobalStepWaiterHook(3),
        recorder(s, [], fails={"before": [None, aborted(s)]}),
    ]
    with s.train.MonitoredSession(hooks=hooks) as sess:
        sess.run(train_op)
        sess.run(train_op)
        return {"step": int(sess.run(step))}


@scenario("again.saver_hook_in_a_second_session")
def _(s: System) -> Record:
    """A saver hook that serves a second session saves its beginning again."""
    _, train_op = counting(s)
    saver = s.train.Saver()
    hook = s.train.CheckpointSaverHook(s.folder, save_steps=100, saver=saver)
    creator = s.train.ChiefSessionCreator(s.train.Scaffold(saver=saver), checkpoint_dir=s.folder)
    for _ in range(2):
        with s.train.MonitoredSession(creator, hooks=[hook]) as sess:
            for _ in range(3):
                sess.run(train_op)
    paths = s.train.get_checkpoint_state(s.folder).all_model_checkpoint_paths
    return {"steps": [int(path.rpartition("-")[2]) for path in paths]}


@scenario("again.final_ops_in_a_second_session")
def _(s: System) -> Record:
    """The final values are those of the last session."""
    step, train_op = counting(s)
    hook = s.train.FinalOpsHook(step)
    found = []
    for runs in (2, 3):
        with s.train.MonitoredSession(hooks=[hook]) as sess:
            for _ in range(runs):
                sess.run(train_op)
        found.append(int(hook.final_ops_values))
    return {"found": found}


@scenario("again.error_of_a_thread_is_of_its_session_alone")
def _(s: System) -> Record:
    """A second session does not see the error that ended the first."""
    _, train_op = counting(s)

    errors = [ValueError("of a thread")]

    class Failing(s.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            if errors:
                report(coord, errors.pop())

    hook = Failing()
    ended = []
    for _ in range(2):

        def play() -> None:
            with s.train.MonitoredSession(hooks=[hook]) as sess:
                sess.run(train_op)

        ended.append(raised(play))
    return {"ended": ended}
