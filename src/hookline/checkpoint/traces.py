"""Traces: the contents of a directory as its last writer left them, which reveal another writer."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import NamedTuple

from hookline.checkpoint import layout, state_file
from hookline.checkpoint.manifest import FILE_NAME
from hookline.regular_file import NotReadable, read_bytes

_END_BYTES = 100  # A manifest ends with its checksum.


class Traces(NamedTuple):
    """The contents of a directory at one moment: the names of all files and directories, and the state files.

    `states` has, by the name of a state file, its text and the end of the manifest of its newest checkpoint.
    """

    names: frozenset[str]
    states: Mapping[str, tuple[bytes, bytes]]


def look(directory: str, state_files: Collection[str]) -> Traces:
    """Returns the present contents of a directory; raises the errors of the system."""
    names = frozenset(entry.removesuffix(layout.SAVING_SUFFIX) for entry in os.listdir(directory))
    return Traces(names, {file: _state(directory, file) for file in state_files})


def change(since: Traces, directory: str) -> str:
    """Describes a later change in a directory by another writer; empty if there is none."""
    if new := [name for name in layout.names(directory) if name not in since.names]:
        return f"'{new[0]}' was not written by this process"
    for file, (text, newest) in look(directory, since.states).states.items():
        if text != since.states[file][0]:
            return f"its state file '{file}' is not as this process left it"
        if newest != since.states[file][1]:
            return f"the newest checkpoint that '{file}' names was not written by this process"
    return ""


def _state(directory: str, file: str) -> tuple[bytes, bytes]:
    text = _end(os.path.join(directory, file), state_file.MOST_BYTES)
    try:
        newest = layout.locate(os.path.join(directory, state_file.parsed(text.decode()).model_checkpoint_path))
    except ValueError:
        newest = None
    return text, b"" if newest is None else _end(os.path.join(newest, FILE_NAME), _END_BYTES)


def _end(path: str, most_bytes: int) -> bytes:
    """Returns the last bytes of a file; empty if it is missing, or no file."""
    try:
        return read_bytes(path, most_bytes, only_end=True)
    except (FileNotFoundError, NotADirectoryError, NotReadable):
        return b""
