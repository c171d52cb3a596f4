"""Each stage of a save is synced before a later one relies on it; and no sync is needless."""

from __future__ import annotations

import os
import pathlib

import pytest

from .job import MANNERS, run
from .order import Recorder, violations

_DIRECTORY = "runs/a"
_WRITING = "model.ckpt.hookline-writing-*"
# Where a save syncs what: each after the rename named. Before a save that is of the lease, or of the last save's state.
_BEFORE_A_SAVE = [".hookline-owner", "checkpoint"]
_IN_CHECKPOINT = [
    "_CHECKPOINT_METADATA",
    "state",
    "state/_METADATA",
    "state/d",
    "state/d/*",
    "state/manifest.ocdbt",
    "state/ocdbt.process_0",
    "state/ocdbt.process_0/d",
    "state/ocdbt.process_0/d/*",
    "state/ocdbt.process_0/manifest.ocdbt",
    "hookline.json.hookline-writing-*",
]
_ALWAYS = [
    "../.. after start",
    ".. after start",
    *(f"{_WRITING}/{name} after rename to {before}" for name in _IN_CHECKPOINT for before in _BEFORE_A_SAVE),
    *(f"{_WRITING} after rename to {before}" for before in _BEFORE_A_SAVE),
    f"{_WRITING} after rename to {_WRITING}/hookline.json",
    ". after rename to model.ckpt",
    "checkpoint.hookline-writing-* after rename to model.ckpt",
    ". after rename to checkpoint",
]
_WITH_REMOVAL = [". after rename to model.ckpt.hookline-removed-*"]
_WITH_REPLACEMENT = [
    ". after rename to model.ckpt.hookline-saving",
    ". after rename to model.ckpt.hookline-replaced-*",
]
_OWN = {"numbered": _WITH_REMOVAL, "replaced": _WITH_REPLACEMENT}
# The one for the new directory's name, which the rename that follows takes away again.
_NEEDLESS = [f". after rename to {_WRITING}/hookline.json"]


def recorded(folder: pathlib.Path, manner: str, without: str | None = None) -> Recorder:
    """Trains for three steps, saves after each, and keeps two of the checkpoints."""
    recorder = Recorder(str(folder), _DIRECTORY, without)
    with recorder.recording():
        run(manner, os.path.join(folder, _DIRECTORY), 3, lambda path, step: recorder.report(path))
    return recorder


@pytest.mark.parametrize("manner", MANNERS)
def test_each_stage_of_a_save_is_synced_before_the_next(manner, tmp_path):
    recorder = recorded(tmp_path, manner)
    assert violations(recorder) == []
    assert sum(event.name == "report" for event in recorder.events) >= 3
    if manner in _OWN:
        assert sorted(recorder.sites) == sorted([*_ALWAYS, *_OWN[manner], *_NEEDLESS])


# One of each kind of thing that is synced: a folder, a file of Orbax, a rename, the state file.
_EACH_TIME = {
    ".. after start",
    f"{_WRITING}/state/d/* after rename to checkpoint",
    ". after rename to model.ckpt",
    "checkpoint.hookline-writing-* after rename to model.ckpt",
}


@pytest.mark.parametrize(
    "site",
    [
        pytest.param(site, marks=() if site in _EACH_TIME else pytest.mark.campaign)
        for site in (*_ALWAYS, *_WITH_REMOVAL)
    ],
)
def test_missing_sync_is_detected(site, tmp_path):
    assert violations(recorded(tmp_path, "numbered", without=site)) != []


@pytest.mark.parametrize("site", [pytest.param(_WITH_REPLACEMENT[0], marks=pytest.mark.campaign), _WITH_REPLACEMENT[1]])
def test_missing_sync_in_a_replacement_is_detected(site, tmp_path):
    assert violations(recorded(tmp_path, "replaced", without=site)) != []
