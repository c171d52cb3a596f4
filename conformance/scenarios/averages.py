"""Moving averages."""

from __future__ import annotations

from typing import Any

from conformance.parts import raised
from conformance.scenario import Record, scenario
from conformance.system import System


def _followed(s: System, averages: Any, value: Any, change: Any, steps: int = 3) -> list[Any]:
    """Returns the average of a value after each of some updates."""
    apply = averages.apply([value])
    average = averages.average(value)
    seen = []
    with s.Session() as sess:
        sess.run(s.global_variables_initializer())
        seen.append(sess.run(average))
        for _ in range(steps):
            sess.run(change)
            sess.run(apply)
            seen.append(sess.run(average))
    return seen


@scenario("averages.of_a_variable")
def _(s: System) -> Record:
    """The average of a variable starts at its initial value and follows it."""
    weight = s.Variable(10.0, name="weight")
    averages = s.train.ExponentialMovingAverage(decay=0.9)
    return {"seen": _followed(s, averages, weight, weight.assign_add(1.0))}


@scenario("averages.of_a_tensor")
def _(s: System) -> Record:
    """The average of a tensor starts at 0."""
    weight = s.Variable(10.0, name="weight")
    averages = s.train.ExponentialMovingAverage(decay=0.5)
    return {"seen": _followed(s, averages, weight * 2.0, weight.assign_add(1.0))}


@scenario("averages.zero_debias")
def _(s: System) -> Record:
    """With `zero_debias` the average of a tensor does not start near 0."""
    weight = s.Variable(10.0, name="weight")
    averages = s.train.ExponentialMovingAverage(decay=0.9, zero_debias=True)
    return {"seen": _followed(s, averages, weight * 2.0, weight.assign_add(1.0))}


@scenario("averages.num_updates")
def _(s: System) -> Record:
    """With `num_updates` the first averages follow quickly."""
    weight, count = s.Variable(10.0, name="weight"), s.Variable(0, name="count")
    averages = s.train.ExponentialMovingAverage(decay=0.999, num_updates=count)
    return {"seen": _followed(s, averages, weight, s.group(weight.assign_add(5.0), count.assign_add(1)))}


@scenario("averages.decay_is_a_tensor")
def _(s: System) -> Record:
    """The decay may be a tensor."""
    weight, decay = s.Variable(10.0, name="weight"), s.Variable(0.5, name="decay")
    averages = s.train.ExponentialMovingAverage(decay=decay.read_value())
    return {"seen": _followed(s, averages, weight, s.group(weight.assign_add(5.0), decay.assign(0.75)))}


@scenario("averages.behind_the_training_step")
def _(s: System) -> Record:
    """Behind a training step the averages follow what it has left."""
    weight = s.Variable(0.0, name="weight")
    averages = s.train.ExponentialMovingAverage(decay=0.5)
    with s.control_dependencies([weight.assign_add(4.0)]):
        step = averages.apply([weight])
    with s.Session() as sess:
        sess.run(s.global_variables_initializer())
        seen = []
        for _ in range(3):
            sess.run(step)
            seen.append(sess.run([weight, averages.average(weight)]))
    return {"seen": seen}


@scenario("averages.names")
def _(s: System) -> Record:
    """An average is called after what it follows, before and after `apply`, whatever the scope."""
    with s.name_scope("layer"):
        weight = s.Variable(1.0, name="weight")
        tensor = s.constant(1.0, name="loss")
    averages = s.train.ExponentialMovingAverage(decay=0.5)
    before = [averages.average_name(each) for each in (weight, tensor)]
    none = averages.average(weight)
    with s.name_scope("elsewhere"):
        averages.apply([weight, tensor])
    after = [averages.average_name(each) for each in (weight, tensor)]
    made = [averages.average(each).op.name for each in (weight, tensor)]
    return {"before": before, "after": after, "made": made, "none": none}


@scenario("averages.other_name")
def _(s: System) -> Record:
    """Two kinds of averages may have names of their own."""
    weight = s.Variable(1.0, name="weight")
    names = []
    for name in ("fast", "slow"):
        averages = s.train.ExponentialMovingAverage(decay=0.5, name=name)
        averages.apply([weight])
        names.append(averages.average(weight).op.name)
    return {"names": names}


@scenario("averages.all_trainable_by_default")
def _(s: System) -> Record:
    """Without a list all trainable variables are followed, and no average is trainable."""
    s.Variable(1.0, name="weight")
    s.Variable(1.0, name="fixed", trainable=False)
    averages = s.train.ExponentialMovingAverage(decay=0.5)
    averages.apply()
    return {
        "followed": [variable.op.name for variable in s.get_collection(s.GraphKeys.MOVING_AVERAGE_VARIABLES)],
        "trainable": [variable.op.name for variable in s.trainable_variables()],
        "all": sorted(variable.op.name for variable in s.global_variables()),
    }


@scenario("averages.of_integers")
def _(s: System) -> Record:
    """Integers have no average."""
    count = s.Variable(1, name="count")
    averages = s.train.ExponentialMovingAverage(decay=0.5)
    return {"error": raised(averages.apply, [count])}


@scenario("averages.applied_twice")
def _(s: System) -> Record:
    """A second `apply` of one variable."""
    weight = s.Variable(1.0, name="weight")
    averages = s.train.ExponentialMovingAverage(decay=0.5)
    averages.apply([weight])
    return {"error": raised(averages.apply, [weight])}


@scenario("averages.variables_to_restore")
def _(s: System) -> Record:
    """Every trainable variable by its average's name, every other by its own, with or without `apply`."""
    s.Variable(1.0, name="weight")
    s.Variable(1.0, name="mean", trainable=False)
    averages = s.train.ExponentialMovingAverage(decay=0.5)
    return {"map": {name: variable.op.name for name, variable in averages.variables_to_restore().items()}}


@scenario("averages.restored_into_the_variables")
def _(s: System) -> Record:
    """An evaluation restores the averages into the variables."""
    weight = s.Variable(0.0, name="weight")
    averages = s.train.ExponentialMovingAverage(decay=0.5)
    with s.control_dependencies([weight.assign_add(4.0)]):
        step = averages.apply([weight])
    with s.Session() as sess:
        sess.run(s.global_variables_initializer())
        sess.run(step)
        path = s.train.Saver().save(sess, f"{s.folder}/model")
    with s.Graph().as_default():
        weight = s.Variable(0.0, name="weight")
        saver = s.train.Saver(s.train.ExponentialMovingAverage(decay=0.5).variables_to_restore())
        with s.Session() as sess:
            saver.restore(sess, path)
            return {"weight": sess.run(weight)}
