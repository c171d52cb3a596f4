"""States, steps, threads and memory on a mesh of 4 devices; the cases are in `on_mesh`."""

from __future__ import annotations

import json

import numpy as np
import pytest

from .devices import run

WHOLE, PARTS = "P()", "P('data',)"
FSDP = {
    "['n']": WHOLE,
    "['opt_state'][0].count": WHOLE,
    "['opt_state'][0].mu": PARTS,
    "['opt_state'][0].nu": PARTS,
    "['w']": PARTS,
}
REPLICATED = dict.fromkeys(FSDP, WHOLE)


@pytest.fixture(scope="module")
def found(environment):
    """What came of each case, by its name: the result, or the text of the error."""
    return json.loads(run(4, ["-m", "tests.loop.on_mesh"], environment()).stdout)


@pytest.mark.parametrize(
    ("case", "specs"),
    [
        ("arrays", FSDP),
        ("function_with_a_rule", FSDP),
        ("function_with_a_rule_explicit", FSDP),
        ("function_that_places", FSDP),
        ("uncommitted_count", FSDP),
        ("function_inside_a_mesh", REPLICATED),
        ("step_that_fixes_a_layout", REPLICATED),
        ("step_of_a_shard_map", REPLICATED),
    ],
)
def test_a_state_stays_where_it_was_put_and_is_trained_as_on_one_device(case, specs, found):
    assert found[case]["specs"] == specs
    assert np.allclose(found[case]["w"], found["one"]["w"], rtol=1e-5, atol=2e-6)
    assert found[case]["programs"] == found["one"]["programs"], "none is compiled anew for another layout"


def test_a_step_that_fixes_a_layout_has_the_state_moved_there_and_the_log_names_both(found):
    (line,) = found["step_that_fixes_a_layout"]["moved"]
    assert "state['w'] from P('data',) to P()" in line
    assert found["arrays"]["moved"] == []


def test_a_layout_is_seen_through_what_calls_the_step(found):
    assert found["step_that_fixes_a_layout_inside"] == {"checkpoint": WHOLE, "guard": WHOLE, "jit": WHOLE}


def test_a_constraint_that_leaves_a_dimension_open_fixes_no_layout(found):
    assert found["step_that_leaves_a_dimension_open"] == FSDP


def test_after_a_move_each_program_leaves_the_variable_where_it_is(found):
    assert found["programs_that_differ_about_a_layout"] == [[PARTS, *[WHOLE] * 4], 5.0]


def test_an_abstract_state_is_refused_with_what_to_give(found):
    assert found["abstract"].startswith("TypeError: Loop: the state is abstract")
    assert "Give the function that makes it" in found["abstract"]


def test_a_module_that_can_be_called_is_a_state_and_a_function_that_makes_one_is_not(found):
    assert found["module_that_can_be_called"]["same"]
    assert found["module_that_can_be_called"]["specs"] == {".weight": "P(None, 'data')", ".bias": WHOLE}


def test_objects_of_nnx_may_come_from_a_function(found):
    assert found["nnx_objects_of_a_function"] == {"same": True, "kernel": PARTS}


def test_what_jax_refuses_is_refused_in_its_words_with_whose_step_it_is(found):
    assert found["step_that_jax_refuses"].startswith("ShardingTypeError: ")
    assert "hookline: while Loop traced refused" in found["step_that_jax_refuses"]
    assert "axis_types=(jax.sharding.AxisType.Auto,)" in found["step_that_jax_refuses"]
    assert found["step_that_raises_on_explicit_axes"].startswith("KeyError: ")
    assert "AxisType" not in found["step_that_raises_on_explicit_axes"]


@pytest.mark.parametrize("case", ["made_inside_and_run_outside", "made_outside_and_run_inside"])
def test_a_session_may_be_made_inside_of_a_mesh_and_run_outside(case, found):
    assert found[case] == 1, "a program with the loss that hooks fetch, also for runs in which none does"


def test_threads_are_in_the_mesh_of_the_one_that_made_the_session(found):
    assert found["threads_are_in_the_mesh"] == {"source": {"data": 4}, "looper": {"data": 4}}


def test_slots_and_averages_live_beside_their_variables_and_values_that_are_loaded_do(found):
    specs = found["graph_of_variables"]["specs"]
    beside = ["net/w", "net/w/ExponentialMovingAverage", "optimizer/net/w'][0].mu", "optimizer/net/w'][0].nu"]
    for path, spec in specs.items():
        assert spec == (PARTS if path.strip("['\"]") in beside else WHOLE), path
    assert found["graph_of_variables"]["programs"] == 2


def test_two_meshes_are_refused_by_name(found):
    assert "'b/initial_value'" in found["two_meshes"]
    assert "the graph it belongs to is on two meshes, (data=4) on cpu:0 to cpu:3" in found["two_meshes"]
    assert "(explicit axes, data=2, model=2) on cpu:0 to cpu:3" in found["two_meshes"]


def test_an_array_that_does_not_divide_is_named(found):
    assert found["leaf_that_does_not_divide"].startswith("ValueError: Loop: the spec P('data',) of 'w'")


@pytest.mark.parametrize("case", ["memory_of_a_function", "memory_of_a_function_in_parts"])
def test_a_state_that_a_function_makes_is_on_the_device_once(case, found):
    assert found[case] == dict.fromkeys(["created", "step", "end", "after"], 32)


def test_arrays_that_were_given_are_not_held_while_their_state_is_trained(found):
    assert found["memory_of_arrays"] == {"created": 64, "step": 32, "end": 32, "after": 32}


def test_a_save_and_a_restore_hold_the_state_once(found):
    for seen in found["memory_of_a_checkpoint"]:
        assert max(seen.values()) <= 36


def test_what_is_lost_is_freed_before_a_recovery_or_a_rollback_reads_what_takes_its_place(found):
    # Each reads its arrays in several parts; when the first is read, nothing is there.
    assert sum(live <= 4 for live in found["memory_before_a_restore"]) == 2
