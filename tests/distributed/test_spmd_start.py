"""The start of SPMD processes, with real ones."""

from __future__ import annotations

import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import pytest
from tests import python

import hookline as hl

SCRIPT = str(Path(__file__).with_name("spmd_start.py"))


class Ended:
    """A process that has ended: its exit status, its results, and its last error lines."""

    def __init__(self, what: str, *words: str, **variables: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOOKLINE_")}
        environment |= variables
        done = python.run(SCRIPT, what, *words, env=environment, timeout=120)
        self.status, self.errors = done.returncode, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        self.found = {name: value for line in lines for name, value in line.items()}


def together(what: str, **variables: str) -> list[Ended]:
    """Two processes with each other's address."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(lambda index: Ended(what, str(index), address, **variables), range(2)))


def test_processes_started_with_each_others_address_run_as_spmd():
    chief, other = together("ours")
    assert (chief.status, other.status) == (0, 0), chief.errors + other.errors
    assert (chief.found["at"], other.found["at"]) == ([0, 2], [1, 2])
    (address,) = chief.found["listening"]
    assert address.endswith("0100007F"), "127.0.0.1 alone."
    heartbeat = "in this SPMD job. A process that sends no heartbeat for 10 s counts as lost."
    assert chief.found["log"] == [f"This is process 0 of 2 {heartbeat}"], "The second call says so and does nothing."
    assert other.found["log"] == [f"This is process 1 of 2 {heartbeat}"]


@pytest.mark.parametrize("others", ["one", pytest.param("other", marks=pytest.mark.campaign), "", None])
def test_processes_need_the_same_token(tmp_path, others):
    for name in ("one", "other"):
        (tmp_path / name).write_text(name * 8)
        (tmp_path / name).chmod(0o600)
    mine = "" if others is None else str(tmp_path / "one")
    chief, other = together("trusting", TOKEN_0=mine, TOKEN_1=str(tmp_path / others) if others else "")
    assert (chief.status, other.status) == (0, 0), chief.errors + other.errors
    is_same = others in ("one", None)
    assert [each.found["error"] is None for each in (chief, other)] == [is_same] * 2
    assert [each.found["sealed"] for each in (chief, other)] == [others == "one"] * 2
    if others is None:
        assert "the token comes too late" in chief.found["late"][1]
        assert "the token comes too late" in chief.found["late_and_required"][1]
    if not is_same:
        kind, text = chief.found["error"]
        assert kind == other.found["error"][0] == "UnauthenticatedError"
        assert f"process 1 has {'another' if others else 'no'} token" in text
        assert "process 0 has another token than process 1" in other.found["error"][1] or not others
    # Nothing listens beyond the loopback interface, so nobody is warned.
    assert not any("no token" in line for each in (chief, other) for line in each.found["log"])


def test_process_that_leaves_before_using_a_device_ends_the_others():
    begun = time.monotonic()
    waits, _ = together("left_early")
    assert waits.status == os.EX_TEMPFAIL, waits.errors
    assert "Process 1 has ended its script without a device, and process 0, which starts its own" in waits.errors
    assert time.monotonic() - begun < 60


def by_open_mpi(index: int) -> dict[str, str]:
    return {
        "OMPI_MCA_orte_hnp_uri": f"{os.getpid() * 2**12}.0;tcp://127.0.0.1:34911",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": str(index),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(index),
    }


def by_slurm(index: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(index),
        "SLURM_LOCALID": str(index),
    }


@pytest.mark.parametrize("variables", [pytest.param(by_open_mpi, marks=pytest.mark.campaign), by_slurm])
def test_schedulers_variables_are_found(variables):
    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(lambda index: Ended("scheduled", **variables(index)), range(2)))
    assert [each.status for each in both] == [0, 0], both[0].errors + both[1].errors
    assert [each.found["at"] for each in both] == [[0, 2], [1, 2]]


def test_scripts_own_call_leaves_sigterm_to_sessions():
    both = together("own")
    assert [each.status for each in both] == [143, 143], both[0].errors + both[1].errors
    assert [each.found["heard"] for each in both] == [15, 15]
    assert "after heartbeat_timeout_seconds, by default 100." in both[1].found["log"][0]


def test_failed_start_gives_its_reason_and_ctrl_c_ends_the_wait():
    with ThreadPoolExecutor(2) as threads:
        refused, interrupted = threads.map(Ended, ["refused", "interrupted"])
    assert refused.status == 0, refused.errors
    kind, text = refused.found["nothing"]
    assert kind == "ValueError"
    assert "Start the script with `hookline launch --spmd`" in text
    kind, text = refused.found["untrusted"]
    assert kind == "UnauthenticatedError"
    assert "requires a token (require_token), and there is none: give all processes the same secret file" in text
    assert refused.found["absent"][1].startswith("There is no token for this SPMD job: /absent is not a file.")
    kind, text = refused.found["half"]
    assert kind == "ValueError"
    assert "HOOKLINE_NUM_PROCESSES and HOOKLINE_PROCESS_ID" in text
    kind, text = refused.found["taken"]
    assert kind == "UnavailableError"
    assert "process 0 of 1 cannot start at 127.0.0.1:" in text
    kind, text = refused.found["alone"]
    assert kind == "DeadlineExceededError"
    assert "process 1 of 2 has waited 1 s for the others, with process 0 at 127.0.0.1:1." in text
    assert interrupted.status == -2, interrupted.errors
    assert "KeyboardInterrupt" in interrupted.errors


def test_process_that_has_used_a_device_is_refused_in_one_sentence():
    jax.devices()
    with pytest.raises(RuntimeError, match=r"must come before anything that uses devices.* right after the imports"):
        hl.distributed.initialize("127.0.0.1:1", 2, 0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"coordinator_address": "somewhere"}, ValueError, "'host:port' as coordinator_address, got 'somewhere'"),
        ({"coordinator_address": 5}, TypeError, "text as coordinator_address"),
        ({"num_processes": 0}, ValueError, "num_processes >= 1"),
        ({"process_id": "1"}, TypeError, "whole number as process_id"),
        ({"num_processes": 2, "process_id": 2}, ValueError, "process_id < num_processes, got 2 of 2"),
        ({"heartbeat_timeout_secs": 0.5}, TypeError, "whole number as heartbeat_timeout_secs"),
        ({"start_timeout_secs": 0}, ValueError, "start_timeout_secs >= 1"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=rf"hookline\.distributed\.initialize requires .*{message}"):
        hl.distributed.initialize(**arguments)
