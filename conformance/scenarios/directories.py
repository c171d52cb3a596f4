"""What is asked of a directory of checkpoints."""

from __future__ import annotations

import itertools
import os
import shutil

from conformance.parts import basenames, counting, initialised, raised
from conformance.scenario import Record, scenario
from conformance.system import System


@scenario("saver.two_savers_in_one_directory")
def _(s: System) -> Record:
    """Two savers that take turns in a directory: the latest checkpoint is always the one saved last."""
    counting(s)
    one, other = s.train.Saver(max_to_keep=2), s.train.Saver(max_to_keep=2)
    latest = []
    with initialised(s) as sess:
        for number, (saver, name) in enumerate([(one, "a"), (other, "b"), (one, "a"), (one, "a"), (other, "b")]):
            saver.save(sess, f"{s.folder}/{name}", global_step=number)
            latest.append(os.path.basename(s.train.latest_checkpoint(s.folder)))
    return {"latest": latest, "one": basenames(one.last_checkpoints), "other": basenames(other.last_checkpoints)}


@scenario("saver.recover_last_checkpoints")
def _(s: System) -> Record:
    """A new saver that is told of older checkpoints removes them in their turn."""
    counting(s)
    with initialised(s) as sess:
        old = s.train.Saver()
        paths = [old.save(sess, f"{s.folder}/model", global_step=number) for number in range(2)]
        new = s.train.Saver(max_to_keep=2)
        new.recover_last_checkpoints([*paths, f"{s.folder}/model-99"])
        known = basenames(new.last_checkpoints)
        paths.append(new.save(sess, f"{s.folder}/model", global_step=2))
    return {"known": known, "exist": [s.train.checkpoint_exists(path) for path in paths]}


@scenario("saver.state")
def _(s: System) -> Record:
    """The state of a directory names the newest and all."""
    counting(s)
    saver = s.train.Saver()
    before = s.train.get_checkpoint_state(s.folder)
    with initialised(s) as sess:
        for number in range(2):
            saver.save(sess, f"{s.folder}/model", global_step=number)
    state = s.train.get_checkpoint_state(s.folder)
    return {
        "before": before is None and s.train.latest_checkpoint(s.folder) is None,
        "newest": os.path.basename(state.model_checkpoint_path),
        "all": basenames(state.all_model_checkpoint_paths),
        "absolute": os.path.isabs(state.model_checkpoint_path),
    }


@scenario("saver.moved_directory")
def _(s: System) -> Record:
    """A directory that was moved still knows its checkpoints."""
    counting(s)
    saver = s.train.Saver()
    os.mkdir(f"{s.folder}/old")
    with initialised(s) as sess:
        saver.save(sess, f"{s.folder}/old/model", global_step=1)
    os.rename(f"{s.folder}/old", f"{s.folder}/new")
    path = s.train.latest_checkpoint(f"{s.folder}/new")
    return {"found": path and os.path.relpath(path, s.folder)}


@scenario("saver.checkpoint_exists")
def _(s: System) -> Record:
    """Whether there is a checkpoint of that path."""
    counting(s)
    with initialised(s) as sess:
        path = s.train.Saver().save(sess, f"{s.folder}/model", global_step=1)
    return {"there": s.train.checkpoint_exists(path), "not": s.train.checkpoint_exists(f"{s.folder}/model-2")}


@scenario("saver.list_variables")
def _(s: System) -> Record:
    """Names and shapes of all variables, of a checkpoint or of the newest of a directory."""
    s.Variable([[1.0, 2.0]], name="layer/weight")
    s.Variable(1.0, name="bias")
    with initialised(s) as sess:
        path = s.train.Saver().save(sess, f"{s.folder}/model", global_step=1)
    listed = [[name, list(shape)] for name, shape in s.train.list_variables(path)]
    return {"listed": listed, "same": [[n, list(h)] for n, h in s.train.list_variables(s.folder)] == listed}


@scenario("saver.load_variable")
def _(s: System) -> Record:
    """The value of one variable; a name that is not there is an error."""
    s.Variable([[1.0, 2.0]], name="layer/weight")
    with initialised(s) as sess:
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
    with initialised(s) as sess, s.clock():
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
    with initialised(s) as sess:
        s.train.Saver().save(sess, f"{s.folder}/a", global_step=1)
        s.train.Saver().save(sess, f"{s.folder}/b", global_step=2, latest_filename="best")
    return {
        "usual": os.path.basename(s.train.latest_checkpoint(s.folder)),
        "best": os.path.basename(s.train.latest_checkpoint(s.folder, latest_filename="best")),
    }


@scenario("saver.newest_is_removed_by_hand")
def _(s: System) -> Record:
    """A state that names a checkpoint which is gone."""
    counting(s)
    saver = s.train.Saver()
    with initialised(s) as sess:
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
    with initialised(s) as sess:
        error = raised(saver.save, sess, f"{folder}/model")
    return {"before": before, "error": error}


@scenario("saver.checkpoints_iterator_of_what_was_there")
def _(s: System) -> Record:
    """Only the newest of what is there already is given."""
    counting(s)
    saver = s.train.Saver()
    with initialised(s) as sess, s.clock():
        for number in range(3):
            saver.save(sess, f"{s.folder}/model", global_step=number)
        return {"seen": basenames(s.train.checkpoints_iterator(s.folder, timeout=3))}


@scenario("saver.checkpoints_iterator_interval")
def _(s: System) -> Record:
    """Two checkpoints are given no nearer than the interval."""
    counting(s)
    saver = s.train.Saver()
    times = []
    with initialised(s) as sess, s.clock() as clock:
        saver.save(sess, f"{s.folder}/model", global_step=0)
        found = s.train.checkpoints_iterator(s.folder, min_interval_secs=30, timeout=5)
        for number, _path in enumerate(found, start=1):
            times.append(clock.now())
            if number == 3:
                break
            saver.save(sess, f"{s.folder}/model", global_step=number)
    return {"apart": [after - before >= 30 for before, after in itertools.pairwise(times)]}
