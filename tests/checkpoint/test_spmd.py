"""Checkpoints of SPMD processes, which are real; one process is a special case."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp
from tests import spmd
from tests.loop.devices import on_devices

import hookline as hl
from hookline import train

# Another that holds the directory and saves nothing.
from hookline.checkpoint.directory import lease

JOB = pathlib.Path(__file__).parent / "spmd_job.py"
IN_ORDER = (
    "saves", "restores_in_another_layout", "flipped_bits", "disk_errors", "a_directory_that_cannot_be_made",
    "another_has_the_directory", "one_process_saves_elsewhere", "a_training_that_goes_on",
    "a_listener_that_asks_for_a_stop", "a_listener_that_fails", "a_broken_newest", "a_rollback",
    "processes_that_part",
)  # fmt: skip

Results = list[dict[str, Any]]


def results(folder: pathlib.Path, *names: str, count: int = 2, devices: int = 2) -> Results:
    """Runs scenarios in several processes; returns for each process the results by name."""
    environment = on_devices(devices)
    ended = spmd.run(JOB, ",".join(names), folder, count=count, environment=environment, timeout_secs=150)
    assert [each.status for each in ended] == [0] * count, "\n".join(each.err[-3000:] for each in ended)
    return [dict(json.loads(line) for line in each.out.splitlines() if line.startswith("[")) for each in ended]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def found(folder: pathlib.Path) -> Results:
    """The results of all scenarios in two processes."""
    give_back = lease.acquire_lease(str(folder / "of-2" / "another_has_the_directory"))
    try:
        return results(folder / "of-2", *IN_ORDER)
    finally:
        give_back()


@pytest.fixture(scope="module")
def across(folder: pathlib.Path, found: Results) -> dict[str, Results]:
    """The values that other numbers of processes restore from the saves of each."""
    one = results(folder / "of-1", "saves", "restores_all", count=1)
    four = results(folder / "of-4", "saves", "restores_all", count=4, devices=1)
    return {"one": one, "four": four, "two": results(folder / "of-2", "restores_all")}


def texts(found: Results, name: str) -> tuple[Any, Any]:
    return found[0][name], found[1][name]


def test_saved_values_are_restored(found):
    for each in found:
        cleared, wrong, path = each["saves"]
        assert len(cleared) == 6  # The model was another meanwhile.
        assert (wrong, path) == ([], "model.ckpt-0")


def test_restore_with_other_process_shards_gives_the_same_values(found):
    assert [each["restores_in_another_layout"] for each in found] == [[], []]


@pytest.mark.campaign
def test_other_process_counts_restore_the_checkpoint(across):
    assert across["one"][0]["restores_all"] == {"of-1": [], "of-2": []}
    for each in across["four"]:
        assert each["restores_all"] == {"of-1": [], "of-2": [], "of-4": []}
    for each in across["two"]:
        assert each["restores_all"] == {"of-1": [], "of-2": [], "of-4": []}


@pytest.mark.usefixtures("found")
def test_one_process_alone_reads_the_checkpoint(folder):
    path = folder / "of-2" / "saves" / "model.ckpt-0"
    train.verify(str(path))
    rows = np.arange(256 * 24, dtype=np.float32).reshape(256, 24)
    assert np.array_equal(train.load_variable(str(path), "rows"), rows)
    assert np.array_equal(ocp.load(path)["rows"], rows)
    pieces = json.loads((path / "hookline.json").read_text())["variables"]["wide"]["leaves"][0]["pieces"]
    assert [piece["start"] for piece in pieces] == [[0, 0], [0, 256], [0, 512], [0, 768]]


def test_flipped_bit_in_one_process_is_an_error_in_all(found):
    check_flipped(*texts(found, "flipped_bits"), count=3)


@pytest.mark.campaign
def test_all_processes_find_a_flipped_bit_of_any_shard(folder):
    there = results(folder / "flipped", "flipped_bits_everywhere")
    check_flipped(*texts(there, "flipped_bits_everywhere"), count=6)


def check_flipped(one, other, count):
    assert len(one) == len(other) == count
    for name in one:
        leaf = name.split()[0]
        for (kind, text), (kind_there, text_there) in zip(one[name], other[name], strict=True):
            assert kind == kind_there == "DataLossError"
            assert f"'{leaf}' is not the saved value" in text
            assert f"'{leaf}' is not the saved value" in text_there


def test_full_disk_of_one_process_fails_all_and_leaves_nothing(found):
    chief, other = texts(found, "disk_errors")
    for process, (mine, theirs) in enumerate(zip(chief[:2], other[:2], strict=True)):
        here, there = (mine, theirs) if process == 0 else (theirs, mine)
        assert here[0] == there[0] == "ResourceExhaustedError"
        assert there[1] == f"Process {process}: {here[1]}"
        assert here[2] == there[2] == ["checkpoint", "model.ckpt-0"]


def test_full_disk_is_retried_by_all_processes(found):
    for each in found:
        assert each["disk_errors"][2:] == [[], ["checkpoint", "model.ckpt-0", "model.ckpt-2"]]


def test_failed_start_of_the_chiefs_save_fails_all_processes_at_once(found):
    (kind, text), there = texts(found, "a_directory_that_cannot_be_made")
    assert kind == "AlreadyExistsError"
    assert there == [kind, f"Process 0: {text}"]


def test_second_job_is_refused_in_all_its_processes(found):
    for mine, there in zip(*texts(found, "another_has_the_directory"), strict=True):
        assert mine[0] == there[0] == "FailedPreconditionError"
        assert f"has a writer: process {os.getpid()} on" in mine[1]
        assert there[1] == f"Process 0: {mine[1]}"


def test_processes_with_different_save_paths_are_refused(found):
    one, other = texts(found, "one_process_saves_elsewhere")
    assert one == other
    assert one[0] == "InvalidArgumentError"
    assert "model-0-0' and process 1 to" in one[1]


def test_missing_process_is_named(found):
    kind, text = found[0]["processes_that_part"][2]
    assert kind == "DeadlineExceededError"
    assert "has waited 1 s for process 1" in text


def test_processes_that_ran_different_programs_save_nothing(found):
    for each in found:
        (kind, text), names, _ = each["processes_that_part"]
        assert kind == "FailedPreconditionError"
        assert "process 1: launch" in text
        assert names == []


def test_training_resumes_at_its_last_step(found, folder):
    for each in found:
        first, second, _, began_at, names = each["a_training_that_goes_on"]
        assert first == [10, 10.0 * 256 * 24, "newly initialised"]
        assert second == [14, 14.0 * 256 * 24, "restored from /model.ckpt-10"]
        assert began_at == 3
        assert [name for name in names if "events" not in name] == [
            "checkpoint", "graph.txt", "model.ckpt-10", "model.ckpt-12", "model.ckpt-14", "model.ckpt-4", "model.ckpt-8"
        ]  # fmt: skip
        assert sum("events" in name for name in names) == 2  # The chief's, of two trainings.


def test_only_the_chief_calls_listeners_except_begin(found):
    chief, other = texts(found, "a_training_that_goes_on")
    saves = [f"{when} {step}" for step in (0, 4, 8, 10) for when in ("before", "after")]
    assert chief[2] == ["begin", *saves, "end"]
    assert other[2] == ["begin"]


def test_listener_stops_all_and_its_error_is_raised_in_all(found):
    assert [each["a_listener_that_asks_for_a_stop"] for each in found] == [[8, 8.0 * 256 * 24]] * 2
    assert found[0]["a_listener_that_fails"] == [["ZeroDivisionError", "by the listener"]] * 2
    assert found[1]["a_listener_that_fails"] == [["AbortedError", "Process 0: ZeroDivisionError: by the listener"]] * 2


def test_all_resume_from_the_newest_readable_checkpoint(found):
    for each in found:
        (kind, text), again, names = each["a_broken_newest"]
        assert kind == "DataLossError"
        assert "restore='latest-valid'" in text
        assert again == [12, 12.0 * 256 * 24, "restored from /model.ckpt-4"]
        assert "model.ckpt-8.hookline-broken" in names


def test_all_roll_back_to_one_checkpoint(found):
    assert found[0]["a_rollback"] == found[1]["a_rollback"]
    assert found[0]["a_rollback"][0] == 14


@pytest.mark.parametrize(("victim", "where"), [pytest.param(1, "part", marks=pytest.mark.campaign), (0, "commit")])
def test_process_killed_in_a_save_leaves_the_newest_complete(victim, where, tmp_path):
    ended = spmd.run(JOB, "is_killed", tmp_path, victim, where, timeout_secs=60)
    assert ended[victim].status == -9
    assert ended[1 - victim].status not in (0, -9)  # It ended by itself.
    for each in ended:
        assert [line[-2:-1] for line in each.out.splitlines()] == ["0", "1", "2"]
    directory = tmp_path / "is_killed"
    assert train.latest_checkpoint(str(directory)) == str(directory / "model.ckpt-2")
    train.verify(str(directory))
    assert any("writing" in name for name in os.listdir(directory))
    hl.Variable(1.0, name="w")
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        train.Saver().save(sess, str(directory / "model.ckpt"), 3)
    assert sorted(name for name in os.listdir(directory) if not name.startswith(".")) == [
        "checkpoint", "model.ckpt-1", "model.ckpt-2", "model.ckpt-3"
    ]  # fmt: skip
