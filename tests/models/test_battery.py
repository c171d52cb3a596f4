"""Tests of a model of any library: it learns, is saved whole, and resumes from a checkpoint bit for bit."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.parametrize(
    "network",
    ["nnx", *[pytest.param(n, marks=pytest.mark.campaign) for n in ("linen", "equinox", "plain")]],
    indirect=True,
)
def test_training_clearly_lowers_the_loss(network, train, tmp_path):
    losses = train(network, tmp_path, 150)
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])


# Linen and NNX have tests of their own for it.
@pytest.mark.parametrize(
    "network",
    ["equinox", *[pytest.param(n, marks=pytest.mark.campaign) for n in ("plain", "nnx", "linen")]],
    indirect=True,
)
def test_resumed_run_is_bit_for_bit_the_uninterrupted_one(network, train, saved, tmp_path):
    whole = train(network, tmp_path / "whole", 12)
    first = train(network, tmp_path / "parts", 5)
    second = train(network, tmp_path / "parts", 12)

    assert [len(first), len(second)] == [5, 7]
    np.testing.assert_array_equal(first + second, whole)
    uninterrupted, resumed = saved(tmp_path / "whole"), saved(tmp_path / "parts")
    assert uninterrupted.keys() == resumed.keys()
    for name, value in uninterrupted.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)
        assert resumed[name].dtype == value.dtype


def test_only_parameters_are_optimised(network, train, saved, tmp_path):
    train(network, tmp_path, 1)
    names = list(saved(tmp_path))
    parameters = [name for name in names if name.startswith("params/")]
    moments = [name for name in names if name.startswith("optimizer/") and "/mu" in name]
    assert len(parameters) == len(moments) > 0
