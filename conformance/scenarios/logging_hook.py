"""LoggingTensorHook."""

from __future__ import annotations

from typing import Any

from conformance.parts import counting, only, raised
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
