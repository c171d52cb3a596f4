"""What a value is on the examples of each process."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline import arguments
from hookline.data.iterator import over_all
from hookline.errors import InvalidArgumentError
from hookline.graph.graph import get_default_graph


def by_process(name: str, values: Any, sharding: Any = None) -> dict[str, jax.Array]:
    """Returns the mean of a value over the examples of each process, by a name that says whose it is.

    In processes that run in step, what a step returns is that of the whole batch. This shows the parts: whose data are
    another's, or bad. It is for the step itself, and the same in all processes; a script for one has one mean.

    Args:
        name: What is shown: process 1 has its mean as `"NAME/process_1"`.
        values: Of each example, in the order of the batch: its first dimension counts them. Others are averaged.
        sharding: Where the batch lies, if it is not where `hl.data.iterator` puts batches by default.

    Returns:
        Scalars by name, which a step may return among its metrics.

    Raises:
        InvalidArgumentError: A number alone has no examples.

    Example:
        >>> import hookline as hl, jax.numpy as jnp
        >>> losses = jnp.array([1.0, 3.0])
        >>> {"loss": losses.mean(), **hl.data.by_process("loss", losses)}
        {'loss': Array(2., dtype=float32), 'loss/process_0': Array(2., dtype=float32)}
    """
    arguments.text("by_process", "name", name)
    if not (shape := jnp.shape(values)):
        raise InvalidArgumentError(
            None, None, f"by_process({name!r}) requires one value for each example, got a number alone."
        )
    whose = np.zeros((jax.process_count(), shape[0]), np.float32)
    place = over_all(get_default_graph()) if sharding is None else sharding
    try:
        rows = place.devices_indices_map(shape[:1]).items()
    except ValueError:  # It cannot be split: each process has all of it.
        rows = ((device, (slice(None),)) for device in place.device_set)
    for device, (part, *_) in rows:
        whose[device.process_index, part] = 1
    means = jnp.mean(jnp.reshape(values, (shape[0], -1)), 1)
    of_each = jnp.sum(whose * means, 1) / whose.sum(1)
    return {f"{name}/process_{process}": of_each[process] for process in range(len(whose))}
