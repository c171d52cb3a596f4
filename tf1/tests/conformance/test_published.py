"""Hooks of public repositories fire where TensorFlow fires them: what `make conformance` compares, without TensorFlow.

`published.json` has the records of TensorFlow 2.21; `make conformance` reports where it is out of date.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conformance.compare import disagreements
from conformance.differences import differences_of
from conformance.runner import play
from conformance.scenario import all_scenarios
from tf1.conformance import on_hookline

RECORDED = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
SUITE = "tf1.conformance"
LISTED = differences_of([SUITE])
# Others have the same code.
ALIKE = {"v1.forwarding.same_context", "v1.forwarding.timer.reset", "v1.forwarding.timer.reset_by_the_loop"}
SCENARIOS = [each for each in all_scenarios([SUITE]) if each.id.startswith(("v1.published.", "v1.forwarding."))]


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, id=each.id, marks=pytest.mark.campaign if each.id in ALIKE else ()) for each in SCENARIOS],
)
def test_published_hook_acts_as_on_tensorflow(scenario):
    record = play(scenario, on_hookline.system, on_hookline.LOGGER)

    assert disagreements(scenario.id, {"values": RECORDED[scenario.id]}, record, LISTED) == []


def test_all_recorded_scenarios_are_played():
    assert RECORDED.keys() == {each.id for each in SCENARIOS}
