"""Random keys: a new one in each run, and the same sequence when a job is repeated."""

from __future__ import annotations

import zlib
from contextvars import ContextVar
from typing import Any

import jax

from hookline import arguments
from hookline.graph.graph import Tensor, get_default_graph
from hookline.graph.nodes.ops import op
from hookline.graph.variable import Variable

WORKER_INDEX: ContextVar[int] = ContextVar("WORKER_INDEX", default=0)
"""The worker for which a program is being traced; 0 is the chief, or the only process."""


def fold_in_worker(key: jax.Array) -> jax.Array:
    """Returns a key that differs between workers; only the function of an operation may call it.

    Args:
        key: A key that is the same in all workers. The chief and a single process get it unchanged.

    Example:
        >>> import hookline as hl, jax
        >>> noise = hl.op(lambda seed: jax.random.normal(fold_in_worker(jax.random.key(seed))))(hl.constant(7))
        >>> with hl.Session() as sess:
        ...     bool(sess.run(noise) == jax.random.normal(jax.random.key(7)))
        True
    """
    worker = WORKER_INDEX.get()
    return jax.random.fold_in(key, worker) if worker else key


def random_key(seed: int | None = None, name: str = "random_key") -> Tensor:
    """Returns a tensor that is a new typed PRNG key in every run that needs it.

    The key is derived from the seed, the name of the operation, the worker and the number of keys it has drawn so far.
    This number is a variable, so checkpoints hold it, and a resumed job draws the same keys as an uninterrupted one. It
    advances only in runs that need the key. Within one run all readers of the tensor get the same key.

    Args:
        seed: The seed; by default the graph's (`hookline.Graph(seed=...)`).
        name: Name of the operation.

    Example:
        >>> import hookline as hl, jax
        >>> noise = hl.op(jax.random.normal)(hl.random_key())
        >>> with hl.Session() as sess:
        ...     sess.run(hl.global_variables_initializer())
        ...     first, second = sess.run(noise), sess.run(noise)
        >>> first != second
        Array(True, dtype=bool)

    References:
        Replaces the seeds of `tf.random` operations, which did not survive a restart.
    """
    graph = get_default_graph()
    seed = graph.seed if seed is None else arguments.check_int("random_key", "seed", seed)
    with graph.name_scope(name), graph.control_dependencies(None):
        draws = Variable(0, name="draws", trainable=False)
        draws.per_worker = True
        stream = zlib.crc32(draws.op.name.encode())

        def draw(count: Any) -> jax.Array:
            return jax.random.fold_in(fold_in_worker(jax.random.fold_in(jax.random.key(seed), stream)), count)

        # The key needs the update's result, so every run that needs the key counts it.
        return op(draw, name="key")(draws.assign_add(1))
