"""Errors in every callback, in the body and in threads."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from conformance.parts import aborted, counting, out_of_range, raised, recorder, report, said
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
