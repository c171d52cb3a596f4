"""Runs that format 2 wrote resume. Their numbered states go to hooks where it is clear whose they are."""

from __future__ import annotations

import logging
import pathlib
import tarfile
from typing import Any

import numpy as np
import pytest
from tests.formats import training

from hookline import train

FOLDER = pathlib.Path(__file__).parent


@pytest.fixture(autouse=True)
def _as_the_script_was_run(monkeypatch):
    monkeypatch.setattr(training.Firings, "__module__", "__main__")


def unpacked(kind: str, folder: pathlib.Path) -> str:
    with tarfile.open(FOLDER / f"format2-{kind}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return str(folder / kind)


def resumed(logdir: str, kind: str, last_step: int, hooks: list[Any]) -> Any:
    return training.loop_of(kind).run(
        logdir, last_step=last_step, hooks=hooks, progress=False, checkpoints=train.CheckpointOptions(save_steps=10)
    )


def doubled() -> list[Any]:
    hooks = training.hooks_of("double")
    hooks[5].state_key = "second"  # Without it, two hooks with a state are refused now.
    return hooks


def unclear(caplog: Any) -> list[logging.LogRecord]:
    return [record for record in caplog.records if "does not show whose" in record.getMessage()]


def test_with_one_hook_of_each_class_it_ends_as_if_it_had_not_been_interrupted(tmp_path, caplog):
    whole, parts = training.hooks_of("single"), training.hooks_of("single")
    expected = resumed(str(tmp_path / "whole"), "single", 60, whole)
    found = resumed(unpacked("single", tmp_path), "single", 60, parts)
    np.testing.assert_array_equal(np.asarray(found["w"]), np.asarray(expected["w"]))
    assert parts[2].steps == [10, 20, 30, 40, 50, 60]
    assert (parts[0].best, parts[0].values) == (whole[0].best, whole[0].values)
    # The interrupted run evaluated its last step as well.
    assert parts[1].get_state() | {"waited": 0} == whole[1].get_state() | {"waited": 0}
    assert not unclear(caplog)


def test_with_two_of_a_class_none_gets_a_state_and_one_warning_names_them(tmp_path, caplog):
    hooks = doubled()
    resumed(unpacked("double", tmp_path), "double", 50, hooks)
    assert [hooks[2].steps, hooks[5].steps] == [[40, 50], [45]]
    assert all(best.step > 37 for hook in (hooks[0], hooks[3]) for best in hook.best.values())
    (warning,) = unclear(caplog)
    assert warning.levelno == logging.WARNING
    for kind in ("__main__.Firings", "hookline.loop.evaluate.Evaluate"):
        assert f"{kind}/0, {kind}/1" in warning.getMessage()
    assert "CheckpointSaverHook" not in warning.getMessage()
    caplog.clear()
    resumed(str(tmp_path / "double"), "double", 60, again := doubled())
    assert [again[2].steps, again[5].steps] == [[40, 50, 60], [45, 60]]
    assert not unclear(caplog)


def test_with_one_of_a_class_where_there_were_two_or_two_where_there_was_one_it_begins_anew(tmp_path, caplog):
    resumed(unpacked("double", tmp_path), "double", 40, [alone := training.Firings()])
    assert alone.steps == [40]
    assert len(unclear(caplog)) == 1
    caplog.clear()
    second = training.Firings()
    second.state_key = "second"
    resumed(unpacked("single", tmp_path), "single", 40, hooks := [training.Firings(), second])
    assert [hook.steps for hook in hooks] == [[40], [40]]
    assert "__main__.Firings/*" in unclear(caplog)[0].getMessage()


def test_a_state_of_a_hook_that_was_alone_stays_until_it_is_taken_up(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    logdir = unpacked("single", tmp_path)
    resumed(logdir, "single", 50, [])
    resumed(logdir, "single", 60, [firings := training.Firings()])
    assert firings.steps == [10, 20, 30, 60]
    assert "The hook Firings takes up its state of step 37; the training is at step 50." in caplog.text


def test_a_run_in_step_goes_on_alone(tmp_path):
    hooks = training.hooks_of("single")
    resumed(unpacked("in_step", tmp_path), "single", 40, hooks)
    assert hooks[2].steps == [10, 20, 30, 40]
