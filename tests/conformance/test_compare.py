"""What `make conformance` counts as a difference, and that it can read docs/differences.md."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from conformance.compare import disagreements
from conformance.differences import Difference, differences_of, read_differences
from conformance.plain import plain
from conformance.scenario import all_scenarios, scenario

ID = "stop_at_step.there_already"
LISTED = {f"{ID} runs": Difference(1, 0, "a finished job is finished")}


def wrong(theirs, ours, listed=LISTED):
    return disagreements(ID, {"values": theirs}, {"values": ours}, listed)


def test_equal_records_are_no_difference_with_a_tolerance_for_floats():
    record = {"steps": [1, 2.0, None, "x"], "found": {"a": True}}
    assert wrong(record, {"steps": [1, 2.0000001, None, "x"], "found": {"a": True}}, {}) == []


@pytest.mark.parametrize("other", [{"x": 2}, {"x": [1]}, {"x": "1"}, {"x": None}, {"x": True}, {}, {"x": 1, "y": 2}])
def test_unlisted_difference_is_wrong_and_its_row_is_offered(other):
    (fault,) = wrong({"x": 1}, other, {})
    assert "not listed: | `stop_at_step.there_already` `" in fault


def test_listed_difference_is_right_while_both_systems_give_it():
    assert wrong({"runs": 1, "same": 3}, {"runs": 0, "same": 3}) == []


@pytest.mark.parametrize(
    ("theirs", "ours", "fault"),
    [(1, 1, "but both give 1"), (2, 0, "which gives 2"), (1, 2, "which gives 2"), (0, 0, "but both give 0")],
)
def test_listed_difference_that_is_gone_or_changed_is_wrong(theirs, ours, fault):
    (found,) = wrong({"runs": theirs}, {"runs": ours})
    assert fault in found


def test_failed_scenario_on_either_system_is_wrong():
    values = {"values": {"x": 1}}
    assert disagreements(ID, {"failed": "KeyError: 1"}, values, {}) == ["tensorflow failed: KeyError: 1"]
    assert disagreements(ID, values, {"failed": "TimedOut"}, {}) == ["hookline failed: TimedOut"]


def test_document_lists_existing_scenarios_with_reasons():
    listed = differences_of(["conformance"])
    assert {name.partition(" ")[0] for name in listed} <= {each.id for each in all_scenarios()}
    assert all(difference.reason for difference in listed.values())
    assert not any(difference.tensorflow == difference.hookline for difference in listed.values())


@pytest.mark.parametrize("row", ["| why | 1 | `2` | `a.b` `x` |", "| why | `1` | `2` | `a.b` |"])
def test_unreadable_row_is_an_error(tmp_path, row):
    document = tmp_path / "differences.md"
    document.write_text(f"# Title\n\n{row}\n")
    with pytest.raises(ValueError, match="a row is"):
        read_differences(document)


def test_at_least_120_behaviours_have_a_sentence():
    found = all_scenarios()
    assert len(found) >= 120
    assert all(each.says.endswith(".") for each in found), [each.id for each in found if not each.says.endswith(".")]
    with pytest.raises(ValueError, match="Two scenarios"):
        scenario(found[0].id)(lambda system: {})


def test_values_are_converted_to_json():
    value = {
        "a": (np.float32(1.5), jnp.array([1, 2])),
        "b": b"text",
        "c": {3, 1},
        "d": float("nan"),
        "e": np.bool_(True),
    }
    assert plain(value) == {"a": [1.5, [1, 2]], "b": "text", "c": [1, 3], "d": "nan", "e": True}
    with pytest.raises(TypeError, match="plain values"):
        plain(object())
