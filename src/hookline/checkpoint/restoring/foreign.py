"""Weights of other libraries: safetensors, NumPy's npz, Flax msgpack, and Orbax.

A file is recognised by its first bytes, a directory by Orbax's own files in it. Arrays are read one at a time; from
safetensors and Orbax, only the pieces that this process's devices need.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import mmap
import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline.checkpoint.directory import layout
from hookline.checkpoint.directory.manifest import MAX_BYTES, Leaf
from hookline.checkpoint.saving import failures
from hookline.errors import InvalidArgumentError, NotFoundError
from hookline.paths import flatten_with_paths
from hookline.regular_file import UnreadableFileError, open_regular, walk_files

_AGAIN = "Get it again from its source."
_FIRST_BYTES = 16


class Weights(NamedTuple):
    """Arrays in a file or directory of another library.

    Attributes:
        path: The file; or the directory with the tree of arrays, which may be below the given one.
        leaves: Its arrays by name, such as "params/dense/kernel".
        read: Reads some of them, given their names with the wanted dtype and sharding: NumPy arrays where the sharding
            is None, and JAX arrays elsewhere.
    """

    path: str
    leaves: dict[str, Leaf]
    read: Callable[[Mapping[str, jax.ShapeDtypeStruct]], dict[str, Any]]


class _Array(NamedTuple):
    """An array in an open file; `read_slice` takes a NumPy index."""

    shape: tuple[int, ...]
    dtype: str
    read_slice: Callable[[Any], np.ndarray]


class _Format(NamedTuple):
    name: str
    matches: Callable[[bytes, int], bool]  # Given the first bytes of the file, and its size.
    arrays: Callable[[str, BinaryIO], AbstractContextManager[dict[str, _Array]]]


def find(who: str, path: str, step: int | str = "latest") -> Weights | None:
    """Finds the weights at a path.

    Args:
        who: The caller, for messages.
        path: A file, an Orbax checkpoint, or the directory of an Orbax `CheckpointManager`.
        step: The step in the directory of a `CheckpointManager`, or "latest".

    Returns:
        The weights; None if there is nothing, or a checkpoint of hookline.

    Raises:
        InvalidArgumentError: The file has none of the formats, or it is not clear which tree of a directory is meant.
        DataLossError: It is broken.
        NotFoundError: The directory lacks the step.
        ValueError: A step was given for a file or directory without steps.
        ImportError: The library that reads the format is not installed.
    """
    status = layout.stat_or_none(path)
    if status is None or layout.locate(path) is not None:
        return None
    if stat.S_ISDIR(status.st_mode):
        return _of_orbax(who, path, step)
    _refuse_step(who, path, step)
    with _map_errors(path):
        format = _format_of(path)
        with _opened(format, path) as arrays:
            leaves = {name: _leaf(name, array.shape, array.dtype) for name, array in arrays.items()}
    return Weights(path, leaves, functools.partial(_read, format, path, leaves))


def _format_of(path: str) -> _Format:
    with os.fdopen(open_regular(path), "rb") as file:
        first, size = file.read(_FIRST_BYTES), os.fstat(file.fileno()).st_size
    for format in _FORMATS:
        if format.matches(first, size):
            return format
    raise InvalidArgumentError.from_message(
        f"'{path}' has none of the formats that hookline reads: {', '.join(each.name for each in _FORMATS)}, and "
        f"directories of Orbax and hookline. Save the weights as one of these.",
    )


@contextlib.contextmanager
def _opened(format: _Format, path: str) -> Iterator[dict[str, _Array]]:
    with os.fdopen(open_regular(path), "rb") as file, format.arrays(path, file) as arrays:
        yield arrays


def _read(
    format: _Format, path: str, leaves: Mapping[str, Leaf], wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with _map_errors(path), _opened(format, path) as arrays:
        for name, spec in wanted.items():
            array, leaf = arrays.pop(name, None), leaves[name]
            if array is None or (array.shape, array.dtype) != (leaf.shape, leaf.dtype):
                raise ValueError(f"{name!r} was replaced while it was read.")
            cast = functools.partial(_cast_piece, array, spec.dtype)
            if spec.sharding is None:
                found[name] = cast(...)
            else:
                found[name] = jax.make_array_from_callback(array.shape, spec.sharding, cast)
    return found


def _cast_piece(array: _Array, dtype: Any, index: Any) -> np.ndarray:
    return np.asarray(array.read_slice(index)).astype(dtype, copy=False)


def _leaf(name: str, shape: tuple[int, ...], dtype: str) -> Leaf:
    return Leaf(name, name, "array", shape, dtype)


@contextlib.contextmanager
def _map_errors(path: str) -> Iterator[None]:
    """Maps any error that a broken or hostile file causes in its library to one sentence with the path."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        mapped = failures.read_error(error, path, _AGAIN)
        if mapped is error:
            raise
        raise mapped from failures.without_tracebacks(error)


def _refuse_step(who: str, path: str, step: int | str) -> None:
    if step != "latest":
        raise ValueError(f"{who} was given '{path}', which has no steps, and step={step!r}: leave out the step.")


# Names in flat files.


def name_of(path: str) -> str:
    """Returns the name of an array in a flat file, given its path in a tree; `path_of` is the inverse.

    Example:
        >>> name_of("params/layer.0/kernel"), path_of("params.layer%2E0.kernel")
        ('params.layer%2E0.kernel', 'params/layer.0/kernel')
    """
    return path.replace(".", "%2E").replace("/", ".")


def path_of(name: str) -> str:
    """Returns the path for a name in a flat file: both "." and "/" separate its parts."""
    return name.replace(".", "/").replace("%2E", ".")


def _by_path(arrays: Mapping[str, _Array]) -> dict[str, _Array]:
    found = {path_of(name): array for name, array in arrays.items()}
    if len(found) < len(arrays):
        twice = next(name for name in arrays if path_of(name) in arrays and path_of(name) != name)
        raise ValueError(f"It has both {twice!r} and {path_of(twice)!r}, which are the same path here.")
    return found


# Formats.

DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F16": "float16",
    "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
}  # fmt: skip
"""The names of dtypes in safetensors, and JAX's names."""


def _library(path: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"'{path}' requires the package {package}: pip install {package}") from error


@contextlib.contextmanager
def _safetensors(path: str, _: BinaryIO) -> Iterator[dict[str, _Array]]:
    with _library(path, "safetensors").safe_open(path, framework="np") as file:

        def piece(name: str, index: Any) -> np.ndarray:
            part = file.get_slice(name)
            shape = part.get_shape()
            # safetensors does not slice scalars and arrays without elements.
            return part[index] if shape and all(shape) else file.get_tensor(name)[index]

        found = {}
        for name in file.keys():  # noqa: SIM118 It is not a dict.
            part = file.get_slice(name)
            dtype = DTYPES.get(part.get_dtype()) or part.get_dtype()
            found[name] = _Array(tuple(part.get_shape()), dtype, functools.partial(piece, name))
        yield _by_path(found)


@contextlib.contextmanager
def _npz(path: str, file: BinaryIO) -> Iterator[dict[str, _Array]]:
    with zipfile.ZipFile(file) as archive:
        found = {}
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                raise InvalidArgumentError.from_message(
                    f"'{path}' is not an npz file of NumPy, which holds only arrays: it holds {member.filename!r}. "
                    f"Save weights of PyTorch as safetensors.",
                )
            found[member.filename.removesuffix(".npy")] = _npy(archive, member)
        yield _by_path(found)


def _npy(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Array:
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{member.filename!r} has NumPy's format {version}: it is not an array of numbers.")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        if not dtype.hasobject and math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
            raise ValueError(f"{member.filename!r} has another size than its shape {shape} and dtype {dtype} need.")
    # NumPy has no bfloat16, and writes V2 (two bytes), which `jax.numpy.load` also reads as bfloat16.
    is_bfloat16 = dtype == np.dtype("V2")
    name = "bfloat16" if is_bfloat16 else dtype.name

    @functools.cache
    def whole() -> np.ndarray:
        with archive.open(member) as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
        return array.view(jnp.bfloat16) if is_bfloat16 else array

    return _Array(shape, name, lambda index: whole()[index])


@contextlib.contextmanager
def _msgpack(path: str, file: BinaryIO) -> Iterator[dict[str, _Array]]:
    serialization = _library(path, "flax.serialization")
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        tree = serialization.msgpack_restore(mapped)
    arrays = {
        name: np.asarray(leaf)
        for name, leaf in flatten_with_paths(tree)[0]
        if isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex)
    }
    yield {name: _Array(array.shape, array.dtype.name, array.__getitem__) for name, array in arrays.items()}


def _is_safetensors(first: bytes, size: int) -> bool:
    """Returns whether a file begins with the length of a JSON header, and the header."""
    return first[8:9] == b"{" and 8 + int.from_bytes(first[:8], "little") <= size


def _is_msgpack(first: bytes, size: int) -> bool:
    """Returns whether a file begins with a map that is not empty, whose first key is a string."""
    at = 1 if first[:1] and 0x80 < first[0] < 0x90 else {b"\xde": 3, b"\xdf": 5}.get(first[:1])
    return at is not None and (0xA0 <= (first[at : at + 1] or b"\0")[0] <= 0xBF or first[at : at + 1] == b"\xd9")


_FORMATS = (
    _Format("safetensors", _is_safetensors, _safetensors),
    _Format("npz", lambda first, size: first[:4] in (b"PK\x03\x04", b"PK\x05\x06"), _npz),
    _Format("Flax msgpack", _is_msgpack, _msgpack),
)


# Directories of Orbax.

_TREE, _CHECKPOINT = "_METADATA", "_CHECKPOINT_METADATA"
_USUAL_ITEMS = ("default", "state", "params")
_STEP = re.compile(r"(.*_)?(\d+)")


def _of_orbax(who: str, path: str, step: int | str) -> Weights | None:
    # The remains of a hookline checkpoint look like an Orbax checkpoint.
    if (
        layout.checkpoint_names(path)
        or layout.has_siblings(path)
        or (directory := _tree_below(who, path, step)) is None
    ):
        return None
    with _map_errors(directory):
        _check_files(directory)
        from hookline.checkpoint import orbax_io

        described = orbax_io.read_metadata(os.path.abspath(directory))
        # In a state of Flax NNX each array is called "value", below the name of its variable.
        ends = "/value" if all(name.endswith("/value") for name in described) else ""
        names = {name.removesuffix(ends): name for name in described}
        leaves = {name: _leaf(name, *described[there]) for name, there in names.items()}

    def read(wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, Any]:
        with _map_errors(directory):
            there = {names[name]: spec for name, spec in wanted.items()}
            found = orbax_io.read_tree(os.path.abspath(directory), there)
            return {name: found[names[name]] for name in wanted}

    return Weights(directory, leaves, read)


def _tree_below(who: str, path: str, step: int | str) -> str | None:
    """Returns the directory with the tree of arrays; None if Orbax did not write it."""
    if (tree := _tree_of_checkpoint(path)) is not None:
        _refuse_step(who, path, step)
        return tree
    found = [
        (named[1], int(named[2]), tree)
        for name in layout.subdirectories(path)
        if (named := _STEP.fullmatch(name)) and (tree := _tree_of_checkpoint(os.path.join(path, name))) is not None
    ]
    if not found:
        return None
    steps = {number: tree for _, number, tree in found}
    if len(steps) < len(found) or len({prefix for prefix, *_ in found}) > 1:
        shown = ", ".join(sorted(os.path.relpath(tree, path) for *_, tree in found))
        raise InvalidArgumentError.from_message(
            f"'{path}' has checkpoints of several trainings: {shown}. Give the path of one of them."
        )
    if step == "best":
        raise ValueError(
            f"{who}: '{path}' was written by Orbax, and hookline does not know which step is the best. Give its "
            f"number: {', '.join(map(str, sorted(steps)))}."
        )
    if step != "latest" and step not in steps:
        raise NotFoundError.from_message(
            f"'{path}' has no checkpoint of step {step}. It has those of: {', '.join(map(str, sorted(steps)))}.",
        )
    return steps[max(steps) if step == "latest" else int(step)]


def _tree_of_checkpoint(path: str) -> str | None:
    if os.path.exists(os.path.join(path, _TREE)):
        return path
    if not os.path.exists(os.path.join(path, _CHECKPOINT)):
        return None
    items = [name for name in layout.subdirectories(path) if os.path.exists(os.path.join(path, name, _TREE))]
    chosen = [name for name in _USUAL_ITEMS if name in items][:1] or items
    if len(chosen) != 1:
        what = (
            f"several trees, {', '.join(sorted(items))}. Give the path of one of them" if items else "no tree of arrays"
        )
        raise InvalidArgumentError.from_message(f"'{path}' is an Orbax checkpoint, and has {what}.")
    return os.path.join(path, chosen[0])


def _check_files(directory: str) -> None:
    """Checks the files, because Orbax and TensorStore open them unchecked."""
    for name, file in walk_files(directory):
        if name == _TREE and file.stat().st_size > MAX_BYTES:
            raise UnreadableFileError(f"its file {name} has more than {MAX_BYTES:,} bytes")
