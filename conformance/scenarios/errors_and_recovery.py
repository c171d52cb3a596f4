"""Errors in every callback, in the body and in threads; recovery."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from conformance.parts import aborted, counting, out_of_range, raised, recorder, report, said, train
from conformance.scenario import Record, scenario
from conformance.system import System


def _failing_in(s: System, callback: str, errors: Iterable[Exception | None]) -> Record:
    """Two runs with three hooks, the middle of which fails in a callback."""
    _, train_op = counting(s)
    events: list[Any] = []
    hooks = [recorder(s, events, "a"), recorder(s, events, "b", fails={callback: errors}), recorder(s, events, "c")]

    def play() -> None:
        with s.train.MonitoredSession(hooks=hooks) as sess:
            sess.run(train_op)
            sess.run(train_op)

    return {"error": said(play), "events": [event for event in events if callback in event]}


@scenario("errors.callbacks.begin")
def _(s: System) -> Record:
    """An error in `begin` leaves the constructor; no later hook begins."""
    return _failing_in(s, "begin", [ValueError("bad")])


@scenario("errors.callbacks.after_create_session")
def _(s: System) -> Record:
    """An error in `after_create_session` leaves the constructor."""
    return _failing_in(s, "created", [ValueError("bad")])


@scenario("errors.callbacks.before_run")
def _(s: System) -> Record:
    """An error in `before_run` reaches the caller; later hooks are not called, nor is any `end`."""
    return _failing_in(s, "before", [ValueError("bad")])


@scenario("errors.callbacks.after_run")
def _(s: System) -> Record:
    """An error in `after_run` reaches the caller; later hooks are not called, nor is any `end`."""
    return _failing_in(s, "after", [None, KeyError("bad")])


@scenario("errors.callbacks.end")
def _(s: System) -> Record:
    """An error in `end` reaches the caller."""
    return _failing_in(s, "end", [ValueError("bad")])


@scenario("errors.callbacks.error_is_the_very_object")
def _(s: System) -> Record:
    """What a hook raises is what the caller catches."""
    _, train_op = counting(s)
    error = ValueError("this one")
    hook = recorder(s, [], fails={"before": [error]})
    try:
        with s.train.MonitoredSession(hooks=[hook]) as sess:
            sess.run(train_op)
    except ValueError as caught:
        return {"same": caught is error}
    return {"same": None}


@scenario("errors.run.python_function_raises")
def _(s: System) -> Record:
    """A run that fails reaches the caller; neither `after_run` nor `end` is called."""

    def fail() -> float:
        raise ValueError("bad record")

    x = s.host(fail)
    events: list[Any] = []

    def play() -> None:
        with s.train.MonitoredSession(hooks=[recorder(s, events)]) as sess:
            sess.run(x)

    return {"error": raised(play), "events": events}


@scenario("errors.run.global_step_is_as_before")
def _(s: System) -> Record:
    """A run that fails before its updates has changed nothing."""
    step = s.train.get_or_create_global_step()
    fails = iter([True, False])

    def check() -> float:
        if next(fails):
            raise ValueError("bad record")
        return 0.0

    with s.control_dependencies([s.host(check)]):
        train_op = s.group(s.counted(step, 1))
    seen = []
    with s.train.MonitoredSession() as sess:
        seen.append(raised(sess.run, train_op) is not None)
        seen.append(int(sess.run(step)))
        sess.run(train_op)
        seen.append(int(sess.run(step)))
    return {"seen": seen}


@scenario("errors.body.value_error")
def _(s: System) -> Record:
    """An error of the body reaches the caller, and no `end` is called."""
    _, train_op = counting(s)
    events: list[Any] = []

    def play() -> None:
        with s.train.MonitoredSession(hooks=[recorder(s, events)]) as sess:
            sess.run(train_op)
            raise ValueError("my own")

    return {"error": said(play), "events": events}


@scenario("errors.body.keyboard_interrupt")
def _(s: System) -> Record:
    """An interrupt in the body reaches the caller, and no `end` is called."""
    _, train_op = counting(s)
    events: list[Any] = []
    interrupted = False
    try:
        with s.train.MonitoredSession(hooks=[recorder(s, events)]) as sess:
            sess.run(train_op)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        interrupted = True
    return {"interrupted": interrupted, "events": events}


@scenario("errors.uninitialized.read")
def _(s: System) -> Record:
    """To read a variable that was never initialised is a failed precondition, which names it."""
    weight = s.Variable(1.0, name="weight")
    with s.Session() as sess:
        try:
            sess.run(weight * 2.0)
        except s.errors.FailedPreconditionError as error:
            return {"named": "weight" in str(error)}
    return {"named": None}


@scenario("errors.tree.every_code")
def _(s: System) -> Record:
    """There is one class of errors a code, all below `OpError`."""
    names = [
        "Aborted",
        "AlreadyExists",
        "Cancelled",
        "DataLoss",
        "DeadlineExceeded",
        "FailedPrecondition",
        "Internal",
        "InvalidArgument",
        "NotFound",
        "OutOfRange",
        "PermissionDenied",
        "ResourceExhausted",
        "Unauthenticated",
        "Unavailable",
        "Unimplemented",
        "Unknown",
    ]
    made = [getattr(s.errors, f"{name}Error")(None, None, f"about {name}") for name in names]
    return {
        "below": all(isinstance(error, s.errors.OpError) for error in made),
        "messages": [error.message for error in made],
        "ops": [[error.op, error.node_def] for error in made[:1]],
    }


def _recovering(s: System, callback: str, error: Exception) -> Record:
    step, train_op = counting(s)
    events: list[Any] = []
    hooks = [recorder(s, events, "a", fails={callback: [None, error]}), recorder(s, events, "b")]
    with s.train.MonitoredSession(hooks=hooks) as sess:
        sess.run(train_op)
        sess.run(train_op)
        value = int(sess.run(step))
    return {"step": value, "events": events}


@scenario("recovery.before_run_aborted")
def _(s: System) -> Record:
    """After an `AbortedError` in `before_run` the session is made anew, without `begin`, and the run is tried again."""
    return _recovering(s, "before", aborted(s))


@scenario("recovery.after_run_unavailable")
def _(s: System) -> Record:
    """An `UnavailableError` in `after_run` is recovered from as well."""
    return _recovering(s, "after", s.errors.UnavailableError(None, None, "peer away"))


@scenario("recovery.cancelled_is_not_recovered")
def _(s: System) -> Record:
    """Other errors of the engine reach the caller."""
    error = s.errors.CancelledError(None, None, "cancelled")
    return {"error": raised(_recovering, s, "before", error)}


@scenario("recovery.from_the_last_checkpoint")
def _(s: System) -> Record:
    """A recovery goes back to the last checkpoint."""
    step, train_op = counting(s)
    hooks = [recorder(s, [], fails={"before": [None] * 5 + [aborted(s)]})]
    creator = s.train.ChiefSessionCreator(checkpoint_dir=s.folder)
    saver_hook = s.train.CheckpointSaverHook(s.folder, save_steps=3, saver=s.train.Saver())
    with s.train.MonitoredSession(creator, hooks=[saver_hook, *hooks]) as sess:
        for _ in range(7):
            sess.run(train_op)
        final = int(sess.run(step))
    return {"final": final}


@scenario("recovery.without_a_checkpoint")
def _(s: System) -> Record:
    """Without a checkpoint a recovery begins with the initial values."""
    step, train_op = counting(s)
    hook = recorder(s, [], fails={"before": [None, None, None, aborted(s)]})
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        for _ in range(4):
            sess.run(train_op)
        return {"step": int(sess.run(step))}


@scenario("recovery.stop_stays_requested")
def _(s: System) -> Record:
    """A stop that a hook requested in a run that was lost: whether the loop goes on."""
    _, train_op = counting(s)
    hooks = [
        recorder(s, [], "a", stops_at_run=2),
        recorder(s, [], "b", fails={"after": [None, aborted(s)]}),
    ]
    with s.train.MonitoredSession(hooks=hooks) as sess:
        runs = train(sess, train_op, limit=6)
    return {"runs": runs}


@scenario("recovery.singular_session_does_not")
def _(s: System) -> Record:
    """A singular session passes an `AbortedError` on."""
    _, train_op = counting(s)
    events: list[Any] = []

    def play() -> None:
        with s.train.SingularMonitoredSession(hooks=[recorder(s, events, fails={"before": [aborted(s)]})]) as sess:
            sess.run(train_op)

    return {"error": raised(play), "events": events}


@scenario("recovery.creator_is_asked_again")
def _(s: System) -> Record:
    """A recovery asks the session creator for another session."""
    _, train_op = counting(s)
    made: list[int] = []
    chief = s.train.ChiefSessionCreator()

    class Creator(s.train.SessionCreator):
        def create_session(self) -> Any:
            made.append(len(made))
            return chief.create_session()

    hook = recorder(s, [], fails={"before": [None, aborted(s), aborted(s)]})
    with s.train.MonitoredSession(Creator(), hooks=[hook]) as sess:
        sess.run(train_op)
        sess.run(train_op)
    return {"made": made}


@scenario("recovery.creation_is_tried_again")
def _(s: System) -> Record:
    """A session that cannot be created for an `AbortedError` is tried again."""
    _, train_op = counting(s)
    chief = s.train.ChiefSessionCreator()
    errors = [aborted(s)]

    class Creator(s.train.SessionCreator):
        def create_session(self) -> Any:
            if errors:
                raise errors.pop()
            return chief.create_session()

    events: list[Any] = []
    with s.clock(), s.train.MonitoredSession(Creator(), hooks=[recorder(s, events)]) as sess:
        sess.run(train_op)
    return {"events": events}


def _in_a_thread(s: System, report: Any, kind: str = "MonitoredSession", check: bool = True) -> Record:
    """One run, an error reported by a thread, then the loop and the close."""
    _, train_op = counting(s)
    events: list[Any] = []
    go, done = threading.Event(), threading.Event()

    class Background(s.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            def work() -> None:
                go.wait(10)
                with coord.stop_on_exception():
                    if report:
                        raise report.pop()
                done.set()

            def then() -> None:
                work()
                done.set()

            thread = threading.Thread(target=then, daemon=True)
            coord.register_thread(thread)
            thread.start()

    stops: Any = None

    def play() -> None:
        nonlocal stops
        with getattr(s.train, kind)(hooks=[Background(), recorder(s, events)]) as sess:
            sess.run(train_op)
            go.set()
            done.wait(10)
            if check:
                stops = sess.should_stop()

    error = said(play)
    return {"stops": stops, "error": error, "events": events}


@scenario("errors.thread.value_error")
def _(s: System) -> Record:
    """An error of a thread makes `should_stop` true; closing raises it after every `end`."""
    return _in_a_thread(s, [ValueError("reader broke")])


@scenario("errors.thread.out_of_range")
def _(s: System) -> Record:
    """An `OutOfRangeError` of a thread leaves the block: the session's coordinator has no clean errors."""
    record = _in_a_thread(s, [out_of_range(s)])
    record["error"] = record["error"] and record["error"].partition(":")[0]
    return record


@scenario("errors.thread.unavailable_then_should_stop")
def _(s: System) -> Record:
    """A preemption that a thread reports is recovered from in `should_stop`."""
    return _in_a_thread(s, [s.errors.UnavailableError(None, None, "peer away")])


@scenario("errors.thread.singular_session_raises_at_should_stop")
def _(s: System) -> Record:
    """In a singular session `should_stop` raises the error of a thread."""
    record = _in_a_thread(s, [ValueError("reader broke")], kind="SingularMonitoredSession")
    return {"error": record["error"], "stops": record["stops"], "ends": record["events"].count("hook.end")}


@scenario("errors.thread.run_after_it")
def _(s: System) -> Record:
    """A run after a thread has failed still works; the error comes from the close."""
    _, train_op = counting(s)
    coords: list[Any] = []

    class Keep(s.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            coords.append(coord)

    ran: list[bool] = []

    def play() -> None:
        with s.train.MonitoredSession(hooks=[Keep()]) as sess:
            report(coords[0], ValueError("reader broke"))
            sess.run(train_op)
            ran.append(True)

    return {"error": said(play), "ran": ran}


@scenario("errors.thread.run_fails_too")
def _(s: System) -> Record:
    """If a run fails while a thread's error is held, the run's own error is raised."""
    _, train_op = counting(s)
    coords: list[Any] = []

    class Keep(s.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            coords.append(coord)

        def before_run(self, run_context: Any) -> None:
            raise KeyError("of the run")

    of_the_run: list[Any] = []

    def play() -> None:
        with s.train.MonitoredSession(hooks=[Keep()]) as sess:
            report(coords[0], ValueError("of the thread"))
            of_the_run.append(raised(sess.run, train_op))
            sess.run(train_op)

    return {"leaves_the_block": raised(play), "of_the_run": of_the_run}


@scenario("errors.thread.preemption_is_the_root_cause")
def _(s: System) -> Record:
    """If a run fails while a thread has reported a preemption, the session recovers."""
    _, train_op = counting(s)
    events: list[Any] = []
    errors = [KeyError("of the run")]

    class Keep(s.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            self.coord = coord

        def before_run(self, run_context: Any) -> None:
            if errors:
                report(self.coord, aborted(s))
                raise errors.pop()

    with s.train.MonitoredSession(hooks=[Keep(), recorder(s, events)]) as sess:
        sess.run(train_op)
    return {"events": events}


@scenario("step_fn.sees_the_raw_session")
def _(s: System) -> Record:
    """A step function runs the raw session without hooks, and with them by `run_with_hooks`."""
    step, train_op = counting(s)
    events: list[Any] = []

    def step_fn(step_context: Any) -> Any:
        step_context.session.run(train_op)
        events.append("raw")
        step_context.run_with_hooks(train_op)
        return int(step_context.session.run(step))

    with s.train.MonitoredSession(hooks=[recorder(s, events)]) as sess:
        value = sess.run_step_fn(step_fn)
    return {"value": value, "events": events}


@scenario("step_fn.parameter_must_be_step_context")
def _(s: System) -> Record:
    """The function's only parameter must be called `step_context`."""
    counting(s)
    with s.train.MonitoredSession() as sess:
        return {
            "wrong": raised(sess.run_step_fn, lambda context: None),
            "two": raised(sess.run_step_fn, lambda step_context, other: None),
            "right": raised(sess.run_step_fn, lambda step_context: None),
        }


@scenario("step_fn.method")
def _(s: System) -> Record:
    """A method may be a step function: `self` does not count."""
    counting(s)

    class Model:
        def step(self, step_context: Any) -> str:
            return "stepped"

    with s.train.MonitoredSession() as sess:
        return {"value": sess.run_step_fn(Model().step)}


@scenario("step_fn.request_stop")
def _(s: System) -> Record:
    """`request_stop` in a step function ends the loop by `StopIteration`."""
    _, train_op = counting(s)
    events: list[Any] = []

    def step_fn(step_context: Any) -> None:
        step_context.run_with_hooks(train_op)
        step_context.request_stop()
        events.append("not reached")

    with s.train.MonitoredSession(hooks=[recorder(s, events)]) as sess:
        loops = 0
        while not sess.should_stop() and loops < 5:
            loops += 1
            sess.run_step_fn(step_fn)
    return {"loops": loops, "events": events}


@scenario("step_fn.recovers")
def _(s: System) -> Record:
    """A preemption inside a step function recovers, and calls it again."""
    step, train_op = counting(s)
    events: list[Any] = []
    errors = [aborted(s)]

    def step_fn(step_context: Any) -> int:
        events.append("called")
        step_context.run_with_hooks(train_op)
        if errors:
            raise errors.pop()
        return int(step_context.run_with_hooks(step))

    with s.train.MonitoredSession(hooks=[recorder(s, events)]) as sess:
        value = sess.run_step_fn(step_fn)
    return {"value": value, "events": events}


@scenario("step_fn.raw_session_after_a_recovery")
def _(s: System) -> Record:
    """A step function that is called again after a recovery is given the new session."""
    step, _ = counting(s)
    errors = [aborted(s)]

    def step_fn(step_context: Any) -> int:
        if errors:
            raise errors.pop()
        return int(step_context.session.run(step))

    with s.train.MonitoredSession() as sess:
        return {"error": raised(sess.run_step_fn, step_fn)}
