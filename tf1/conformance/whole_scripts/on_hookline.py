"""hookline_tf1, with its random operations replaced by a stream of NumPy's."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys

import numpy as np
from tf1.conformance.whole_scripts import stream
from tf1.conformance.whole_scripts.recorder import Recorder

IMPORTS = {
    r"^( *)import tensorflow *(#.*)?\r?$": r"\1import hookline_tf1 as tensorflow",
    r"^( *)(from|import) tensorflow(\.compat\.v1)?(?=[. ])": r"\1\2 hookline_tf1",
}
"""What becomes of a script's import lines."""


def prepare(random, limit=None):
    """Replaces what a script must not notice, and returns the recorder of its runs."""
    import hookline_tf1 as tf
    from hookline.session import Session
    from hookline.session.running.session_backend import SessionBackend
    from hookline_tf1._examples import mnist_data

    recorder = Recorder(limit)
    read = mnist_data.read_data_sets
    mnist_data.read_data_sets = lambda train_dir="", *args, **kwargs: read(os.environ["MNIST"], *args, **kwargs)
    Session.run = recorder.recording(Session.run, lambda result: result)
    SessionBackend.run_with_hook_fetches = recorder.recording(
        SessionBackend.run_with_hook_fetches, lambda result: result[0], hooked=True
    )
    recorder.note_losses(tf.train.Optimizer)
    if random:
        _replace_random()
        tf.data.Dataset.shuffle = lambda self, *args, **kwargs: self
    return recorder


def record(recorder):
    """Returns what was recorded."""
    from hookline.graph import GraphKeys

    keys = (GraphKeys.GLOBAL_VARIABLES, GraphKeys.LOCAL_VARIABLES)
    return recorder.record(
        lambda graph: graph.get_collection(GraphKeys.TRAINABLE_VARIABLES),
        lambda graph: [variable for key in keys for variable in graph.get_collection(key)],
    )


def _replace_random():
    import jax
    import jax.numpy as jnp

    import hookline_tf1 as tf
    from hookline.graph.graph import get_default_graph
    from hookline_tf1 import random
    from hookline_tf1._tf import session
    from hookline_tf1.nn import _sampling as sampling

    places, runs, times, current = {}, itertools.count(), {}, []
    session.Session.next_draw = lambda self: np.uint32(next(runs))
    make = random.draw

    def draw(fn, name, seed, args, **options):
        place = places.setdefault(get_default_graph(), itertools.count())
        number = next(place)

        def placed(key, **given):
            with _pushed(current, (number, key)):
                return fn(key, **given)

        return make(placed, name, seed, args, **options)

    def numbers(kind, shape, dtype=jnp.float32):
        place, count = current[-1]

        def on_host(run):
            seen = times.setdefault(place, {})
            return stream.drawn(kind, place, seen.setdefault(int(run), len(seen)), shape).astype(dtype)

        size = jax.ShapeDtypeStruct(tuple(shape), dtype)
        return jax.pure_callback(on_host, size, count)

    def normal(key, shape=(), dtype=jnp.float32):
        return numbers("normal", shape, dtype)

    def truncated_normal(key, lower, upper, shape=(), dtype=jnp.float32):
        assert (lower, upper) == (-2.0, 2.0)
        return numbers("truncated", shape, dtype)

    def uniform(key, shape=(), dtype=jnp.float32, minval=0.0, maxval=1.0):
        return numbers("uniform", shape, dtype) * (maxval - minval) + minval

    def randint(key, shape, minval, maxval, dtype=jnp.int32):
        return jnp.floor(numbers("uniform", shape) * (maxval - minval)).astype(dtype) + minval

    def bernoulli(key, p=0.5, shape=None):
        # TensorFlow keeps where a number is at least what it drops.
        return numbers("uniform", jnp.shape(p) if shape is None else shape) >= 1 - jnp.asarray(p)

    def categorical(key, logits, axis=-1, shape=None):
        samples, rows = shape
        size = jax.ShapeDtypeStruct((rows, samples), jnp.int32)
        u = numbers("uniform", (rows, samples))
        chosen = jax.pure_callback(
            lambda logits, u: stream.chosen(np.asarray(logits), np.asarray(u)).astype(np.int32), size, logits, u
        )
        return chosen.T

    def permutation(key, x, axis=0):
        return x[numbers("permutation", (x.shape[0],), jnp.int32)]

    # A key is the number of the run, from which a session's operations derive theirs.
    jax.random.key, jax.random.fold_in = (lambda seed, impl=None: seed), (lambda key, data: data)
    for function in (normal, truncated_normal, uniform, randint, bernoulli, categorical, permutation):
        setattr(jax.random, function.__name__, function)
    sampling.log_uniform_candidate_sampler = stream.sampler(tf)
    for name, module in list(sys.modules.items()):
        if name.startswith("hookline_tf1"):
            for key, value in list(vars(module).items()):
                if value is make:
                    setattr(module, key, draw)


@contextlib.contextmanager
def _pushed(stack, item):
    stack.append(item)
    try:
        yield
    finally:
        stack.pop()
