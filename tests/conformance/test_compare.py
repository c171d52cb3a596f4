"""What `make conformance` calls a difference, and that docs/differences.md can be read by it."""

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


def test_records_that_agree_are_no_difference_floats_up_to_a_tolerance():
    record = {"steps": [1, 2.0, None, "x"], "found": {"a": True}}
    assert wrong(record, {"steps": [1, 2.0000001, None, "x"], "found": {"a": True}}, {}) == []


@pytest.mark.parametrize("other", [{"x": 2}, {"x": [1]}, {"x": "1"}, {"x": None}, {"x": True}, {}, {"x": 1, "y": 2}])
def test_a_difference_that_is_not_listed_is_wrong_and_its_row_is_offered(other):
    (fault,) = wrong({"x": 1}, other, {})
    assert "not listed: | `stop_at_step.there_already` `" in fault


def test_a_listed_difference_is_none_as_long_as_both_give_what_is_listed():
    assert wrong({"runs": 1, "same": 3}, {"runs": 0, "same": 3}) == []


@pytest.mark.parametrize(
    ("theirs", "ours", "fault"),
    [(1, 1, "but both give 1"), (2, 0, "which gives 2"), (1, 2, "which gives 2"), (0, 0, "but both give 0")],
)
def test_a_listed_difference_that_is_none_any_more_or_another_one_is_wrong(theirs, ours, fault):
    (found,) = wrong({"runs": theirs}, {"runs": ours})
    assert fault in found


def test_a_scenario_that_fails_on_either_system_is_wrong():
    values = {"values": {"x": 1}}
    assert disagreements(ID, {"failed": "KeyError: 1"}, values, {}) == ["tensorflow failed: KeyError: 1"]
    assert disagreements(ID, values, {"failed": "TimedOut"}, {}) == ["hookline failed: TimedOut"]


def test_the_document_lists_scenarios_that_there_are_each_with_a_reason():
    listed = differences_of(["conformance"])
    assert {name.partition(" ")[0] for name in listed} <= {each.id for each in all_scenarios()}
    assert all(difference.reason for difference in listed.values())
    assert not any(difference.tensorflow == difference.hookline for difference in listed.values())


@pytest.mark.parametrize("row", ["| `a.b` `x` | 1 | `2` | why |", "| `a.b` | `1` | `2` | why |"])
def test_a_row_that_cannot_be_read_is_an_error(tmp_path, row):
    document = tmp_path / "differences.md"
    document.write_text(f"# Title\n\n{row}\n")
    with pytest.raises(ValueError, match="a row is"):
        read_differences(document)


def test_there_are_at_least_120_behaviours_and_each_says_in_a_sentence_what_it_is():
    found = all_scenarios()
    assert len(found) >= 120
    assert all(each.says.endswith(".") for each in found), [each.id for each in found if not each.says.endswith(".")]
    with pytest.raises(ValueError, match="Two scenarios"):
        scenario(found[0].id)(lambda system: {})


def test_values_become_what_json_can_hold():
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
