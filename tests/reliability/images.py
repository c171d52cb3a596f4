"""Disks in files, and pictures of what they hold at a moment: what a power cut would leave.

A picture is taken of the file behind the loop device, unsynced: it has what the kernel has written to the device until
then, and nothing of what waits in its memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .file_calls import FileCall

BLOCK_BYTES = 4096
DISK_BYTES = 16 * 2**20
# The journal is written, and old data too, only where a program syncs: not because seconds have gone by.
_OPTIONS = {"journal": "loop,commit=300,noatime", "no journal": "loop,noatime"}
KINDS = tuple(_OPTIONS)
_UNMOUNT_ATTEMPTS, _UNMOUNT_WAIT_SECS = 50, 0.1


def make(image: str, kind: str) -> None:
    """Makes an empty ext4 file system in a file; `kind` is one of `KINDS`."""
    with open(image, "wb") as file:
        file.truncate(DISK_BYTES)
    features = ["-J", "size=4"] if kind == "journal" else ["-O", "^has_journal"]
    # The tables of inodes are written now and not, by the kernel, later.
    eager = ["-E", "lazy_itable_init=0,lazy_journal_init=0", "-b", str(BLOCK_BYTES)]
    _call("mkfs.ext4", "-q", "-F", *features, *eager, image)


def mount(image: str, place: str, kind: str, *more: str) -> None:
    """Mounts it, for as long as this process lives in a mount namespace of its own."""
    _call("mount", "-t", "ext4", "-o", ",".join([_OPTIONS[kind], *more]), image, place)


@contextlib.contextmanager
def mounted(image: str, place: str, kind: str, *more: str) -> Iterator[None]:
    """Mounts it with more options, and unmounts it at the end."""
    mount(image, place, kind, *more)
    try:
        yield
    finally:
        _unmount(place)


def _unmount(place: str) -> None:
    """Unmounts a file system, again if it is busy: the kernel may release closed files a moment later."""
    for _ in range(_UNMOUNT_ATTEMPTS):
        if subprocess.run(["umount", place], capture_output=True).returncode == 0:
            return
        time.sleep(_UNMOUNT_WAIT_SECS)
    _call("umount", place)


def repair(image: str) -> None:
    """Makes a disk without a journal consistent, as a machine does that starts after a power cut."""
    _call("e2fsck", "-f", "-y", image, fine=(0, 1))  # 1: it has repaired something.


def _call(*command: str, fine: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in fine:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


@dataclasses.dataclass(frozen=True)
class Picture:
    """What the disk held at a moment.

    Attributes:
        moment: What the job was about to do, or had just done.
        reported: Path and step of each checkpoint that it had reported as saved by then, in order.
        blocks: Numbers of the blocks that differ from the picture before.
        contents: Of these blocks.
    """

    moment: str
    reported: list[tuple[str, int]]
    blocks: np.ndarray
    contents: np.ndarray


class Camera:
    """Takes a picture before and after each file call of a job, wherever the disk or the reports have changed.

    The disk is in the file `image`, mounted at `place`; `nudge` is called before each file call, ahead of its picture.
    """

    def __init__(self, image: str, place: str, nudge: Callable[[], None] = lambda: None) -> None:
        self.pictures: list[Picture] = []
        self.moments = 0
        self._image, self._nudge = os.open(image, os.O_RDONLY), nudge
        device = pathlib.Path(_call("findmnt", "-n", "-o", "SOURCE", place).strip()).name
        self._statistics = pathlib.Path("/sys/block", device, "stat")
        self._last = np.zeros((DISK_BYTES // BLOCK_BYTES, BLOCK_BYTES // 8), np.uint64)
        self._written = -1
        self._reported: list[tuple[str, int]] = []
        self._lock = threading.RLock()
        self._shooting = False
        self.shoot("start")

    def around(self, call: FileCall, proceed: Callable[[], Any]) -> Any:
        """For `watched`."""
        self.shoot(f"before {call}", self._nudge)
        try:
            return proceed()
        finally:
            self.shoot(f"after {call}")

    def report(self, path: str, step: int) -> None:
        """Takes note that a checkpoint has been reported as saved."""
        with self._lock:
            self._reported.append((path, step))
        self.shoot(f"when {path} was reported")

    def shoot(self, moment: str, prepare: Callable[[], None] = lambda: None) -> None:
        """Takes a picture, unless it is for taking one that files are being used."""
        with self._lock:
            if self._shooting:
                return
            self._shooting = True
            try:
                prepare()
                self._shoot(moment)
            finally:
                self._shooting = False

    def _shoot(self, moment: str) -> None:
        self.moments += 1
        told = bool(self.pictures) and len(self.pictures[-1].reported) == len(self._reported)
        if told and self._at_rest() == self._written:
            return
        now = self._read()
        changed = np.flatnonzero((now != self._last).any(axis=1))
        if told and not len(changed):
            return
        self.pictures.append(Picture(moment, list(self._reported), changed, now[changed]))
        self._last = now

    def _read(self) -> np.ndarray:
        """Reads the whole disk as it is at one moment: again, if something is written meanwhile."""
        while True:
            written = self._at_rest()
            now = np.frombuffer(os.pread(self._image, DISK_BYTES, 0), np.uint64).reshape(self._last.shape)
            if written is not None and self._at_rest() == written:
                self._written = written
                return now

    def _at_rest(self) -> int | None:
        """Returns how many sectors have been written to the device; None while a request is under way."""
        fields = self._statistics.read_text().split()
        return int(fields[6]) if fields[8] == "0" else None


def disks(pictures: list[Picture]) -> Iterator[tuple[Picture, np.ndarray]]:
    """Yields each picture with all that the disk held then; the array is overwritten by the next."""
    disk = np.zeros((DISK_BYTES // BLOCK_BYTES, BLOCK_BYTES // 8), np.uint64)
    for picture in pictures:
        disk[picture.blocks] = picture.contents
        yield picture, disk
