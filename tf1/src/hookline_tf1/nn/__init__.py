"""`tf.nn`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline_tf1 import math as tf_math
from hookline_tf1 import random
from hookline_tf1._machinery import subgradients
from hookline_tf1._machinery.graphs import name_scope
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1._machinery.nodes import argument, convert_to_tensor, node
from hookline_tf1._machinery.op_definitions import Listed, Plain, Static, Unused, computed_by, ops_in
from hookline_tf1._rules import index_bounds
from hookline_tf1._rules.index_bounds import Within
from hookline_tf1._tf import array_ops
from hookline_tf1._tf.array_ops import top_k
from hookline_tf1.math import log_sigmoid, sigmoid, tanh
from hookline_tf1.nn._convolution_ops import (
    atrous_conv2d,
    avg_pool,
    avg_pool3d,
    conv1d,
    conv2d,
    conv2d_backprop_input,
    conv2d_transpose,
    conv3d,
    conv3d_transpose,
    convolution,
    depthwise_conv2d,
    depthwise_conv2d_native,
    max_pool,
    max_pool3d,
    pool,
    separable_conv2d,
)
from hookline_tf1.nn._convolution_ops import conv2d_transpose as deconv2d
from hookline_tf1.nn._cross_entropy_ops import (
    log_poisson_loss,
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits_v2,
    sparse_softmax_cross_entropy_with_logits,
    weighted_cross_entropy_with_logits,
)
from hookline_tf1.nn._sampling import (
    log_uniform_candidate_sampler,
    nce_loss,
    sampled_softmax_loss,
    uniform_candidate_sampler,
)


def _axes(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


def _bias_added(value: Any, bias: Any, data_format: Any) -> Any:
    if data_format and data_format.startswith("NC") and jnp.ndim(value) > 2:
        bias = jnp.reshape(bias, (-1, *(1,) * (jnp.ndim(value) - 2)))
    return jnp.add(value, bias)


def _lrn(x: Any, radius: Any, bias: Any, alpha: Any, beta: Any) -> Any:
    window = (1,) * (x.ndim - 1) + (2 * radius + 1,)
    padding = [(0, 0)] * (x.ndim - 1) + [(radius, radius)]
    total = jax.lax.reduce_window(jnp.square(x), 0.0, jax.lax.add, window, (1,) * x.ndim, padding)
    return x / (bias + alpha * total) ** beta


def _l2_normalized(x: Any, axis: Any, epsilon: Any) -> Any:
    total = jnp.sum(jnp.square(x), axis=_axes(axis), keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(total, epsilon))


def _moments(x: Any, axes: Any, keepdims: Any) -> Any:
    x, axes = jnp.asarray(x), _axes(axes)
    mean = jnp.mean(x, axes, keepdims=True)
    variance = jnp.mean(jnp.square(x - jax.lax.stop_gradient(mean)), axes, keepdims=True)
    return (mean, variance) if keepdims else (jnp.squeeze(mean, axes), jnp.squeeze(variance, axes))


def _normalized(x: Any, mean: Any, variance: Any, offset: Any, scale: Any, epsilon: Any) -> Any:
    inverse = jax.lax.rsqrt(variance + epsilon)
    inverse = inverse if scale is None else inverse * scale
    return x * inverse + (-mean * inverse if offset is None else offset - mean * inverse)


def _fused(x: Any, scale: Any, offset: Any, mean: Any, variance: Any, epsilon: Any, layout: Any, training: Any) -> Any:
    axes = (0, 1, 2) if layout == "NHWC" else (0, 2, 3)

    def spread(v: Any) -> Any:
        return v if layout == "NHWC" else v[:, None, None]

    if not training:
        mean, variance = jax.lax.stop_gradient(mean), jax.lax.stop_gradient(variance)
        return _normalized(x, spread(mean), spread(variance), spread(offset), spread(scale), epsilon), mean, variance
    mean, variance = jnp.mean(x, axes), jnp.var(x, axes)
    count = x.size // mean.size
    found = _normalized(x, spread(mean), spread(variance), spread(offset), spread(scale), epsilon)
    # These two have no gradient.
    return found, *map(jax.lax.stop_gradient, (mean, variance * (count / max(count - 1, 1))))


def _looked_up(params: Any, ids: Any, strategy: Any, max_norm: Any) -> Any:
    found = _rows(params, ids, strategy)
    if max_norm is None:
        return found
    return tf_math.clipped_by_norm(found, max_norm, list(range(jnp.ndim(ids), found.ndim)))


def _rows(params: Any, ids: Any, strategy: Any) -> Any:
    parts = params if isinstance(params, list) else [params]
    ids = jnp.asarray(ids)
    if len(parts) == 1:
        return jnp.take(parts[0], ids, axis=0, mode="clip")
    if strategy == "div":
        return jnp.take(jnp.concatenate(parts), ids, axis=0, mode="clip")
    found = [jnp.take(part, ids // len(parts), axis=0, mode="clip") for part in parts]
    which = (ids % len(parts))[..., *(None,) * (found[0].ndim - ids.ndim)]
    return jnp.select([which == i for i in range(len(parts))], found)


def _count_of_rows(params: Any, ids: Any, partition_strategy: Any, max_norm: Any) -> Any:
    sizes, takes_turns = _parts(params, partition_strategy)
    if not takes_turns:
        return sum(sizes)
    return max((rows - 1) * len(sizes) + part + 1 for part, rows in enumerate(sizes))


def _parts(params: Any, strategy: Any) -> tuple[list[int], bool]:
    """Returns the number of rows of each part, and whether rows are assigned round-robin ("mod")."""
    parts = params if isinstance(params, list) else [params]
    return [index_bounds.shape(part)[0] for part in parts], strategy != "div" and len(parts) > 1


class _Rows(Within):
    """The bounds of rows in a partitioned table, whose parts may have different lengths."""

    def outside(self, args: dict[str, Any], xp: Any) -> tuple[Any, Any, Any]:
        """See `Within`."""
        ids, bound, are_out = super().outside(args, xp)
        sizes, takes_turns = _parts(args["params"], args["partition_strategy"])
        if takes_turns:
            are_out |= ids // len(sizes) >= xp.asarray(sizes)[ids % len(sizes)]
        return ids, bound, are_out

    def wrong(self, index: int, size: int) -> str:
        """See `Within`."""
        return "names a row that its part does not have" if 0 <= index < size else super().wrong(index, size)


def _in_top_k(predictions: Any, targets: Any, k: Any) -> Any:
    targets = jnp.asarray(targets)
    wanted = jnp.take_along_axis(predictions, targets[:, None], axis=1)
    # A class out of range is in no top k.
    return (targets >= 0) & jnp.isfinite(wanted[:, 0]) & (jnp.sum(predictions > wanted, axis=1) < k)


def _three(tensor: Any, _: Any) -> Any:
    return tensor[0], tensor[1], tensor[2]


def _two(tensor: Any, _: Any) -> Any:
    return tensor[0], tensor[1]


@computed_by(jax.nn.relu)
def relu(features: Any, name: str | None = None) -> Any: ...


@computed_by(jax.nn.relu6)
def relu6(features: Any, name: str | None = None) -> Any: ...


@computed_by(lambda x, axis: jax.nn.relu(jnp.concatenate([x, -x], axis=axis)), "CReLU")
def crelu(features: Any, name: str | None = None, axis: Static = -1) -> Any: ...


@computed_by(subgradients.leaky_relu)
def leaky_relu(features: Any, alpha: Any = 0.2, name: str | None = None) -> Any: ...


@computed_by(jax.nn.elu)
def elu(features: Any, name: str | None = None) -> Any: ...


@computed_by(subgradients.selu)
def selu(features: Any, name: str | None = None) -> Any: ...


@computed_by(jax.nn.swish, "swish_f32")
def swish(features: Any, name: str | None = None) -> Any: ...


@computed_by(jax.nn.softplus)
def softplus(features: Any, name: str | None = None) -> Any: ...


@computed_by(jax.nn.soft_sign)
def softsign(features: Any, name: str | None = None) -> Any: ...


@computed_by(lambda x, axis: jax.nn.softmax(x, -1 if axis is None else axis), earlier={"dim": "axis"})
def softmax(logits: Any, axis: Static = -1, name: str | None = None) -> Any: ...


@computed_by(lambda x, axis: jax.nn.log_softmax(x, -1 if axis is None else axis), earlier={"dim": "axis"})
def log_softmax(logits: Any, axis: Static = -1, name: str | None = None) -> Any: ...


@computed_by(_bias_added)
def bias_add(value: Any, bias: Any, data_format: Plain = None, name: str | None = None) -> Any: ...


@computed_by(lambda x, w, b: jnp.matmul(x, w) + b, "xw_plus_b")
def xw_plus_b(x: Any, weights: Any, biases: Any, name: str | None = None) -> Any: ...


@computed_by(lambda x, w, b: jax.nn.relu(jnp.matmul(x, w) + b))
def relu_layer(x: Any, weights: Any, biases: Any, name: str | None = None) -> Any: ...


@computed_by(_lrn, "LRN")
def lrn(
    input: Any, depth_radius: Static = 5, bias: Any = 1, alpha: Any = 1, beta: Any = 0.5, name: str | None = None
) -> Any: ...


@computed_by(_lrn, "LRN")
def local_response_normalization(
    input: Any, depth_radius: Static = 5, bias: Any = 1, alpha: Any = 1, beta: Any = 0.5, name: str | None = None
) -> Any: ...


@computed_by(lambda t: jnp.sum(jnp.square(t)) / 2)
def l2_loss(t: Any, name: str | None = None) -> Any: ...


@computed_by(_l2_normalized, "l2_normalize", earlier={"dim": "axis"})
def l2_normalize(x: Any, axis: Static = None, epsilon: Any = 1e-12, name: str | None = None) -> Any: ...


@computed_by(_moments, "moments", earlier={"keep_dims": "keepdims"}, result=_two)
def moments(x: Any, axes: Static, shift: Unused = None, name: str | None = None, keepdims: Plain = None) -> Any: ...


@computed_by(_normalized, "batchnorm")
def batch_normalization(
    x: Any, mean: Any, variance: Any, offset: Any, scale: Any, variance_epsilon: Any, name: str | None = None
) -> Any: ...


@computed_by(_fused, result=_three)
def fused_batch_norm(
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any = None,
    variance: Any = None,
    epsilon: Any = 0.001,
    data_format: Plain = "NHWC",
    is_training: Plain = True,
    name: str | None = None,
) -> Any: ...


@computed_by(_looked_up, "embedding_lookup", within=(_Rows("ids", _count_of_rows),))
def embedding_lookup(
    params: Listed,
    ids: Any,
    partition_strategy: Plain = "mod",
    name: str | None = None,
    validate_indices: Unused = True,
    max_norm: Any = None,
) -> Any: ...


@computed_by(_in_top_k)
def in_top_k(predictions: Any, targets: Any, k: Any, name: str | None = None) -> Any: ...


@computed_by(lambda x: jnp.mean((jnp.asarray(x) == 0).astype(jnp.float32)), "zero_fraction")
def zero_fraction(value: Any, name: str | None = None) -> Any: ...


def dropout(
    x: Any, keep_prob: Any = None, noise_shape: Any = None, seed: Any = None, name: Any = None, rate: Any = None
) -> Any:
    """`tf.nn.dropout`: `keep_prob` is the fraction to keep, `rate` the fraction to drop."""
    if (rate is None) == (keep_prob is None):
        both = (
            "Cannot specify both 'rate' and 'keep_prob'" if rate is not None else "You must provide a rate to dropout"
        )
        raise ValueError(f"tf.nn.dropout: {both}.")
    x, share = convert_to_tensor(x), rate if keep_prob is None else keep_prob
    if isinstance(share, int | float | np.number):
        goes = share if keep_prob is None else 1 - share
        if not 0 <= goes < 1:
            raise ValueError(f"tf.nn.dropout: rate must be in the range [0, 1) and keep_prob in (0, 1], got {share}.")
        if goes == 0:
            return x
    with name_scope(name, "dropout"):
        where = array_ops.shape(x) if noise_shape is None else noise_shape
        noise = random.random_uniform(where, seed=seed)

        def dropped(x: Any, noise: Any, given: Any) -> Any:
            goes = given if keep_prob is None else 1 - given
            return x * (1 / (1 - goes)) * (noise >= goes).astype(x.dtype)

        given = {"x": x, "noise": noise, "given": argument(share)}
        return node(dropped, "mul_1", given, spec=lambda x, noise, given: x.spec)


PUBLIC = [
    *ops_in(globals()),
    "dropout",
    "log_uniform_candidate_sampler",
    "nce_loss",
    "sampled_softmax_loss",
    "sigmoid_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits_v2",
    "sparse_softmax_cross_entropy_with_logits",
    "top_k",
    "uniform_candidate_sampler",
    "weighted_cross_entropy_with_logits",
]
__getattr__, __dir__ = offered("tf.nn", lambda: PUBLIC)
