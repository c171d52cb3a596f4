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
    """The results of the cases by name: the result, or the text of the error."""
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
def test_state_keeps_its_sharding_and_trains_like_on_one_device(case, specs, found):
    assert found[case]["specs"] == specs
    assert np.allclose(found[case]["w"], found["one"]["w"], rtol=1e-5, atol=2e-6)
    assert found[case]["programs"] == found["one"]["programs"], "none is compiled again for another layout"


def test_step_that_fixes_a_sharding_reshards_the_state_with_a_log_line(found):
    (line,) = found["step_that_fixes_a_layout"]["moved"]
    assert "state['w'] from P('data',) to P()" in line
    assert found["arrays"]["moved"] == []


def test_sharding_fixed_inside_wrappers_of_the_step_is_found(found):
    assert found["step_that_fixes_a_layout_inside"] == {"checkpoint": WHOLE, "guard": WHOLE, "jit": WHOLE}


def test_constraint_with_an_unconstrained_dimension_fixes_no_sharding(found):
    assert found["step_that_leaves_a_dimension_open"] == FSDP


def test_programs_keep_the_sharding_after_a_reshard(found):
    assert found["programs_that_differ_about_a_layout"] == [[PARTS, *[WHOLE] * 4], 5.0]


def test_abstract_state_is_refused_with_the_remedy(found):
    assert found["abstract"].startswith("TypeError: Loop: the state is abstract")
    assert "Give the function that makes it" in found["abstract"]


def test_callable_module_is_a_state_and_a_function_is_called(found):
    assert found["module_that_can_be_called"]["same"]
    assert found["module_that_can_be_called"]["specs"] == {".weight": "P(None, 'data')", ".bias": WHOLE}


def test_nnx_objects_may_come_from_a_function(found):
    assert found["nnx_objects_of_a_function"] == {"same": True, "kernel": PARTS}


def test_errors_of_jax_are_raised_unchanged_with_a_note(found):
    assert found["step_that_jax_refuses"].startswith("ShardingTypeError: ")
    assert "hookline: while Loop traced refused" in found["step_that_jax_refuses"]
    assert "axis_types=(jax.sharding.AxisType.Auto,)" in found["step_that_jax_refuses"]
    assert found["step_that_raises_on_explicit_axes"].startswith("KeyError: ")
    assert "AxisType" not in found["step_that_raises_on_explicit_axes"]


@pytest.mark.parametrize("case", ["made_inside_and_run_outside", "made_outside_and_run_inside"])
def test_session_may_be_created_inside_a_mesh_and_run_outside(case, found):
    assert found[case] == 1, "a program with the loss that hooks fetch, also for runs in which none does"


def test_threads_have_the_mesh_of_the_session(found):
    assert found["threads_are_in_the_mesh"] == {"source": {"data": 4}, "looper": {"data": 4}}


def test_slots_averages_and_loaded_values_have_their_variables_sharding(found):
    specs = found["graph_of_variables"]["specs"]
    beside = ["net/w", "net/w/ExponentialMovingAverage", "optimizer/net/w'][0].mu", "optimizer/net/w'][0].nu"]
    for path, spec in specs.items():
        assert spec == (PARTS if path.strip("['\"]") in beside else WHOLE), path
    assert found["graph_of_variables"]["programs"] == 2


def test_two_meshes_are_refused_by_name(found):
    assert "'b/initial_value'" in found["two_meshes"]
    assert "the graph it belongs to is on two meshes, (data=4) on cpu:0 to cpu:3" in found["two_meshes"]
    assert "(explicit axes, data=2, model=2) on cpu:0 to cpu:3" in found["two_meshes"]


def test_indivisible_array_is_named(found):
    assert found["leaf_that_does_not_divide"].startswith("ValueError: Loop: the spec P('data',) of 'w'")


@pytest.mark.parametrize("case", ["memory_of_a_function", "memory_of_a_function_in_parts"])
def test_state_made_by_a_function_is_on_the_device_once(case, found):
    assert found[case] == dict.fromkeys(["created", "step", "end", "after"], 32)


def test_given_arrays_are_not_held_during_the_training(found):
    assert found["memory_of_arrays"] == {"created": 64, "step": 32, "end": 32, "after": 32}


def test_save_and_restore_hold_the_state_once(found):
    for seen in found["memory_of_a_checkpoint"]:
        assert max(seen.values()) <= 36


def test_lost_values_are_freed_before_a_recovery_or_rollback_reads_new_ones(found):
    # Each reads its arrays in several parts; when the first is read, nothing is there.
    assert sum(live <= 4 for live in found["memory_before_a_restore"]) == 2
