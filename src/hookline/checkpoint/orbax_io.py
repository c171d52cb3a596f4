"""The only module that uses Orbax. It is imported only to write or read a checkpoint: importing Orbax takes 0.4 s."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import jax
import numpy as np
import orbax.checkpoint
from orbax.checkpoint import v1 as ocp

from hookline.checkpoint.saving import durable
from hookline.checkpoint.saving.host_copy import HostCopy
from hookline.errors import FailedPreconditionError
from hookline.graph import placement
from hookline.paths import flatten_with_paths

# An array in several pieces is stored in chunks of this size: each device reads the chunks that its own piece needs.
# To be written, a chunk is copied, unless it consists of whole rows; so an array in one piece is stored as one chunk.
_CHUNK_BYTES = 4 * 2**20
# Orbax divides the length of a dimension without a remainder; one with a larger prime factor would give tiny chunks.
_LARGEST_FACTOR = 2**10
# Orbax refuses an empty tree; this name means "everything is in the manifest".
_NO_ARRAYS = {"(no arrays)": np.zeros(1, np.bool_)}
# The tree, the part of each process in it, and the description of the tree for Orbax.
_TREE, _PART, _METADATA = "state", "ocdbt.process_", "_CHECKPOINT_METADATA"
_IS_TREE = {"item_handlers": {_TREE: "orbax.checkpoint.experimental.v1._src.handlers.pytree_handler.PyTreeHandler"}}


# When a save fails, Orbax's threads fail one after another, even after the save was abandoned.
logging.getLogger("absl").addFilter(lambda record: ".hookline-writing-" not in record.getMessage())
# When a read fails, Orbax leaves the tasks of other arrays behind, its own and TensorStore's; asyncio logs them, with
# stack traces, whenever they are collected.
logging.getLogger("asyncio").addFilter(
    lambda record: not any(sign in record.getMessage() for sign in (f"{os.sep}orbax{os.sep}", "tensorstore"))
)


@contextmanager
def _opened(directory: str) -> Iterator[str]:
    """Yields the name of a directory for Orbax, and meanwhile suppresses Orbax's log messages, mostly stack traces.

    The same failures are also raised. Each use has its own filter, so that two at once (a save in the background, a
    restore) do not remove each other's. TensorStore accepts only names in UTF-8, whatever the locale is.
    """

    def of_others(record: logging.LogRecord) -> bool:
        return f"{os.sep}orbax{os.sep}" not in record.pathname

    logger = logging.getLogger("absl")
    with ExitStack() as until_done:
        named = directory
        try:
            directory.encode()
        except UnicodeEncodeError:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            until_done.callback(os.close, descriptor)
            if not os.path.isdir(named := f"/proc/self/fd/{descriptor}"):
                raise FailedPreconditionError.from_message(
                    f"'{directory}' has a name that is not valid in the encoding of this locale: set PYTHONUTF8=1."
                ) from None
        logger.addFilter(of_others)
        until_done.callback(logger.removeFilter, of_others)
        yield named


def _chunked_names(stored: Mapping[str, HostCopy]) -> set[str]:
    """Returns the names of the arrays to store in chunks."""
    return {
        name
        for name, copy in stored.items()
        if (len(copy.bounds) > 1 or isinstance(copy.array, jax.Array)) and all(map(_divides, copy.array.shape))
    }


@functools.cache
def _divides(length: int) -> bool:
    """Returns whether a length has only small factors."""
    for factor in range(2, _LARGEST_FACTOR + 1):
        while length % factor == 0:
            length //= factor
    return length == 1


def prepare_directories(directory: str, parts: Iterable[int]) -> None:
    """Starts a save: creates all processes' directories here, because hosts may see each other's only after a while."""
    if not placement.is_spmd():
        # A new operation id: under one id Orbax waits for all announced work, also that of a failed save.
        with suppress(ImportError):  # It has no public name.
            from orbax.checkpoint._src.futures.synchronization import OperationIdGenerator

            OperationIdGenerator.next_operation_id()
    for index in parts:
        os.makedirs(os.path.join(directory, _TREE, f"{_PART}{index}"), exist_ok=True)


def start_writing(directory: str, stored: Mapping[str, HostCopy]) -> Callable[[], None]:
    """Starts to write one process's part of named arrays; `merge_parts` merges the parts of all processes.

    Orbax's own save makes a process wait for the others, up to 5 minutes for one that has failed, and compares their
    directories in a program that all must run. For a single process it takes more than twice as long.

    Returns:
        A function that waits until the part is written, and raises any error. Until then the arrays must not change.
    """
    split, arrays = _chunked_names(stored), {name: copy.array for name, copy in stored.items()} or _NO_ARRAYS
    chunks = {
        name: orbax.checkpoint.SaveArgs(chunk_byte_size=_CHUNK_BYTES if name in split else None) for name in arrays
    }
    with ExitStack() as until_written:
        tree = ocp.path.Path(os.path.join(until_written.enter_context(_opened(directory)), _TREE))
        with closing(asyncio.new_event_loop()) as loop:  # At its end, `asyncio.run` iterates over all threads' tasks.
            saving = _handler().async_save(tree, args=orbax.checkpoint.args.PyTreeSave(arrays, chunks))
            begun = loop.run_until_complete(saving)
        finish = until_written.pop_all()

    def wait() -> None:
        with finish:
            for files in begun or ():
                files.result()

    return wait


def sync_part(directory: str, index: int) -> None:
    """Syncs one process's part: the chief cannot sync data that is still in the memory of another host."""
    durable.sync_tree(os.path.join(directory, _TREE, f"{_PART}{index}"))


def merge_parts(directory: str, parts: Iterable[int]) -> None:
    """Merges the parts of these processes into one tree, once all are written."""
    tree = os.path.join(directory, _TREE)
    for index in parts:
        os.stat(os.path.join(tree, f"{_PART}{index}", "manifest.ocdbt"))  # Orbax would silently skip a missing part.
    with _opened(tree) as named:
        _handler().finalize(ocp.path.Path(named))
    with open(os.path.join(directory, _METADATA), "w", encoding="utf-8") as file:
        json.dump(_IS_TREE, file)


class _ShardHandler(orbax.checkpoint.type_handlers.ArrayHandler):
    """Writes pieces of JAX arrays, typed as NumPy arrays, so that Orbax can read them without the devices."""

    def typestr(self) -> str:
        return "np.ndarray"


def _handler() -> Any:
    types = orbax.checkpoint.type_handlers
    registry = types.create_type_handler_registry(
        (np.ndarray, types.NumpyHandler(deepcopy_host_arrays=False)),
        (jax.Array, _ShardHandler(use_replica_parallel=False)),
    )
    return orbax.checkpoint.PyTreeCheckpointHandler(
        use_zarr3=True, use_compression=False, type_handler_registry=registry
    )


def read(directory: str, wanted: Mapping[str, Any], at_once_bytes: int) -> dict[str, Any]:
    """Reads arrays of a checkpoint by name; `wanted` has a `jax.ShapeDtypeStruct` with a sharding, or `np.ndarray`."""
    if not wanted:
        return {}
    context = ocp.Context()
    # This would be a second list of shapes and key types. The manifest has them, and Orbax loses coroutines if reading
    # its list fails.
    context.array.saving.array_metadata_store = None
    if placement.is_spmd():  # Orbax would wait for the other processes, which may not come.
        context.multiprocessing.primary_host = ocp.multihost.process_index()
        context.multiprocessing.active_processes = {ocp.multihost.process_index()}
    context.pytree.loading.partial_load = True
    # Devices that need parts of one chunk each read all of it, one after another. Sizes must be below the limit.
    context.memory.read_concurrent_bytes = at_once_bytes + 1
    with context, _opened(directory) as named:
        return ocp.load(named, dict(wanted))


def read_metadata(directory: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Returns the shapes and dtypes of the arrays in another program's tree, by path, without other leaves."""
    with _opened(directory) as named:
        pairs, _ = _tree_metadata(named)
    return {
        path: (tuple(leaf.shape), np.dtype(leaf.dtype).name)
        for path, leaf in pairs
        if getattr(leaf, "shape", None) is not None and getattr(leaf, "dtype", None) is not None
    }


def read_tree(directory: str, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, Any]:
    """Reads arrays of another program's tree by path, in the given dtypes: NumPy arrays where the sharding is None."""
    with _opened(directory) as named:
        pairs, structure = _tree_metadata(named)
        left_out = structure.unflatten([orbax.checkpoint.PLACEHOLDER if path not in wanted else 0 for path, _ in pairs])
        how = structure.unflatten([_restore_args(wanted.get(path)) for path, _ in pairs])
        found = orbax.checkpoint.PyTreeCheckpointHandler().restore(
            ocp.path.Path(named), args=orbax.checkpoint.args.PyTreeRestore(left_out, how)
        )
    values = dict(zip((path for path, _ in pairs), structure.flatten_up_to(found), strict=True))
    return {path: values[path] for path in wanted}


def _tree_metadata(directory: str) -> tuple[list[tuple[str, Any]], Any]:
    """Returns Orbax's metadata of each leaf of a tree, by path, and the structure."""
    tree = orbax.checkpoint.PyTreeCheckpointHandler().metadata(ocp.path.Path(directory)).tree
    return flatten_with_paths(tree, lambda node: hasattr(node, "shape"))


def _restore_args(wanted: jax.ShapeDtypeStruct | None) -> Any:
    if wanted is None:
        return orbax.checkpoint.RestoreArgs()
    if wanted.sharding is None:
        return orbax.checkpoint.RestoreArgs(restore_type=np.ndarray, dtype=wanted.dtype)
    return orbax.checkpoint.ArrayRestoreArgs(
        restore_type=jax.Array, sharding=wanted.sharding, global_shape=wanted.shape, dtype=wanted.dtype
    )
