"""CheckpointSaverHook and its listeners."""

from __future__ import annotations

import os
from typing import Any

from conformance.parts import aborted, counting, kinds, raised, recorder, session_logs, train
from conformance.scenario import Record, scenario
from conformance.system import System


def _steps(s: System, folder: str | None = None) -> list[int]:
    """Returns the steps of the checkpoints in a directory, as the state file has them."""
    state = s.train.get_checkpoint_state(folder or s.folder)
    return [] if state is None else [int(path.rpartition("-")[2]) for path in state.all_model_checkpoint_paths]


def _listener(s: System, events: list[Any], name: str = "listener", stops_at: int | None = None) -> Any:
    class Listener(s.train.CheckpointSaverListener):
        def begin(self) -> None:
            events.append(f"{name}.begin")

        def before_save(self, session: Any, global_step_value: int) -> None:
            events.append([f"{name}.before", int(global_step_value)])

        def after_save(self, session: Any, global_step_value: int) -> Any:
            events.append([f"{name}.after", int(global_step_value)])
            return True if global_step_value == stops_at else None

        def end(self, session: Any, global_step_value: int) -> None:
            events.append([f"{name}.end", int(global_step_value)])

    return Listener()


def _saved(s: System, runs: int, by: int = 1, secs: float = 1.0, **arguments: Any) -> Record:
    """Trains some runs with a saver hook and returns what it told its listener."""
    _, train_op = counting(s, by)
    events: list[Any] = []
    with s.clock() as clock:
        hook = s.train.CheckpointSaverHook(
            s.folder, saver=s.train.Saver(max_to_keep=20), listeners=[_listener(s, events)], **arguments
        )
        with s.train.MonitoredSession(hooks=[hook]) as sess:
            for _ in range(runs):
                clock.advance(secs)
                sess.run(train_op)
    return {"events": events, "steps": _steps(s)}


@scenario("saver_hook.save_steps")
def _(s: System) -> Record:
    """Saves when the session is created, each so many steps, and at the end."""
    return _saved(s, 7, save_steps=3)


@scenario("saver_hook.end_on_a_step_just_saved")
def _(s: System) -> Record:
    """A step that was just saved is not saved again at the end."""
    return _saved(s, 6, save_steps=3)


@scenario("saver_hook.save_secs")
def _(s: System) -> Record:
    """Saves each so many seconds."""
    return _saved(s, 8, save_secs=3)


@scenario("saver_hook.a_nan_that_stops")
def _(s: System) -> Record:
    """What is saved at the end of a training that a NaN has stopped."""
    _, train_op = counting(s)
    x = s.placeholder("float32", None, name="loss")
    saver = s.train.CheckpointSaverHook(s.folder, save_steps=10)
    with s.train.MonitoredSession(hooks=[saver, s.train.NanTensorHook(x, fail_on_nan_loss=False)]) as sess:
        for value in (1.0, float("nan")):
            sess.run([train_op, x], {x: value})
    return {"steps": _steps(s)}


@scenario("saver_hook.larger_steps")
def _(s: System) -> Record:
    """A cadence is met or passed, whatever a run counts by."""
    return _saved(s, 6, by=4, save_steps=6)


@scenario("saver_hook.no_runs")
def _(s: System) -> Record:
    """A session without a run has saved its step once."""
    return _saved(s, 0, save_steps=3)


@scenario("saver_hook.arguments")
def _(s: System) -> Record:
    """Exactly one cadence; not both a saver and a scaffold."""
    hook = s.train.CheckpointSaverHook
    return {
        "none": raised(hook, s.folder),
        "saver_and_scaffold": raised(hook, s.folder, save_steps=1, saver=object(), scaffold=s.train.Scaffold()),
    }


@scenario("saver_hook.both_cadences")
def _(s: System) -> Record:
    """Both cadences at once."""
    return {"error": raised(s.train.CheckpointSaverHook, s.folder, save_steps=1, save_secs=1)}


@scenario("saver_hook.basename")
def _(s: System) -> Record:
    """Checkpoints are called by the basename and the step."""
    _, train_op = counting(s)
    hook = s.train.CheckpointSaverHook(s.folder, save_steps=1, saver=s.train.Saver(), checkpoint_basename="net")
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        sess.run(train_op)
    path = s.train.latest_checkpoint(s.folder)
    return {"name": os.path.basename(path), "folder": os.path.dirname(path) == s.folder}


@scenario("saver_hook.saver_of_the_collection")
def _(s: System) -> Record:
    """Without a saver and a scaffold the one in collection `SAVERS` is used."""
    _, train_op = counting(s)
    s.add_to_collection(s.GraphKeys.SAVERS, s.train.Saver())
    with s.train.MonitoredSession(hooks=[s.train.CheckpointSaverHook(s.folder, save_steps=5)]) as sess:
        sess.run(train_op)
    return {"steps": _steps(s)}


@scenario("saver_hook.no_saver")
def _(s: System) -> Record:
    """No saver anywhere is an error, and so are several."""
    counting(s)
    creator = s.train.ChiefSessionCreator(s.train.Scaffold(saver=s.train.Saver()))
    hook = s.train.CheckpointSaverHook(s.folder, save_steps=5)
    none = raised(s.train.MonitoredSession, creator, hooks=[hook])
    with s.Graph().as_default():
        counting(s)
        for _ in range(2):
            s.add_to_collection(s.GraphKeys.SAVERS, s.train.Saver())
        creator = s.train.ChiefSessionCreator(s.train.Scaffold(saver=s.train.Saver()))
        several = raised(s.train.MonitoredSession, creator, hooks=[s.train.CheckpointSaverHook(s.folder, save_steps=5)])
    return {"none": none, "several": several}


@scenario("saver_hook.several_listeners")
def _(s: System) -> Record:
    """Listeners are called in order around every save."""
    _, train_op = counting(s)
    events: list[Any] = []
    listeners = [_listener(s, events, name) for name in "ab"]
    hook = s.train.CheckpointSaverHook(s.folder, save_steps=2, saver=s.train.Saver(), listeners=listeners)
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        for _ in range(2):
            sess.run(train_op)
    return {"events": events}


@scenario("saver_hook.listener_requests_stop")
def _(s: System) -> Record:
    """`True` from `after_save` requests a stop."""
    _, train_op = counting(s)
    events: list[Any] = []
    listener = _listener(s, events, stops_at=4)
    hook = s.train.CheckpointSaverHook(s.folder, save_steps=2, saver=s.train.Saver(), listeners=[listener])
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        runs = train(sess, train_op, limit=10)
    return {"runs": runs, "events": events}


@scenario("saver_hook.stop_in_the_first_save")
def _(s: System) -> Record:
    """`True` from the first save is ignored."""
    _, train_op = counting(s)
    listener = _listener(s, [], stops_at=0)
    hook = s.train.CheckpointSaverHook(s.folder, save_steps=2, saver=s.train.Saver(), listeners=[listener])
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        return {"runs": train(sess, train_op, limit=3)}


@scenario("saver_hook.listener_finds_the_checkpoint")
def _(s: System) -> Record:
    """In `after_save` the checkpoint is complete; in `before_save` it is not there."""
    _, train_op = counting(s)
    seen: list[Any] = []

    class Look(s.train.CheckpointSaverListener):
        def before_save(self, session: Any, global_step_value: int) -> None:
            seen.append(["before", int(global_step_value), len(_steps(s))])

        def after_save(self, session: Any, global_step_value: int) -> None:
            path = s.train.latest_checkpoint(s.folder)
            seen.append(["after", int(s.train.load_variable(path, "global_step"))])

    hook = s.train.CheckpointSaverHook(s.folder, save_steps=2, saver=s.train.Saver(), listeners=[Look()])
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        for _ in range(3):
            sess.run(train_op)
    return {"seen": seen}


@scenario("saver_hook.no_save_after_an_error_in_a_hook")
def _(s: System) -> Record:
    """When a hook fails, nothing is saved."""
    _, train_op = counting(s)
    hooks = [
        s.train.CheckpointSaverHook(s.folder, save_steps=100, saver=s.train.Saver()),
        recorder(s, [], fails={"after": [None, ValueError("bad")]}),
    ]

    def play() -> None:
        with s.train.MonitoredSession(hooks=hooks) as sess:
            train(sess, train_op)

    return {"error": raised(play), "steps": _steps(s)}


@scenario("saver_hook.save_after_an_error_of_the_body")
def _(s: System) -> Record:
    """When the body fails: what is saved."""
    _, train_op = counting(s)

    def play() -> None:
        hook = s.train.CheckpointSaverHook(s.folder, save_steps=100, saver=s.train.Saver())
        with s.train.MonitoredSession(hooks=[hook]) as sess:
            for _ in range(3):
                sess.run(train_op)
            raise ValueError("mine")

    return {"error": raised(play), "steps": _steps(s)}


@scenario("saver_hook.session_logs")
def _(s: System) -> Record:
    """Each save is noted in the event file with its step and path."""
    _, train_op = counting(s)
    hook = s.train.CheckpointSaverHook(s.folder, save_steps=2, saver=s.train.Saver())
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        for _ in range(3):
            sess.run(train_op)
    s.summary.FileWriterCache.clear()
    events = s.events(s.folder)
    paths = [os.path.basename(e.session_log.checkpoint_path) for e in events if e.HasField("session_log")]
    return {"logs": session_logs(events), "paths": paths}


@scenario("saver_hook.graph_is_written")
def _(s: System) -> Record:
    """The graph is written once, as an event."""
    _, train_op = counting(s)
    hook = s.train.CheckpointSaverHook(s.folder, save_steps=2, saver=s.train.Saver())
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        for _ in range(3):
            sess.run(train_op)
    s.summary.FileWriterCache.clear()
    found = kinds(s.events(s.folder))
    return {
        "first": found[0].partition("@")[0],
        "graphs": found.count("graph_def@0"),
        "meta_graphs": found.count("meta_graph_def@0"),
    }


@scenario("saver_hook.resumed_job")
def _(s: System) -> Record:
    """A resumed job goes on from its last save; its listeners are told of the first save."""
    step, train_op = counting(s)
    for _ in range(2):
        events: list[Any] = []
        saver = s.train.Saver()
        hook = s.train.CheckpointSaverHook(s.folder, save_steps=2, saver=saver, listeners=[_listener(s, events)])
        creator = s.train.ChiefSessionCreator(s.train.Scaffold(saver=saver), checkpoint_dir=s.folder)
        with s.train.MonitoredSession(creator, hooks=[hook]) as sess:
            for _ in range(3):
                sess.run(train_op)
            value = int(sess.run(step))
    told = [event[1] for event in events if event[0] == "listener.before"]
    return {"value": value, "told": told, "ends": events[-1]}


@scenario("saver_hook.recovery_saves_again")
def _(s: System) -> Record:
    """After a recovery the step that was restored is told to the listeners as a first save."""
    _, train_op = counting(s)
    events: list[Any] = []
    saver = s.train.Saver()
    hooks = [
        s.train.CheckpointSaverHook(s.folder, save_steps=2, saver=saver, listeners=[_listener(s, events)]),
        recorder(s, [], fails={"before": [None, None, None, aborted(s)]}),
    ]
    creator = s.train.ChiefSessionCreator(s.train.Scaffold(saver=saver), checkpoint_dir=s.folder)
    with s.train.MonitoredSession(creator, hooks=hooks) as sess:
        for _ in range(4):
            sess.run(train_op)
    return {"events": events}


@scenario("saver_hook.before_or_after_the_other_hooks")
def _(s: System) -> Record:
    """Whether hooks later in the list have seen the run whose checkpoint is written."""
    _, train_op = counting(s)
    events: list[Any] = []
    hook = s.train.CheckpointSaverHook(s.folder, save_steps=1, saver=s.train.Saver(), listeners=[_listener(s, events)])
    with s.train.MonitoredSession(hooks=[hook, recorder(s, events)]) as sess:
        del events[:]
        sess.run(train_op)
        seen = list(events)
    return {"events": seen}


@scenario("saver_hook.subclass")
def _(s: System) -> Record:
    """A subclass that overrides `after_run` is called on every run."""
    _, train_op = counting(s)
    calls: list[int] = []

    class Counting(s.train.CheckpointSaverHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            calls.append(len(calls))
            super().after_run(run_context, run_values)

    hook = Counting(s.folder, save_steps=100, saver=s.train.Saver())
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        for _ in range(5):
            sess.run(train_op)
    return {"calls": len(calls), "steps": _steps(s)}


@scenario("saver_hook.no_global_step")
def _(s: System) -> Record:
    """A graph without a global step is refused."""
    s.Variable(1.0, name="weight")
    hook = s.train.CheckpointSaverHook(s.folder, save_steps=1, saver=s.train.Saver())
    return {"error": raised(s.train.MonitoredSession, hooks=[hook])}
