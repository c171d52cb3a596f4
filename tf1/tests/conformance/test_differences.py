"""The page of differences."""

from __future__ import annotations

from conformance.differences import differences_of
from conformance.scenario import all_scenarios

SUITE = "tf1.conformance"


def test_document_lists_existing_scenarios_with_reasons():
    listed, found = differences_of([SUITE]), all_scenarios([SUITE])
    assert listed
    assert {name.partition(" ")[0] for name in listed} <= {each.id for each in found}
    assert not any(difference.tensorflow == difference.hookline for difference in listed.values())
    assert all(each.says.endswith(".") for each in found), [each.id for each in found if not each.says.endswith(".")]
