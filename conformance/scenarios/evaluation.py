"""Evaluations beside a training."""

from __future__ import annotations

from typing import Any

from conformance.parts import counting, recorder
from conformance.scenario import Record, scenario
from conformance.system import System


def _checkpoint(s: System, weight: float = 3.0, step: int = 7) -> str:
    """Returns a checkpoint of a model with a weight at a step."""
    with s.Graph().as_default():
        s.Variable(weight, name="weight")
        set_step = s.train.create_global_step().assign(step)
        saver = s.train.Saver()
        with s.Session() as sess:
            sess.run(s.global_variables_initializer())
            sess.run(set_step)
            return saver.save(sess, f"{s.folder}/model", global_step=step)


@scenario("evaluation.once")
def _(s: System) -> Record:
    """One evaluation restores the checkpoint, runs its operations until a hook stops it, and gives the final values."""
    path = _checkpoint(s)
    weight = s.Variable(0.0, name="weight")
    count = s.Variable(0, name="count", trainable=False, collections=[s.GraphKeys.LOCAL_VARIABLES])
    update = s.group(count.assign_add(1))
    found = s.evaluate_once(
        path, eval_ops=update, final_ops={"weight": weight, "count": count}, hooks=[s.StopAfterNEvalsHook(4)]
    )
    return {"found": found}


@scenario("evaluation.changes_no_global_step")
def _(s: System) -> Record:
    """The global step of an evaluation is the checkpoint's."""
    path = _checkpoint(s)
    s.Variable(0.0, name="weight")
    step = s.train.get_or_create_global_step()
    found = s.evaluate_once(path, eval_ops=s.no_op(), final_ops=step, hooks=[s.StopAfterNEvalsHook(2)])
    return {"step": int(found)}


@scenario("evaluation.hooks")
def _(s: System) -> Record:
    """The hooks of an evaluation get all their callbacks."""
    path = _checkpoint(s)
    s.Variable(0.0, name="weight")
    events: list[Any] = []
    s.evaluate_once(path, eval_ops=s.no_op(), hooks=[s.StopAfterNEvalsHook(2), recorder(s, events)])
    return {"events": events}


@scenario("evaluation.without_operations")
def _(s: System) -> Record:
    """Without operations only the final values are computed."""
    path = _checkpoint(s)
    weight = s.Variable(0.0, name="weight")
    return {"found": s.evaluate_once(path, final_ops=weight * 2.0)}


@scenario("evaluation.until_the_end_of_the_input")
def _(s: System) -> Record:
    """The end of the input ends an evaluation."""
    path = _checkpoint(s)
    weight = s.Variable(0.0, name="weight")
    batches = iter([1.0, 2.0, 3.0])
    seen: list[float] = []

    def read() -> float:
        seen.append(next(batches))
        return seen[-1]

    found = s.evaluate_once(path, eval_ops=s.group(s.host(read)), final_ops=weight)
    return {"found": found, "seen": seen}


@scenario("evaluation.eval_step")
def _(s: System) -> Record:
    """The step of evaluations is a local variable of its own, made once."""
    step = s.get_or_create_eval_step()
    return {
        "same": s.get_or_create_eval_step() is step,
        "name": step.op.name,
        "collected": s.get_collection(s.GraphKeys.EVAL_STEP) == [step],
        "global": [variable.op.name for variable in s.global_variables()],
    }


@scenario("evaluation.final_values_in_a_session")
def _(s: System) -> Record:
    """An evaluation by hand: a session on a checkpoint, final operations, and no training."""
    _checkpoint(s, weight=4.0, step=9)
    weight = s.Variable(0.0, name="weight")
    step, _ = counting(s)
    hook = s.train.FinalOpsHook([weight, step])
    creator = s.train.ChiefSessionCreator(checkpoint_dir=s.folder)
    with s.train.MonitoredSession(creator, hooks=[hook]) as sess:
        sess.run(weight)
    return {"found": hook.final_ops_values}


@scenario("evaluation.callable")
def _(s: System) -> Record:
    """`make_callable` gives a function of what is fed, in order."""
    x, y = (s.placeholder("float32", [], name=name) for name in "xy")
    total = x + y * 10.0
    with s.Session() as sess:
        call = sess.make_callable(total, [x, y])
        return {"values": [call(1.0, 2.0), call(3.0, 4.0)], "none": sess.make_callable(s.no_op())()}


@scenario("evaluation.stop_starts_over")
def _(s: System) -> Record:
    """A stop after so many evaluations starts over in each evaluation."""
    path = _checkpoint(s)
    s.Variable(0.0, name="weight")
    runs: list[int] = []
    for number in (2, 3):
        events: list[Any] = []
        s.evaluate_once(path, eval_ops=s.no_op(), hooks=[s.StopAfterNEvalsHook(number), recorder(s, events)])
        runs.append(events.count("hook.after"))
    return {"runs": runs}


@scenario("evaluation.feeds")
def _(s: System) -> Record:
    """An evaluation has a feed for its runs, and one for its final operations."""
    path = _checkpoint(s)
    weight = s.Variable(0.0, name="weight")
    x = s.placeholder("float32", [], name="x")
    total = s.Variable(0.0, name="total", trainable=False, collections=[s.GraphKeys.LOCAL_VARIABLES])
    found = s.evaluate_once(
        path,
        eval_ops=s.group(total.assign_add(x)),
        feed_dict={x: 2.0},
        final_ops=total + x * weight,
        final_ops_feed_dict={x: 100.0},
        hooks=[s.StopAfterNEvalsHook(3)],
    )
    return {"found": found}
