"""Values saved from some devices are restored onto others, directly with their new sharding."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from tests.loop.devices import on_devices

from .layouts import DAMAGED, RESTORED, ROWS, SAVED

# Each layout once, and each kind of change.
QUICK = {
    "one": ("rows4",), "rows4": ("one", "last", "columns4"), "columns4": ("rows8", "columns2"),
    "grid": ("half", "explicit"), "half": ("grid", "whole4"),
}  # fmt: skip
QUICK_ROWS = {("rows4", "whole8"): tuple(ROWS), ("grid", "rows8"): (700,)}


def marked(is_quick, *values):
    return pytest.param(*values, marks=() if is_quick else pytest.mark.campaign)


RESTORES = [marked(to in QUICK[saved], saved, to) for saved in SAVED for to in RESTORED]
FLIPS = [marked(row in QUICK_ROWS.get(case, ()), *case, row) for case in DAMAGED for row in ROWS]


@pytest.fixture(scope="module")
def results(tmp_path_factory, environment, request):
    directory = tmp_path_factory.mktemp("layouts")
    # An interpreter of its own: no import warns, either.
    asked = [
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and "to" in item.fixturenames
    ]
    cases = json.dumps([[each["saved"], each["to"], each.get("row")] for each in asked])
    command = [sys.executable, "-W", "error", "-m", "tests.checkpoint.layouts", str(directory), cases]
    env = environment()
    env |= on_devices(8, env)
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return json.loads((directory / "results.json").read_text())


@pytest.mark.parametrize(("saved", "to"), RESTORES)
def test_restore_gives_the_saved_bits_in_the_graphs_sharding(saved, to, results):
    assert results[f"{saved} {to} None"] == {"contents": results["contents"], "moved": []}


@pytest.mark.parametrize(("saved", "pieces"), [("one", 1), ("half", 2), ("rows4", 4), ("columns4", 4), ("grid", 4)])
def test_manifest_lists_the_pieces_and_devices_of_an_array(saved, pieces, results):
    found = results[saved]["pieces"]["large"]
    assert len(found) == pieces, "what lies on several devices counts once"
    sizes = [[stop - start for start, stop in zip(p["start"], p["stop"], strict=True)] for p in found]
    assert sum(rows * columns for rows, columns in sizes) == 2048 * 768
    assert results[saved]["devices"] == (0 if saved == "one" else 4)


def test_checksum_of_a_piece_covers_its_bytes_in_c_order(results):
    large = np.arange(2048 * 768, dtype=np.float32).reshape(2048, 768)
    for saved in SAVED:
        for piece in results[saved]["pieces"]["large"]:
            part = large[tuple(map(slice, piece["start"], piece["stop"]))]
            assert piece["crc32c"] == google_crc32c.value(part.tobytes())


@pytest.mark.parametrize(("saved", "to", "row"), FLIPS)
def test_a_flipped_bit_in_any_shard_is_found_in_any_layout(saved, to, row, results):
    assert "'state/large' is not the saved value" in results[f"{saved} {to} {row}"]["error"]
