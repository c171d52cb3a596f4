"""Sessions that train nothing, save nothing or lose trained values log one line with the remedy."""

from __future__ import annotations

import numpy as np
import pytest

import hookline as hl
from hookline import train


@pytest.fixture
def warnings(caplog):
    return lambda: [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def train_to(folder, last_step, body=lambda session, init: None, **options):
    """Trains, and calls `body` first, with the open session and an initializer."""
    with hl.Graph().as_default():
        hl.Variable(1.0, name="weight").assign_add(1.0)
        train_op = train.get_or_create_global_step().assign_add(1)
        init = hl.global_variables_initializer()
        hooks = [train.StopAtStepHook(last_step=last_step)]
        with train.MonitoredTrainingSession(checkpoint_dir=str(folder), hooks=hooks, **options) as session:
            body(session, init)
            while not session.should_stop():
                session.run(train_op)


def initialise(session, init):
    session.run(init)
    session.raw_session().run(init)


def test_an_initializer_in_a_restored_session_is_logged_once(tmp_path, warnings):
    train_to(tmp_path, 3, initialise)
    assert warnings() == [], "nothing is lost at the first start"
    train_to(tmp_path, 5, initialise)
    (said,) = warnings()
    assert said.startswith(
        f"This run initialises 'global_step', 'weight' again, restored from '{tmp_path}/model.ckpt-3'"
    )
    assert "Leave out the initializer" in said


def test_variables_that_were_not_restored_may_be_initialised(tmp_path, warnings):
    body, head = hl.Variable(1.0, name="body"), hl.Variable(2.0, name="head")
    init, new = hl.global_variables_initializer(), hl.variables_initializer([head])
    saver = train.Saver([body])
    with hl.Session() as sess:
        sess.run(init)
        path = saver.save(sess, str(tmp_path / "body"))
    with hl.Session() as sess:
        saver.restore(sess, path)
        sess.run(new)
        assert warnings() == []
        sess.run(init)
    assert [said.partition(" again")[0] for said in warnings()] == ["This run initialises 'body'"]


BATCHES = [np.ones(2)] * 3


def read_once(folder, source=BATCHES):
    with hl.Graph().as_default():
        batch = hl.data.iterator(source, name="batches")
        with hl.control_dependencies([batch]):
            train_op = train.get_or_create_global_step().assign_add(1)
        with train.MonitoredTrainingSession(checkpoint_dir=folder) as session:
            while not session.should_stop():
                session.run(train_op)


def test_data_that_end_before_the_first_run_are_logged(tmp_path, warnings):
    read_once(str(tmp_path))
    assert warnings() == []
    read_once(str(tmp_path))
    (said,) = warnings()
    assert said.startswith(
        "No step was trained: the data ended before the first step, at global step 3 "
        f"(restored from {tmp_path}/model.ckpt-3)"
    )
    assert said.endswith("(hookline.data.from_arrays(..., epochs=None)); to start over, use another directory.")


def test_exhausted_iterator_is_logged_with_the_remedy(warnings):
    source = iter(BATCHES)
    read_once(None, source)
    assert warnings() == []
    read_once(None, source)
    (said,) = warnings()
    assert "at global step 0 (newly initialised). Give a source that has batches" in said
    assert said.endswith("if it is an iterator that was used up, a function that makes it.")


@pytest.mark.parametrize(
    "given",
    [
        {"save_checkpoint_steps": None},
        {"save_checkpoint_secs": 0},
        {"save_checkpoint_secs": None, "save_checkpoint_steps": 0},
    ],
)
def test_directory_without_checkpoints_is_logged(given, tmp_path, warnings):
    train_to(tmp_path, 1, **given)
    (said,) = warnings()
    assert (
        f"saves no checkpoints in '{tmp_path}', because both cadences are off (one that is given, also as None, "
        in said
    )
    assert "for summaries alone, LoggingOptions(summary_dir=) in place of this directory." in said


def test_saver_of_the_user_is_enough(tmp_path, warnings):
    with hl.Graph().as_default():
        train.get_or_create_global_step()
        own = train.CheckpointSaverHook(str(tmp_path), save_steps=1)
        with train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=[own], save_checkpoint_secs=None):
            pass
    assert warnings() == []
