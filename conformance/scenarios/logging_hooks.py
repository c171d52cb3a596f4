"""LoggingTensorHook, NanTensorHook, FinalOpsHook, FeedFnHook."""

from __future__ import annotations

from typing import Any

from conformance.parts import counting, only, raised, recorder, said
from conformance.scenario import Record, scenario
from conformance.system import System


def _logged(s: System, tensors: Any, runs: int = 5, secs: float = 1.0, **arguments: Any) -> list[str]:
    """Returns the lines that a LoggingTensorHook logs in some runs, a second each."""
    _, train_op = counting(s)
    with s.clock() as clock:
        hook = s.train.LoggingTensorHook(tensors, **arguments)
        with s.train.MonitoredSession(hooks=[hook]) as sess:
            for _ in range(runs):
                clock.advance(secs)
                sess.run(train_op)
    return only(s.log, " = ", "formatted")


@scenario("logging.every_n_iter")
def _(s: System) -> Record:
    """The first run is logged, then every n-th; the seconds since stand in the later lines."""
    return {"log": _logged(s, {"x": s.constant(2), "y": s.constant(3)}, every_n_iter=2)}


@scenario("logging.every_n_secs")
def _(s: System) -> Record:
    """A cadence in seconds."""
    return {"log": _logged(s, {"x": s.constant(2)}, runs=7, every_n_secs=3)}


@scenario("logging.dict_is_sorted_by_tag")
def _(s: System) -> Record:
    """The tags of a dict are sorted."""
    tensors = {"b": s.constant(1), "a": s.constant(2), "C": s.constant(3)}
    return {"log": _logged(s, tensors, runs=1, every_n_iter=1)}


@scenario("logging.list_keeps_its_order")
def _(s: System) -> Record:
    """An iterable keeps its order; its tags are the tensors' names."""
    s.constant(1, name="b")
    s.constant(2, name="a")
    return {"log": _logged(s, ["b:0", "a"], runs=1, every_n_iter=1)}


@scenario("logging.name_without_output")
def _(s: System) -> Record:
    """A name without `:0` means the tensor."""
    s.constant(7, name="loss")
    return {"log": _logged(s, {"loss": "loss"}, runs=1, every_n_iter=1)}


@scenario("logging.floats")
def _(s: System) -> Record:
    """Numbers are printed without scientific notation."""
    values = {"small": 0.00001, "large": 123456.0, "usual": 0.5, "long": 0.123456789}
    return {"log": _logged(s, {tag: s.constant(v) for tag, v in values.items()}, runs=1, every_n_iter=1)}


@scenario("logging.arrays")
def _(s: System) -> Record:
    """Arrays are printed as NumPy prints them."""
    return {"log": _logged(s, {"x": s.constant([1.0, 0.25, 1e-6])}, runs=1, every_n_iter=1)}


@scenario("logging.formatter")
def _(s: System) -> Record:
    """A formatter makes the line."""
    tensors = {"x": s.constant(2)}
    lines = _logged(s, tensors, runs=1, every_n_iter=1, formatter=lambda values: f"formatted {int(values['x'])}")
    return {"log": lines}


@scenario("logging.at_end_alone")
def _(s: System) -> Record:
    """With `at_end` alone there is one line, at the end."""
    return {"log": _logged(s, {"x": s.constant(2)}, at_end=True)}


@scenario("logging.at_end_too")
def _(s: System) -> Record:
    """`at_end` adds a line to a cadence."""
    return {"log": _logged(s, {"x": s.constant(2)}, runs=5, every_n_iter=3, at_end=True)}


@scenario("logging.counts_runs_not_steps")
def _(s: System) -> Record:
    """The cadence counts runs of this session."""
    _, train_op = counting(s, by=10)
    hook = s.train.LoggingTensorHook({"x": s.constant(1)}, every_n_iter=2)
    with s.clock(), s.train.MonitoredSession(hooks=[hook]) as sess:
        for _ in range(4):
            sess.run(train_op)
    return {"lines": len(only(s.log, "x = "))}


@scenario("logging.arguments")
def _(s: System) -> Record:
    """Exactly one cadence, unless there is `at_end`; `every_n_iter` is at least 1."""
    hook, tensors = s.train.LoggingTensorHook, {"x": s.constant(1)}
    return {
        "none": raised(hook, tensors),
        "both": raised(hook, tensors, every_n_iter=1, every_n_secs=1),
        "zero": raised(hook, tensors, every_n_iter=0),
        "at_end": raised(hook, tensors, at_end=True),
    }


@scenario("logging.unknown_name")
def _(s: System) -> Record:
    """A name that the graph does not have is an error when the session is made."""
    counting(s)
    hook = s.train.LoggingTensorHook(["nowhere"], every_n_iter=1)
    return {"error": raised(s.train.MonitoredSession, hooks=[hook])}


@scenario("logging.print_options_are_kept")
def _(s: System) -> Record:
    """The print options of NumPy are as before."""
    import numpy as np

    before = np.get_printoptions()
    _logged(s, {"x": s.constant(1e-9)}, runs=1, every_n_iter=1)
    return {"kept": np.get_printoptions() == before}


@scenario("logging.second_session")
def _(s: System) -> Record:
    """A hook that serves a second session logs its first run again."""
    x = s.constant(3)
    with s.clock():
        hook = s.train.LoggingTensorHook({"x": x}, every_n_iter=10)
        for _ in range(2):
            with s.train.MonitoredSession(hooks=[hook]) as sess:
                sess.run(x)
    return {"log": only(s.log, "x = ")}


# NaN ------------------------------------------------------------------------------------------------------------------


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


# Final operations, feeds of a function --------------------------------------------------------------------------------


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
