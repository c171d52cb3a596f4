"""Random numbers: new ones in each run, without variables in the script's graph.

A session counts its runs. An operation's key depends on the graph's seed, the operation's seed or index, the worker and
that count. So each session of a graph draws the same sequence, as in TensorFlow. Checkpoints do not hold the count.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.extend import SessionCall, fold_in_worker
from hookline_tf1._machinery import dtypes
from hookline_tf1._machinery.graphs import Graph, get_default_graph
from hookline_tf1._machinery.graphs import set_random_seed as set_random_seed
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1._machinery.nodes import argument, node

_COUNTS: weakref.WeakKeyDictionary[Graph, Any] = weakref.WeakKeyDictionary()


def run_count() -> Any:
    """Returns the graph's tensor that counts the runs that draw random numbers."""
    graph = get_default_graph()
    if graph not in _COUNTS:
        with graph.control_dependencies(None), graph.name_scope(None):
            made = SessionCall("random/run", lambda session: session.next_draw()).output
            made.spec = jax.ShapeDtypeStruct((), np.uint32)
            _COUNTS[graph] = made
    return _COUNTS[graph]


def draw(fn: Callable[..., Any], name: str, seed: Any, args: dict[str, Any], *, static: tuple[str, ...] = ()) -> Any:
    """Adds a random operation.

    Args:
        fn: `fn(key, **args)`.
        name: Name of the operation.
        seed: The seed; operations with the same seed draw the same numbers.
        args: Tensors and plain values.
        static: The names in `args` that XLA has to know.
    """
    graph = get_default_graph()
    base, stream = graph.seed, graph.version if seed is None else int(seed) % 2**32

    def drawn(count: Any, **given: Any) -> Any:
        # XLA compiles this generator several times faster, and each variable's initial value uses it.
        key = jax.random.fold_in(jax.random.key(base, impl="rbg"), stream)
        return fn(jax.random.fold_in(fold_in_worker(key), count), **given)

    return node(drawn, name, {"count": run_count()} | args, static=static, kind="random")


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(shape) if isinstance(shape, list | tuple) else (shape,)


def _sampled(fn: Callable[..., Any], name: str, seed: Any, shape: Any, dtype: Any, **args: Any) -> Any:
    wanted = dtypes.canonical(dtype)

    def sample(key: Any, shape: Any, dtype: Any, **given: Any) -> Any:
        return fn(key, _shape(shape), dtype, **given)

    given = {key: argument(value) for key, value in args.items()}
    return draw(sample, name, seed, {"shape": shape, "dtype": wanted} | given, static=("shape",))


def random_normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = dtypes.float32, seed: Any = None, name: Any = None
) -> Any:
    """`tf.random_normal`, `tf.random.normal`."""
    return _sampled(_normal, name or "random_normal", seed, shape, dtype, mean=mean, stddev=stddev)


def _normal(key: Any, shape: Any, dtype: Any, mean: Any, stddev: Any) -> Any:
    return (jax.random.normal(key, shape, dtype) * stddev + mean).astype(dtype)


def truncated_normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = dtypes.float32, seed: Any = None, name: Any = None
) -> Any:
    """`tf.truncated_normal`, `tf.random.truncated_normal`."""
    return _sampled(_truncated, name or "truncated_normal", seed, shape, dtype, mean=mean, stddev=stddev)


def _truncated(key: Any, shape: Any, dtype: Any, mean: Any, stddev: Any) -> Any:
    return (jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype) * stddev + mean).astype(dtype)


def random_uniform(
    shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = dtypes.float32, seed: Any = None, name: Any = None
) -> Any:
    """`tf.random_uniform`, `tf.random.uniform`."""
    if maxval is None:
        if dtypes.as_dtype(dtype).is_integer:
            raise ValueError(f"Must specify maxval for integer dtype {dtypes.as_dtype(dtype)!r}")
        maxval = 1
    return _sampled(_uniform, name or "random_uniform", seed, shape, dtype, minval=minval, maxval=maxval)


def _uniform(key: Any, shape: Any, dtype: Any, minval: Any, maxval: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.integer):
        return jax.random.randint(key, shape, minval, maxval, dtype)
    return (jax.random.uniform(key, shape, dtype) * (maxval - minval) + minval).astype(dtype)


def random_gamma(
    shape: Any, alpha: Any, beta: Any = None, dtype: Any = dtypes.float32, seed: Any = None, name: Any = None
) -> Any:
    """`tf.random_gamma`, `tf.random.gamma`."""
    return _sampled(_gamma, name or "random_gamma", seed, shape, dtype, alpha=alpha, beta=1.0 if beta is None else beta)


def _gamma(key: Any, shape: Any, dtype: Any, alpha: Any, beta: Any) -> Any:
    size = (*shape, *jnp.broadcast_shapes(jnp.shape(alpha), jnp.shape(beta)))
    return jax.random.gamma(key, alpha, size, dtype) / beta


def random_poisson(lam: Any, shape: Any, dtype: Any = dtypes.float32, seed: Any = None, name: Any = None) -> Any:
    """`tf.random_poisson`."""
    return _sampled(_poisson, name or "random_poisson", seed, shape, dtype, lam=lam)


def _poisson(key: Any, shape: Any, dtype: Any, lam: Any) -> Any:
    # JAX supports the Poisson distribution for this generator only.
    key = jax.random.wrap_key_data(jax.random.bits(key, (2,), "uint32"), impl="threefry2x32")
    return jax.random.poisson(key, lam, (*shape, *jnp.shape(lam))).astype(dtype)


def multinomial(logits: Any, num_samples: Any, seed: Any = None, name: Any = None, output_dtype: Any = None) -> Any:
    """`tf.multinomial`, `tf.random.categorical`: draws `num_samples` classes for each row of logits."""
    dtype = dtypes.canonical(output_dtype or dtypes.int64)

    def sample(key: Any, logits: Any, num_samples: Any) -> Any:
        shape = (num_samples, jnp.shape(logits)[0])
        return jax.random.categorical(key, logits, axis=-1, shape=shape).T.astype(dtype)

    given = {"logits": argument(logits), "num_samples": num_samples}
    return draw(sample, name or "multinomial", seed, given, static=("num_samples",))


def categorical(logits: Any, num_samples: Any, dtype: Any = None, seed: Any = None, name: Any = None) -> Any:
    """`tf.random.categorical`."""
    return multinomial(logits, num_samples, seed, name or "categorical", dtype)


def random_shuffle(value: Any, seed: Any = None, name: Any = None) -> Any:
    """`tf.random_shuffle`, `tf.random.shuffle`: along the first dimension."""

    def shuffled(key: Any, value: Any) -> Any:
        return jax.random.permutation(key, jnp.asarray(value))

    return draw(shuffled, name or "RandomShuffle", seed, {"value": argument(value)})


def random_crop(value: Any, size: Any, seed: Any = None, name: Any = None) -> Any:
    """`tf.random_crop`, `tf.image.random_crop`: a random crop of this size."""

    def cropped(key: Any, value: Any, size: Any) -> Any:
        size = [dim if wanted == -1 else wanted for wanted, dim in zip(size, jnp.shape(value), strict=True)]
        num_starts = jnp.asarray([dim - wanted + 1 for dim, wanted in zip(jnp.shape(value), size, strict=True)])
        start = jax.random.randint(key, num_starts.shape, 0, num_starts)
        return jax.lax.dynamic_slice(jnp.asarray(value), list(start), size)

    return draw(cropped, name or "random_crop", seed, {"value": argument(value), "size": size}, static=("size",))


normal, uniform, gamma, poisson, shuffle = random_normal, random_uniform, random_gamma, random_poisson, random_shuffle

__all__ = [
    "categorical",
    "multinomial",
    "random_crop",
    "random_gamma",
    "random_normal",
    "random_poisson",
    "random_shuffle",
    "random_uniform",
    "truncated_normal",
]

_OFFERED = [*__all__, "gamma", "normal", "poisson", "set_random_seed", "shuffle", "uniform"]
__getattr__, __dir__ = offered("tf.random", lambda: _OFFERED)
