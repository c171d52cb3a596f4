"""Reads, writes and finds files in the graph: `tf.read_file`, `tf.write_file`, `tf.matching_files`."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from hookline import Operation
from hookline.extend import from_os_error
from hookline_tf1 import gfile
from hookline_tf1._machinery.nodes import convert_to_tensor
from hookline_tf1._rules.host_strings import STRING, OnHost, as_word
from hookline_tf1._tf.string_ops import each


def read_file(filename: Any, name: str | None = None) -> Any:
    """`tf.read_file`: reads a file in each run."""

    def read(path: bytes) -> bytes:
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            raise from_os_error(error, f"tf.read_file could not read {os.fsdecode(path)!r}") from error

    return each(read, name or "ReadFile", filename)


def write_file(filename: Any, contents: Any, name: str | None = None) -> Operation:
    """`tf.write_file`: an operation that writes a string to a file, and creates its folder."""

    def write(filename: Any, contents: Any) -> int:
        path = as_word(filename)
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, "wb") as file:
                return file.write(np.asarray(contents).item())
        except OSError as error:
            raise from_os_error(error, f"tf.write_file could not write {path!r}") from error

    given = {"filename": convert_to_tensor(filename), "contents": convert_to_tensor(contents)}
    return OnHost(write, name or "WriteFile", given, np.dtype(np.int32), [])


def matching_files(pattern: Any, name: str | None = None) -> Any:
    """`tf.matching_files`: the sorted paths that match a pattern, or one of several."""

    def found(pattern: Any) -> Any:
        return np.array(sorted({path for one in np.ravel(pattern) for path in gfile.Glob(as_word(one))}), object)

    return OnHost(found, name or "MatchingFiles", {"pattern": convert_to_tensor(pattern)}, STRING, [None]).output


PUBLIC = {"matching_files": matching_files, "read_file": read_file, "write_file": write_file}
