"""The only module that uses Orbax. It is imported only to write or read a checkpoint: importing Orbax takes 0.4 s."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from orbax.checkpoint import v1 as ocp

from hookline.checkpoint.host import HostCopy

# An array that lay in pieces is stored in chunks of this size: each device reads those that its own piece needs. They
# are copied to be written, unless they are whole rows. So an array that was whole stays one chunk.
_CHUNK_BYTES = 4 * 2**20
# Orbax divides the length of a dimension without a remainder; one with a larger prime factor would give tiny chunks.
_LARGEST_FACTOR = 2**10
# Orbax refuses an empty tree; this name means "everything is in the manifest".
_NO_ARRAYS = "(no arrays)"


# When a save fails, Orbax's threads find out one after another, even after the save was given up.
logging.getLogger("absl").addFilter(lambda record: ".hookline-writing-" not in record.getMessage())
# When a read fails, Orbax leaves the tasks of other arrays behind; asyncio logs them, with stack traces, whenever they
# are collected.
logging.getLogger("asyncio").addFilter(lambda record: f"{os.sep}orbax{os.sep}" not in record.getMessage())


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses Orbax's log messages about failures, mostly stack traces, because the failures are also raised.

    Each use has its own filter, so that two at once (a save in the background, a restore) do not end each other's.
    """

    def of_others(record: logging.LogRecord) -> bool:
        return f"{os.sep}orbax{os.sep}" not in record.pathname

    logger = logging.getLogger("absl")
    logger.addFilter(of_others)
    try:
        yield
    finally:
        logger.removeFilter(of_others)


def _context() -> ocp.Context:
    context = ocp.Context()
    # This is a second list of shapes and key types. The manifest has them, and Orbax loses coroutines if reading it
    # fails.
    context.array.saving.array_metadata_store = None
    return context


def start_writing(directory: str, stored: Mapping[str, HostCopy]) -> Callable[[], None]:
    """Starts to write named arrays.

    The directory appears, complete, when the writing is over. Before that, the arrays must not change.

    Returns:
        A function that waits until the directory is complete and raises any error from the background.
    """
    context = _context()
    # Otherwise a directory that cannot be made leaves threads behind which wait 20 minutes for it.
    context.asynchronous.create_directories_asynchronously = False
    # Weights hardly compress. Without compression, saving is 3 to 5 times faster and needs no second copy of an array.
    context.array.saving.use_compression = False
    context.memory.deepcopy_host_arrays = False
    in_chunks = ocp.options.ArrayOptions.Saving.StorageOptions(chunk_byte_size=_CHUNK_BYTES)
    split = {name for name, copy in stored.items() if len(copy.bounds) > 1 and all(map(_divides, copy.array.shape))}

    def options(key: Any, value: Any) -> Any:
        return in_chunks if key[0].key in split else None

    context.array.saving.scoped_storage_options_creator = options
    arrays = {name: copy.array for name, copy in stored.items()}
    with ExitStack() as until_complete:
        until_complete.enter_context(_quiet())
        with context:
            response = ocp.save_async(directory, arrays or {_NO_ARRAYS: np.zeros(1, np.bool_)})
        finish = until_complete.pop_all()

    def wait() -> None:
        with finish:
            response.result()

    return wait


@functools.cache
def _divides(length: int) -> bool:
    """Returns whether a dimension of that length has small factors alone."""
    for factor in range(2, _LARGEST_FACTOR + 1):
        while length % factor == 0:
            length //= factor
    return length == 1


def read(directory: str, wanted: Mapping[str, Any], at_once_bytes: int) -> dict[str, Any]:
    """Reads arrays of a checkpoint by name: for each a `jax.ShapeDtypeStruct` with its sharding, or `np.ndarray`."""
    if not wanted:
        return {}
    context = _context()
    context.pytree.loading.partial_load = True
    # Devices that need parts of one chunk each read all of it, one after another. The limit itself is not allowed.
    context.memory.read_concurrent_bytes = at_once_bytes + 1
    with _quiet(), context:
        return ocp.load(directory, dict(wanted))
