"""The classes of the hook contract, and what hooks may count on."""

from __future__ import annotations

import threading
from typing import Any

from conformance.parts import aborted, counting, raised, recorder
from conformance.scenario import Record, scenario
from conformance.system import System


@scenario("contract.hook_does_nothing")
def _(s: System) -> Record:
    """The methods of a plain hook do nothing and give None."""
    hook = s.train.SessionRunHook()
    return {
        "begin": hook.begin(),
        "created": hook.after_create_session(None, None),
        "before": hook.before_run(None),
        "after": hook.after_run(None, None),
        "end": hook.end(None),
    }


@scenario("contract.arguments")
def _(s: System) -> Record:
    """The arguments of a run: fetches, feeds and options, the last two None unless given."""
    x = s.constant(1.0)
    one = s.train.SessionRunArgs(x)
    other = s.train.SessionRunArgs([x], {x: 1.0}, s.options())
    return {
        "one": [one.fetches is x, one.feed_dict, one.options],
        "other": [other.fetches == [x], other.feed_dict == {x: 1.0}, other.options is not None],
    }


@scenario("contract.context")
def _(s: System) -> Record:
    """The context of a run: what was asked, the session, and the stop."""
    args = s.train.SessionRunArgs("x")
    context = s.train.SessionRunContext(args, "the session")
    before = context.stop_requested
    context.request_stop()
    return {
        "args": context.original_args is args,
        "session": context.session,
        "stops": [before, context.stop_requested],
    }


@scenario("contract.one_coordinator_for_all")
def _(s: System) -> Record:
    """All hooks get the same coordinator; after a recovery it is another one that has no stop."""
    _, train_op = counting(s)
    coords: list[Any] = []

    class Keep(s.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            coords.append(coord)

    hooks = [Keep(), Keep(), recorder(s, [], fails={"before": [None, aborted(s)]})]
    with s.train.MonitoredSession(hooks=hooks) as sess:
        sess.run(train_op)
        sess.run(train_op)
        stopped = [coord.should_stop() for coord in coords]
    return {
        "same": [coords[0] is coords[1], coords[2] is coords[3]],
        "another": coords[2] is not coords[0],
        "stopped": stopped,
    }


@scenario("contract.thread_stopped_by_a_recovery")
def _(s: System) -> Record:
    """A recovery ends the threads of the session that was lost, and begins new ones."""
    _, train_op = counting(s)
    ended: list[int] = []
    began: list[int] = []

    class Background(s.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            number = len(began)
            began.append(number)
            thread = threading.Thread(target=lambda: coord.wait_for_stop(10) and ended.append(number))
            coord.register_thread(thread)
            thread.start()

    hooks = [Background(), recorder(s, [], fails={"before": [None, aborted(s)]})]
    with s.train.MonitoredSession(hooks=hooks) as sess:
        sess.run(train_op)
        sess.run(train_op)
        between = list(ended)
    return {"between": between, "ended": ended, "began": began}


@scenario("contract.thread_uses_the_session")
def _(s: System) -> Record:
    """A hook's thread may run the session beside the training."""
    _, train_op = counting(s)
    other = s.Variable(0, name="other", trainable=False)
    more = s.group(other.assign_add(1))
    done = threading.Event()

    class Background(s.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            def work() -> None:
                with coord.stop_on_exception():
                    for _ in range(20):
                        session.run(more)
                    done.set()

            thread = threading.Thread(target=work)
            coord.register_thread(thread)
            thread.start()

    with s.train.MonitoredSession(hooks=[Background()]) as sess:
        for _ in range(20):
            sess.run(train_op)
        done.wait(10)
        return {"other": int(sess.run(other)), "step": int(sess.run(s.train.get_global_step()))}


@scenario("contract.same_session_for_callbacks")
def _(s: System) -> Record:
    """`after_create_session`, the run context and `end` give the same raw session, on the graph."""
    _, train_op = counting(s)
    seen: list[Any] = []

    class Keep(s.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            seen.append(session)

        def before_run(self, run_context: Any) -> None:
            seen.append(run_context.session)

        def end(self, session: Any) -> None:
            seen.append(session)

    with s.train.MonitoredSession(hooks=[Keep()]) as sess:
        graph = sess.graph
        sess.run(train_op)
    same = [each is seen[0] for each in seen]
    return {"same": same, "graph": seen[0].graph is graph is s.get_default_graph()}


@scenario("contract.hooks_change_from_run_to_run")
def _(s: System) -> Record:
    """A hook may ask for something else in each run."""
    x, y = s.constant(1), s.constant(2)
    asks = iter([x, None, [x, y], {"y": y}])
    seen: list[Any] = []

    class Changing(s.train.SessionRunHook):
        def before_run(self, run_context: Any) -> Any:
            asked = next(asks)
            return None if asked is None else s.train.SessionRunArgs(asked)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append(run_values.results)

    with s.train.MonitoredSession(hooks=[Changing()]) as sess:
        for _ in range(4):
            sess.run(x)
    return {"seen": seen}


@scenario("contract.fetch_of_something_unknown")
def _(s: System) -> Record:
    """What a hook asks for and cannot be fetched is an error of the run."""
    x = s.constant(1)
    with s.Graph().as_default():
        other = s.constant(2)
    events: list[Any] = []

    def play() -> None:
        with s.train.MonitoredSession(hooks=[recorder(s, events, asks=other)]) as sess:
            sess.run(x)

    return {"refused": raised(play) is not None, "events": events}
