"""NanTensorHook, FinalOpsHook, FeedFnHook."""

from __future__ import annotations

from typing import Any

from conformance.parts import counting, only, raised, recorder, said
from conformance.scenario import Record, scenario
from conformance.system import System


def _nan(s: System, values: list[Any], **arguments: Any) -> Record:
    counting(s)
    x = s.placeholder("float32", None, name="loss")
    runs: list[float] = []
    events: list[Any] = []

    def play() -> None:
        hooks = [s.train.NanTensorHook(x, **arguments), recorder(s, events)]
        with s.train.MonitoredSession(hooks=hooks) as sess:
            for value in values:
                if sess.should_stop():
                    break
                sess.run(x, {x: value})
                runs.append(value)

    error = raised(play)
    warned = any("loss" in line and "NaN" in line for line in only(s.log, "WARNING"))
    return {"error": error, "ends": events.count("hook.end"), "warned": warned}


@scenario("nan.raises")
def _(s: System) -> Record:
    """NaN in the loss ends the training with an error, without `end`."""
    return _nan(s, [1.0, float("nan"), 2.0])


@scenario("nan.stops")
def _(s: System) -> Record:
    """With `fail_on_nan_loss=False` it ends with a warning."""
    return _nan(s, [1.0, float("nan"), 2.0], fail_on_nan_loss=False)


@scenario("nan.infinity_is_none")
def _(s: System) -> Record:
    """Infinity is no NaN."""
    return _nan(s, [float("inf"), float("-inf"), 1.0])


@scenario("nan.anywhere_in_an_array")
def _(s: System) -> Record:
    """A NaN anywhere in the watched value counts."""
    return _nan(s, [[[1.0, 2.0], [float("nan"), 4.0]]])


@scenario("nan.no_global_step")
def _(s: System) -> Record:
    """A graph without a global step."""
    hook = s.train.NanTensorHook(s.constant(1.0))
    return {"error": raised(s.train.MonitoredSession, hooks=[hook])}


@scenario("nan.is_a_runtime_error")
def _(s: System) -> Record:
    """The error is a `RuntimeError`."""
    return {"below": issubclass(s.train.NanLossDuringTrainingError, RuntimeError)}


@scenario("final_ops.values")
def _(s: System) -> Record:
    """The final values are those at the end, in the structure that was asked for."""
    step, train_op = counting(s)
    hook = s.train.FinalOpsHook({"step": step, "twice": step * 2})
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        before = hook.final_ops_values
        for _ in range(3):
            sess.run(train_op)
    return {"before": before, "after": hook.final_ops_values}


@scenario("final_ops.feed")
def _(s: System) -> Record:
    """The final operations have a feed of their own."""
    x = s.placeholder("float32", [], name="x")
    hook = s.train.FinalOpsHook(x * 2.0, final_ops_feed_dict={x: 4.0})
    with s.train.MonitoredSession(hooks=[hook]):
        pass
    return {"value": hook.final_ops_values}


@scenario("final_ops.not_after_an_error")
def _(s: System) -> Record:
    """After an error of the body they are not evaluated."""
    step, train_op = counting(s)
    hook = s.train.FinalOpsHook(step)

    def play() -> None:
        with s.train.MonitoredSession(hooks=[hook]) as sess:
            sess.run(train_op)
            raise ValueError("mine")

    return {"error": said(play), "value": hook.final_ops_values}


@scenario("final_ops.end_of_input")
def _(s: System) -> Record:
    """The end of the input in the final operations is raised, after a warning."""
    ended = s.host(lambda: next(iter([])))
    counting(s)

    def play() -> None:
        with s.train.MonitoredSession(hooks=[s.train.FinalOpsHook(ended)]):
            pass

    return {"error": raised(play), "warned": bool(only(s.log, "WARNING"))}


@scenario("feed_fn.feeds_each_run")
def _(s: System) -> Record:
    """The function is called for each run, and feeds it."""
    x = s.placeholder("float32", [], name="x")
    values = iter([1.0, 2.0, 3.0])
    hook = s.train.FeedFnHook(lambda: {x: next(values)})
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        return {"results": [float(sess.run(x)) for _ in range(3)]}


@scenario("feed_fn.end_of_input")
def _(s: System) -> Record:
    """`StopIteration` from the function ends the training quietly."""
    x = s.placeholder("float32", [], name="x")
    values = iter([1.0, 2.0])
    events: list[Any] = []
    with s.train.MonitoredSession(hooks=[s.train.FeedFnHook(lambda: {x: next(values)}), recorder(s, events)]) as sess:
        runs = 0
        while not sess.should_stop():
            sess.run(x)
            runs += 1
    return {"runs": runs, "ends": events.count("hook.end")}


@scenario("profiler.save_steps")
def _(s: System) -> Record:
    """The first profile is one cadence after the first run; the profiled run leads to the step in its name."""
    _, train_op = counting(s)
    hook = s.train.ProfilerHook(save_steps=2, output_dir=s.folder)
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        for _ in range(6):
            sess.run(train_op)
    return {"steps": s.profiled(s.folder)}


@scenario("profiler.arguments")
def _(s: System) -> Record:
    """Exactly one cadence is required."""
    hook = s.train.ProfilerHook
    return {"none": raised(hook, output_dir=s.folder), "both": raised(hook, save_steps=1, save_secs=1)}
