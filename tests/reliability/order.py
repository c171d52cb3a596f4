"""In which order a program changes, syncs, renames and removes files, and whether a power cut could do harm in between.

Nothing is assumed of the file system but what POSIX promises: a file's contents are on the disk when it was synced
after its last write, and a name when its directory was synced after it got that name.
"""

from __future__ import annotations

import dataclasses
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Which names a reader would take for checkpoints, on a disk that is not there.
from hookline.checkpoint.directory import layout
from hookline.checkpoint.directory.state_file import STATE_FILE_NAME

from .file_calls import FileCall, watched

Names = dict[str, int]  # The inode behind each name.


@dataclasses.dataclass(frozen=True)
class Node:
    """A file or directory: its inode, and for a file a sign of writes since."""

    inode: int
    version: tuple[int, int] | None


Tree = dict[str, Node]  # By path, relative to the root; the root itself is "".


@dataclasses.dataclass(frozen=True)
class Event:
    """A call, or the report of a checkpoint; paths are relative to the root.

    Before it there was a tree, and a reader would have found the checkpoints `shown`; after it, `shown_after`.
    """

    name: str
    path: str
    target: str
    before: Tree
    shown: Names
    shown_after: Names

    def __str__(self) -> str:
        return " ".join(filter(None, [self.name, kind(self.path), kind(self.target)]))


def kind(path: str) -> str:
    """Returns a path without the parts that differ from save to save: step numbers and random names."""
    return re.sub(r"\b[0-9a-f]{8}([0-9a-f]{24})?\b", "*", re.sub(r"model\.ckpt-\d+", "model.ckpt", path))


class Recorder:
    """Records what this process does to the files below a root; existing files count as on the disk.

    The directory of the checkpoints is relative to the root. Syncs at one of `sites` may be left out.
    """

    def __init__(self, root: str, directory: str, without: str | None = None) -> None:
        self.root, self.directory = root, directory
        self.start = _look(root)
        self.events: list[Event] = []
        self.sites: list[str] = []
        self._without, self._last_change = without, "start"
        self._lock = threading.RLock()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records what happens inside."""
        with watched(self._around):
            yield

    def report(self, path: str) -> None:
        """Takes note that a checkpoint has been reported as saved."""
        shown = self._shown()
        self.events.append(Event("report", os.path.relpath(path, self.root), "", _look(self.root), shown, shown))

    def _around(self, call: FileCall, proceed: Callable[[], Any]) -> Any:
        if call.name == "open":
            return proceed()
        with self._lock:
            before, shown = _look(self.root), self._shown()
            path = self._place(call, before)
            if path is None:
                return proceed()
            if call.name == "fsync":
                site = f"{kind(os.path.relpath(path or os.curdir, self.directory))} after {self._last_change}"
                if site not in self.sites:
                    self.sites.append(site)
                if site == self._without:
                    return None
            result = proceed()
            target = os.path.relpath(call.target, self.root) if call.target else ""
            event = Event(call.name, path, target, before, shown, self._shown())
            self.events.append(event)
            if call.name == "rename":
                self._last_change = f"rename to {kind(os.path.relpath(target, self.directory))}"
            return result

    def _place(self, call: FileCall, tree: Tree) -> str | None:
        base = os.path.abspath(self.root)
        if call.descriptor is not None:
            found = next(_paths(tree, {os.fstat(call.descriptor).st_ino}), None)
            return None if found is None else os.path.join(found, call.path).rstrip(os.sep)
        path = os.path.abspath(call.path)
        return os.path.relpath(path, base) if path.startswith(base + os.sep) else None

    def _shown(self) -> Names:
        directory = os.path.join(self.root, self.directory)
        found = {name: layout.locate(os.path.join(directory, name)) for name in layout.checkpoint_names(directory)}
        return {name: os.stat(place).st_ino for name, place in found.items() if place is not None}


def _look(root: str) -> Tree:
    tree = {"": Node(os.stat(root).st_ino, None)}

    def visit(folder: str) -> None:
        for entry in os.scandir(os.path.join(root, folder)):
            try:
                status = entry.stat(follow_symlinks=False)
                directory = entry.is_dir(follow_symlinks=False)
                version = None if directory else (status.st_mtime_ns, status.st_size)
                tree[os.path.join(folder, entry.name)] = Node(status.st_ino, version)
                if directory:
                    visit(os.path.join(folder, entry.name))
            except FileNotFoundError:  # Removed, or renamed, during the check.
                continue

    visit("")
    return tree


class Disk:
    """The files that are certainly on the disk, according to the syncs so far."""

    def __init__(self, start: Tree) -> None:
        self.contents = {node.inode: node.version for node in start.values()}
        self.names = {node.inode: _names(start, path) for path, node in start.items() if node.version is None}

    def sync(self, path: str, tree: Tree) -> None:
        node = tree[path]
        if node.version is None:
            self.names[node.inode] = _names(tree, path)
        else:
            self.contents[node.inode] = node.version

    def has_name(self, path: str, tree: Tree) -> bool:
        """Returns whether this path on the disk leads from its directory to its current target."""
        folder, name = os.path.split(path)
        return self.names.get(tree[folder].inode, {}).get(name) == tree[path].inode

    def has_contents(self, path: str, tree: Tree) -> bool:
        node = tree[path]
        return node.version is None or self.contents.get(node.inode) == node.version

    def lacks(self, top: str, tree: Tree, but: str = "") -> list[str]:
        """Returns the files below a directory that are not on the disk; `but` is left out: it is being renamed."""
        missing = []
        for path in sorted(path for path in tree if path.startswith(top + os.sep) and path != but):
            if not self.has_name(path, tree):
                missing.append(f"the name of {kind(path)}")
            if not self.has_contents(path, tree):
                missing.append(f"the contents of {kind(path)}")
        return missing


def violations(recorder: Recorder) -> list[str]:
    """Returns what a power cut could have destroyed: a line for each event that broke a rule; none if all is well.

    - A file is synced before it is renamed. (That of the lease, which only shows the live owner, is left out.)
    - All else in a checkpoint is synced before its manifest, and all of it before the rename by which it is found, or
      by which its directory gets another name.
    - A name is free on the disk before a directory takes it.
    - Before a checkpoint goes out of sight, those in sight are on the disk, with their names, and so is the state file.
    - Files of a checkpoint are removed only when its name is gone on the disk too.
    - Before the state file names a checkpoint, that is on the disk, with its name.
    - A checkpoint is reported when it, its name, the state file and the directories above are on the disk.
    """
    disk, found = Disk(recorder.start), []
    once_shown: set[str] = set()
    for event in recorder.events:
        once_shown |= event.shown.keys()
        if event.name == "fsync":
            disk.sync(event.path, event.before)
        elif event.name in ("remove", "rmdir"):
            found += [
                f"{event} while the disk calls it {name}"
                for name in _names_left(event, disk, recorder.directory, once_shown)
            ]
        elif missing := list(_missing(event, disk, recorder.directory)):
            found.append(f"{event} before these were synced: {', '.join(dict.fromkeys(missing))}")
    return list(dict.fromkeys(found))


def _missing(event: Event, disk: Disk, directory: str) -> Iterator[str]:
    tree = event.before
    if event.name == "report":
        yield from _missing_of(event.path, disk, tree)
        yield from _missing_around(directory, disk, tree)
    elif event.name == "rename" and event.path in tree:
        yield from _missing_before_rename(event, disk, tree)
        if event.target == os.path.join(directory, STATE_FILE_NAME):
            for path in _paths(tree, set(event.shown.values())):
                yield from _missing_of(path, disk, tree)
        if set(event.shown.values()) - set(event.shown_after.values()):
            for path in _paths(tree, set(event.shown_after.values())):
                yield from _missing_of(path, disk, tree)
            yield from _missing_around(directory, disk, tree)


def _missing_before_rename(event: Event, disk: Disk, tree: Tree) -> Iterator[str]:
    folder, name = os.path.split(event.target)
    inode = tree[event.path].inode
    if not disk.has_contents(event.path, tree) and name != ".hookline-owner":
        yield f"the contents of {kind(event.path)}"
    if tree[event.path].version is None and disk.names.get(tree[folder].inode, {}).get(name, inode) != inode:
        yield f"that the name {kind(event.target)} is free"
    if name == "hookline.json":
        yield from disk.lacks(folder, tree, but=event.path)
    before, after = set(event.shown.values()), set(event.shown_after.values())
    for path in _paths(tree, {inode} & (before | after) | after - before):
        yield from disk.lacks(path, tree, but=event.path)


def _missing_of(path: str, disk: Disk, tree: Tree) -> Iterator[str]:
    if not disk.has_name(path, tree):
        yield f"the name of {kind(path)}"
    yield from disk.lacks(path, tree)


def _missing_around(directory: str, disk: Disk, tree: Tree) -> Iterator[str]:
    """Checks the state file and the directories above."""
    state = os.path.join(directory, STATE_FILE_NAME)
    if state in tree and not (disk.has_name(state, tree) and disk.has_contents(state, tree)):
        yield "the state file"
    while directory:
        if not disk.has_name(directory, tree):
            yield f"the name of the directory {directory}"
        directory = os.path.dirname(directory)


def _names_left(event: Event, disk: Disk, directory: str, once_shown: set[str]) -> Iterator[str]:
    """Yields the names by which a reader would find, on the disk, the checkpoint in which something is removed."""
    top = os.path.join(directory, os.path.relpath(event.path, directory).split(os.sep)[0])
    if event.path in event.before and top in event.before:
        for name, inode in disk.names.get(event.before[directory].inode, {}).items():
            if inode == event.before[top].inode and name in once_shown and name != os.path.basename(top):
                yield kind(name)


def _paths(tree: Tree, inodes: set[int]) -> Iterator[str]:
    return (path for path, node in tree.items() if node.inode in inodes)


def _names(tree: Tree, folder: str) -> Names:
    return {
        os.path.basename(path): node.inode for path, node in tree.items() if path and os.path.dirname(path) == folder
    }
