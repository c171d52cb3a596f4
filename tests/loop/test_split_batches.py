"""Batches are sharded by the state's mesh, or as requested; the training equals that on one device."""

from __future__ import annotations

import json

import numpy as np
import pytest

from .devices import run
from .split_batches import CASES

MESH = "(data=4) on cpu:0 to cpu:3"
SPLIT, WHOLE = ["2x4 on 4", "2 on 4"], ["8x4 on 4", "8 on 4"]
# Cases with the same code as others.
ALIKE = {
    "by_default_explicit_of_a_tensor_that_drops",
    "asked_for_of_the_iterator",
    "another_mesh_of_the_same_devices",
    "last_batch_padded_explicit",
    "resumed_generator_of_placed_arrays",
    "resumed_padded",
    "evaluated_explicit_kept",
    "evaluated_on_one_device_kept",
    "evaluated_whole",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory, environment):
    """The results of the cases by name; one process runs those of `make test`, another one the others."""

    class Found(dict):
        def __missing__(self, case):
            directory = str(tmp_path_factory.mktemp("split"))
            names = [name for name in CASES if (name in ALIKE) == (case in ALIKE)]
            done = run(4, ["-m", "tests.loop.split_batches", directory, *names], environment())
            self.update(json.loads(done.stdout))
            return self[case]

    return Found()


def cases(*rows):
    """Leaves to `make test-all` those that are alike."""
    return [pytest.param(*row, marks=pytest.mark.campaign if row[0] in ALIKE else ()) for row in rows]


def assert_same(found, one):
    assert len(found["losses"]) == len(one["losses"])
    for name in ("losses", "w"):
        assert np.allclose(found[name], one[name], rtol=2e-6, atol=2e-6), name


@pytest.mark.parametrize(
    ("case", "places"),
    cases(
        ("by_default_automatic", SPLIT),
        ("by_default_explicit", SPLIT),
        ("by_default_beside_a_state_in_parts", SPLIT),
        ("by_default_two_axes", ["4x4 on 4", "4 on 4"]),
        ("by_default_of_a_tensor", SPLIT),
        ("by_default_explicit_of_a_tensor_that_drops", SPLIT),
        ("without_an_axis_data", WHOLE),
        ("asked_for_with_a_spec", SPLIT),
        ("asked_for_as_a_tree", ["2x4 on 4", "8 on 4"]),
        ("asked_for_whole", WHOLE),
        ("asked_for_of_the_iterator", SPLIT),
        ("asked_for_as_a_device", ["8x4 on 1", "8 on 1"]),
        ("another_mesh_of_the_same_devices", SPLIT),
        ("arrays_of_one_device", SPLIT),
        ("arrays_on_the_mesh_stay", SPLIT),
        ("arrays_on_the_mesh_are_moved_where_it_is_asked_for", SPLIT),
    ),
)
def test_batches_are_sharded_and_the_values_equal_those_of_one_device(case, places, found):
    assert found[case]["places"] == [places] * 6
    assert_same(found[case], found["on_one_device"])


def test_set_mesh_inside_or_outside_gives_the_same_result(found):
    results = found["by_default_in_and_out_of_set_mesh"]
    assert len(results) == 6
    for result in results:
        assert result["places"] == [SPLIT] * 6
        assert_same(result, found["on_one_device"])


def test_step_with_shard_map_gets_batches_of_its_traced_type(found):
    for result in found["by_default_to_a_step_that_is_mapped_over_shards"]:
        assert result["places"] == [SPLIT] * 6
        assert_same(result, found["on_one_device"])


def test_replicated_batches_are_logged(found):
    start = "Loop: each device gets whole batches, because the mesh of the state, (x=4) on cpu:0 to cpu:3, has no axis"
    assert any(line.startswith(start) for line in found["without_an_axis_data"]["log"])
    assert not any("whole" in line for line in found["by_default_automatic"]["log"])


def test_scalar_array_is_replicated_and_none_leaves_the_device_to_jax(found):
    as_tree, as_one = found["scalars_lie_whole_on_each_device"]
    assert as_tree == {"x": "2x4 on 4", "rate": " on 1"}
    assert as_one == {"x": "2x4 on 4", "rate": " on 4"}


def test_arrays_with_the_right_sharding_are_not_copied(found):
    assert found["arrays_that_lie_there_are_not_copied"]


@pytest.mark.parametrize(
    "case", cases(["last_batch_padded"], ["last_batch_padded_explicit"], ["last_batch_padded_by_a_tensor"])
)
def test_padded_last_batch_has_a_mask_and_the_mean_of_real_examples(case, found):
    assert found[case]["places"] == [[*SPLIT, "2 on 4"]] * 6
    assert_same(found[case], found["last_batch_on_one_device"])


def test_dropped_last_batch_is_left_out(found):
    assert found["last_batch_dropped"]["places"] == [SPLIT] * 4
    losses = found["last_batch_on_one_device"]["losses"]
    assert np.allclose(found["last_batch_dropped"]["losses"][:2], losses[:2], rtol=2e-6)


def test_divisible_smaller_last_batch_is_trained(found):
    one, *others = found["last_batch_that_can_be_split"]
    for other in others:
        assert other["places"] == [SPLIT, SPLIT, ["1x4 on 4", "1 on 4"]]
        assert_same(other, one)


@pytest.mark.parametrize("case", cases(["resumed"], ["resumed_generator_of_placed_arrays"], ["resumed_padded"]))
def test_restart_continues_with_the_same_batches_and_sharding(case, found):
    whole, (first, second) = found[case]["whole"], found[case]["parts"]
    assert len(first["sums"]) == len(second["sums"]) == 3
    assert first["sums"] + second["sums"] == whole["sums"]
    assert first["places"] + second["places"] == whole["places"]
    assert second["w"] == whole["w"], "bit for bit"


@pytest.mark.parametrize("kind", ["arrays", "function"])
def test_new_batch_size_with_an_indivisible_last_batch_is_refused(kind, found):
    cases = found["resumed_with_another_batch_size"]
    error, said, steps = cases[f"{kind} keep 8"]
    assert error == "FailedPreconditionError"
    assert "cannot resume at the checkpoint's position: with batch_size=8 the last batch of epoch 0 has 5 exam" in said
    assert "last_batch='pad'" in said
    assert steps == 0
    places, total = cases[f"{kind} pad 8"]
    assert len(places) == 6
    assert total == pytest.approx(cases["sum"], rel=1e-4)
    assert len(cases[f"{kind} drop 8"][0]) == 5
    places, total = cases[f"{kind} keep 12"]
    assert places == [["3x4 on 4", "3 on 4"]] * 3 + [["2x4 on 4", "2 on 4"]]
    assert total == pytest.approx(cases["sum after 4"], rel=1e-4)


@pytest.mark.parametrize(
    ("case", "one", "places"),
    cases(
        ("evaluated_padded", "evaluated_on_one_device", {"(2, 4)"}),
        ("evaluated_padded_explicit", "evaluated_on_one_device", {"(2, 4)"}),
        ("evaluated_whole", "evaluated_on_one_device", {"(8, 4)", "(6, 4)"}),
        ("evaluated_dropped", "evaluated_on_one_device_without_the_last", {"(2, 4)"}),
        ("evaluated_explicit_kept", "evaluated_on_one_device_kept", {"(2, 4)", "(1, 4)"}),
    ),
)
def test_evaluation_shards_its_batches_and_gives_the_same_means(case, one, places, found):
    assert found[case]["loss"] == pytest.approx(found[one]["loss"], rel=2e-6)
    assert set(found[case]["places"]) == places


LAST = "Choose another batch size, or last_batch='drop', or last_batch='pad'"


@pytest.mark.parametrize(
    ("case", "error", "parts"),
    [
        ("first_batch", "ValueError: Iterator 'batches'", ["the first batch has 6 examples", "a multiple of 4", MESH]),
        (
            "last_batch",
            "ValueError: Iterator 'batches'",
            ["the last batch of an epoch has 6 examples", "4 equal", LAST],
        ),
        ("last_batch_of_a_list", "ValueError: Iterator 'batches'", ["batch 3 has 6 examples", "4 equal parts", LAST]),
        ("last_batch_of_a_generator", "InvalidArgumentError: Iterator 'batches'", ["a batch has 6 examples", LAST]),
        ("first_batch_of_a_spec", "ValueError: Iterator 'iterator'", ["the first batch has 6 examples", "4 equal"]),
        ("other_dimension", "ValueError: Iterator", ["the length 3 in dimension 1", "does not split this dimension"]),
        (
            "too_few_dimensions",
            "ValueError: Iterator",
            ["shape (8,) (in batch[1])", "2 dimensions", "a tree of shardings"],
        ),
        ("arrays_on_another_mesh", "ValueError: Iterator 'batches'", ["(x=2) on cpu:0, cpu:1", MESH]),
        (
            "later_arrays_on_another_mesh",
            "InvalidArgumentError: Iterator",
            ["a batch is on the mesh", "(x=2) on cpu:0", MESH],
        ),
        ("arrays_on_another_mesh_without_an_axis_data", "ValueError: Iterator", ["(y=4) on", "(x=2) on cpu:0"]),
        ("iterator_on_another_mesh", "ValueError: Loop requires a state and batches on one mesh", [MESH, "(x=2) on"]),
        ("iterator_on_one_device", "ValueError: Loop requires a state and batches", [MESH, "on one device, cpu:2"]),
        ("other_kind_of_axes", "ValueError: Loop requires", [MESH, "(explicit axes, data=4) on cpu:0 to cpu:3"]),
        ("state_on_two_meshes", "ValueError: Loop: the state is on two meshes", [MESH, "(x=2) on cpu:0, cpu:1"]),
        ("spec_without_a_mesh", "ValueError: Loop requires a state on a mesh", ["batch_sharding", "NamedSharding"]),
        ("spec_with_another_axis", "ValueError: Loop: the batch_sharding P('rows',)", [MESH, "rows"]),
        ("spec_of_an_iterator", "TypeError: Iterator 'iterator", ["P('data',)", "jax.NamedSharding(mesh, P('data',))"]),
        ("mesh", "TypeError: Iterator 'batches' requires shardings or devices", ["Mesh("]),
        ("tree_of_another_structure", "ValueError: Iterator 'batches'", ["in the structure of a batch", "{'x': *}"]),
        ("sharding_and_device", "ValueError: iterator takes sharding or its alias device", ["got both"]),
        ("sharding_twice", "ValueError: Loop takes batch_sharding with a source of batches", ["to its iterator alone"]),
        ("last_batch_of_a_tensor", "ValueError: Loop takes last_batch with a source of batches", ["last_batch='drop'"]),
        ("evaluated_first_batch", "ValueError: Evaluate 'eval'", ["the first batch has 6 examples", "multiple of 4"]),
        ("evaluated_last_batch", "ValueError: Evaluate 'eval'", ["the last batch of an epoch has 6 examples", LAST]),
        ("evaluated_later_batch", "InvalidArgumentError: Evaluate 'eval'", ["a batch has 6 examples", LAST]),
        ("evaluated_on_another_mesh", "ValueError: Evaluate 'eval' requires a state and batches", [MESH, "(x=2) on"]),
    ],
)
def test_impossible_sharding_is_refused_with_the_remedy(case, error, parts, found):
    text = found[f"{case}_refused"]
    assert text.startswith(error)
    assert all(part in text for part in parts), text
