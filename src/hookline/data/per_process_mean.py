"""Averages a value over the examples of each process."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline import arguments
from hookline.data.iterator import BatchSource, default_batch_sharding
from hookline.data.sources import describe_value
from hookline.errors import InvalidArgumentError
from hookline.graph import placement
from hookline.graph.graph import TRACED_GRAPH, get_default_graph


def per_process_mean(name: str, values: Any, sharding: Any = None, mask: Any = None) -> dict[str, jax.Array]:
    """Computes the mean of a value over each process's examples.

    In SPMD processes, metrics are computed over the global batch. Call this inside the step to see the mean of each
    process, too, so that a process with bad data can be found. In a single process it returns one mean.

    Args:
        name: The name of the value; the mean of process 1 is returned as `"NAME/process_1"`.
        values: One value or array for each example, shape `(batch, ...)`; further dimensions are averaged. The length
            of the batch must be known.
        sharding: The sharding of the batch: a `jax.sharding.Sharding` or a `jax.Device`. By default the sharding of
            the graph's iterators.
        mask: Booleans of shape `(batch,)`, true for real examples, with `last_batch="pad"`. By default all are real.

    Returns:
        Scalars by name, which a step may return among its metrics. The mean of a process without examples is NaN.

    Raises:
        InvalidArgumentError: `values` is not one array with a dimension of examples, or `mask` has another length.
        ValueError: Iterators of the graph have different shardings, and `sharding` is not given; or `sharding` cannot
            divide the examples.
        TypeError: `sharding` has another type.

    Example:
        >>> import hookline as hl, jax.numpy as jnp
        >>> losses = jnp.array([1.0, 3.0])
        >>> {"loss": losses.mean(), **hl.data.per_process_mean("loss", losses)}
        {'loss': Array(2., dtype=float32), 'loss/process_0': Array(2., dtype=float32)}
    """
    arguments.check_str("per_process_mean", "name", name)
    if not getattr(values, "ndim", 0):
        problem = f"one array with a value for each example, shape (batch, ...), got {describe_value(values)}"
        raise InvalidArgumentError.from_message(f"per_process_mean({name!r}) requires {problem}.")
    if mask is not None and np.shape(mask) != (len(values),):
        problem = f"a mask of shape ({len(values)},), one boolean for each example, got {np.shape(mask)}"
        raise InvalidArgumentError.from_message(f"per_process_mean({name!r}) requires {problem}.")
    resolved = placement.as_sharding(sharding)
    if resolved is not None and not isinstance(resolved, jax.sharding.Sharding):
        raise TypeError(
            f"per_process_mean requires a jax.sharding.Sharding or a jax.Device as sharding, got {resolved!r}."
        )
    rows = _rows(resolved, len(values))
    if mask is not None:
        rows = jnp.logical_and(rows, mask)
    # `where=`, not a product with the mask, in which a NaN of another process would remain.
    means = jnp.mean(jnp.asarray(values), tuple(range(1, values.ndim)))
    return {f"{name}/process_{process}": jnp.mean(means, where=own) for process, own in enumerate(rows)}


def _default_place() -> jax.sharding.Sharding:
    """Returns the sharding of the iterators in the graph of the program that is being traced."""
    graph = TRACED_GRAPH.get() or get_default_graph()
    given = [
        sharding
        for op in graph.get_operations()
        if isinstance(op, BatchSource)
        for sharding in op.batch_sharding.shardings()
    ]
    found = list(dict.fromkeys(_of_examples(sharding) for sharding in given if isinstance(sharding, jax.NamedSharding)))
    if len(found) > 1:
        raise ValueError(
            f"per_process_mean: the iterators of the graph have different shardings, "
            f"{' and '.join(map(str, found))}. Give sharding=, the sharding of the batch of these values."
        )
    return found[0] if found else default_batch_sharding(graph)


def _of_examples(sharding: jax.NamedSharding) -> jax.NamedSharding:
    return sharding.update(spec=jax.P(*sharding.spec[:1]))


def _rows(given: jax.sharding.Sharding | None, count: int) -> np.ndarray:
    """Returns a mask of the examples of each process, shape (processes, count)."""
    rows = np.zeros((jax.process_count(), count), bool)
    sharding = _default_place() if given is None else given
    sharding = _of_examples(sharding) if isinstance(sharding, jax.NamedSharding) else sharding
    try:
        parts = sharding.devices_indices_map((count,))
    except ValueError as error:
        if given is not None:
            raise ValueError(f"per_process_mean: {count} examples cannot be divided by sharding={given}.") from error
        return ~rows  # By default such a batch is replicated.
    for device, (part,) in parts.items():
        rows[device.process_index, part] = True
    return rows
