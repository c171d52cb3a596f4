"""The launcher hears each signal: its handlers take no lock, and its statuses say what happened."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hookline
from hookline.cli.task import status_after

WAITS = """
import signal, sys, threading
from hookline import clock
from hookline.cli.signals import Signals
print("ready", flush=True)
for _ in range(2000):
    with Signals() as signals:
        print(".", end="", flush=True)
        while not clock.wait(signals.event, 0):
            pass
print("all heard", flush=True)
"""


def test_two_thousand_signals_are_heard_while_the_launcher_waits():
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for number in range(2000):
            assert process.stdout.read(1) == b"."
            process.send_signal((signal.SIGTERM, signal.SIGINT)[number % 2])
        assert process.stdout.read() == b"all heard\n"
    assert process.returncode == 0


_HARMLESS = {
    "append", "clear", "default_int_handler", "handler", "before", "callable", "getsignal", "get_ident", "set", "send",
    "bytes", "monotonic", "kill", "getpid", "signal", "Signals", "_pass_on", "notify", "suppress", "set_wakeup_fd",
    "fileno", "_is_notified_by_the_system", "_compiles", "endswith", "join",
}  # fmt: skip


def test_no_signal_handler_calls_what_may_take_a_lock():
    """Whoever adds a call to a handler looks here first: it may interrupt the main thread while that holds a lock."""
    handlers, functions = set(), {}
    for path in Path(hookline.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                functions.setdefault((path, node.name), node)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "signal.signal":
                handlers.add((path, ast.unparse(node.args[1]).rpartition(".")[2]))
    own = [functions[key] for key in sorted(handlers) if key in functions]
    assert {function.name for function in own} == {"catch", "_catch", "hold"}
    called = {
        ast.unparse(node.func).rpartition(".")[2]
        for function in own
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
    }
    assert called <= _HARMLESS


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([143, 0, -signal.SIGTERM], 143),
        ([143, 130], 143),
        ([143, -signal.SIGKILL], 137),
        ([1, -signal.SIGKILL], 137),
        ([137, 143], 137),
        ([143, 75], 75),
        ([143, 1], 1),
    ],
)
def test_only_a_job_whose_processes_all_left_in_order_has_the_status_of_the_signal(statuses, expected):
    assert status_after(signal.SIGTERM, statuses) == expected


@pytest.mark.parametrize("mode", [["--in-step", "--processes", "2"]])
def test_a_job_whose_grace_is_over_has_the_status_of_a_killed_one(tmp_path, mode):
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('on')\ntime.sleep(600)"
    )
    command = [sys.executable, "-m", "hookline.cli", "launch", *mode, "--grace", "0.5", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as job:
        assert job.stdout is not None
        assert [job.stdout.readline()[-3:] for _ in range(2)] == [b"on\n", b"on\n"]
        job.terminate()
        _, said = job.communicate(timeout=60)
    assert job.returncode == 137
    assert b"was ended by SIGKILL" in said
