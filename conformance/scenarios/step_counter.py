"""StepCounterHook and the timer of all cadences."""

from __future__ import annotations

from typing import Any

from conformance.parts import counting, only, raised, scalars
from conformance.scenario import Record, scenario
from conformance.system import System


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


@scenario("timer.step_that_went_back")
def _(s: System) -> Record:
    """A timer that is asked for an earlier step than it last fired at."""

    def due(step: int) -> bool:
        timer = s.train.SecondOrStepTimer(every_steps=3)
        timer.update_last_triggered_step(10)
        return timer.should_trigger_for_step(step)

    return {"due": [step for step in (4, 9, 10, 12, 13) if due(step)]}
