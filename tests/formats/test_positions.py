"""Positions in the data that format 2 of checkpoints holds: they resume exactly, or are refused with a sentence."""

from __future__ import annotations

import json
import logging
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hookline.data.format2 import _sizes  # A property over all sizes.
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import in_step
from tests.formats import training

import hookline as hl
from hookline import errors
from hookline.train import list_variables

HERE = Path(__file__).parent
FOR_ALL = {"w": [0.6358816027641296, -1.400012493133545, 2.008239984512329], "seen": 480}


@pytest.fixture
def logdir(tmp_path, request):
    """The run of a kind, unpacked."""
    with tarfile.open(HERE / f"format2-{request.param}.tar.gz") as kept:
        kept.extractall(tmp_path, filter="data")
    return str(tmp_path / request.param)


def resumed(logdir, kind, batch_size=8, last_step=60):
    loop = training.loop_of(kind, batch_size)
    return loop.run(
        logdir, last_step=last_step, hooks=[], progress=False, checkpoints=hl.train.CheckpointOptions(save_steps=10)
    )


def assert_as_uninterrupted(state):
    np.testing.assert_allclose(state["w"], FOR_ALL["w"], rtol=1e-5)
    assert int(state["seen"]) == FOR_ALL["seen"]


@pytest.mark.parametrize(
    ("logdir", "kind", "warns"),
    [
        ("single", "single", True),
        ("single", "double", True),
        ("double", "single", True),
        ("double", "double", True),
        ("in_step", "single", False),
        ("in_step", "double", False),
    ],
    indirect=["logdir"],
)
def test_a_run_resumes_exactly_with_its_batch_size(logdir, kind, warns, caplog):
    with caplog.at_level(logging.WARNING):
        assert_as_uninterrupted(resumed(logdir, kind))
    said = [record.message for record in caplog.records if "as if that was batch_size=8" in record.message]
    assert len(said) == warns
    newest = hl.train.latest_checkpoint(logdir)
    assert "batches/skip" not in [name for name, _ in list_variables(newest)]


@pytest.mark.parametrize("logdir", ["single", "double"], indirect=True)
def test_a_batch_size_that_cannot_have_made_such_a_block_is_refused(logdir):
    with pytest.raises(errors.FailedPreconditionError, match=r"with batch_size=7.*Resume with the batch size of then"):
        resumed(logdir, "single", 7)
    assert_as_uninterrupted(resumed(logdir, "single"))


@pytest.mark.parametrize("logdir", ["in_step"], indirect=True)
def test_a_position_that_is_an_example_continues_there_with_another_batch_size(logdir):
    state = resumed(logdir, "single", 16, last_step=49)  # 12 steps to the end of the epoch, the last one of 8 examples.
    assert int(state["seen"]) == 480


@pytest.mark.parametrize("logdir", ["single"], indirect=True)
def test_one_resume_with_the_batch_size_of_then_is_enough_for_another_one(logdir):
    resumed(logdir, "single", 8, last_step=38)
    state = resumed(logdir, "single", 16, last_step=50)
    assert int(state["seen"]) == 38 * 8 + 11 * 16 + 16
    assert int(state["seen"]) == 496


def test_processes_in_step_resume_what_one_process_has_saved(tmp_path, environment):
    for kind in ("single", "in_step"):
        with tarfile.open(HERE / f"format2-{kind}.tar.gz") as kept:
            kept.extractall(tmp_path, filter="data")
    script = tmp_path / "both.py"
    script.write_text(
        "import json, sys, numpy as np\n"
        "from tests.formats import training\n"
        "for kind in ('single', 'in_step'):\n"
        "    state = training.loop_of(kind).run(f'{sys.argv[1]}/{kind}', last_step=60, progress=False)\n"
        "    print(json.dumps([np.asarray(state['w']).tolist(), int(state['seen'])]))\n"
    )
    env = environment()
    cached = {name: value for name, value in env.items() if name.startswith("JAX_")}
    ended = in_step.run(script, tmp_path, environment=cached, timeout_secs=120)
    assert [process.status for process in ended] == [0, 0], ended[0].err + ended[1].err
    for process in ended:
        for line in process.out.splitlines():
            w, seen = json.loads(line)
            assert_as_uninterrupted({"w": w, "seen": seen})


# Batch sizes that a position shows ------------------------------------------------------------------------------------


def at(epoch, example, before, skip, examples=240):
    state = {"epoch": epoch, "example": example, "of": {"examples": examples, "shuffle_seed": None}}
    return {"count": before + skip, "skip": skip, "state": {"json": json.dumps(state)}}


def first_batch(position, batch_size, examples=240):
    with hl.Graph().as_default():
        node = hl.data.iterator(hl.data.arrays(np.arange(examples), batch_size, epochs=None), prefetch=0).op
        reader = node.open_for(node, False)
        reader.go_to(position)
        reader.wait()
        reader.check()
        return reader.take().value.tolist()


@pytest.mark.parametrize("batch_size", [8, 16, 7])
@pytest.mark.parametrize(("epoch", "example", "before"), [(0, 24, 3), (1, 24, 33), (5, 8, 151)])
def test_the_batches_before_a_block_show_the_batch_size_of_then(epoch, example, before, batch_size, caplog):
    with caplog.at_level(logging.WARNING):
        found = first_batch(at(epoch, example, before, skip=4), batch_size)
    assert found == list(range(example + 32, example + 32 + batch_size))
    assert not caplog.records


@pytest.mark.parametrize(
    ("epoch", "before", "batch_size", "warns"), [(1, 30, 8, False), (1, 1, 240, False), (2, 6, 80, True)]
)
def test_at_the_beginning_of_an_epoch_a_size_is_assumed_unless_it_is_the_only_one(
    epoch, before, batch_size, warns, caplog
):
    with caplog.at_level(logging.WARNING):
        assert first_batch(at(epoch, 0, before, skip=2), batch_size)[0] == 2 * batch_size % 240
    assert ("as if that was" in caplog.text) == warns


@pytest.mark.parametrize("batch_size", [16, 7, 9])
def test_a_size_that_contradicts_the_batches_before_is_refused(batch_size):
    with pytest.raises(errors.FailedPreconditionError, match="they were of another size"):
        first_batch(at(2, 0, 6, skip=2), batch_size)


@settings(max_examples=50)
@given(n=st.integers(1, 40), size=st.integers(1, 40), before=st.integers(0, 99))
def test_the_sizes_that_a_position_shows_are_those_that_lead_to_it(n, size, before):
    def after(size):
        return hl.data.arrays(np.arange(n), size, epochs=None).after(0, 0, before)

    place = after(size)
    assert sorted(_sizes(n, *place, before)) == [size for size in range(1, n + 1) if after(size) == place]


def test_a_position_that_is_not_moved_is_saved_as_an_example():
    with hl.Graph().as_default():
        node = hl.data.iterator(hl.data.arrays(np.arange(240), 8, epochs=None), prefetch=0).op
        reader = node.open_for(node, False)
        position = at(0, 24, 3, skip=4)
        reader.go_to({**position, "count": np.int64(position["count"]), "skip": np.int64(position["skip"])})
        assert json.loads(reader.position().value["state"]["json"])["example"] == 56


def test_a_position_of_other_data_is_refused_as_such():
    with pytest.raises(ValueError, match="other data"):
        first_batch(at(0, 0, 0, skip=2, examples=100), 7)
