"""Saver, and what is asked of a directory of checkpoints."""

from __future__ import annotations

import itertools
import os
import shutil
from typing import Any

from conformance.parts import counting, raised
from conformance.scenario import Record, scenario
from conformance.system import System


def _names(paths: Any) -> list[str]:
    return [os.path.basename(path) for path in paths]


def _session(s: System) -> Any:
    session = s.Session()
    session.run(s.global_variables_initializer())
    return session


@scenario("saver.restores_what_was_saved")
def _(s: System) -> Record:
    """A restored variable has the value that was saved; nothing needs to be initialised before."""
    weight = s.Variable([1.0, 2.0], name="weight")
    double = weight.assign(weight * 2.0)
    saver = s.train.Saver()
    with _session(s) as sess:
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
    with _session(s) as sess:
        sess.run(train_op)
        paths = [saver.save(sess, f"{s.folder}/model", global_step=given) for given in (7, step)]
    return {"paths": _names(paths)}


@scenario("saver.max_to_keep")
def _(s: System) -> Record:
    """Only so many are kept, the newest ones."""
    counting(s)
    saver = s.train.Saver(max_to_keep=2)
    with _session(s) as sess:
        paths = [saver.save(sess, f"{s.folder}/model", global_step=number) for number in range(4)]
    return {
        "last": _names(saver.last_checkpoints),
        "exist": [s.train.checkpoint_exists(path) for path in paths],
        "latest": os.path.basename(s.train.latest_checkpoint(s.folder)),
    }


@scenario("saver.keeps_five_by_default")
def _(s: System) -> Record:
    """By default five are kept."""
    counting(s)
    saver = s.train.Saver()
    with _session(s) as sess:
        for number in range(7):
            saver.save(sess, f"{s.folder}/model", global_step=number)
    return {"last": _names(saver.last_checkpoints)}


@scenario("saver.max_to_keep_zero")
def _(s: System) -> Record:
    """With 0 all are kept, and none is remembered."""
    counting(s)
    saver = s.train.Saver(max_to_keep=0)
    with _session(s) as sess:
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
    with _session(s) as sess:
        for number in (1, 2, 1):
            sess.run(more)
            saver.save(sess, f"{s.folder}/model", global_step=number)
    path = s.train.latest_checkpoint(s.folder)
    return {
        "last": _names(saver.last_checkpoints),
        "latest": os.path.basename(path),
        "weight": float(s.train.load_variable(path, "weight")),
    }


@scenario("saver.two_savers_in_one_directory")
def _(s: System) -> Record:
    """Two savers that take turns in a directory: the latest checkpoint is always the one saved last."""
    counting(s)
    one, other = s.train.Saver(max_to_keep=2), s.train.Saver(max_to_keep=2)
    latest = []
    with _session(s) as sess:
        for number, (saver, name) in enumerate([(one, "a"), (other, "b"), (one, "a"), (one, "a"), (other, "b")]):
            saver.save(sess, f"{s.folder}/{name}", global_step=number)
            latest.append(os.path.basename(s.train.latest_checkpoint(s.folder)))
    return {"latest": latest, "one": _names(one.last_checkpoints), "other": _names(other.last_checkpoints)}


@scenario("saver.some_variables")
def _(s: System) -> Record:
    """A saver of some variables saves no others."""
    kept, _left = s.Variable(1.0, name="kept"), s.Variable(2.0, name="left")
    saver = s.train.Saver([kept])
    with _session(s) as sess:
        path = saver.save(sess, f"{s.folder}/model")
    return {"names": sorted(name for name, _ in s.train.list_variables(path))}


@scenario("saver.other_names")
def _(s: System) -> Record:
    """A dict saves and restores under other names."""
    weight, other = s.Variable(3.0, name="weight"), s.Variable(0.0, name="other")
    with _session(s) as sess:
        path = s.train.Saver({"w": weight}).save(sess, f"{s.folder}/model")
        s.train.Saver({"w": other}).restore(sess, path)
        value = float(sess.run(other))
    return {"names": sorted(name for name, _ in s.train.list_variables(path)), "value": value}


@scenario("saver.variable_that_is_not_in_it")
def _(s: System) -> Record:
    """To restore a variable that the checkpoint does not hold is an error."""
    weight = s.Variable(3.0, name="weight")
    with _session(s) as sess:
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
    with _session(s) as sess:
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
    with _session(s) as sess:
        sess.run(s.local_variables_initializer())
        path = saver.save(sess, f"{s.folder}/model")
    return {"names": sorted(name for name, _ in s.train.list_variables(path))}


@scenario("saver.recover_last_checkpoints")
def _(s: System) -> Record:
    """A new saver that is told of older checkpoints removes them in their turn."""
    counting(s)
    with _session(s) as sess:
        old = s.train.Saver()
        paths = [old.save(sess, f"{s.folder}/model", global_step=number) for number in range(2)]
        new = s.train.Saver(max_to_keep=2)
        new.recover_last_checkpoints([*paths, f"{s.folder}/model-99"])
        known = _names(new.last_checkpoints)
        paths.append(new.save(sess, f"{s.folder}/model", global_step=2))
    return {"known": known, "exist": [s.train.checkpoint_exists(path) for path in paths]}


@scenario("saver.state")
def _(s: System) -> Record:
    """The state of a directory names the newest and all."""
    counting(s)
    saver = s.train.Saver()
    before = s.train.get_checkpoint_state(s.folder)
    with _session(s) as sess:
        for number in range(2):
            saver.save(sess, f"{s.folder}/model", global_step=number)
    state = s.train.get_checkpoint_state(s.folder)
    return {
        "before": before is None and s.train.latest_checkpoint(s.folder) is None,
        "newest": os.path.basename(state.model_checkpoint_path),
        "all": _names(state.all_model_checkpoint_paths),
        "absolute": os.path.isabs(state.model_checkpoint_path),
    }


@scenario("saver.moved_directory")
def _(s: System) -> Record:
    """A directory that was moved still knows its checkpoints."""
    counting(s)
    saver = s.train.Saver()
    os.mkdir(f"{s.folder}/old")
    with _session(s) as sess:
        saver.save(sess, f"{s.folder}/old/model", global_step=1)
    os.rename(f"{s.folder}/old", f"{s.folder}/new")
    path = s.train.latest_checkpoint(f"{s.folder}/new")
    return {"found": path and os.path.relpath(path, s.folder)}


@scenario("saver.checkpoint_exists")
def _(s: System) -> Record:
    """Whether there is a checkpoint of that path."""
    counting(s)
    with _session(s) as sess:
        path = s.train.Saver().save(sess, f"{s.folder}/model", global_step=1)
    return {"there": s.train.checkpoint_exists(path), "not": s.train.checkpoint_exists(f"{s.folder}/model-2")}


@scenario("saver.list_variables")
def _(s: System) -> Record:
    """Names and shapes of all variables, of a checkpoint or of the newest of a directory."""
    s.Variable([[1.0, 2.0]], name="layer/weight")
    s.Variable(1.0, name="bias")
    with _session(s) as sess:
        path = s.train.Saver().save(sess, f"{s.folder}/model", global_step=1)
    listed = [[name, list(shape)] for name, shape in s.train.list_variables(path)]
    return {"listed": listed, "same": [[n, list(h)] for n, h in s.train.list_variables(s.folder)] == listed}


@scenario("saver.load_variable")
def _(s: System) -> Record:
    """The value of one variable; a name that is not there is an error."""
    s.Variable([[1.0, 2.0]], name="layer/weight")
    with _session(s) as sess:
        path = s.train.Saver().save(sess, f"{s.folder}/model", global_step=1)
    return {
        "value": s.train.load_variable(path, "layer/weight"),
        "of_folder": s.train.load_variable(s.folder, "layer/weight"),
        "missing": raised(s.train.load_variable, path, "nothing") is not None,
    }


@scenario("saver.load_variable_of_an_empty_folder")
def _(s: System) -> Record:
    """A folder without a checkpoint."""
    return {
        "load": raised(s.train.load_variable, s.folder, "weight"),
        "list": raised(s.train.list_variables, s.folder),
    }


@scenario("saver.checkpoints_iterator")
def _(s: System) -> Record:
    """Each new checkpoint is given once; after the time-out without one the iterator ends."""
    counting(s)
    saver = s.train.Saver()
    seen = []
    with _session(s) as sess, s.clock():
        saver.save(sess, f"{s.folder}/model", global_step=0)
        for number, path in enumerate(s.train.checkpoints_iterator(s.folder, timeout=5), start=1):
            seen.append(os.path.basename(path))
            if number < 3:
                saver.save(sess, f"{s.folder}/model", global_step=number)
    return {"seen": seen}


@scenario("saver.checkpoints_iterator_timeout_fn")
def _(s: System) -> Record:
    """The function that is asked after a time-out says whether to end."""
    answers = iter([False, True])
    asked: list[bool] = []

    def done() -> bool:
        asked.append(next(answers))
        return asked[-1]

    with s.clock():
        paths = list(s.train.checkpoints_iterator(s.folder, timeout=2, timeout_fn=done))
    return {"paths": paths, "asked": asked}


@scenario("saver.latest_filename")
def _(s: System) -> Record:
    """A state file of another name keeps its own newest."""
    counting(s)
    with _session(s) as sess:
        s.train.Saver().save(sess, f"{s.folder}/a", global_step=1)
        s.train.Saver().save(sess, f"{s.folder}/b", global_step=2, latest_filename="best")
    return {
        "usual": os.path.basename(s.train.latest_checkpoint(s.folder)),
        "best": os.path.basename(s.train.latest_checkpoint(s.folder, latest_filename="best")),
    }


@scenario("saver.integers_and_bools")
def _(s: System) -> Record:
    """Integers and booleans come back as they were."""
    variables = [s.Variable(value, name=f"v{i}") for i, value in enumerate([7, True, [1, 2, 3]])]
    saver = s.train.Saver()
    with _session(s) as sess:
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
    with _session(s) as sess:
        path = saver.save(sess, f"{s.folder}/model")
    return {"names": sorted(name for name, _ in s.train.list_variables(path))}


@scenario("saver.every_n_hours")
def _(s: System) -> Record:
    """`keep_checkpoint_every_n_hours` keeps one every so many hours for good."""
    counting(s)
    with _session(s) as sess, s.clock() as clock:
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
    with _session(s) as sess:
        paths = [saver.save(sess, f"{s.folder}/model", global_step=number) for number in range(6)]
    return {"exist": [s.train.checkpoint_exists(path) for path in paths]}


@scenario("saver.no_path")
def _(s: System) -> Record:
    """No path at all is a `ValueError`."""
    counting(s)
    saver = s.train.Saver()
    with _session(s) as sess:
        return {"restore": raised(saver.restore, sess, None), "save": raised(saver.save, sess, "")}


@scenario("saver.newest_is_removed_by_hand")
def _(s: System) -> Record:
    """A state that names a checkpoint which is gone."""
    counting(s)
    saver = s.train.Saver()
    with _session(s) as sess:
        paths = [saver.save(sess, f"{s.folder}/model", global_step=number) for number in range(2)]
    for name in os.listdir(s.folder):
        if name.startswith("model-1"):
            path = f"{s.folder}/{name}"
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    latest = s.train.latest_checkpoint(s.folder)
    return {
        "exist": [s.train.checkpoint_exists(path) for path in paths],
        "latest": latest and os.path.basename(latest),
    }


@scenario("saver.folder_that_is_not_there")
def _(s: System) -> Record:
    """A folder that is not there has no checkpoint; to save makes it, if its parent is there."""
    counting(s)
    folder = f"{s.folder}/none"
    before = [s.train.latest_checkpoint(folder), s.train.get_checkpoint_state(folder)]
    saver = s.train.Saver()
    with _session(s) as sess:
        error = raised(saver.save, sess, f"{folder}/model")
    return {"before": before, "error": error}


@scenario("saver.restores_some")
def _(s: System) -> Record:
    """What a saver does not hold is left as it is."""
    kept, other = s.Variable(1.0, name="kept"), s.Variable(2.0, name="other")
    changes = [kept.assign(10.0), other.assign(20.0)]
    with _session(s) as sess:
        path = s.train.Saver().save(sess, f"{s.folder}/model")
        sess.run(changes)
        s.train.Saver([kept]).restore(sess, path)
        return {"values": sess.run([kept, other])}


@scenario("saver.steps_of_two_runs")
def _(s: System) -> Record:
    """Steps that are saved again after a restore replace those that were there."""
    step, train_op = counting(s)
    saver = s.train.Saver(max_to_keep=3)
    with _session(s) as sess:
        for _ in range(3):
            sess.run(train_op)
            saver.save(sess, f"{s.folder}/model", global_step=step)
        saver.restore(sess, f"{s.folder}/model-1")
        sess.run(train_op)
        path = saver.save(sess, f"{s.folder}/model", global_step=step)
        return {"path": os.path.basename(path), "last": _names(saver.last_checkpoints), "step": int(sess.run(step))}


@scenario("saver.checkpoints_iterator_of_what_was_there")
def _(s: System) -> Record:
    """Only the newest of what is there already is given."""
    counting(s)
    saver = s.train.Saver()
    with _session(s) as sess, s.clock():
        for number in range(3):
            saver.save(sess, f"{s.folder}/model", global_step=number)
        return {"seen": _names(s.train.checkpoints_iterator(s.folder, timeout=3))}


@scenario("saver.checkpoints_iterator_interval")
def _(s: System) -> Record:
    """Two checkpoints are given no nearer than the interval."""
    counting(s)
    saver = s.train.Saver()
    times = []
    with _session(s) as sess, s.clock() as clock:
        saver.save(sess, f"{s.folder}/model", global_step=0)
        found = s.train.checkpoints_iterator(s.folder, min_interval_secs=30, timeout=5)
        for number, _path in enumerate(found, start=1):
            times.append(clock.now())
            if number == 3:
                break
            saver.save(sess, f"{s.folder}/model", global_step=number)
    return {"apart": [after - before >= 30 for before, after in itertools.pairwise(times)]}
