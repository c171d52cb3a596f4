"""`run_step_fn`."""

from __future__ import annotations

from typing import Any

from conformance.parts import aborted, counting, raised, recorder
from conformance.scenario import Record, scenario
from conformance.system import System


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
