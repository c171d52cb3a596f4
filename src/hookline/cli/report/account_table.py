"""`hookline account`: prints where the time of a run went, from the account in its folder."""

from __future__ import annotations

import argparse
from typing import Any

from hookline import clock, units
from hookline.cli import output, runs
from hookline.errors import NotFoundError
from hookline.summary import account
from hookline.summary.account import Account

_NAMES = {
    "data": "waiting for data",
    "compilation": "compiling",
    "save": "blocked by saves",
    "evaluation": "evaluating",
    "start": "starting",
    "restore": "restoring",
    "stall": "stalled",
    "between": "between processes",
}


def run(arguments: argparse.Namespace) -> int:
    """Prints the account, and returns the exit status."""
    directory = runs.run_directory(arguments.run)
    found = account.read(directory)
    if not found and not runs.is_run(directory):
        raise runs.not_a_run_error(directory, "it has no checkpoint and no event file of its own")
    if not found:
        raise NotFoundError.from_message(
            f"'{directory}' has no account, account-0.jsonl. Runs with LoggingOptions(account=False) and those of "
            "earlier versions have none."
        )
    if arguments.json:
        output.print_json([{"process": process, **as_json(each)} for process, each in found.items()])
        return 0
    for process, each in found.items():
        output.print_lines(
            f"{directory}, process {process}: {headline(each)}" if len(found) > 1 else headline(each), ""
        )
        output.print_table(["state", ">time", ">share"], rows(each))
        output.print_lines("")
    output.print_lines(*dict.fromkeys(note for each in found.values() for note in notes(each)))
    return 0


def headline(found: Account) -> str:
    """Returns one sentence about an account."""
    starts, total = units.format_count(found.starts, "start"), units.format_duration(found.total_secs)
    return f"{starts} since {clock.format_utc(found.began_at)}, {total}; {found.useful_share:.1%} in steps that count."


def rows(found: Account) -> list[list[str]]:
    """Returns the rows of a table: each state that took time, its time, and its share of the whole."""
    repeated = f"steps made again, {found.repeated_steps:,}"
    secs = {"steps that count": found.useful_secs, repeated: found.repeated_secs}
    secs |= {name: found.secs.get(state, 0.0) for state, name in _NAMES.items()}
    total = found.total_secs or 1.0
    return [[name, _duration(value), f"{value / total:.1%}"] for name, value in secs.items() if value >= 0.005]


def notes(found: Account) -> list[str]:
    """Returns what a reader should know about the figures."""
    texts = [
        "Times are those of the host: a step counts from its dispatch. After a kill, up to 10 s count as between "
        "processes, and the steps made again are known to within a line of the account."
    ]
    if found.last_stall:
        texts.append(f"The last stall: {found.last_stall}.")
    if not found.stop_reason:
        ago = units.format_duration(max(clock.time() - found.ended_at, 0.0))
        texts.append(f"It has no end: it runs, or was killed. Its last line was written {ago} ago.")
    if found.has_clock_errors:
        texts.append(
            f"The clocks of its hosts ({', '.join(found.hosts)}) disagree: a process began before another one's end. "
            "That time counts as 0."
        )
    return texts


def as_json(found: Account) -> dict[str, Any]:
    """Returns an account for programs."""
    return {
        "starts": found.starts,
        "began_at": found.began_at,
        "ended_at": found.ended_at,
        "total_secs": round(found.total_secs, 3),
        "useful_secs": round(found.useful_secs, 3),
        "useful_share": found.useful_share,
        "step": found.step,
        "repeated_steps": found.repeated_steps,
        "repeated_secs": round(found.repeated_secs, 3),
        "secs": account.rounded(found.secs),
        "hosts": found.hosts,
        "has_clock_errors": found.has_clock_errors,
        "stop_reason": found.stop_reason,
    }


def _duration(secs: float) -> str:
    return f"{secs:.2f} s" if secs < 60 else units.format_duration(secs)
