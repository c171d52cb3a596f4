"""GlobalStepWaiterHook."""

from __future__ import annotations

import threading
from typing import Any

from conformance.parts import counting, only, raised
from conformance.scenario import Record, scenario
from conformance.system import System


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
