"""The classes of the hook contract by themselves, and subclasses of the built-in hooks."""

from __future__ import annotations

import threading
from typing import Any

from conformance.parts import aborted, counting, only, raised, recorder, report, scalars, train
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


# Subclasses -----------------------------------------------------------------------------------------------------------


@scenario("subclass.stop_at_step")
def _(s: System) -> Record:
    """A subclass of the stop hook is called on every run, and finds the step before the run."""
    _, train_op = counting(s)
    seen: list[int] = []

    class Watch(s.train.StopAtStepHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append(int(run_values.results))
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


# Again: a second session, a recovery --------------------------------------------------------------------------------


@scenario("again.summary_hook_in_a_second_session")
def _(s: System) -> Record:
    """A summary hook that serves a second session writes its first run and its start again."""
    _, train_op = counting(s)
    hook = s.train.SummarySaverHook(
        save_steps=3, output_dir=s.folder, summary_op=s.summary.scalar("x", s.constant(1.0))
    )
    for _ in range(2):
        with s.train.MonitoredSession(hooks=[hook]) as sess:
            for _ in range(5):
                sess.run(train_op)
    s.summary.FileWriterCache.clear()
    return {"steps": sorted(step for step, _, _ in scalars(s.events(s.folder)))}


def _restored(s: System, hook: Any, saver: Any, train_op: Any, runs: int = 9, fails_at: int = 7) -> None:
    """Trains with a hook, saves each 4 steps, and is preempted once."""
    hooks = [
        s.train.CheckpointSaverHook(f"{s.folder}/saved", save_steps=4, saver=saver),
        hook,
        recorder(s, [], fails={"before": [None] * fails_at + [aborted(s)]}),
    ]
    creator = s.train.ChiefSessionCreator(s.train.Scaffold(saver=saver), checkpoint_dir=f"{s.folder}/saved")
    with s.train.MonitoredSession(creator, hooks=hooks) as sess:
        for _ in range(runs):
            sess.run(train_op)


@scenario("again.summary_hook_after_a_recovery")
def _(s: System) -> Record:
    """After a recovery the summary hook goes on from the step that was restored."""
    _, train_op = counting(s)
    summary, saver = s.summary.scalar("x", s.constant(1.0)), s.train.Saver()
    hook = s.train.SummarySaverHook(save_steps=3, output_dir=s.folder, summary_op=summary)
    _restored(s, hook, saver, train_op)
    s.summary.FileWriterCache.clear()
    return {"steps": [step for step, _, _ in scalars(s.events(s.folder))]}


@scenario("again.step_counter_after_a_recovery")
def _(s: System) -> Record:
    """After a recovery no rate is negative."""
    _, train_op = counting(s)
    saver = s.train.Saver()
    with s.clock() as clock:

        class Second(s.train.SessionRunHook):
            def before_run(self, run_context: Any) -> None:
                clock.advance(1.0)

        counter = s.train.StepCounterHook(every_n_steps=2, output_dir=s.folder)
        hooks = [
            s.train.CheckpointSaverHook(f"{s.folder}/saved", save_steps=4, saver=saver),
            Second(),
            counter,
            recorder(s, [], fails={"before": [None] * 7 + [aborted(s)]}),
        ]
        creator = s.train.ChiefSessionCreator(s.train.Scaffold(saver=saver), checkpoint_dir=f"{s.folder}/saved")
        with s.train.MonitoredSession(creator, hooks=hooks) as sess:
            for _ in range(12):
                sess.run(train_op)
    s.summary.FileWriterCache.clear()
    rates = scalars(s.events(s.folder))
    return {"positive": all(rate > 0 for _, _, rate in rates), "last": rates[-1]}


@scenario("again.stop_at_step_after_a_recovery_without_a_checkpoint")
def _(s: System) -> Record:
    """A recovery that begins anew brings all steps again before the stop."""
    _, train_op = counting(s)
    hooks = [s.train.StopAtStepHook(last_step=5), recorder(s, [], fails={"before": [None] * 3 + [aborted(s)]})]
    with s.train.MonitoredSession(hooks=hooks) as sess:
        return {"runs": train(sess, train_op)}


@scenario("again.waiter_does_not_wait_after_a_recovery")
def _(s: System) -> Record:
    """A waiter that has let its worker begin does not wait again after a recovery."""
    step, train_op = counting(s)

    class Before(s.train.SessionRunHook):
        first = True

        def after_create_session(self, session: Any, coord: Any) -> None:
            for _ in range(3 if self.first else 0):
                session.run(train_op)
            self.first = False

    hooks = [
        Before(),
        s.train.GlobalStepWaiterHook(3),
        recorder(s, [], fails={"before": [None, aborted(s)]}),
    ]
    with s.train.MonitoredSession(hooks=hooks) as sess:
        sess.run(train_op)
        sess.run(train_op)
        return {"step": int(sess.run(step))}


@scenario("again.saver_hook_in_a_second_session")
def _(s: System) -> Record:
    """A saver hook that serves a second session saves its beginning again."""
    _, train_op = counting(s)
    saver = s.train.Saver()
    hook = s.train.CheckpointSaverHook(s.folder, save_steps=100, saver=saver)
    creator = s.train.ChiefSessionCreator(s.train.Scaffold(saver=saver), checkpoint_dir=s.folder)
    for _ in range(2):
        with s.train.MonitoredSession(creator, hooks=[hook]) as sess:
            for _ in range(3):
                sess.run(train_op)
    paths = s.train.get_checkpoint_state(s.folder).all_model_checkpoint_paths
    return {"steps": [int(path.rpartition("-")[2]) for path in paths]}


@scenario("again.final_ops_in_a_second_session")
def _(s: System) -> Record:
    """The final values are those of the last session."""
    step, train_op = counting(s)
    hook = s.train.FinalOpsHook(step)
    found = []
    for runs in (2, 3):
        with s.train.MonitoredSession(hooks=[hook]) as sess:
            for _ in range(runs):
                sess.run(train_op)
        found.append(int(hook.final_ops_values))
    return {"found": found}


@scenario("again.error_of_a_thread_is_of_its_session_alone")
def _(s: System) -> Record:
    """A second session does not see the error that ended the first."""
    _, train_op = counting(s)

    errors = [ValueError("of a thread")]

    class Failing(s.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            if errors:
                report(coord, errors.pop())

    hook = Failing()
    ended = []
    for _ in range(2):

        def play() -> None:
            with s.train.MonitoredSession(hooks=[hook]) as sess:
                sess.run(train_op)

        ended.append(raised(play))
    return {"ended": ended}
