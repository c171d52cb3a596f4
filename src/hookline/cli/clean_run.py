"""`hookline clean`: removes the checkpoints of a run that are too many."""

from __future__ import annotations

import argparse
import os

from hookline.checkpoint import cleaning, examine
from hookline.cli import runs, shown
from hookline.cli.shown import size
from hookline.errors import NotFoundError


def run(arguments: argparse.Namespace) -> int:
    """Lists what goes, or removes it, and returns the exit status."""
    shown.require_rich()
    directory = runs.folder(arguments.run)
    if examine.is_one(directory):
        raise NotFoundError(None, None, f"'{directory}' is a checkpoint. Give the folder of its run.")
    with runs.examined():
        contents = examine.contents(directory)
        if not contents.checkpoints and not runs.is_run(directory):
            raise runs.no_run(directory, "it has no checkpoint")
        if arguments.yes:
            plan = cleaning.clean(directory, arguments.keep, arguments.wait)
        else:
            plan = cleaning.plan(directory, arguments.keep)
    if contents.surprise:
        shown.say(f"Note: {contents.surprise}, so it is not known which checkpoints were to be kept for good.\n")
    by_path = {found.path: found for found in contents.checkpoints}
    going = [by_path[path] for path in (*plan.going, *plan.leftovers) if path in by_path]
    if not going:
        shown.say(f"Nothing is to be removed from '{directory}': the newest {plan.keep} stay, and there are no more.")
        return 0
    rows = [
        [found.name, "" if found.step is None else str(found.step), size(found.nbytes), found.flaw or "too many"]
        for found in going
    ]
    shown.table(["removed" if arguments.yes else "would be removed", ">step", ">size", "why"], rows)
    stays = ", ".join(os.path.basename(path) for path in reversed(plan.state.all_model_checkpoint_paths))
    total = size(sum(found.nbytes for found in going))
    said = f"{total} are free again" if arguments.yes else f"Nothing was removed; --yes would free {total}"
    shown.say(f"\n{said}. What stays: {stays}.")
    if not arguments.yes and contents.writer is not None and contents.writer.runs is not False:
        who = contents.writer.owner
        shown.say(f"Process {who.pid} on {who.host} saves there: --yes is refused until it ends.")
    return 0
