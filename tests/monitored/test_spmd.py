"""Monitored sessions in SPMD processes: real ones, which all act at the same runs."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from tests import spmd

JOB = Path(__file__).parent / "spmd_job.py"
SUM_OF_EPOCH = sum(range(64))


def results(*names, **options):
    """Runs scenarios in two processes; returns for each process the results by name."""
    ended = spmd.run(JOB, ",".join(names), **options)
    assert [each.status for each in ended] == [0] * len(ended), "\n".join(each.err[-3000:] for each in ended)
    return [dict(json.loads(line) for line in each.out.splitlines() if line.startswith("[")) for each in ended]


@pytest.fixture(scope="module")
def found():
    """The results of all scenarios that end normally, for each process."""
    return results(
        "stops_at_a_step",
        "one_process_asks_for_a_stop",
        "all_ask_for_a_stop",
        "a_trigger_in_seconds",
        "a_time_limit",
        "a_time_limit_near_the_end",
        "what_hooks_fetch",
        "a_hook_of_the_chief",
        "summaries",
        "a_latch",
        "waiting_for_a_step_is_refused",
        "a_hook_that_runs_the_session",
        "several_steps_a_run",
        "one_is_slow",
        "another_thread_asks_whether_to_stop",
        "another_thread_runs_the_session",
        "one_asks_for_other_values",
        "one_launches_another_known_program",
        "one_has_other_initial_values",
        "one_loop_begins_with_another_state",
        "one_is_fed_another_value_once",
        "one_has_a_batch_of_another_length",
        "one_fails_before_the_first_run",
        "one_exits_in_a_callback",
        "one_exits_in_the_script",
        "why_it_stops",
        "stops_at_a_step",
    )


def test_step_limit_ends_all(found):
    for each in found:
        assert each["stops_at_a_step"][0] == 20
    assert found[0]["stops_at_a_step"] == found[1]["stops_at_a_step"]


def test_stop_requested_by_one_ends_all_after_the_same_run(found):
    step, total = found[0]["one_process_asks_for_a_stop"]
    assert step >= 7
    assert found[1]["one_process_asks_for_a_stop"] == [step, total]


def test_stop_requested_by_all_after_a_run_holds_after_that_run(found):
    assert [each["all_ask_for_a_stop"][0] for each in found] == [7, 7]


def test_triggers_in_seconds_fire_at_the_same_step_in_all(found):
    one, other = (each["a_trigger_in_seconds"] for each in found)
    assert one == other
    (last, _), secs, steps, both, either = one
    assert last == 120
    assert secs
    assert steps == [40, 80, 120]
    assert both
    assert all(step % 10 == 0 for step in both)
    assert {step for step in either if step % 30 == 0} == {*range(30, 121, 30)}


def test_time_limit_of_the_chief_stops_all_after_the_same_run(found):
    one, other = (each["a_time_limit"] for each in found)
    assert one == other
    assert one[0] > 0


def test_time_limit_that_meets_the_last_step_stops_all_after_the_same_run(found):
    one, other = (each["a_time_limit_near_the_end"] for each in found)
    assert one == other
    assert all(0 < step <= 30 for step, _ in one)


def test_hooks_get_the_same_values_at_the_same_steps(found):
    one, other = (each["what_hooks_fetch"] for each in found)
    assert one == other
    assert one[1] == [*range(5, 21, 5)]
    assert one[3] == [*range(4, 21, 4)]


def test_chief_only_hook_is_called_only_in_the_chief(found):
    chief, other = (each["a_hook_of_the_chief"] for each in found)
    assert (chief[0], chief[2]) == ([5, 10, 15, 20], True)
    assert other == [[], [], False]


def test_only_the_chief_writes_summaries(found):
    assert [each["summaries"] for each in found] == [1, 0]


def test_latch_is_read_in_the_same_run(found):
    assert found[0]["a_latch"] == found[1]["a_latch"]
    (step,), run = found[0]["a_latch"]
    assert step <= run


def test_watchdog_of_each_process_shows_where_it_waits(found):
    (waits, of_waiting), (slow, of_slow) = (each["one_is_slow"] for each in found)
    assert waits == slow
    # There may have been other lines, while it compiled.
    of_waiting, of_slow = ([text for text in told if "no progress for" in text][-1] for told in (of_waiting, of_slow))
    assert "in on_trigger" in of_slow.partition("in trained")[2]
    assert "in trained" in of_waiting
    assert "in on_trigger" not in of_waiting


def test_waiting_for_a_step_is_refused(found):
    for each in found:
        assert "are SPMD processes" in each["waiting_for_a_step_is_refused"]


def test_hooks_may_run_the_session(found):
    assert found[0]["a_hook_that_runs_the_session"] == found[1]["a_hook_that_runs_the_session"]
    assert len(found[0]["a_hook_that_runs_the_session"][1]) == 3


def test_several_steps_per_run_end_alike(found):
    assert found[0]["several_steps_a_run"] == found[1]["several_steps_a_run"]
    assert found[0]["several_steps_a_run"][1] == [7, 14, 21, 28]


def test_another_thread_may_call_should_stop(found):
    for each in found:
        assert each["another_thread_asks_whether_to_stop"] == [True, True]


def test_another_thread_may_not_launch_programs(found):
    for each in found:
        step, error = each["another_thread_runs_the_session"]
        assert step == 20
        assert "one thread alone runs sessions, here MainThread: a program of other (outputs mul:0" in error


def training():
    """Returns a job that trains until a signal comes; JAX itself would notice a lost process after 100 s."""
    job = spmd.Job(JOB, "until_a_signal", heartbeat_secs=100)
    deadline = time.monotonic() + 60
    while not all("training" in job.printed(index) for index in range(2)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return job


def test_failure_in_one_is_an_error_in_waiting_processes(found):
    assert found[1]["one_fails_before_the_first_run"] == ["OSError", "the disk of process 1 is gone"]
    kind, text = found[0]["one_fails_before_the_first_run"]
    assert kind == "AbortedError"
    assert text.endswith("Process 1 has failed, and the others end with it: OSError: the disk of process 1 is gone")


def test_signal_at_the_end_of_one_ends_all():
    ended = spmd.run(JOB, "a_signal_at_the_end")
    assert [each.status for each in ended] == [143, 143], "\n".join(each.err[-3000:] for each in ended)
    assert all("ended after 20" in each.out for each in ended)


def test_killed_process_is_named_by_the_others_which_end_at_once():
    job = training()
    job.processes[1].kill()
    begun = time.monotonic()
    left, killed = job.wait()
    assert time.monotonic() - begun < 10
    assert (left.status, killed.status) == (os.EX_TEMPFAIL, -signal.SIGKILL)
    assert "Process 1 is lost, and process 0 ends: only its last checkpoint remains." in left.err


@pytest.mark.parametrize(
    "to", [pytest.param([1], id="one"), pytest.param([0, 1], id="all", marks=pytest.mark.campaign)]
)
def test_signal_ends_all_after_the_same_run(to):
    job = training()
    for index in to:
        job.processes[index].send_signal(signal.SIGTERM)
    ended = job.wait()
    assert [each.status for each in ended] == [143, 143], "\n".join(each.err[-3000:] for each in ended)
    steps = [each.out.split()[-1] for each in ended]
    assert steps[0] == steps[1]


def launches_in(text):
    """Returns the reported launch of each process: the same list in all."""
    found = re.findall("process ([01]): launch ([0-9]+)", text)
    assert [process for process, _ in found] == ["0", "1"]
    return {number for _, number in found}


@pytest.mark.parametrize(
    "what",
    [
        "one_asks_for_other_values",
        "one_launches_another_known_program",  # Nobody meets for that, unless they are asked to.
    ],
)
def test_different_programs_are_an_error_in_all(found, what):
    for each in found:
        kind, text = each[what]
        assert kind == "FailedPreconditionError"
        assert "launch different programs" in text
        assert "for the hook Differs" in text
        assert len(launches_in(text)) == 1


def test_different_lengths_are_an_error_in_all(found):
    for each in found:
        kind, text = each["one_has_a_batch_of_another_length"]
        assert kind == "FailedPreconditionError"
        assert "launch different programs" in text
        assert "They differ in shapes, constants or order" in text


@pytest.mark.parametrize(
    "what", ["one_has_other_initial_values", "one_loop_begins_with_another_state", "one_is_fed_another_value_once"]
)
def test_different_values_are_an_error_in_all(found, what):
    for each in found:
        kind, text = each[what]
        assert kind == "FailedPreconditionError"
        assert "give different values to one program" in text
        assert len(launches_in(text)) == 1


@pytest.mark.campaign
def test_process_waiting_with_a_new_program_ends_all():
    for each in spmd.run(JOB, "one_asks_for_values_and_others_for_none"):
        assert each.status == 1
        error = each.err[each.err.rindex("FailedPreconditionError") :]
        assert re.search("process 0: launch 7, .*; process 1: launch 7, .* for the hook Differs", error)


def test_process_waiting_for_a_failed_one_ends_with_its_error():
    job = spmd.Job(JOB, "one_that_has_failed_stays")
    assert job.processes[0].wait(60) == os.EX_TEMPFAIL
    job.kill()
    waited, failed = job.wait()
    assert "Process 1 has failed" in waited.err
    assert "different programs" in waited.err
    assert "different programs" in failed.out


def test_exit_0_in_a_callback_of_one_ends_all_normally_after_the_same_run(found):
    leaves, others = found[1]["one_exits_in_a_callback"], found[0]["one_exits_in_a_callback"]
    assert [status for status, _ in leaves] == [0, 0, None]
    assert [status for status, _ in others] == [None, None, 0]
    assert [ended for _, ended in leaves] == [ended for _, ended in others]
    assert all(10 <= ended < 100 for _, ended in leaves), leaves


def test_exit_0_in_the_script_of_one_ends_all_normally_after_the_same_run(found):
    (of_other, ended), (of_leaving, same) = (each["one_exits_in_the_script"] for each in found)
    assert (of_other, of_leaving) == (None, 0)
    assert ended == same
    assert 10 <= ended < 100


def test_chief_logs_why_the_training_stops_and_the_requesting_process(found):
    chief, other = (each["why_it_stops"] for each in found)
    assert other == []
    said = [re.fullmatch(r"The training stops after step (\d+): (.*)\.", line) for line in chief]
    steps, reasons = zip(*[match.groups() for match in said], strict=True)
    # A process that has asked a moment later is not named.
    shown = [re.sub(r"\.py:\d+", ".py", reason) for reason in reasons]
    assert [re.sub(r"^all processes have|^process 0 has", "process 1 has", reason) for reason in shown] == [
        "process 1 has requested it (StopsAt.on_trigger, spmd_job.py)",
        "process 1 has requested it (StopAtStepHook.on_trigger, stop_at_step.py)",
        "process 1 has requested it (sys.exit() in Exits.after_run)",
        "the data have ended",
        "the script has left the session",
        "process 1 has requested it (why_it_stops, spmd_job.py)",
    ]
    assert steps[1] == "3"
    assert steps[3:5] == ("8", "1")


def test_exit_with_another_status_ends_the_others_at_once_with_an_error():
    begun = time.monotonic()
    ended = spmd.run(JOB, "one_exits_with_status_3")
    assert ended[0].status
    assert ended[1].status == 3
    assert "Process 1 has failed, and the others end with it: SystemExit: 3" in ended[0].err
    assert time.monotonic() - begun < 30


@pytest.mark.campaign
def test_script_that_ends_with_an_open_session_ends_the_others_within_seconds():
    begun = time.monotonic()
    ended = spmd.run(JOB, "one_leaves_its_session_open")
    # It is in a collective, which Python cannot interrupt; or between two, and raises.
    stuck = "process 0 ends at once, because its main thread does not answer: it has ended its script"
    raised = "AbortedError: Process 1 has failed, and the others end with it: it has ended its script"
    assert {os.EX_TEMPFAIL: stuck, 1: raised}[ended[0].status] in ended[0].err
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("leaves", [1, pytest.param(0, marks=pytest.mark.campaign)])
def test_script_that_ends_before_its_first_session_ends_waiting_processes(leaves):
    begun = time.monotonic()
    ended = spmd.run(JOB, "one_ends_its_script_before_its_first_session", environment={"LEAVES": str(leaves)})
    # It waits in JAX's shutdown, and process 0 takes the service with it.
    assert ended[leaves].status in (0, -signal.SIGABRT), ended
    waited = ended[1 - leaves]
    assert waited.status, ended
    assert f"AbortedError: Process {leaves} has ended its script, and process {1 - leaves} waits for it" in waited.err
    assert time.monotonic() - begun < 30


def test_failure_in_one_ends_the_others_with_its_error():
    ended = spmd.run(JOB, "one_fails")
    assert all(each.status for each in ended)
    assert "the disk of process 1 is gone" in ended[1].err
    assert "Process 1 has failed" in ended[0].err
    assert "the disk of process 1 is gone" in ended[0].err
