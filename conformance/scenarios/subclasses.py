"""Subclasses of the built-in hooks."""

from __future__ import annotations

from typing import Any

from conformance.parts import counting, only, scalars, train
from conformance.scenario import Record, scenario
from conformance.system import System


@scenario("subclass.stop_at_step")
def _(s: System) -> Record:
    """A subclass of the stop hook is called on every run, and finds what its base has asked for."""
    _, train_op = counting(s)
    seen: list[Any] = []

    class Watch(s.train.StopAtStepHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append(run_values.results)
            super().after_run(run_context, run_values)

    with s.train.MonitoredSession(hooks=[Watch(last_step=3)]) as sess:
        runs = train(sess, train_op)
    return {"seen": seen, "runs": runs}


@scenario("subclass.step_counter")
def _(s: System) -> Record:
    """A subclass of the step counter that asks for more still counts."""
    _, train_op = counting(s)
    calls: list[int] = []

    class Watch(s.train.StepCounterHook):
        def before_run(self, run_context: Any) -> Any:
            calls.append(1)
            return super().before_run(run_context)

    with s.clock() as clock:
        hook = Watch(every_n_steps=2, output_dir=s.folder)
        with s.train.MonitoredSession(hooks=[hook]) as sess:
            for _ in range(5):
                clock.advance(1.0)
                sess.run(train_op)
    s.summary.FileWriterCache.clear()
    return {"calls": len(calls), "written": scalars(s.events(s.folder))}


@scenario("subclass.logging")
def _(s: System) -> Record:
    """A subclass of the logging hook sees the values of the runs that are logged, and None in the others."""
    x = s.constant(2)
    seen: list[Any] = []

    class Watch(s.train.LoggingTensorHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append(run_values.results)
            super().after_run(run_context, run_values)

    with s.clock(), s.train.MonitoredSession(hooks=[Watch({"x": x}, every_n_iter=2)]) as sess:
        for _ in range(3):
            sess.run(x)
    return {"seen": seen, "lines": len(only(s.log, "x = "))}


@scenario("subclass.summary_saver")
def _(s: System) -> Record:
    """A subclass of the summary hook is called on every run, and writes what its base writes."""
    _, train_op = counting(s)
    calls: list[int] = []

    class Watch(s.train.SummarySaverHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            calls.append(1)
            super().after_run(run_context, run_values)

    hook = Watch(save_steps=2, output_dir=s.folder, summary_op=s.summary.scalar("x", s.constant(1.0)))
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        for _ in range(4):
            sess.run(train_op)
    s.summary.FileWriterCache.clear()
    return {"calls": len(calls), "written": scalars(s.events(s.folder))}


@scenario("subclass.feed_fn")
def _(s: System) -> Record:
    """A subclass may feed something else."""
    x = s.placeholder("float32", [], name="x")

    class Doubled(s.train.FeedFnHook):
        def before_run(self, run_context: Any) -> Any:
            fed = super().before_run(run_context).feed_dict
            return s.train.SessionRunArgs(None, {key: value * 2.0 for key, value in fed.items()})

    with s.train.MonitoredSession(hooks=[Doubled(lambda: {x: 4.0})]) as sess:
        return {"value": sess.run(x)}
