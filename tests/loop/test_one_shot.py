"""Plain iterators as batches: the first start that saves warns about a second one."""

from __future__ import annotations

import logging

import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl
from hookline import errors

STEP = {"w": jnp.zeros(())}


def counted(state, batch):
    return {"w": state["w"] + batch.sum()}, {"loss": state["w"]}


def numbers(start=0):
    for number in range(start, 9):
        yield np.full(2, number, np.float32)


def trained(batches, logdir, last_step, **options):
    return float(hl.train.Loop(counted, STEP, batches, **options).run(logdir, last_step, progress=False)["w"])


def warnings(caplog):
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


class Log(hl.train.SessionRunHook):
    """Notes the warnings before the first run."""

    def __init__(self, caplog):
        self.caplog, self.found = caplog, None

    def before_run(self, run_context):
        if self.found is None:
            self.found = warnings(self.caplog)


def test_plain_iterator_gives_a_warning_before_the_first_step(tmp_path, caplog):
    loop, log = hl.train.Loop(counted, STEP, numbers()), Log(caplog)
    loop.run(str(tmp_path), 3, progress=False, hooks=[log])
    loop.run(str(tmp_path), 5, progress=False)
    (message,) = log.found
    assert "Iterator 'batches'" in message
    assert "the generator 'numbers'" in message
    assert "a later start of the training is refused" in message
    for remedy in (
        "a function that makes it",
        "hookline.data.from_arrays",
        "get_state and set_state",
        "resume_data=False",
    ):
        assert remedy in message
    assert warnings(caplog) == [message]


def test_no_warning_is_logged_if_nothing_is_saved(tmp_path, caplog):
    trained(numbers(), None, 3)
    trained(numbers(), str(tmp_path), 3, resume_data=False)
    trained(numbers, str(tmp_path / "other"), 3)
    loop = hl.train.Loop(counted, STEP, numbers())
    loop.run(str(tmp_path / "more"), 3, progress=False, checkpoints=hl.train.CheckpointOptions(save_secs=None))
    (no_checkpoints,) = warnings(caplog)
    assert "saves no checkpoints" in no_checkpoints


def test_second_start_is_refused_with_two_remedies(tmp_path):
    trained(numbers(), str(tmp_path), 3)
    with pytest.raises(errors.FailedPreconditionError, match=r"lambda: batches\(\).*resume_data=False"):
        trained(numbers(), str(tmp_path), 5)
    assert trained(numbers, str(tmp_path), 5) == 2 * sum(range(5))


@pytest.mark.parametrize("source", [numbers, lambda: numbers, lambda: hl.data.from_arrays(np.arange(18.0) // 2, 2)])
@pytest.mark.parametrize("steps_per_run", [1, 4])
def test_without_resume_data_each_start_restarts_the_data(source, steps_per_run, tmp_path):
    for last_step, expected in ((3, 6), (6, 12)):
        found = trained(source(), str(tmp_path), last_step, resume_data=False, steps_per_run=steps_per_run)
        assert found == expected


def test_resume_data_may_be_changed_between_starts(tmp_path, caplog):
    trained(numbers(), str(tmp_path), 3)
    assert trained(numbers(), str(tmp_path), 5, resume_data=False) == 6 + 2
    with caplog.at_level(logging.WARNING):
        assert trained(numbers, str(tmp_path), 7) == 8 + 2
    assert any("holds no position of the iterator 'batches'" in message for message in warnings(caplog))


def test_error_for_an_iterator_names_its_argument(tmp_path, caplog):
    def again():
        with hl.Graph().as_default():
            return trained(hl.data.iterator(numbers()), str(tmp_path), None)

    again()
    (message,) = warnings(caplog)
    assert "the generator 'numbers'" in message
    assert "a later start of the training reads its data from the beginning, with a warning" in message
    assert "resume=False" in message
    caplog.clear()
    again()
    (message,) = warnings(caplog)
    assert "starts from the beginning" in message
    assert "resume=False" in message


def test_source_that_does_not_repeat_is_refused_with_the_loops_remedy(tmp_path):
    trained(numbers, str(tmp_path), 3)
    with pytest.raises(errors.FailedPreconditionError, match="give Loop resume_data=False, to start") as refused:
        trained(lambda: numbers(1), str(tmp_path), 5)
    assert "another name" not in str(refused.value)
    assert trained(lambda: numbers(1), str(tmp_path), 5, resume_data=False) == 6 + 6


def test_resume_data_is_refused_with_a_given_iterator():
    with hl.Graph().as_default(), pytest.raises(ValueError, match=r"iterator\(source, resume=False\)"):
        hl.train.Loop(counted, STEP, hl.data.iterator(numbers()), resume_data=False)
    with pytest.raises(TypeError, match="resume_data"):
        hl.train.Loop(counted, STEP, numbers(), resume_data="no")
