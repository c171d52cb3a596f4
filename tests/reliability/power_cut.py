"""Runs a job on a disk of its own, cuts the power at every moment, and checks the files.

Run as `unshare --mount python -m reliability.power_cut SETTINGS FOLDER`: what it mounts is gone with the process,
however that ends. SETTINGS are the fields of `Settings` as JSON, FOLDER an empty one. Prints `Findings` as JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import hookline as hl
from hookline import train
from hookline.errors import OpError

from . import images, job
from .file_calls import FileCall, watched

_DIRECTORY = "runs/a"
_STEP_SECS = 300  # Neither the job nor a check of a disk takes as long, unless it hangs: then its stack is printed.
_NO_CHECKPOINTS = {"checkpoint", "graph.txt", "account-0.jsonl", ".hookline-lock", ".hookline-owner"}
_BEGINNINGS = ("events.out.", ".hookline-owner.")  # A half-written owner file stays: small, and in nobody's way.


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to try.

    Attributes:
        neighbour: Whether another program on that disk syncs a file of its own all the time. In a journal that brings
            every new name to the disk, but not what was written to other files.
        syncs: Whether the syncs that the job asks for are done.
        at_most: How many pictures to look at, evenly spread; 0 for all.
    """

    manner: str
    kind: str
    neighbour: bool = False
    last_step: int = 5
    syncs: bool = True
    at_most: int = 0


@dataclasses.dataclass
class Findings:
    """The results.

    Attributes:
        moments: How often the power could have been cut.
        pictures: How many different disks that would have left, or left after different reports.
        looked_at: How many of them were looked at.
        bad: How many of these were not as they should be.
        spoilt: How many more were bad only since e2fsck had repaired them. Where there is no journal, a directory that
            was removed may still be on the disk, and its blocks be those of a new one that was synced; e2fsck takes
            entries from either. No program can sync what is no longer there.
        wrong: The problems, a line with the moment for each.
    """

    moments: int = 0
    pictures: int = 0
    looked_at: int = 0
    bad: int = 0
    spoilt: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)


def cut_everywhere(settings: Settings, folder: str) -> Findings:
    """Runs the job, and checks the pictures that were taken of its disk."""
    faulthandler.dump_traceback_later(_STEP_SECS, exit=True)
    camera = _run(settings, folder)
    findings = Findings(moments=camera.moments, pictures=len(camera.pictures))
    image, place = os.path.join(folder, "left"), os.path.join(folder, "looked-at")
    os.mkdir(place)
    model = job.Model()
    for picture, disk in _chosen(camera.pictures, settings.at_most):
        faulthandler.dump_traceback_later(_STEP_SECS, exit=True)
        problems = _look(model, picture, disk, image, place, settings)
        findings.looked_at += 1
        if problems and settings.kind == "no journal" and _is_spoilt(model, picture, disk, image, place):
            findings.spoilt += 1
            continue
        findings.bad += bool(problems)
        findings.wrong += [f"{picture.moment}: {problem}".replace(f"{folder}/", "") for problem in problems]
    return findings


def _run(settings: Settings, folder: str) -> images.Camera:
    image, place = os.path.join(folder, "image"), os.path.join(folder, "disk")
    os.mkdir(place)
    images.make(image, settings.kind)
    images.mount(image, place, settings.kind)  # For good: the job may leave files open.
    with open(os.path.join(place, "neighbour"), "wb", buffering=0) as file:

        def sync(really: Callable[[int], None] = os.fsync) -> None:
            file.write(b"!")
            really(file.fileno())

        def around(call: FileCall, proceed: Callable[[], Any]) -> Any:
            return camera.around(call, proceed if settings.syncs or call.name != "fsync" else lambda: None)

        camera = images.Camera(image, place, sync if settings.neighbour else lambda: None)
        with watched(around):
            job.run(settings.manner, os.path.join(place, _DIRECTORY), settings.last_step, camera.report)
    return camera


def _chosen(pictures: list[images.Picture], at_most: int) -> Iterator[tuple[images.Picture, np.ndarray]]:
    last = len(pictures) - 1
    wanted = set(np.linspace(0, last, at_most).astype(int)) if at_most else range(last + 1)
    return (found for number, found in enumerate(images.disks(pictures)) if number in wanted)


def _look(
    model: job.Model, picture: images.Picture, disk: np.ndarray, image: str, place: str, settings: Settings
) -> list[str]:
    """Restarts the machine, and returns the problems of the disk."""
    directory = os.path.join(place, _DIRECTORY)
    disk.tofile(image)
    if settings.kind == "no journal":
        images.repair(image)
    with images.mounted(image, place, settings.kind):
        try:
            return list(_wrong(model, picture, directory)) or list(_wrong_in_next_start(directory, settings.manner))
        except OpError as error:
            return [f"it cannot be used: {error}"]


def _is_spoilt(model: job.Model, picture: images.Picture, disk: np.ndarray, image: str, place: str) -> bool:
    """Returns whether the disk has the last reported checkpoint only as long as it is not repaired."""
    disk.tofile(image)
    with images.mounted(image, place, "no journal", "ro"):
        before = _readable(model, os.path.join(place, _DIRECTORY))
    images.repair(image)
    with images.mounted(image, place, "no journal"):
        after = _readable(model, os.path.join(place, _DIRECTORY))
    path, step = picture.reported[-1] if picture.reported else ("", 0)
    return before.get(os.path.basename(path), 0) >= step and not before.items() <= after.items()


def _readable(model: job.Model, directory: str) -> dict[str, int]:
    """Returns the steps of all intact checkpoints, without the state file."""
    steps = {}
    with model.graph.as_default(), hl.Session() as sess:
        for name in os.listdir(directory) if os.path.isdir(directory) else ():
            if re.fullmatch(r"model\.ckpt(-\d+)?", name):
                with contextlib.suppress(OpError):
                    train.Saver().restore(sess, os.path.join(directory, name))
                    steps[name] = job.found_step(model, sess) or 0
    return steps


def _wrong(model: job.Model, picture: images.Picture, directory: str) -> Iterator[str]:
    """Compares the readable values with the saved and reported ones."""
    steps: dict[str, int] = {}
    with model.graph.as_default(), hl.Session() as sess:
        for path in _listed(directory):
            try:
                train.Saver().restore(sess, path)
            except OpError as error:
                yield f"{path} is listed and unreadable: {error}"
                continue
            step = job.found_step(model, sess)
            if step is None:
                yield f"{path} does not hold what was saved"
            else:
                steps[path] = step
    yield from _lost(picture, directory, steps)


def _wrong_in_next_start(directory: str, manner: str) -> Iterator[str]:
    """Lets the job make one more step, and checks its files."""
    newest = train.latest_checkpoint(directory)
    step = 0 if newest is None else int(train.load_variable(newest, "global_step"))
    job.run(manner, directory, step + 1)
    kept = {os.path.basename(path) for path in _listed(directory)}
    left = {name for name in os.listdir(directory) if not name.startswith(_BEGINNINGS)} - kept - _NO_CHECKPOINTS
    if left or not 0 < len(kept) <= job.MAX_TO_KEEP:
        yield f"after the next start there are {sorted(left)}, beside {sorted(kept)}"


def _listed(directory: str) -> tuple[str, ...]:
    state = train.get_checkpoint_state(directory)
    return () if state is None else state.all_model_checkpoint_paths


def _lost(picture: images.Picture, directory: str, steps: dict[str, int]) -> Iterator[str]:
    """Compares the files with the reports that are not old enough to have been removed."""
    if not picture.reported:
        return
    reported = {os.path.join(directory, os.path.basename(path)): step for path, step in picture.reported}
    known = {path: max(step, steps.get(path, 0)) for path, step in reported.items()} | steps
    for path in sorted(known, key=lambda path: known[path])[-job.MAX_TO_KEEP :]:
        if path not in steps:
            yield f"{path} was reported and is lost"
    newest = train.latest_checkpoint(directory)
    if newest is None or steps.get(newest, -1) < max(reported.values()):
        yield f"step {max(reported.values())} was reported, and the newest is {newest} of {steps}"


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(cut_everywhere(Settings(**json.loads(sys.argv[1])), sys.argv[2]))))
