"""`hookline clean`: removes old checkpoints of a run."""

from __future__ import annotations

import argparse

from hookline.checkpoint.restoring import inspection
from hookline.checkpoint.restoring.inspection import DirectoryContents, FoundCheckpoint
from hookline.checkpoint.saving import retention as cleaning
from hookline.cli import output, runs
from hookline.errors import NotFoundError
from hookline.units import format_bytes


def run(arguments: argparse.Namespace) -> int:
    """Lists or removes old checkpoints, and returns the exit status."""
    directory = runs.run_directory(arguments.run)
    if inspection.is_checkpoint(directory):
        raise NotFoundError.from_message(f"'{directory}' is a checkpoint. Give the folder of its run.")
    with runs.quiet_on_cpu():
        contents = inspection.inspect_directory(directory)
        if not contents.checkpoints and not runs.is_run(directory):
            raise runs.not_a_run_error(directory, "it has no checkpoint")
        if arguments.yes:
            plan = cleaning.clean(directory, arguments.keep, arguments.wait)
        else:
            plan = cleaning.plan(directory, arguments.keep)
    for note in contents.notes:
        so = ", so it is not known which checkpoints to keep permanently" if note == contents.anomaly else ""
        output.print_lines(f"Note: {note}{so}.")
    if contents.notes:
        output.print_lines("")
    by_path = {found.path: found for found in contents.checkpoints}
    # A half-written checkpoint may be the current save of that process.
    is_going_on = contents.writer is not None and contents.writer.is_running is not False and not arguments.yes
    leftovers = () if is_going_on else plan.leftovers
    going = [by_path[path] for path in (*plan.to_remove, *leftovers) if path in by_path]
    if not going:
        output.print_lines(
            f"There is nothing to remove in '{directory}': the newest {plan.keep} are kept, and there are no others."
        )
        return 0
    rows = [
        [
            found.name,
            "" if found.step is None else str(found.step),
            format_bytes(found.nbytes),
            found.defect or "too many",
        ]
        for found in going
    ]
    output.print_table(["removed" if arguments.yes else "would be removed", ">step", ">size", "why"], rows)
    left = [found for found in contents.checkpoints if found not in going and not found.is_unfinished]
    stays = ", ".join(found.name + _remark(found) for found in left)
    total = format_bytes(sum(found.nbytes for found in going))
    line = f"{total} are free again" if arguments.yes else f"Nothing was removed; --yes would free {total}"
    refused = "" if arguments.yes else _refusal(contents, bool(plan.to_remove))
    if refused:
        line = "Nothing was removed"
    output.print_lines("", f"{line}. Kept: {stays}.")
    if refused:
        output.print_lines(refused)
    return 0


def _remark(found: FoundCheckpoint) -> str:
    return (
        ""
        if not found.defect
        else " (cannot be read)"
        if inspection.is_permission_denied(found.defect)
        else " (broken)"
    )


def _refusal(contents: DirectoryContents, any_complete: bool) -> str:
    """Returns a message with the reason why --yes would be refused now; empty if it would not be."""
    if contents.writer is not None and contents.writer.is_running is not False:
        who = contents.writer.owner
        return f"Process {who.pid} on {who.host} saves there: --yes is refused until it ends; --wait SECS waits."
    if any_complete and any(inspection.is_permission_denied(found.defect) for found in contents.checkpoints):
        return "--yes is refused while a checkpoint cannot be read."
    if any_complete and contents.restore_target is not None and contents.restore_target.defect:
        target = contents.restore_target
        return f"{target.name} is broken: {target.defect}. --yes is refused until you move it away."
    return ""
