"""save_safetensors: writes trained weights to a file that other libraries read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from hookline import arguments, paths
from hookline.checkpoint.directory import layout
from hookline.checkpoint.restoring import foreign
from hookline.checkpoint.saving import durable, failures
from hookline.coordination import process_group
from hookline.loop.step.leaf_types import are_nnx, is_array
from hookline.loop.step.state_forms import NnxState

_WHO = "save_safetensors"
_CODES = {dtype: code for code, dtype in foreign.DTYPES.items()}


def save_safetensors(path: str, params: Any, *, metadata: Mapping[str, str] | None = None) -> None:
    """Writes the arrays of a pytree to a safetensors file.

    The name of an array is its path in the tree, with "." between the keys: "params.Dense_0.kernel". In a key, "." is
    written as "%2E" and "/" as "%2F". `WarmStart` and `load` convert these names back to the same paths. A complete
    file replaces an older one atomically. Arrays are copied to the host one at a time.

    Args:
        path: The file; missing folders are made.
        params: The result of `Loop.run` or `load`, or a part of it. For NNX objects, also their state:
            `nnx.state(net, nnx.Param)`. Leaves that are no arrays (functions, strings, Python numbers) are left out, as
            in checkpoints.
        metadata: Text for the header of the file, by name.

    Raises:
        TypeError: `path` is no path, or `metadata` is not text by name.
        ValueError: There are no arrays; or one of them is abstract, has a dtype that safetensors lacks, such as random
            keys, or is sharded over processes. The message names it.
        OpError: The file cannot be written.

    Example:
        >>> import hookline as hl, jax.numpy as jnp, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_safetensors(folder + "/w.safetensors", {"dense": {"kernel": jnp.zeros((2, 3))}})
        ...     with open(folder + "/w.safetensors", "rb") as file:
        ...         print(file.read()[8:].partition(b"}")[0].decode())
        {"dense.kernel": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]
    """
    path = layout.in_file_system(_WHO, "path", path)
    header: dict[str, Any] = {}
    if arguments.check_mapping(_WHO, "metadata", metadata, optional=True):
        header["__metadata__"] = {**metadata} if metadata else {}
        if not all(isinstance(text, str) for pair in header["__metadata__"].items() for text in pair):
            raise TypeError(f"{_WHO} requires text by name as metadata, got {metadata!r}.")
    arrays = _arrays_of(params)
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + math.prod(array.shape) * array.dtype.itemsize
        header[name] = {"dtype": _CODES[array.dtype.name], "shape": list(array.shape), "data_offsets": [begin, end]}
    if not process_group.is_primary():
        return
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # The data are aligned to 8 bytes.
    try:
        durable.make_directories(os.path.dirname(os.path.abspath(path)))
        with durable.atomic_write(path) as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for array in arrays.values():
                on_host = np.asarray(array)
                file.write(on_host.astype(on_host.dtype.newbyteorder("<"), copy=False).tobytes())
    except OSError as error:
        raise failures.write_error(error, path) from error


def _arrays_of(params: Any) -> dict[str, Any]:
    """Returns the arrays by name in the order of the file: the widest dtypes first, so that each array is aligned."""
    if are_nnx(params):
        params = NnxState(params).values
    elif type(params).__module__.startswith("flax.nnx"):  # A state of NNX.
        from flax import nnx

        params = nnx.to_pure_dict(params)
    found = {name: leaf for name, leaf in paths.flatten_with_paths(params)[0] if is_array(leaf)}
    if not found:
        raise ValueError(f"{_WHO} requires a pytree with arrays, got {params!r}.")
    for name, leaf in found.items():
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise ValueError(f"{_WHO}: {name!r} is abstract, a shape without values. Give the trained arrays.")
        if leaf.dtype.name not in _CODES:
            raise ValueError(
                f"{_WHO}: {name!r} has dtype {leaf.dtype}, which safetensors lacks. Leave it out, as by "
                f"nnx.state(net, nnx.Param) in NNX, or convert it."
            )
        if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
            raise ValueError(
                f"{_WHO}: {name!r} is sharded over several processes. Read the checkpoint in one process, "
                f"train.load(logdir, like), and save that."
            )
    ordered = sorted(found.items(), key=lambda pair: (-pair[1].dtype.itemsize, pair[0]))
    return {foreign.name_of(name): leaf for name, leaf in ordered}
