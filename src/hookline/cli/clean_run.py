"""`hookline clean`: removes old checkpoints of a run."""

from __future__ import annotations

import argparse

from hookline.checkpoint.restoring import examine
from hookline.checkpoint.restoring.examine import Contents, Found
from hookline.checkpoint.saving import retention as cleaning
from hookline.cli import runs, shown
from hookline.errors import NotFoundError
from hookline.units import size


def run(arguments: argparse.Namespace) -> int:
    """Lists or removes old checkpoints, and returns the exit status."""
    shown.require_rich()
    directory = runs.folder(arguments.run)
    if examine.is_one(directory):
        raise NotFoundError.from_message(f"'{directory}' is a checkpoint. Give the folder of its run.")
    with runs.examined():
        contents = examine.contents(directory)
        if not contents.checkpoints and not runs.is_run(directory):
            raise runs.no_run(directory, "it has no checkpoint")
        if arguments.yes:
            plan = cleaning.clean(directory, arguments.keep, arguments.wait)
        else:
            plan = cleaning.plan(directory, arguments.keep)
    for note in contents.notes:
        so = ", so it is not known which checkpoints were to be kept for good" if note == contents.surprise else ""
        shown.say(f"Note: {note}{so}.")
    if contents.notes:
        shown.say("")
    by_path = {found.path: found for found in contents.checkpoints}
    # A half-written checkpoint may be the current save of that process.
    is_going_on = contents.writer is not None and contents.writer.runs is not False and not arguments.yes
    leftovers = () if is_going_on else plan.leftovers
    going = [by_path[path] for path in (*plan.going, *leftovers) if path in by_path]
    if not going:
        shown.say(f"Nothing is to be removed from '{directory}': the newest {plan.keep} stay, and there are no more.")
        return 0
    rows = [
        [found.name, "" if found.step is None else str(found.step), size(found.nbytes), found.flaw or "too many"]
        for found in going
    ]
    shown.table(["removed" if arguments.yes else "would be removed", ">step", ">size", "why"], rows)
    left = [found for found in contents.checkpoints if found not in going and not found.is_unfinished]
    stays = ", ".join(found.name + _remark(found) for found in left)
    total = size(sum(found.nbytes for found in going))
    said = f"{total} are free again" if arguments.yes else f"Nothing was removed; --yes would free {total}"
    refused = "" if arguments.yes else _refusal(contents, bool(plan.going))
    if refused:
        said = "Nothing was removed"
    shown.say("", f"{said}. What stays: {stays}.")
    if refused:
        shown.say(refused)
    return 0


def _remark(found: Found) -> str:
    return "" if not found.flaw else " (cannot be read)" if examine.is_denied(found.flaw) else " (broken)"


def _refusal(contents: Contents, any_complete: bool) -> str:
    """Returns a sentence with the reason why --yes would be refused now; empty if it would not be."""
    if contents.writer is not None and contents.writer.runs is not False:
        who = contents.writer.owner
        return f"Process {who.pid} on {who.host} saves there: --yes is refused until it ends; --wait SECS waits."
    if any_complete and any(examine.is_denied(found.flaw) for found in contents.checkpoints):
        return "--yes is refused while one cannot be read."
    if any_complete and contents.due is not None and contents.due.flaw:
        return f"{contents.due.name} is broken: {contents.due.flaw}. --yes is refused until you move it away."
    return ""
