"""TensorFlow, with its random operations replaced by a stream of NumPy's."""

from __future__ import annotations

import inspect

import numpy as np
from tf1.conformance.whole_scripts import stream
from tf1.conformance.whole_scripts.recorder import Recorder

# What reads MNIST was a part of TensorFlow 1.x, and takes a seed that nobody knows.
IMPORTS = {
    r"^( *)(from|import) tensorflow\.(examples\.tutorials|contrib\.learn.*\.datasets)\.mnist\b":
        r"\1\2 tf1.conformance.whole_scripts.stand_ins",
    r"^( *)(from|import) tensorflow\.contrib\.tensorboard\.plugins\b": r"\1\2 tensorboard.plugins",
}  # fmt: skip
"""What becomes of a script's import lines."""
_RENAMED = {
    r"^( *)import tensorflow(\.compat\.v1)? as tf *(#.*)?\r?$":
        r"\1import tensorflow.compat.v1 as tf; tf.disable_v2_behavior()",
}  # fmt: skip


def prepare(random, limit=None):
    """Replaces what a script must not notice, and returns the recorder of its runs."""
    import tensorflow.compat.v1 as tf
    from tensorflow.python.client import session as sessions

    if tf.__version__ >= "2":
        tf.disable_v2_behavior()
        IMPORTS.update(_RENAMED)
    recorder = Recorder(limit)
    base = sessions.BaseSession
    base.run = recorder.recording(base.run, lambda result: result["caller"] if _is_hooked(result) else result)
    recorder.note_losses(tf.train.Optimizer)
    if random:
        _replace_random(tf)
        _keep_order(tf)
    return recorder


def record(recorder):
    """Returns what was recorded."""
    import tensorflow.compat.v1 as tf

    keys = (tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.LOCAL_VARIABLES)
    return recorder.record(
        lambda graph: graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES),
        lambda graph: [variable for key in keys for variable in graph.get_collection(key)],
    )


def _keep_order(tf):
    """Takes examples in their order, one thread at a time."""
    tf.data.Dataset.shuffle = lambda self, *args, **kwargs: self
    batch, train = tf.train.batch, tf.train

    def one_by_one(tensors, batch_size, num_threads=1, *args, **kwargs):
        return batch(tensors, batch_size, 1, *args, **kwargs)

    def shuffle_batch(tensors, batch_size, capacity, min_after_dequeue, num_threads=1, seed=None, **kwargs):
        return batch(tensors, batch_size, capacity=capacity, **kwargs)

    train.batch, train.shuffle_batch = one_by_one, shuffle_batch
    for name in ("string_input_producer", "slice_input_producer", "range_input_producer", "input_producer"):
        setattr(train, name, _unshuffled(getattr(train, name)))


def _unshuffled(producer):
    names = list(inspect.signature(producer).parameters)

    def produce(*args, **kwargs):
        given = {names[place]: value for place, value in enumerate(args)}
        return producer(**{**given, **kwargs, "shuffle": False})

    return produce


def _is_hooked(result):
    return isinstance(result, dict) and "caller" in result


def _replace_random(tf):
    from tensorflow.python.framework import tensor_util
    from tensorflow.python.ops import candidate_sampling_ops, random_ops
    from tensorflow.python.ops import gen_random_ops as kernels

    counts = {}

    def draw(kind, shape, dtype, name=None, transform=None, more=()):
        graph = tf.get_default_graph()
        place, times = counts.setdefault(graph, [0])[0], [0]
        counts[graph][0] += 1

        def function(size, *given):
            numbers = stream.drawn(kind, place, times[0], size)
            times[0] += 1
            return (numbers if transform is None else transform(numbers, *given)).astype(dtype.as_numpy_dtype)

        made = tf.py_func(function, [shape, *more], dtype, stateful=True, name=name)
        return made

    def of_shape(made, shape):
        made.set_shape(tensor_util.constant_value_as_shape(shape))
        return made

    def like(kind, default):
        def operation(shape, dtype=default, seed=0, seed2=0, name=None):
            return of_shape(draw(kind, shape, tf.as_dtype(dtype), name), shape)

        return operation

    kernels.random_standard_normal = like("normal", tf.float32)
    kernels.truncated_normal = like("truncated", tf.float32)
    kernels.random_uniform = like("uniform", tf.float32)

    def random_uniform_int(shape, minval, maxval, seed=0, seed2=0, name=None):
        def whole(numbers, low, high):
            return np.floor(numbers * (int(high) - int(low))) + int(low)

        dtype = tf.convert_to_tensor(maxval).dtype
        return of_shape(draw("uniform", shape, dtype, name, whole, (minval, maxval)), shape)

    def multinomial(logits, num_samples, seed=0, seed2=0, output_dtype=tf.int64, name=None):
        size = tf.stack([tf.shape(logits)[0], num_samples])
        made = draw("uniform", size, output_dtype, name, lambda u, logits: stream.chosen(logits, u), (logits,))
        made.set_shape([logits.shape[0], tensor_util.constant_value(tf.convert_to_tensor(num_samples))])
        return made

    def random_shuffle(value, seed=0, seed2=0, name=None):
        order = draw("permutation", tf.shape(value)[:1], tf.int32, name)
        made = tf.gather(value, order)
        made.set_shape(tf.convert_to_tensor(value).shape)
        return made

    candidate_sampling_ops.log_uniform_candidate_sampler = stream.sampler(tf)
    kernels.random_uniform_int = random_uniform_int
    kernels.multinomial = multinomial
    kernels.random_shuffle = random_shuffle
    assert random_ops.gen_random_ops is kernels
