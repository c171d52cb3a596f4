"""The life of a hook and of a monitored session."""

from __future__ import annotations

import threading
from typing import Any

from conformance.parts import counting, out_of_range, raised, recorder, said, train
from conformance.scenario import Record, scenario
from conformance.system import System


@scenario("lifecycle.order.two_hooks")
def _(s: System) -> Record:
    """Every callback is called in the order of the list of hooks."""
    _, train_op = counting(s)
    events: list[Any] = []
    with s.train.MonitoredSession(hooks=[recorder(s, events, "a"), recorder(s, events, "b")]) as sess:
        sess.run(train_op)
        sess.run(train_op)
    return {"events": events}


@scenario("lifecycle.order.begin_before_scaffold_is_finalized")
def _(s: System) -> Record:
    """In `begin` the graph is open, from `after_create_session` to `end` it is finalized, after close it is open."""
    _, train_op = counting(s)
    graph = s.get_default_graph()
    seen: dict[str, bool] = {}

    class Look(s.train.SessionRunHook):
        def begin(self) -> None:
            seen["begin"] = graph.finalized
            s.constant(1.0)

        def after_create_session(self, session: Any, coord: Any) -> None:
            seen["created"] = graph.finalized

        def end(self, session: Any) -> None:
            seen["end"] = graph.finalized

    with s.train.MonitoredSession(hooks=[Look()]) as sess:
        sess.run(train_op)
    return seen | {"closed": graph.finalized}


@scenario("lifecycle.order.finalized_before_stays_finalized")
def _(s: System) -> Record:
    """A graph that was finalized before the session is finalized after it."""
    _step, train_op = counting(s)
    scaffold = s.train.Scaffold().finalize()
    graph = s.get_default_graph()
    with s.train.MonitoredSession(s.train.ChiefSessionCreator(scaffold)) as sess:
        sess.run(train_op)
    return {"finalized": graph.finalized}


@scenario("lifecycle.order.addition_to_a_finalized_graph")
def _(s: System) -> Record:
    """Inside a session the graph refuses additions."""
    _, _train_op = counting(s)
    with s.train.MonitoredSession():
        error = said(s.constant, 1.0)
    assert error is not None
    return {"error": error.partition(", ")[0].partition(" Not added")[0][: len("RuntimeError: Graph is finalized")]}


@scenario("lifecycle.run.caller_gets_only_what_he_asked")
def _(s: System) -> Record:
    """The fetches of hooks do not show in the caller's results."""
    x = s.constant(2.0)
    y = s.constant(3.0)
    events: list[Any] = []
    with s.train.MonitoredSession(hooks=[recorder(s, events, "a", asks=y, results=True)]) as sess:
        result = sess.run({"x": x})
    return {"result": result, "events": events}


@scenario("lifecycle.run.results_have_the_structure_asked_for")
def _(s: System) -> Record:
    """A hook's results have the structure of its fetches; an operation gives None, and asking nothing gives None."""
    x, y = s.constant(2.0, name="x"), s.constant([1, 2], name="y")
    op = s.group(x, name="op")
    events: list[Any] = []
    asks = {"list": [x, [y]], "op": op, "names": ("x:0", "op")}
    hooks = [recorder(s, events, "a", asks=asks, results=True), recorder(s, events, "b", results=True)]
    with s.train.MonitoredSession(hooks=hooks) as sess:
        sess.run(x)
    return {"results": [event for event in events if isinstance(event, list)]}


@scenario("lifecycle.run.one_run_for_all_fetches")
def _(s: System) -> Record:
    """The fetches of the caller and of all hooks are one run: what they share is computed once."""
    calls: list[int] = []

    def count() -> float:
        calls.append(1)
        return float(len(calls))

    x = s.host(count)
    events: list[Any] = []
    hooks = [recorder(s, events, name, asks=x, results=True) for name in "ab"]
    with s.train.MonitoredSession(hooks=hooks) as sess:
        result = sess.run(x)
    return {"calls": len(calls), "result": result, "results": [e for e in events if isinstance(e, list)]}


@scenario("lifecycle.run.original_args")
def _(s: System) -> Record:
    """`original_args` is what the caller asked, not what hooks added."""
    x = s.placeholder("float32", [], name="x")
    y = x * 2.0
    z = s.placeholder("float32", [], name="z")
    seen: list[Any] = []

    class Look(s.train.SessionRunHook):
        def before_run(self, run_context: Any) -> Any:
            args = run_context.original_args
            seen.append([args.fetches is y, list(args.feed_dict) == [x], args.options is None])

    events: list[Any] = []
    with s.train.MonitoredSession(hooks=[recorder(s, events, "a", asks=z, feeds={z: 1.0}), Look()]) as sess:
        sess.run(y, feed_dict={x: 1.0})
    return {"seen": seen}


@scenario("lifecycle.run.session_of_the_context_is_raw")
def _(s: System) -> Record:
    """Running the session of a run context calls no hook."""
    step, train_op = counting(s)
    events: list[Any] = []

    class Peek(s.train.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            events.append(int(run_context.session.run(step)))

    with s.train.MonitoredSession(hooks=[recorder(s, events, "a"), Peek()]) as sess:
        sess.run(train_op)
    return {"events": events}


@scenario("lifecycle.run.hook_may_train_in_the_raw_session")
def _(s: System) -> Record:
    """An update that a hook makes in `before_run` is seen by the run."""
    step, train_op = counting(s)

    class Jump(s.train.SessionRunHook):
        def before_run(self, run_context: Any) -> None:
            run_context.session.run(train_op)

    with s.train.MonitoredSession(hooks=[Jump()]) as sess:
        return {"steps": [int(sess.run(step)) for _ in range(3)]}


@scenario("lifecycle.stop.request_in_after_run")
def _(s: System) -> Record:
    """A requested stop is seen after that run; every hook gets its `after_run`."""
    _, train_op = counting(s)
    events: list[Any] = []
    hooks = [recorder(s, events, "a", stops_at_run=2), recorder(s, events, "b")]
    with s.train.MonitoredSession(hooks=hooks) as sess:
        runs = train(sess, train_op)
    return {"runs": runs, "events": events}


@scenario("lifecycle.stop.request_in_before_run")
def _(s: System) -> Record:
    """A stop requested in `before_run` lets that run happen."""
    _step, train_op = counting(s)

    class Stop(s.train.SessionRunHook):
        def before_run(self, run_context: Any) -> None:
            run_context.request_stop()
            assert run_context.stop_requested

    with s.train.MonitoredSession(hooks=[Stop()]) as sess:
        runs = train(sess, train_op)
    return {"runs": runs}


@scenario("lifecycle.stop.run_after_a_hooks_stop")
def _(s: System) -> Record:
    """A run after a hook's stop is an error, and `end` is not called."""
    _, train_op = counting(s)
    events: list[Any] = []

    def play() -> None:
        with s.train.MonitoredSession(hooks=[recorder(s, events, "a", stops_at_run=1)]) as sess:
            sess.run(train_op)
            sess.run(train_op)

    return {"error": said(play), "events": events}


@scenario("lifecycle.stop.run_after_a_stop_of_the_coordinator")
def _(s: System) -> Record:
    """After a stop of the coordinator alone a run still works."""
    step, train_op = counting(s)
    coords: list[Any] = []

    class Keep(s.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            coords.append(coord)

    with s.train.MonitoredSession(hooks=[Keep()]) as sess:
        coords[0].request_stop()
        stops = sess.should_stop()
        sess.run(train_op)
        return {"stops": stops, "step": int(sess.run(step))}


@scenario("lifecycle.end_of_input.from_the_graph")
def _(s: System) -> Record:
    """The end of the input leaves the block quietly; `after_run` is not called for it, `end` is."""
    batches = iter([1.0, 2.0])
    x = s.host(lambda: next(batches))
    events: list[Any] = []
    values = []
    with s.train.MonitoredSession(hooks=[recorder(s, events)]) as sess:
        while not sess.should_stop():
            values.append(float(sess.run(x)))
    return {"events": events, "values": values}


@scenario("lifecycle.end_of_input.without_a_block")
def _(s: System) -> Record:
    """Without a block the end of the input reaches the caller; closing calls `end`."""
    x = s.host(lambda: next(iter([])))
    events: list[Any] = []
    sess = s.train.MonitoredSession(hooks=[recorder(s, events)])
    error = raised(sess.run, x)
    stops = sess.should_stop()
    sess.close()
    return {"error": error, "stops": stops, "events": events}


@scenario("lifecycle.end_of_input.stop_iteration_in_the_body")
def _(s: System) -> Record:
    """`StopIteration` from the body leaves the block quietly."""
    _, train_op = counting(s)
    events: list[Any] = []
    with s.train.MonitoredSession(hooks=[recorder(s, events)]) as sess:
        sess.run(train_op)
        raise StopIteration
    return {"events": events}


@scenario("lifecycle.close.twice")
def _(s: System) -> Record:
    """A second `close` is an error."""
    _, train_op = counting(s)
    events: list[Any] = []
    sess = s.train.MonitoredSession(hooks=[recorder(s, events)])
    sess.run(train_op)
    sess.close()
    return {"error": said(sess.close), "ends": events.count("hook.end"), "stops": sess.should_stop()}


@scenario("lifecycle.close.then_run")
def _(s: System) -> Record:
    """A run after `close` is a `RuntimeError`."""
    _, train_op = counting(s)
    sess = s.train.MonitoredSession()
    sess.close()
    return {"error": said(sess.run, train_op)}


@scenario("lifecycle.close.inside_the_block")
def _(s: System) -> Record:
    """Leaving the block of a session that was closed inside is no error."""
    _, train_op = counting(s)
    events: list[Any] = []

    def play() -> None:
        with s.train.MonitoredSession(hooks=[recorder(s, events)]) as sess:
            sess.run(train_op)
            sess.close()

    return {"error": said(play), "events": events}


@scenario("lifecycle.close.two_sessions_one_after_the_other")
def _(s: System) -> Record:
    """A graph and its hooks may serve a second session; without a checkpoint it starts over."""
    step, train_op = counting(s)
    events: list[Any] = []
    hook = recorder(s, events)
    steps = []
    for _ in range(2):
        with s.train.MonitoredSession(hooks=[hook]) as sess:
            sess.run(train_op)
            steps.append(int(sess.run(step)))
    return {"steps": steps, "events": events}


@scenario("lifecycle.close.threads_are_joined")
def _(s: System) -> Record:
    """Closing stops the coordinator and waits for the threads that a hook has registered."""
    _, train_op = counting(s)
    ended: list[bool] = []

    class Background(s.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            thread = threading.Thread(target=lambda: ended.append(coord.wait_for_stop(10)))
            coord.register_thread(thread)
            thread.start()

    with s.train.MonitoredSession(hooks=[Background()]) as sess:
        sess.run(train_op)
        before = list(ended)
    return {"before": before, "after": ended}


@scenario("lifecycle.end.runs_the_session")
def _(s: System) -> Record:
    """`end` is given the raw session, and may run it."""
    step, train_op = counting(s)
    seen: list[int] = []

    class Final(s.train.SessionRunHook):
        def end(self, session: Any) -> None:
            seen.append(int(session.run(step)))

    with s.train.MonitoredSession(hooks=[Final()]) as sess:
        sess.run(train_op)
        sess.run(train_op)
    return {"seen": seen}


@scenario("lifecycle.singular.raw_session")
def _(s: System) -> Record:
    """A singular session gives the session inside, whose runs call no hooks."""
    step, train_op = counting(s)
    events: list[Any] = []
    with s.train.SingularMonitoredSession(hooks=[recorder(s, events)]) as sess:
        sess.raw_session().run(train_op)
        value = int(sess.run(step))
    return {"value": value, "events": events}


@scenario("lifecycle.hooks.not_a_hook")
def _(s: System) -> Record:
    """Something that is no hook is refused."""
    counting(s)
    return {"refused": raised(s.train.MonitoredSession, hooks=["nothing"]) is not None}


@scenario("lifecycle.hooks.none_at_all")
def _(s: System) -> Record:
    """A session needs neither hooks nor a global step."""
    x = s.constant(4.0)
    with s.train.MonitoredSession() as sess:
        return {"x": sess.run(x), "stops": sess.should_stop()}


@scenario("lifecycle.context.out_of_range_from_a_hook")
def _(s: System) -> Record:
    """The end of the input in `before_run` leaves the block quietly; the hooks behind it are not called."""
    _, train_op = counting(s)
    events: list[Any] = []
    failing = recorder(s, events, "a", fails={"before": [None, out_of_range(s)]})
    with s.train.MonitoredSession(hooks=[failing, recorder(s, events, "b")]) as sess:
        sess.run(train_op)
        sess.run(train_op)
        events.append("not reached")
    return {"events": events}
