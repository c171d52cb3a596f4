"""`hookline replay`: runs a training script whose training in the folder of a run becomes a replay of its steps."""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
import tempfile

import numpy as np

from hookline.cli import output
from hookline.monitored.replaying.names import NORMS
from hookline.monitored.replaying.past_run import PastRun
from hookline.monitored.replaying.request import VARIABLE, ReplayRequest
from hookline.monitored.replaying.result import ReplayResult, shown
from hookline.redirection import is_below

_SHOWN_STEPS = 4
DIFFERENT_BITS = 3
"""The exit status of a replay that made other bits than the run."""


def run(arguments: argparse.Namespace) -> int:
    """Runs the script, prints what the replay has seen, and returns the exit status."""
    first, last = _steps(arguments.steps)
    if arguments.nan and arguments.every > 1:
        raise ValueError("--nan looks at each step, to find the first one: leave out --every.")
    for option in ("csv", "events"):
        if getattr(arguments, option) is not None and arguments.look and not (arguments.fetch or arguments.nan):
            raise ValueError(f"--{option} writes the values of --fetch, which is missing; a look keeps its own values.")
    # The script may change the directory.
    arguments.run = os.path.abspath(arguments.run)
    arguments.csv, arguments.events = (each and os.path.abspath(each) for each in (arguments.csv, arguments.events))
    if arguments.events is not None and is_below(os.path.realpath(arguments.events), os.path.realpath(arguments.run)):
        raise ValueError("--events requires a folder outside of the run, where a replay changes nothing.")
    past = PastRun(arguments.run)
    start, *_ = past.begin_at(first, last)  # Before the script, which may take long to start.
    print(
        f"The replay begins at step {start.step:,}; with the checkpoints of this run it can begin at "
        f"{past.describe_steps()}.",
        file=sys.stderr,
    )
    names = [*arguments.fetch, *([NORMS] if arguments.nan else [])]
    wanted = ReplayRequest(arguments.run, (first, last), names, arguments.look, arguments.every)
    script = str(arguments.script)
    processes = int(start.manifest.environment.get("processes", "1"))
    if processes == 1:
        _run_script(wanted, script, arguments.arguments)
    else:
        status = _run_script_in(processes, wanted, script, arguments.arguments)
        if status and wanted.error is None:
            return status
    result = wanted.outcome(f"the script {script!r}")
    if arguments.events is not None:
        result.write_events(arguments.events)
    if arguments.csv is not None:
        with open(arguments.csv, "w", encoding="utf-8", newline="") as file:
            result.write_csv(file)
    if arguments.csv is not None or arguments.events is not None:
        output.print_lines(*result.verdict.splitlines())
    elif arguments.nan:
        _print_nonfinite(result)
    else:
        output.print_lines(*str(result).splitlines())
    return DIFFERENT_BITS if result.is_same is False else 0


def _print_nonfinite(result: ReplayResult) -> None:
    """Prints the first step with a value that is not finite, and the norms in the steps before it."""
    found = result.first_nonfinite()
    nan = result.first_nonfinite(np.isnan)
    end = max(result.rows, default=0) if found is None else (nan or found)[0]
    steps = [step for step in sorted(result.rows) if step <= end][-_SHOWN_STEPS:]
    if steps:
        rows = [[name, *(shown(result.rows[step][name]) for step in steps)] for name in result.rows[end]]
        output.print_table(["", *(f">step {step}" for step in steps)], rows, wraps="")
    if found is None:
        output.print_lines("", f"All values are finite up to step {end}.")
    else:
        step, names = found
        output.print_lines("", f"Step {step} is the first with a value that is not finite: {', '.join(names)}.")
        if nan is not None and nan[0] > step:
            output.print_lines(f"Step {nan[0]} is the first with NaN: {', '.join(nan[1])}.")
        output.print_lines(
            "Norms are of the batch and of the state before the step; metrics are what the step returns."
        )
    output.print_lines(*result.verdict.splitlines())


def _run_script(wanted: ReplayRequest, script: str, arguments: list[str]) -> None:
    """Runs a script as `python script.py` would, until the replay is over; its output goes to the standard error."""
    sys.argv = [script, *arguments]
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    with contextlib.redirect_stdout(sys.stderr):
        wanted.run(lambda: runpy.run_path(script, run_name="__main__"))


def _run_script_in(processes: int, wanted: ReplayRequest, script: str, arguments: list[str]) -> int:
    """Runs a script in as many SPMD processes as the run had, until the replay is over; returns their exit status."""
    from hookline.cli.launch_spmd import SpmdLaunchConfig, launch_spmd

    with tempfile.TemporaryDirectory(prefix="hookline-replay-") as folder:
        wanted.answer_path = os.path.join(folder, "answer")
        with contextlib.redirect_stdout(sys.stderr):
            variables = {VARIABLE: wanted.to_json()}
            status = launch_spmd(SpmdLaunchConfig((script, *arguments), processes, variables=variables))
        wanted.read_answers(processes)
    return status


def _steps(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise ValueError(f"--steps requires two steps, such as 1200:1300, got {text!r}.")
    return int(first), int(last)
