"""The global step."""

from __future__ import annotations

from typing import Any

from conformance.parts import counting, raised, recorder, train
from conformance.scenario import Record, scenario
from conformance.system import System


@scenario("global_step.created")
def _(s: System) -> Record:
    """It is an integer scalar that starts at 0, is not trained, and stands in its collection."""
    none = s.train.get_global_step()
    step = s.train.create_global_step()
    with s.Session() as sess:
        sess.run(s.global_variables_initializer())
        value = s.train.global_step(sess, step)
    return {
        "none": none,
        "name": step.op.name,
        "value": value,
        "python_int": isinstance(value, int),
        "collected": s.get_collection(s.GraphKeys.GLOBAL_STEP) == [step],
        "trainable": [variable.op.name for variable in s.trainable_variables()],
        "global": [variable.op.name for variable in s.global_variables()],
    }


@scenario("global_step.dtype")
def _(s: System) -> Record:
    """The dtype of the global step."""
    dtype = s.train.create_global_step().dtype
    return {"dtype": getattr(dtype, "name", None) or str(dtype)}


@scenario("global_step.twice")
def _(s: System) -> Record:
    """A second one is a `ValueError`; `get_or_create` gives the first."""
    step = s.train.create_global_step()
    return {"error": raised(s.train.create_global_step), "same": s.train.get_or_create_global_step() is step}


@scenario("global_step.by_its_name")
def _(s: System) -> Record:
    """A variable called `global_step` is taken for it."""
    s.Variable(3, name="global_step", trainable=False)
    return {"error": raised(s.train.get_global_step)}


@scenario("global_step.in_a_scope")
def _(s: System) -> Record:
    """Its name takes no scope."""
    with s.name_scope("train"):
        step = s.train.get_or_create_global_step()
    return {"name": step.op.name}


@scenario("global_step.checked")
def _(s: System) -> Record:
    """A float, an array or a tensor that is no variable is refused."""
    check = s.train.assert_global_step
    return {
        "float": raised(check, s.Variable(1.0, name="a")),
        "array": raised(check, s.Variable([1, 2], name="b")),
        "integer": raised(check, s.Variable(1, name="c")),
    }


@scenario("global_step.of_another_graph")
def _(s: System) -> Record:
    """Each graph has its own."""
    step = s.train.create_global_step()
    graph = s.Graph()
    other = s.train.get_or_create_global_step(graph)
    return {"same": other is step, "its_graph": other.graph is graph, "none": s.train.get_global_step(s.Graph())}


@scenario("global_step.two_in_the_collection")
def _(s: System) -> Record:
    """Two in the collection: whether that is noticed."""
    for name in "ab":
        variable = s.Variable(0, name=name, trainable=False)
        s.add_to_collection(s.GraphKeys.GLOBAL_STEP, variable)
    return {"error": raised(s.train.get_global_step)}


@scenario("global_step.set_by_hand")
def _(s: System) -> Record:
    """A step that a raw run has set is seen by every hook from the next run on."""
    step, train_op = counting(s)
    jump = step.assign(100)
    seen: list[int] = []

    class Look(s.train.SessionRunHook):
        def before_run(self, run_context: Any) -> None:
            seen.append(s.train.global_step(run_context.session, step))
            if len(seen) == 2:
                run_context.session.run(jump)

    with s.train.MonitoredSession(hooks=[Look()]) as sess:
        for _ in range(4):
            sess.run(train_op)
    return {"seen": seen}


@scenario("global_step.moved_back")
def _(s: System) -> Record:
    """A step that was set back is counted on from there; a stop at a later step comes later."""
    step, train_op = counting(s)
    back = step.assign(0)
    hook = recorder(s, [], stops_at_run=50)

    class Back(s.train.SessionRunHook):
        def before_run(self, run_context: Any) -> None:
            if s.train.global_step(run_context.session, step) == 3 and not self.done:
                self.done = True
                run_context.session.run(back)

        done = False

    with s.train.MonitoredSession(hooks=[Back(), s.train.StopAtStepHook(last_step=5), hook]) as sess:
        return {"runs": train(sess, train_op)}


@scenario("global_step.of_another_name")
def _(s: System) -> Record:
    """A variable of another name in the collection is the global step, also for hooks."""
    step = s.Variable(10, name="iterations", trainable=False, collections=["variables", "global_step"])
    train_op = s.group(s.counted(step, 1))
    with s.train.MonitoredSession(hooks=[s.train.StopAtStepHook(last_step=13)]) as sess:
        return {"runs": train(sess, train_op)}
