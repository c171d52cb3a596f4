"""A loop that is run again goes on where it was left, with and without a folder."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import hookline as hl

from .steps import X, batches


def noisy_step(state, batch, key):
    x, _ = batch
    moved = state["w"] + x.mean(axis=0) + 0.1 * jax.random.normal(key, (4,))
    return {"w": moved}, {"loss": jnp.sum(moved**2)}


def noisy(data=None, **options):
    data = batches(epochs=None) if data is None else data
    return hl.train.Loop(noisy_step, {"w": jnp.zeros(4)}, data, seed=5, **options)


@pytest.fixture(scope="module")
def whole():
    return np.asarray(noisy().run(last_step=20, progress=False)["w"])


SOURCES = {
    "arrays": batches,
    "a function": lambda: lambda: iter(list(_plain_batches())),
    "an iterator": lambda: iter(list(_plain_batches())),
}


def _plain_batches():
    for start in range(0, 256, 8):
        yield X[start : start + 8], X[start : start + 8, 0]


@pytest.mark.parametrize("kind", SOURCES)
def test_second_run_continues_batches_and_keys_like_one_run(kind):
    whole = noisy(SOURCES[kind]()).run(last_step=20, progress=False)["w"]
    loop = noisy(SOURCES[kind]())
    first = loop.run(last_step=7, progress=False)
    kept = np.array(first["w"])
    assert np.array_equal(loop.run(last_step=20, progress=False)["w"], whole)
    assert np.array_equal(first["w"], kept)  # The result of a run stays valid.


def test_run_at_its_last_step_trains_nothing(whole):
    loop = noisy()
    for _ in range(2):
        assert np.array_equal(loop.run(last_step=20, progress=False)["w"], whole)


def test_run_after_a_failure_continues_from_the_earlier_state(whole):
    class Fails(hl.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            raise ZeroDivisionError

    loop = noisy()
    loop.run(last_step=7, progress=False)
    with pytest.raises(ZeroDivisionError):
        loop.run(last_step=20, progress=False, hooks=[Fails()])
    assert np.array_equal(loop.run(last_step=20, progress=False)["w"], whole)


def test_run_continues_from_memory_or_from_a_folder_with_a_log_line(whole, tmp_path, caplog):
    loop = noisy()
    loop.run(last_step=7, progress=False)
    assert np.array_equal(loop.run(str(tmp_path), 20, progress=False)["w"], whole)
    loop = noisy()
    loop.run(last_step=7, progress=False)
    with caplog.at_level(logging.WARNING, "hookline"):
        assert np.array_equal(loop.run(str(tmp_path), 20, progress=False)["w"], whole)
    assert f"it goes on from the checkpoint in '{tmp_path}', at step 20, and not from step 7" in caplog.text


def test_nnx_objects_continue_with_the_users_changes():
    def step(model, batch):
        model.kernel[...] += 1.0
        return model.kernel.sum()

    model = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    loop = hl.train.Loop(step, model, batches())
    loop.run(last_step=2, progress=False)
    model.kernel[...] = jnp.zeros((1, 1))
    loop.run(last_step=5, progress=False)
    assert model.kernel[0, 0] == 3


def test_smoothed_means_continue_into_other_folders(tmp_path):
    class Look(hl.train.SessionRunHook):
        def __init__(self, loop, step):
            self.trigger, self.fetches = hl.train.at_steps(step), loop.means

        def on_trigger(self, firing):
            found[firing.global_step] = {name: np.asarray(value) for name, value in firing.values.items()}

    found = {}
    loop = noisy(smoothing_steps=10)
    loop.run(None, 12, progress=False, hooks=[Look(loop, 12)])
    wanted, found = found, {}
    loop = noisy(smoothing_steps=10)
    for last, folder in ((5, None), (7, None), (9, str(tmp_path / "a")), (12, str(tmp_path / "b"))):
        loop.run(folder, last, progress=False, hooks=[Look(loop, 12)])
    assert found == wanted


def test_deleted_arrays_are_an_error():
    loop = noisy()
    loop.run(last_step=2, progress=False)["w"].delete()
    with pytest.raises(RuntimeError, match=r"cannot go on from step 2 in memory: arrays .* were deleted or donated"):
        loop.run(last_step=3, progress=False)


def test_run_into_another_directory_removes_no_checkpoint_of_the_first(tmp_path):
    data = hl.data.from_arrays(np.ones(6, np.float32), 1, epochs=None)
    loop = hl.train.Loop(lambda state, batch: (state + batch.sum(), {}), np.float32(0), data)
    saves = hl.train.CheckpointOptions(save_steps=1)
    for name, last_step in ("first", 6), ("second", 12):
        loop.run(str(tmp_path / name), last_step, progress=False, checkpoints=saves)
    found = {
        name: sorted(int(path.name.rpartition("-")[2]) for path in (tmp_path / name).glob("model.ckpt-*"))
        for name in ("first", "second")
    }
    assert found == {"first": [2, 3, 4, 5, 6], "second": [8, 9, 10, 11, 12]}
