"""`hookline runs`: lists the runs below a folder."""

from __future__ import annotations

import argparse
import os
from typing import Any

from hookline import clock, units
from hookline.cli import output, runs
from hookline.cli.report import run_facts
from hookline.cli.report.run_facts import RunFacts
from hookline.errors import NotFoundError
from hookline.hooks.reporting.progress import LEAST_RATE_SECS

_BETWEEN_STEPS = ("data", "save", "evaluation")
_STYLES = {"running": "green", "broken": "red", "killed": "yellow", "unreadable": "red"}


def run(arguments: argparse.Namespace) -> int:
    """Prints the runs, and returns the exit status."""
    directory = runs.run_directory(arguments.folder)
    with runs.quiet_on_cpu():
        found = run_facts.find_runs(directory)
    if not found:
        raise NotFoundError.from_message(f"there is no run in '{directory}' or below it.")
    if arguments.json:
        output.print_json(list(map(_fields, found)))
        return 0
    heads = ["run", ">step", ">steps/s", "state", ">age", "best", ">size"]
    rows = [_cells(facts, directory) for facts in found]
    output.print_table(heads, rows, styles=[_STYLES.get(facts.state, "") for facts in found], wraps="run")
    reasons = [(facts.directory, why) for facts in found for why in (facts.why, facts.stop_text) if why]
    output.print_lines(*[""] * bool(reasons), *(f"{os.path.relpath(run, directory)}: {why}." for run, why in reasons))
    return 0


def _cells(facts: RunFacts, directory: str) -> list[str]:
    best, now, rate = facts.best, clock.time(), _steps_per_sec(facts)
    return [
        os.path.relpath(facts.directory, directory),
        "" if facts.step is None else str(facts.step),
        "" if rate is None else f"{rate:.3g}",
        facts.state,
        "" if facts.timestamp is None else units.format_duration(now - facts.timestamp),
        "" if best is None else f"{best.metric} {units.format_number(best.value)} at {best.step}",
        units.format_bytes(facts.nbytes) if facts.nbytes else "",
    ]


def _steps_per_sec(facts: RunFacts) -> float | None:
    """Returns the mean rate by the account, as a progress line has it: with waits for data, saves and evaluations."""
    secs = facts.account.useful_secs + sum(facts.account.secs.get(state, 0.0) for state in _BETWEEN_STEPS)
    return facts.account.step / secs if secs >= LEAST_RATE_SECS else None


def _fields(facts: RunFacts) -> dict[str, Any]:
    return {
        "run": facts.directory,
        "step": facts.step,
        "steps_per_sec": _steps_per_sec(facts),
        "state": facts.state,
        "why": facts.why,
        "stop_reason": facts.account.stop_reason,
        "time": facts.timestamp,
        "age_secs": None if facts.timestamp is None else clock.time() - facts.timestamp,
        "best": None if facts.best is None else facts.best._asdict(),
        "bytes": facts.nbytes,
    }
