"""MonitoredTrainingSession: which hooks it makes, and what they leave behind."""

from __future__ import annotations

import os
from typing import Any

from conformance.parts import aborted, counting, raised, recorder, scalars, session_logs, train
from conformance.scenario import Record, scenario
from conformance.system import System


def _trained(s: System, runs: int, secs: float = 1.0, **arguments: Any) -> Record:
    """Trains some runs, a second each, and returns the steps saved and the summaries written."""
    _, train_op = counting(s)
    s.summary.scalar("x", s.constant(1.0))
    folder = f"{s.folder}/run"
    arguments = {"checkpoint_dir": folder, **arguments}
    with s.clock() as clock, s.train.MonitoredTrainingSession(**arguments) as sess:
        for _ in range(runs):
            clock.advance(secs)
            sess.run(train_op)
    s.summary.FileWriterCache.clear()
    state = s.train.get_checkpoint_state(folder)
    written = scalars(s.events(folder)) if os.path.isdir(folder) else []
    return {
        "saved": [] if state is None else [int(p.rpartition("-")[2]) for p in state.all_model_checkpoint_paths],
        "summaries": [step for step, tag, _ in written if tag == "x"],
        "rates": [step for step, tag, _ in written if tag != "x"],
    }


@scenario("training_session.defaults")
def _(s: System) -> Record:
    """By default: a checkpoint each 600 s, summaries and the rate each 100 steps."""
    return _trained(s, 210, secs=4.0)


@scenario("training_session.steps")
def _(s: System) -> Record:
    """Cadences in steps turn the defaults off."""
    return _trained(s, 10, save_checkpoint_steps=4, save_summaries_steps=3, log_step_count_steps=5)


@scenario("training_session.seconds")
def _(s: System) -> Record:
    """Cadences in seconds turn the defaults off."""
    return _trained(s, 10, save_checkpoint_secs=4, save_summaries_secs=3, log_step_count_steps=None)


@scenario("training_session.nothing_saved")
def _(s: System) -> Record:
    """None for the cadences turns the hooks off."""
    return _trained(
        s,
        5,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
        save_checkpoint_steps=None,
        log_step_count_steps=None,
    )


@scenario("training_session.zero_turns_off")
def _(s: System) -> Record:
    """0 turns a hook off as well."""
    return _trained(s, 5, save_checkpoint_secs=0, save_summaries_steps=0, save_summaries_secs=None)


@scenario("training_session.no_directory")
def _(s: System) -> Record:
    """Without a directory nothing is written."""
    record = _trained(s, 5, checkpoint_dir=None)
    return {"saved": record["saved"], "files": os.listdir(s.folder)}


@scenario("training_session.summary_dir")
def _(s: System) -> Record:
    """Summaries may have a directory of their own."""
    folder = f"{s.folder}/summaries"
    record = _trained(s, 4, summary_dir=folder, save_summaries_steps=2)
    return {"beside": record["summaries"], "there": [step for step, _, _ in scalars(s.events(folder))]}


@scenario("training_session.resumes")
def _(s: System) -> Record:
    """A second session goes on where the first has ended."""
    _, train_op = counting(s)
    steps = []
    for _ in range(2):
        hooks = [s.train.StopAtStepHook(num_steps=3)]
        with s.train.MonitoredTrainingSession(checkpoint_dir=s.folder, hooks=hooks) as sess:
            train(sess, train_op)
        steps.append(int(s.train.load_variable(s.folder, "global_step")))
    return {"steps": steps}


@scenario("training_session.starts_are_logged")
def _(s: System) -> Record:
    """Each session writes a start, at the step that it goes on from."""
    _, train_op = counting(s)
    s.summary.scalar("x", s.constant(1.0))
    for _ in range(2):
        with s.train.MonitoredTrainingSession(checkpoint_dir=s.folder, save_summaries_steps=1) as sess:
            for _ in range(2):
                sess.run(train_op)
    s.summary.FileWriterCache.clear()
    logs = [log for log in session_logs(s.events(s.folder)) if log.startswith("START")]
    return {"starts": sorted(logs)}


@scenario("training_session.order_of_hooks")
def _(s: System) -> Record:
    """The chief's own hooks come before all others, the user's come last."""
    _, train_op = counting(s)
    events: list[Any] = []

    class Listener(s.train.CheckpointSaverListener):
        def begin(self) -> None:
            events.append("saver.begin")

    scaffold = s.train.Scaffold()
    saver_hook = s.train.CheckpointSaverHook(s.folder, save_steps=10, scaffold=scaffold, listeners=[Listener()])
    with s.train.MonitoredTrainingSession(
        scaffold=scaffold,
        hooks=[recorder(s, events, "user")],
        chief_only_hooks=[saver_hook, recorder(s, events, "chief")],
    ) as sess:
        sess.run(train_op)
    return {"events": [event for event in events if "begin" in event or "before" in event]}


@scenario("training_session.recovers_from_its_checkpoint")
def _(s: System) -> Record:
    """It recovers from its last checkpoint."""
    step, train_op = counting(s)
    hook = recorder(s, [], fails={"before": [None] * 5 + [aborted(s)]})
    with s.train.MonitoredTrainingSession(
        checkpoint_dir=s.folder, save_checkpoint_steps=2, hooks=[hook], log_step_count_steps=None
    ) as sess:
        for _ in range(6):
            sess.run(train_op)
        return {"step": int(sess.run(step))}


@scenario("training_session.no_global_step")
def _(s: System) -> Record:
    """A graph without a global step is refused where something is saved."""
    s.Variable(1.0, name="weight")
    return {"error": raised(s.train.MonitoredTrainingSession, checkpoint_dir=s.folder)}


@scenario("training_session.worker_waits_in_vain")
def _(s: System) -> Record:
    """A worker waits for the chief, and gives up after `max_wait_secs`."""
    counting(s)
    with s.clock():
        return {"error": raised(s.train.MonitoredTrainingSession, is_chief=False, max_wait_secs=5)}


@scenario("training_session.a_whole_training")
def _(s: System) -> Record:
    """A model trained under a session with all usual hooks ends where it should."""
    step = s.train.get_or_create_global_step()
    x = s.placeholder("float32", [None, 1], name="x")
    weight = s.Variable([[0.0]], name="weight")
    loss = s.total((s.matmul(x, weight) - 3.0 * x) * (s.matmul(x, weight) - 3.0 * x))
    train_op = s.sgd(0.05).minimize(loss, global_step=step)
    s.summary.scalar("loss", loss)
    losses = []
    with s.train.MonitoredTrainingSession(
        checkpoint_dir=s.folder,
        save_summaries_steps=1,
        hooks=[s.train.StopAtStepHook(last_step=6), s.train.NanTensorHook(loss)],
    ) as sess:
        while not sess.should_stop():
            losses.append(float(sess.run([loss, train_op], {x: [[1.0], [2.0]]})[0]))
    s.summary.FileWriterCache.clear()
    written = [[at, value] for at, tag, value in scalars(s.events(s.folder)) if tag == "loss"]
    return {"runs": len(losses), "last": losses[-1], "written": written}
