"""Data by process, with real SPMD processes: see `spmd_job`, whose scenarios all run in one start of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests import spmd
from tests.data import spmd_job as job
from tests.loop.devices import on_devices

SCRIPT = Path(job.__file__)
# JAX functions that launch a program, or call the other processes.
LAUNCHES = {
    "apply_primitive",
    "backend_compile",
    "cache_miss",
    "_python_pjit_helper",
    "_run_python_pjit",
    "device_put",
    "assert_equal",
    "process_allgather",
    "broadcast_one_to_all",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory, environment):
    """The results of two processes with two devices each, by scenario."""
    folder = tmp_path_factory.mktemp("spmd")
    (folder / "of_one.json").write_text(json.dumps(job.used(job.source(), 5, last_batch="pad")))
    env = environment()
    cached = {name: value for name, value in env.items() if name.startswith("JAX_")}
    ended = spmd.run(SCRIPT, folder, environment=cached | on_devices(2, env), timeout_secs=120)
    assert [process.status for process in ended] == [0, 0], ended[0].err + ended[1].err
    lines = [[line for line in process.out.splitlines() if line.startswith('["')] for process in ended]
    of_each = [dict(map(json.loads, each)) for each in lines]
    assert list(of_each[0]) == list(of_each[1]) == list(job.SCENARIOS)
    return {name: (of_each[0][name], of_each[1][name]) for name in job.SCENARIOS}


@pytest.fixture
def both(found):
    """Returns the result of a scenario, which is the same in both processes."""

    def both(name):
        one, other = found[name]
        assert one == other
        return one

    return both


def batch(*rows):
    return [np.concatenate(rows).tolist()]


def part(process, number, rows=2):
    return np.arange(rows) + 100.0 * process + 10 * number


def of_parts(numbers, rows=2):
    return [*(batch(part(0, number, rows), part(1, number, rows)) for number in numbers), "the end"]


@pytest.mark.parametrize(
    "name",
    [
        "arrays_shuffled_and_padded",
        "arrays_with_the_last_batch_dropped",
        "arrays_with_a_smaller_last_batch",
        "arrays_of_other_dtypes",
    ],
)
def test_batches_of_arrays_equal_those_of_one_process(both, name):
    assert both(name) == job.SCENARIOS[name]()


def test_order_of_devices_in_the_mesh_does_not_change_arrays(both):
    assert both("arrays_over_a_mesh_in_another_order") == job.SCENARIOS["arrays_with_a_smaller_last_batch"]()


def test_each_process_gathers_only_its_own_rows(both):
    one, blocks, gathered, gathered_in_blocks = both("each_process_gathers_its_own_rows")
    assert (gathered, gathered_in_blocks) == (20, 24)  # Of 40 and 48, in two processes.
    expected = job.each_process_gathers_its_own_rows()
    assert [one, blocks] == expected[:2]


def test_steps_per_run_take_the_same_batches_as_in_one_process(both):
    (alone, seen, ones), (together, seen_too, counts) = both("several_steps_a_run")
    (expected, _, _), (_, expected_rows, expected_counts) = job.several_steps_a_run()
    assert alone == together == expected
    assert seen == seen_too == expected_rows
    assert set(ones) == {1}
    assert (sum(counts), counts) == (15, expected_counts)


def test_number_of_batches_does_not_depend_on_the_speed_of_each_process(both):
    (alone, seen, _), (together, seen_too, counts) = both("several_steps_a_run_of_a_source_that_waits")
    assert alone == together
    assert seen == seen_too
    assert counts == [1, 2, 3, 3, 2]  # A hook takes every third step; the first batch is a run of its own.


def test_parts_are_concatenated_in_process_order(both):
    assert both("parts") == of_parts(range(3))


def test_parts_are_put_on_the_devices_of_their_process(both):
    # The mesh begins with the first device of process 1, then comes the first one of process 0.
    (first, *_, end) = both("parts_over_a_mesh_in_another_order")
    assert first == [[100, 101, 0, 1, 102, 103, 2, 3]]
    assert end == "the end"


def test_processes_with_the_same_rows_must_give_equal_parts(both):
    alike, (kind, said, run) = both("parts_with_a_common_axis")
    assert alike == [[[0, 1, 2, 3]], [[1, 2, 3, 4]], "the end"]
    assert (kind, run) == ("InvalidArgumentError", 1)
    assert "processes 0 and 1 have the same part of each batch" in said


def test_parts_may_have_several_arrays(both):
    numbers = [[0, 1, 100, 101], [10, 11, 110, 111]]
    assert both("parts_in_a_tree") == [*([[[n] * 3 for n in row], row] for row in numbers), "the end"]


def test_parts_may_have_random_keys(found):
    (whole, first), (whole_too, second) = found["parts_of_random_keys"]
    assert whole == whole_too
    assert whole == [[first[0] + second[0]], [first[1] + second[1]], "the end"]


def test_each_process_pads_its_own_part(both):
    *_, last, end = both("parts_that_are_padded")
    assert last == [[0, 0, 50, 51], [True, False, True, True]]
    assert end == "the end"


def test_last_batch_that_may_be_dropped_is_not_counted(both):
    of_a_list, of_a_function, of_a_given_length = both("parts_that_are_dropped")
    assert of_a_list == of_a_function == of_a_given_length == of_parts(range(3))


def test_all_end_with_the_process_with_the_fewest_batches_with_a_log_line(found):
    chief, other = found["lengths_that_differ"]
    assert chief[:2] == other[:2] == [4, "the end"]  # Three batches.
    (line,) = chief[2]
    assert "all processes end after 3 batches" in line
    assert "Others have up to 5" in line
    assert other[2] == []


def test_endless_source_has_no_end(both):
    assert both("a_source_that_never_ends") == [[[n, n, 100 + n, 100 + n]] for n in range(4)]


def test_arrays_made_by_a_function_are_a_part(both):
    assert both("a_function_that_makes_arrays") == [
        *([[n, n + 1, 100 + n, 101 + n]] for n in (0, 2, 4)),
        "the end",
    ]


def test_equal_parts_are_accepted_on_request(both):
    assert both("equal_parts_that_may_be_equal") == [[[0, 1, 0, 1]], [[10, 11, 10, 11]], "the end"]


@pytest.mark.parametrize(
    ("case", "kind", "run", "said"),
    [
        (
            "identical",
            "InvalidArgumentError",
            1,
            ["processes 0, 1 gave the same", "jax.process_index()", "check_disjoint="],
        ),
        ("unknown length", "ValueError", 0, ["end at the same run", "num_batches=math.inf"]),
        ("unknown length, with a spec", "InvalidArgumentError", 1, ["end at the same run", "num_batches=math.inf"]),
        ("text", "TypeError", 0, ["hold no text", "['name']"]),
        ("a number alone", "ValueError", 0, ["a scalar (in batch[1])", "one value for each example"]),
        ("a smaller last batch of a list", "ValueError", 0, ["batch 2 has the shape (1,)", "last_batch='pad'"]),
        ("a smaller last batch", "InvalidArgumentError", 2, ["has the shape (1,)", "last_batch='drop'"]),
        ("other arrays", "InvalidArgumentError", 1, ["requires the same arrays", "process 1 and process 0 differ"]),
        (
            "parts as arrays",
            "InvalidArgumentError",
            1,
            ["4 examples", "8 examples", "lambda: hookline.data.from_arrays"],
        ),
        ("another batch size", "InvalidArgumentError", 1, ["batch_size=8", "batch_size=4"]),
        ("a batch that is not split", "ValueError", 0, ["6 examples", "a multiple of 4"]),
        ("a part that is not split", "ValueError", 0, ["3 examples", "of this process", "a multiple of 2"]),
        ("other forms", "InvalidArgumentError", 1, ["float32[2,3]", "float32[2,2]"]),
        ("a whole array", "InvalidArgumentError", 1, ["is in several processes already"]),
        ("one device", "ValueError", 0, ["must cover all"]),
        ("an early end", "FailedPreconditionError", 3, ["ended after 2 batches", "the other processes expect 3"]),
    ],
)
def test_mistakes_are_refused_in_all_processes(found, case, kind, run, said):
    for process in found["what_is_refused"]:
        assert [process[case][0], process[case][2]] == [kind, run]
        for words in said:
            assert words in process[case][1]


def test_error_before_the_first_batch_is_sent_to_the_others(found):
    other, failed = (process["an error in one process"] for process in found["what_is_refused"])
    assert failed == ["OSError", "no such disk", 1]
    assert other[0] == "FailedPreconditionError"
    assert "process 1 could not read its first batch: OSError: no such disk" in other[1]


def test_arrays_continue_exactly_with_another_number_of_processes(both):
    whole = job.arrays_shuffled_and_padded()
    position, of_two, of_one = both("arrays_go_on")
    assert of_two == whole[4:]
    assert of_one == whole[5:]
    assert job.gone_on(job.source(), position, last_batch="pad") == whole[4:]  # One process after two.


def test_arrays_continue_with_another_batch_size_as_in_one_process(both):
    assert both("arrays_go_on_with_another_batch_size") == job.arrays_go_on_with_another_batch_size()


def test_parts_of_arrays_continue_with_another_batch_size_to_their_end(both):
    def beside(*parts):
        return [*([[*part, *(100 + example for example in part)]] for part in parts), "the end"]

    fours, sixes = both("parts_of_arrays_go_on_with_another_batch_size")
    assert fours == beside(range(4, 8), *[range(4), range(4, 8)] * 2)
    assert sixes == beside(*[range(6)] * 2)


def test_parts_continue_where_each_process_was(both):
    cases = both("parts_go_on")
    assert cases["a list"] == [of_parts(range(2, 6)), 2, 2]
    stateful = [*([[n, n, 100 + n, 100 + n]] for n in range(3, 7)), "the end"]
    assert cases["a state"] == cases["an iterator with a state"] == [stateful, 2, 2]
    assert cases["none used"] == of_parts(range(6))


@pytest.mark.parametrize(
    ("case", "by"),
    [("of three", "3 SPMD processes"), ("of one", "a single process"), ("for arrays", "2 SPMD processes")],
)
def test_parts_of_another_number_of_processes_are_refused(both, case, by):
    kind, said = both("parts_go_on")[case]
    assert kind == "FailedPreconditionError"
    assert f"it was saved by {by}" in said
    assert "resume=False" in said


def test_checkpoint_has_the_positions_of_all_processes(both):
    total, totals = 0.0, []
    examples = job.arrays_with_a_smaller_last_batch()
    for step in range(7):
        pair, (x, _) = part(0, step).sum() + part(1, step).sum(), (examples[:-1] + more_examples())[step]
        total = total * 2 + pair + np.sum(x)
        totals.append(total)
    assert both("a_checkpoint") == [totals[2], totals[6]]


def more_examples():
    return job.read(job.source(last=20))[5:-1]


def test_grain_dataset_is_sharded_by_grain(found):
    pytest.importorskip("grain")
    (batches, of_iter, gone_on, unknown, same, order), other = found["grain"]
    assert other[:5] == [batches, of_iter, gone_on, unknown, same]
    assert batches == of_iter
    assert batches[0][0] == [order[0], order[2], order[1], order[3]]
    assert sorted(np.ravel(batches[:-1]).tolist()) == list(range(24))
    assert gone_on == batches[2:]
    assert "num_batches=" in unknown
    assert "[jax.process_index()::jax.process_count()]" in same


def test_prefetching_thread_only_puts_arrays_on_its_own_devices(found):
    for process, (called, places) in enumerate(found["what_the_thread_calls"]):
        assert "make_array_from_callback" in called
        assert not LAUNCHES.intersection(called)
        assert places == [process]


def test_stop_in_one_process_does_not_change_the_batches_of_runs(both):
    assert both("a_stop_changes_nothing_that_runs_get") == of_parts(range(8))[:-1]


def test_refused_run_leaves_its_batch(both):
    assert both("a_run_that_fails_leaves_its_batch") == [part(0, 1).sum() + part(1, 1).sum(), 2]


def test_batches_without_sharding_go_to_the_variables_devices(both):
    expected = [float(np.sum(x)) for x, _ in job.arrays_with_a_smaller_last_batch()[:2]]
    assert both("the_default_follows_the_variables") == expected


def test_loop_trains_on_the_batches_of_one_process(both):
    arrays, sharded, blocks, a_list, a_tensor = both("a_loop")
    assert (
        arrays
        == sharded
        == blocks
        == float(
            job.loop(job.hl.data.from_arrays(np.arange(64, dtype="float32"), 8, shuffle_seed=5)).run(progress=False)[
                "seen"
            ]
        )
    )
    total = 0.0
    for number in range(6):
        total = total * 2 + part(0, number).sum() + part(1, number).sum()
    assert a_list == a_tensor == total


def test_loop_compiles_once_for_each_length_of_parts(both):
    seen = 0.0
    for length in (4, 8, 8, 4, 6, 6):
        seen = seen * 2 + 2 * length * 3
    for found in both("a_loop_over_several_lengths"):
        assert found == [seen, [[4, 4], [4, 6], [4, 8]]]


def test_loop_without_batches_resumes_like_an_uninterrupted_one(both):
    found = both("a_loop_without_batches")
    assert found[0::2] == found[1::2]
    assert found == pytest.approx([found[0]] * 6)


def test_epochs_equal_those_of_one_process(both):
    arrays = [np.arange(8.0) + 8 * number for number in range(4)]
    parts = [np.concatenate([part(0, number), part(1, number)]) for number in range(4)]

    def seen(batches):
        total = 0.0
        for batch in batches:
            total = total * 2 + batch.sum()
        return total

    wanted = [[seen(x * 2), seen((x * 2)[:6]), seen(x * 2), seen(x * 2)] for x in (arrays, parts)]
    assert both("passes") == wanted


def test_sticky_stop_of_one_process_holds_for_the_next_start_of_all(both):
    first, then = both("one_process_stops_for_good")
    assert first == then
    assert 3 <= int(first) < 20


def test_random_values_are_equal_in_all_processes_and_differ_for_each_example(both):
    of_weights, of_batch = both("dropout")
    assert of_batch[:8] != of_batch[8:]
    assert of_weights == of_batch
    assert job.dropout() == [of_weights, of_batch], "as in one process"


def test_logged_value_covers_the_examples_of_each_process(both):
    *alone, smaller, several = both("means_by_process")
    assert smaller == {"mean/process_0": 8.0, "mean/process_1": 8.0}
    first = {"mean/process_0": 2.0, "mean/process_1": 6.0}
    assert alone == [first, {"mean/process_0": 6.0, "mean/process_1": 2.0}, first, dict.fromkeys(first, 4.0)]
    # Of the last batch process 1 has two rows, and process 0 has none: its mean is NaN, shown as -1 here.
    assert several == {
        "mean/process_0": [13.5, -1.0],
        "mean/process_1": [9.5, 16.5],
        "bad/process_0": [-1.0, -1.0],
        "bad/process_1": [9.5, 16.5],
    }


def test_value_without_examples_is_refused():
    with pytest.raises(job.hl.errors.InvalidArgumentError, match=r"one array with a value for each .* got 3.0"):
        job.hl.data.per_process_mean("loss", 3.0)
    with pytest.raises(job.hl.errors.InvalidArgumentError, match=r"one array with a value for each .* got \{'a'"):
        job.hl.data.per_process_mean("loss", {"a": np.ones(4)})
    with pytest.raises(job.hl.errors.InvalidArgumentError, match=r"a mask of shape \(4,\).* got \(2,\)"):
        job.hl.data.per_process_mean("loss", np.ones(4), mask=np.ones(2, bool))
    with pytest.raises(TypeError, match="Sharding or a jax.Device as sharding, got 'data'"):
        job.hl.data.per_process_mean("loss", np.ones(4), "data")
    assert job.hl.data.per_process_mean("loss", np.array([[1, 2], [3, 4]])) == {"loss/process_0": 2.5}


def test_epochs_end_at_the_same_steps_in_all_processes(both):
    *equal, unequal, _ = both("epochs")
    assert equal == [[4], [8, 12]] * 2
    assert "the SPMD processes have epochs of different lengths, 4, 5 batches. Give each as many batches" in unequal


def test_evaluation_counts_the_examples_of_all_processes(both):
    expected = (1 * sum(range(1, 9)) + 9 * sum(range(9, 17))) / sum(range(1, 17))
    assert both("an_evaluation_that_counts_its_examples") == [pytest.approx(expected)] * 2


def test_evaluation_has_equal_means_in_all_processes(found):
    numbers = np.arange(20.0) ** 2
    ragged = np.concatenate([numbers[:4], numbers[4:6], numbers[12:19]])
    for process, (shuffled, in_blocks, uneven, padded, same, none, failed) in enumerate(found["an_evaluation"]):
        assert shuffled == in_blocks == numbers.mean()
        assert uneven == pytest.approx(np.r_[numbers[:8], numbers[12:19]].mean())
        assert padded == pytest.approx(ragged.mean())
        assert (same[0], same[2]) == ("InvalidArgumentError", 0), "before the first step"
        assert (
            "Give hookline.data.from_arrays((x, y), batch_size=...), of which each process reads its rows." in same[1]
        )
        assert (none[0], none[2]) == (("FailedPreconditionError", "ValueError")[process], 0)
        assert "requires at least one batch, and there is none" in none[1]
        assert failed[0] == ("FailedPreconditionError", "OSError")[process]
