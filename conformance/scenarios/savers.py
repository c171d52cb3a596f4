"""Saver."""

from __future__ import annotations

import os

from conformance.parts import basenames, counting, initialised, raised
from conformance.scenario import Record, scenario
from conformance.system import System


@scenario("saver.restores_what_was_saved")
def _(s: System) -> Record:
    """A restored variable has the value that was saved; nothing needs to be initialised before."""
    weight = s.Variable([1.0, 2.0], name="weight")
    double = weight.assign(weight * 2.0)
    saver = s.train.Saver()
    with initialised(s) as sess:
        sess.run(double)
        path = saver.save(sess, f"{s.folder}/model")
    with s.Session() as sess:
        saver.restore(sess, path)
        return {"weight": sess.run(weight), "path": os.path.basename(path)}


@scenario("saver.path_takes_the_step")
def _(s: System) -> Record:
    """The path that `save` returns ends with the step, given as a number or as the variable."""
    step, train_op = counting(s)
    saver = s.train.Saver()
    with initialised(s) as sess:
        sess.run(train_op)
        paths = [saver.save(sess, f"{s.folder}/model", global_step=given) for given in (7, step)]
    return {"paths": basenames(paths)}


@scenario("saver.max_to_keep")
def _(s: System) -> Record:
    """Only so many are kept, the newest ones."""
    counting(s)
    saver = s.train.Saver(max_to_keep=2)
    with initialised(s) as sess:
        paths = [saver.save(sess, f"{s.folder}/model", global_step=number) for number in range(4)]
    return {
        "last": basenames(saver.last_checkpoints),
        "exist": [s.train.checkpoint_exists(path) for path in paths],
        "latest": os.path.basename(s.train.latest_checkpoint(s.folder)),
    }


@scenario("saver.keeps_five_by_default")
def _(s: System) -> Record:
    """By default five are kept."""
    counting(s)
    saver = s.train.Saver()
    with initialised(s) as sess:
        for number in range(7):
            saver.save(sess, f"{s.folder}/model", global_step=number)
    return {"last": basenames(saver.last_checkpoints)}


@scenario("saver.max_to_keep_zero")
def _(s: System) -> Record:
    """With 0 all are kept, and none is remembered."""
    counting(s)
    saver = s.train.Saver(max_to_keep=0)
    with initialised(s) as sess:
        paths = [saver.save(sess, f"{s.folder}/model", global_step=number) for number in range(7)]
    return {
        "exist": [s.train.checkpoint_exists(path) for path in paths],
        "latest": os.path.basename(s.train.latest_checkpoint(s.folder)),
    }


@scenario("saver.a_step_saved_twice")
def _(s: System) -> Record:
    """A checkpoint that is saved again is replaced, and is the newest."""
    weight = s.Variable(1.0, name="weight")
    more = weight.assign_add(1.0)
    saver = s.train.Saver()
    with initialised(s) as sess:
        for number in (1, 2, 1):
            sess.run(more)
            saver.save(sess, f"{s.folder}/model", global_step=number)
    path = s.train.latest_checkpoint(s.folder)
    return {
        "last": basenames(saver.last_checkpoints),
        "latest": os.path.basename(path),
        "weight": float(s.train.load_variable(path, "weight")),
    }


@scenario("saver.some_variables")
def _(s: System) -> Record:
    """A saver of some variables saves no others."""
    kept, _left = s.Variable(1.0, name="kept"), s.Variable(2.0, name="left")
    saver = s.train.Saver([kept])
    with initialised(s) as sess:
        path = saver.save(sess, f"{s.folder}/model")
    return {"names": sorted(name for name, _ in s.train.list_variables(path))}


@scenario("saver.other_names")
def _(s: System) -> Record:
    """A dict saves and restores under other names."""
    weight, other = s.Variable(3.0, name="weight"), s.Variable(0.0, name="other")
    with initialised(s) as sess:
        path = s.train.Saver({"w": weight}).save(sess, f"{s.folder}/model")
        s.train.Saver({"w": other}).restore(sess, path)
        value = float(sess.run(other))
    return {"names": sorted(name for name, _ in s.train.list_variables(path)), "value": value}


@scenario("saver.variable_that_is_not_in_it")
def _(s: System) -> Record:
    """To restore a variable that the checkpoint does not hold is an error."""
    weight = s.Variable(3.0, name="weight")
    with initialised(s) as sess:
        path = s.train.Saver([weight]).save(sess, f"{s.folder}/model")
    with s.Graph().as_default():
        s.Variable(0.0, name="another")
        saver = s.train.Saver()
        with s.Session() as sess:
            return {"error": raised(saver.restore, sess, path)}


@scenario("saver.other_shape")
def _(s: System) -> Record:
    """To restore into another shape is an error."""
    weight = s.Variable([1.0, 2.0], name="weight")
    with initialised(s) as sess:
        path = s.train.Saver([weight]).save(sess, f"{s.folder}/model")
    with s.Graph().as_default():
        s.Variable([1.0, 2.0, 3.0], name="weight")
        saver = s.train.Saver()
        with s.Session() as sess:
            return {"error": raised(saver.restore, sess, path)}


@scenario("saver.nothing_there")
def _(s: System) -> Record:
    """To restore what is not there is a `ValueError`; so is to save without variables."""
    counting(s)
    saver = s.train.Saver()
    with s.Session() as sess:
        error = raised(saver.restore, sess, f"{s.folder}/nothing")
    with s.Graph().as_default():
        s.constant(1.0)
        return {"restore": error, "no_variables": raised(s.train.Saver)}


@scenario("saver.uninitialized")
def _(s: System) -> Record:
    """To save what was never initialised is a failed precondition."""
    s.Variable(1.0, name="weight")
    saver = s.train.Saver()
    with s.Session() as sess:
        return {"error": raised(saver.save, sess, f"{s.folder}/model")}


@scenario("saver.local_variables_are_not_saved")
def _(s: System) -> Record:
    """Local variables are not saved; those that are not trained are."""
    s.Variable(1.0, name="weight")
    s.Variable(1.0, name="mean", trainable=False)
    s.Variable(1.0, name="mine", collections=[s.GraphKeys.LOCAL_VARIABLES])
    saver = s.train.Saver()
    with initialised(s) as sess:
        sess.run(s.local_variables_initializer())
        path = saver.save(sess, f"{s.folder}/model")
    return {"names": sorted(name for name, _ in s.train.list_variables(path))}


@scenario("saver.integers_and_bools")
def _(s: System) -> Record:
    """Integers and booleans come back as they were."""
    variables = [s.Variable(value, name=f"v{i}") for i, value in enumerate([7, True, [1, 2, 3]])]
    saver = s.train.Saver()
    with initialised(s) as sess:
        path = saver.save(sess, f"{s.folder}/model")
    with s.Session() as sess:
        saver.restore(sess, path)
        return {"values": sess.run(variables)}


@scenario("saver.later_variable")
def _(s: System) -> Record:
    """A variable that is made after its saver."""
    s.Variable(1.0, name="first")
    saver = s.train.Saver()
    s.Variable(2.0, name="second")
    with initialised(s) as sess:
        path = saver.save(sess, f"{s.folder}/model")
    return {"names": sorted(name for name, _ in s.train.list_variables(path))}


@scenario("saver.every_n_hours")
def _(s: System) -> Record:
    """`keep_checkpoint_every_n_hours` keeps one every so many hours for good."""
    counting(s)
    with initialised(s) as sess, s.clock() as clock:
        saver = s.train.Saver(max_to_keep=1, keep_checkpoint_every_n_hours=1)
        paths = []
        for number in range(6):
            clock.advance(1800.0)
            paths.append(saver.save(sess, f"{s.folder}/model", global_step=number))
    return {"exist": [s.train.checkpoint_exists(path) for path in paths]}


@scenario("saver.keep_all")
def _(s: System) -> Record:
    """None for `max_to_keep` keeps all, as 0 does."""
    counting(s)
    saver = s.train.Saver(max_to_keep=None)
    with initialised(s) as sess:
        paths = [saver.save(sess, f"{s.folder}/model", global_step=number) for number in range(6)]
    return {"exist": [s.train.checkpoint_exists(path) for path in paths]}


@scenario("saver.no_path")
def _(s: System) -> Record:
    """No path at all is a `ValueError`."""
    counting(s)
    saver = s.train.Saver()
    with initialised(s) as sess:
        return {"restore": raised(saver.restore, sess, None), "save": raised(saver.save, sess, "")}


@scenario("saver.restores_some")
def _(s: System) -> Record:
    """What a saver does not hold is left as it is."""
    kept, other = s.Variable(1.0, name="kept"), s.Variable(2.0, name="other")
    changes = [kept.assign(10.0), other.assign(20.0)]
    with initialised(s) as sess:
        path = s.train.Saver().save(sess, f"{s.folder}/model")
        sess.run(changes)
        s.train.Saver([kept]).restore(sess, path)
        return {"values": sess.run([kept, other])}


@scenario("saver.steps_of_two_runs")
def _(s: System) -> Record:
    """Steps that are saved again after a restore replace those that were there."""
    step, train_op = counting(s)
    saver = s.train.Saver(max_to_keep=3)
    with initialised(s) as sess:
        for _ in range(3):
            sess.run(train_op)
            saver.save(sess, f"{s.folder}/model", global_step=step)
        saver.restore(sess, f"{s.folder}/model-1")
        sess.run(train_op)
        path = saver.save(sess, f"{s.folder}/model", global_step=step)
        return {"path": os.path.basename(path), "last": basenames(saver.last_checkpoints), "step": int(sess.run(step))}


@scenario("saver.arguments_of_old")
def _(s: System) -> Record:
    """Arguments that only TensorFlow's own format gives a meaning to are taken."""
    s.Variable(2.0, name="weight")
    saver = s.train.Saver(sharded=False, restore_sequentially=True, allow_empty=True, pad_step_number=False)
    with initialised(s) as sess:
        path = saver.save(sess, f"{s.folder}/model", write_meta_graph=False)
    return {"weight": float(s.train.load_variable(path, "weight")), "unknown": raised(s.train.Saver, sharpened=True)}
