from __future__ import annotations

from collections import namedtuple

import pytest

from hookline import RunOptions
from hookline.errors import UnavailableError
from hookline.testing import FakeSession


def test_runs_return_the_scripted_results_and_are_recorded():
    error = UnavailableError(None, None, "away")
    session = FakeSession([1, error], values={"loss:0": 0.5})
    assert session.run("train", {"x:0": 3}, RunOptions()) == 1
    with pytest.raises(UnavailableError) as caught:
        session.run("train")
    assert caught.value is error
    assert session.run("loss:0") == 0.5
    assert [asked.fetches for asked in session.requests] == ["train", "train", "loss:0"]
    assert session.requests[0].feed_dict == {"x:0": 3}


def test_values_have_the_structure_of_the_fetches():
    pair = namedtuple("pair", "a b")
    session = FakeSession(values={"loss:0": 0.5})
    fetches = {"list": ["loss:0", "train"], "pair": pair("loss:0", ("loss:0",))}
    assert session.run(fetches) == {"list": [0.5, None], "pair": pair(0.5, (0.5,))}


def test_step_advances_with_successful_runs():
    session = FakeSession([None, ValueError("bad")], global_step=5, step_increment=3)
    assert session.backend.step_delta("train") == 3
    session.run("train")
    with pytest.raises(ValueError, match="bad"):
        session.run("train")
    assert session.global_step == 8
    session.load({"global_step": 2})
    assert session.global_step == 2
    with pytest.raises(RuntimeError, match="no global step"):
        _ = FakeSession(global_step=None).global_step
    assert FakeSession(global_step=None).backend.step_delta("train") is None


def test_close_may_fail_and_ends_the_runs():
    session = FakeSession(closing_raises=ValueError("stuck"))
    with pytest.raises(ValueError, match="stuck"), session:
        pass
    assert session.closed
    with pytest.raises(RuntimeError, match="closed"):
        session.run("train")
