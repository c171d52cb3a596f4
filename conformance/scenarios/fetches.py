"""What is fetched, and the options of a run."""

from __future__ import annotations

import collections
import threading
from typing import Any

from conformance.parts import raised
from conformance.scenario import Record, scenario
from conformance.system import System

Pair = collections.namedtuple("Pair", "first second")


def _merged(s: System, *options: Any, caller: Any = None) -> Any:
    seen: list[Any] = []
    x = s.constant(1.0)

    class Asks(s.train.SessionRunHook):
        def __init__(self, asked: Any) -> None:
            self.asked = asked

        def before_run(self, run_context: Any) -> Any:
            return s.train.SessionRunArgs(None, options=self.asked)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append([int(run_values.options.trace_level), bool(run_values.options.output_partition_graphs)])

    with s.train.MonitoredSession(hooks=[Asks(each) for each in options]) as sess:
        sess.run(x, options=caller)
    return seen


@scenario("fetches.structures")
def _(s: System) -> Record:
    """Fetches may be nested in lists, tuples, named tuples and dicts; results have the same structure."""
    x, y = s.constant(1, name="x"), s.constant(2, name="y")
    with s.Session() as sess:
        pair = sess.run(Pair(x, [y, {"x": x}]))
        return {
            "pair": [type(pair).__name__, pair],
            "tuple": isinstance(sess.run((x, y)), tuple),
            "list": sess.run([x, [y, (x,)]]),
            "dict": sess.run({"b": x, "a": {"c": y}}),
            "empty": [sess.run([]), sess.run({})],
        }


@scenario("fetches.operations_and_names")
def _(s: System) -> Record:
    """An operation gives None, by name too; the name of a tensor gives its value; a variable its value."""
    x = s.constant(1, name="x")
    variable = s.Variable(5.0, name="weight")
    with s.Session() as sess:
        nothing = sess.run(variable.initializer)
        return {"values": sess.run([x.op, "x", "x:0", variable]), "nothing": nothing}


@scenario("fetches.same_twice")
def _(s: System) -> Record:
    """The same tensor may be fetched twice."""
    x = s.constant(3, name="x")
    with s.Session() as sess:
        return {"values": sess.run([x, x, "x:0"])}


@scenario("fetches.nothing_to_fetch")
def _(s: System) -> Record:
    """None, a number and a list of them cannot be fetched."""
    s.constant(3, name="x")
    with s.Session() as sess:
        return {"none": raised(sess.run, None), "number": raised(sess.run, 3.0), "inside": raised(sess.run, [None])}


@scenario("fetches.unknown_name")
def _(s: System) -> Record:
    """A name that is nowhere."""
    s.constant(3, name="x")
    with s.Session() as sess:
        return {"operation": raised(sess.run, "nowhere"), "tensor": raised(sess.run, "nowhere:0")}


@scenario("fetches.of_another_graph")
def _(s: System) -> Record:
    """A tensor of another graph is a `ValueError`."""
    with s.Graph().as_default():
        other = s.constant(1.0)
    s.constant(2.0)
    with s.Session() as sess:
        return {"fetch": raised(sess.run, other)}


@scenario("fetches.closed_session")
def _(s: System) -> Record:
    """A closed session is a `RuntimeError`."""
    x = s.constant(2.0)
    sess = s.Session()
    sess.close()
    return {"error": raised(sess.run, x)}


@scenario("fetches.two_sessions_have_their_own_variables")
def _(s: System) -> Record:
    """Each session has variables of its own."""
    weight = s.Variable(1.0, name="weight")
    more = weight.assign_add(1.0)
    with s.Session() as one, s.Session() as other:
        for session in (one, other):
            session.run(s.global_variables_initializer())
        one.run(more)
        return {"values": [one.run(weight), other.run(weight)]}


@scenario("fetches.threads")
def _(s: System) -> Record:
    """Several threads may run one session; no update is lost."""
    count = s.Variable(0, name="count")
    more = s.group(count.assign_add(1))
    with s.Session() as sess:
        sess.run(s.global_variables_initializer())
        threads = [threading.Thread(target=lambda: [sess.run(more) for _ in range(25)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"count": int(sess.run(count))}


@scenario("fetches.text")
def _(s: System) -> Record:
    """Text goes through a run."""
    x = s.placeholder("string" if s.name == "tensorflow" else str, [], name="x")
    with s.Session() as sess:
        return {"constant": sess.run(s.constant("a ü")), "fed": sess.run(x, {x: "b"})}


@scenario("fetches.python_function_of_values")
def _(s: System) -> Record:
    """A Python function in the graph gets arrays and is called once a run."""
    x = s.placeholder("float32", [2], name="x")
    calls: list[list[float]] = []

    def double(values: Any) -> Any:
        calls.append([float(value) for value in values])
        return values * 2.0

    y = s.host(double, x)
    with s.Session() as sess:
        return {"value": sess.run([y, y], {x: [1.0, 2.0]}), "calls": calls}


@scenario("fetches.default_session_is_none")
def _(s: System) -> Record:
    """A session in a block is closed at its end; to close again is no error."""
    x = s.constant(1.0)
    with s.Session() as sess:
        sess.run(x)
    return {"run": raised(sess.run, x), "close": raised(sess.close)}


@scenario("options.larger_number_wins")
def _(s: System) -> Record:
    """Numbers of several options: the larger; every hook sees what was merged."""
    return {"seen": _merged(s, s.options(trace_level=1), s.options(trace_level=3), caller=s.options(trace_level=2))}


@scenario("options.flags_are_or_ed")
def _(s: System) -> Record:
    """Flags of several options: either."""
    return {"seen": _merged(s, s.options(), s.options(graphs=True)), "none": _merged(s, s.options(), s.options())}


@scenario("options.always_an_object")
def _(s: System) -> Record:
    """A hook finds options and metadata also where nobody asked for any."""
    x = s.constant(1.0)
    seen: list[bool] = []

    class Look(s.train.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append(run_values.options is not None and run_values.run_metadata is not None)

    with s.train.MonitoredSession(hooks=[Look()]) as sess:
        sess.run(x)
    return {"seen": seen}


@scenario("options.metadata_of_the_caller")
def _(s: System) -> Record:
    """The metadata that the caller gives is what hooks find."""
    x = s.constant(1.0)
    metadata = s.RunMetadata()
    seen: list[bool] = []

    class Look(s.train.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append(run_values.run_metadata is metadata)

    with s.train.MonitoredSession(hooks=[Look()]) as sess:
        sess.run(x, run_metadata=metadata)
    return {"same": seen}
