"""A save needs no memory of the devices; a restore needs little memory of the host beside the restored values."""

from __future__ import annotations

import json

import pytest
from tests.loop.devices import run


def measured(devices, action, path, layout, sizes):
    command = ["-m", "tests.checkpoint.memory", action, str(path), layout, *map(str, sizes)]
    return json.loads(run(devices, command).stdout)


def test_save_of_one_large_leaf_needs_its_size_once(tmp_path):
    save = measured(1, "save", tmp_path / "model.ckpt", "one", (1, 400))
    assert 200 < save["peak"] <= 406 + 64


QUICK = (128, 64)
SIZES = [QUICK, pytest.param((128, 256), marks=pytest.mark.campaign)]


@pytest.mark.campaign
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("saved", "devices"), [pytest.param("one", 1, marks=pytest.mark.campaign), ("rows", 4)])
def test_no_save_or_restore_doubles_a_state(saved, devices, sizes, tmp_path):
    small, largest = sizes
    state, path = 6 * small + largest, tmp_path / "model.ckpt"
    save = measured(devices, "save", path, saved, sizes)
    # Before it, when it has begun, and when it is all but complete; a run may be giving its arrays away just then.
    assert max(save["on_devices"]) == save["on_devices"][0]
    assert save["peak"] <= state + 64  # One copy on the host, with any sharding.
    everywhere = [("columns", 4), ("one", 1), ("rows", 4), ("anywhere", 4)]
    for to, number in everywhere if sizes != QUICK else everywhere[:1]:
        restore = measured(number, "restore", path, to, sizes)
        # A copy would be the whole state; what the allocator keeps for reuse does not grow with it.
        assert restore["peak"] <= state * 3 / 4, to
