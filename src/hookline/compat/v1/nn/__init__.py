"""`tf.nn`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.compat.v1 import math as tf_math
from hookline.compat.v1 import random
from hookline.compat.v1._machinery import subgradients
from hookline.compat.v1._machinery.graphs import name_scope
from hookline.compat.v1._machinery.namespaces import offered
from hookline.compat.v1._machinery.nodes import argument, convert_to_tensor, node
from hookline.compat.v1._machinery.op_table import functions, row
from hookline.compat.v1._rules import index_bounds
from hookline.compat.v1._rules.index_bounds import Within
from hookline.compat.v1._tf import array_ops
from hookline.compat.v1.nn import _convolution, _cross_entropy, _sampling


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
    # No gradient goes through these two.
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
    """Returns how many rows each part has, and whether the rows go round the parts."""
    parts = params if isinstance(params, list) else [params]
    return [index_bounds.shape(part)[0] for part in parts], strategy != "div" and len(parts) > 1


class _Rows(Within):
    """Rows of parts, of which some may have fewer than others."""

    def outside(self, args: dict[str, Any], xp: Any) -> tuple[Any, Any, Any]:
        """See `Within`."""
        ids, bound, are_out = super().outside(args, xp)
        sizes, takes_turns = _parts(args["params"], args["partition_strategy"])
        if takes_turns:
            are_out |= ids // len(sizes) >= xp.asarray(sizes)[ids % len(sizes)]
        return ids, bound, are_out

    def wrong(self, place: int, size: int) -> str:
        """See `Within`."""
        return "names a row that its part does not have" if 0 <= place < size else super().wrong(place, size)


def _in_top_k(predictions: Any, targets: Any, k: Any) -> Any:
    targets = jnp.asarray(targets)
    wanted = jnp.take_along_axis(predictions, targets[:, None], axis=1)
    # A class that is not among them is among none.
    return (targets >= 0) & jnp.isfinite(wanted[:, 0]) & (jnp.sum(predictions > wanted, axis=1) < k)


def _three(tensor: Any, _: Any) -> Any:
    return tensor[0], tensor[1], tensor[2]


def _two(tensor: Any, _: Any) -> Any:
    return tensor[0], tensor[1]


TABLE = [
    row("relu", "features, name=None", jax.nn.relu),
    row("relu6", "features, name=None", jax.nn.relu6),
    row("crelu", "features, name=None, @axis=-1", lambda x, axis: jax.nn.relu(jnp.concatenate([x, -x], axis=axis)),
        "CReLU"),
    row("leaky_relu", "features, alpha=0.2, name=None", subgradients.leaky_relu),
    row("elu", "features, name=None", jax.nn.elu),
    row("selu", "features, name=None", subgradients.selu),
    row("swish", "features, name=None", jax.nn.swish, "swish_f32"),
    row("softplus", "features, name=None", jax.nn.softplus),
    row("softsign", "features, name=None", jax.nn.soft_sign),
    row("softmax", "logits, @axis=-1, name=None; dim=axis",
        lambda x, axis: jax.nn.softmax(x, -1 if axis is None else axis)),
    row("log_softmax", "logits, @axis=-1, name=None; dim=axis",
        lambda x, axis: jax.nn.log_softmax(x, -1 if axis is None else axis)),
    row("bias_add", "value, bias, -data_format=None, name=None", _bias_added),
    row("xw_plus_b", "x, weights, biases, name=None", lambda x, w, b: jnp.matmul(x, w) + b, "xw_plus_b"),
    row("relu_layer", "x, weights, biases, name=None", lambda x, w, b: jax.nn.relu(jnp.matmul(x, w) + b)),
    row("conv1d", "value, filters, @stride, -padding, ~use_cudnn_on_gpu=None, -data_format=None, name=None",
        _convolution.convolved, "conv1d"),
    row("conv2d", "input, filter, @strides, -padding, ~use_cudnn_on_gpu=True, -data_format='NHWC', "
        "@dilations=[1, 1, 1, 1], name=None; filters=filter", _convolution.convolved, "Conv2D"),
    row("conv3d", "input, filter, @strides, -padding, -data_format='NDHWC', @dilations=[1, 1, 1, 1, 1], name=None; "
        "filters=filter", _convolution.convolved, "Conv3D"),
    row("atrous_conv2d", "value, filters, @rate, -padding, name=None",
        lambda x, kernel, rate, padding: _convolution.convolved(x, kernel, 1, padding, None, rate), "convolution"),
    row("convolution", "input, filter, -padding, @strides=None, @dilation_rate=None, name=None, -data_format=None",
        lambda x, kernel, padding, strides, rate, layout:
        _convolution.convolved(x, kernel, strides or 1, padding, layout, rate), "convolution"),
    row("conv2d_transpose", "value, filter, @output_shape, @strides, -padding='SAME', -data_format='NHWC', name=None",
        _convolution.transposed, "conv2d_transpose", spec=_convolution.as_asked),
    row("conv2d_backprop_input", "@input_sizes, filter, out_backprop, @strides, -padding, ~use_cudnn_on_gpu=True, "
        "-data_format='NHWC', name=None",
        lambda shape, kernel, x, strides, padding, layout:
        _convolution.transposed(x, kernel, shape, strides, padding, layout), "Conv2DBackpropInput"),
    row("conv3d_transpose", "value, filter, @output_shape, @strides, -padding='SAME', -data_format='NDHWC', name=None",
        _convolution.transposed, "conv3d_transpose", spec=_convolution.as_asked),
    row("depthwise_conv2d", "input, filter, @strides, -padding, @rate=1, name=None, -data_format='NHWC', "
        "@dilations=None", _convolution.depthwise, "depthwise"),
    row("depthwise_conv2d_native", "input, filter, @strides, -padding, -data_format='NHWC', @dilations=1, name=None",
        lambda x, kernel, strides, padding, layout, dilations:
        _convolution.depthwise(x, kernel, strides, padding, dilations, layout, None), "DepthwiseConv2dNative"),
    row("separable_conv2d", "input, depthwise_filter, pointwise_filter, @strides, -padding, @rate=1, name=None, "
        "-data_format='NHWC'", _convolution.separable, "separable_conv2d"),
    row("max_pool", "value, @ksize, @strides, -padding, -data_format='NHWC', name=None; input=value",
        _convolution.max_pooled, "MaxPool"),
    row("avg_pool", "value, @ksize, @strides, -padding, -data_format='NHWC', name=None; input=value",
        _convolution.mean_pooled, "AvgPool"),
    row("max_pool3d", "input, @ksize, @strides, -padding, -data_format='NDHWC', name=None", _convolution.max_pooled),
    row("avg_pool3d", "input, @ksize, @strides, -padding, -data_format='NDHWC', name=None", _convolution.mean_pooled),
    row("pool", "input, @window_shape, -pooling_type, -padding, @dilation_rate=None, @strides=None, name=None, "
        "-data_format=None", _convolution.pooled, "pool"),
    row("lrn", "input, @depth_radius=5, bias=1, alpha=1, beta=0.5, name=None", _lrn, "LRN"),
    row("local_response_normalization", "input, @depth_radius=5, bias=1, alpha=1, beta=0.5, name=None", _lrn, "LRN"),
    row("l2_loss", "t, name=None", lambda t: jnp.sum(jnp.square(t)) / 2, "L2Loss"),
    row("l2_normalize", "x, @axis=None, epsilon=1e-12, name=None; dim=axis", _l2_normalized, "l2_normalize"),
    row("moments", "x, @axes, ~shift=None, name=None, -keepdims=None; keep_dims=keepdims", _moments, "moments",
        result=_two),
    row("batch_normalization", "x, mean, variance, offset, scale, variance_epsilon, name=None", _normalized,
        "batchnorm"),
    row("fused_batch_norm", "x, scale, offset, mean=None, variance=None, epsilon=0.001, -data_format='NHWC', "
        "-is_training=True, name=None", _fused, "FusedBatchNorm", result=_three),
    row("embedding_lookup", "*params, ids, -partition_strategy='mod', name=None, ~validate_indices=True, "
        "max_norm=None",
        _looked_up, "embedding_lookup", within=(_Rows("ids", _count_of_rows),)),
    row("in_top_k", "predictions, targets, k, name=None", _in_top_k, "InTopK"),
    row("zero_fraction", "value, name=None",
        lambda x: jnp.mean((jnp.asarray(x) == 0).astype(jnp.float32)), "zero_fraction"),
    row("softmax_cross_entropy", "labels, logits, @axis=-1, name=None", _cross_entropy.cross_entropy,
        "softmax_cross_entropy_with_logits"),
    row("sparse_softmax_cross_entropy", "labels, logits, name=None", _cross_entropy.sparse_cross_entropy,
        "SparseSoftmaxCrossEntropyWithLogits",
        within=(Within("labels", lambda labels, logits: index_bounds.shape(logits)[-1]),)),
    row("sigmoid_cross_entropy", "labels, logits, name=None", _cross_entropy.sigmoid_cross_entropy, "logistic_loss"),
    row("weighted_cross_entropy", "labels, logits, pos_weight, name=None", _cross_entropy.weighted_cross_entropy,
        "logistic_loss"),
    row("log_poisson_loss", "targets, log_input, -compute_full_loss=False, name=None", _cross_entropy.log_poisson,
        "log_poisson_loss"),
]  # fmt: skip

FUNCTIONS = functions(TABLE)
_OF_TWO = tuple(f"{kind}_cross_entropy" for kind in ("softmax", "sparse_softmax", "sigmoid", "weighted"))
globals().update({name: made for name, made in FUNCTIONS.items() if name not in _OF_TWO})


def _labels_and_logits(who: str, first: Any, labels: Any, logits: Any) -> tuple[Any, Any]:
    """Returns both; without names they are logits and labels, as before TF 1.0."""
    if first is not None:
        labels, logits = (labels if logits is None else logits), first
    if labels is None or logits is None:
        raise ValueError(f"tf.nn.{who}: both labels and logits must be provided.")
    return labels, logits


def softmax_cross_entropy_with_logits(
    _sentinel: Any = None, labels: Any = None, logits: Any = None, dim: int = -1, name: Any = None, axis: Any = None
) -> Any:
    """`tf.nn.softmax_cross_entropy_with_logits`: no gradient goes into the labels."""
    labels, logits = _labels_and_logits("softmax_cross_entropy_with_logits", _sentinel, labels, logits)
    labels = node(jax.lax.stop_gradient, "labels_stop_gradient", {"x": convert_to_tensor(labels)})
    return softmax_cross_entropy_with_logits_v2(labels, logits, axis, name, dim)


def softmax_cross_entropy_with_logits_v2(
    labels: Any, logits: Any, axis: Any = None, name: Any = None, dim: Any = None
) -> Any:
    """`tf.nn.softmax_cross_entropy_with_logits_v2`."""
    axis = next((given for given in (axis, dim) if given is not None), -1)
    return FUNCTIONS["softmax_cross_entropy"](labels, logits, axis, name)


def sparse_softmax_cross_entropy_with_logits(
    _sentinel: Any = None, labels: Any = None, logits: Any = None, name: Any = None
) -> Any:
    """`tf.nn.sparse_softmax_cross_entropy_with_logits`."""
    labels, logits = _labels_and_logits("sparse_softmax_cross_entropy_with_logits", _sentinel, labels, logits)
    return FUNCTIONS["sparse_softmax_cross_entropy"](labels, logits, name)


def sigmoid_cross_entropy_with_logits(
    _sentinel: Any = None, labels: Any = None, logits: Any = None, name: Any = None, targets: Any = None
) -> Any:
    """`tf.nn.sigmoid_cross_entropy_with_logits`; `targets` is the name that the labels had before TF 1.0."""
    labels = targets if labels is None else labels
    labels, logits = _labels_and_logits("sigmoid_cross_entropy_with_logits", _sentinel, labels, logits)
    _check_shapes(logits, labels)
    return FUNCTIONS["sigmoid_cross_entropy"](labels, logits, name)


def weighted_cross_entropy_with_logits(
    labels: Any = None, logits: Any = None, pos_weight: Any = None, name: Any = None, targets: Any = None
) -> Any:
    """`tf.nn.weighted_cross_entropy_with_logits`; `targets` is the earlier name of the labels."""
    labels = targets if labels is None else labels
    _check_shapes(logits, labels)
    return FUNCTIONS["weighted_cross_entropy"](labels, logits, pos_weight, name)


def _check_shapes(logits: Any, labels: Any) -> None:
    shapes = [convert_to_tensor(given).shape for given in (logits, labels)]
    if not shapes[0].is_compatible_with(shapes[1]):
        raise ValueError(f"logits and labels must have the same shape ({shapes[0]} vs {shapes[1]}).")


def dropout(
    x: Any, keep_prob: Any = None, noise_shape: Any = None, seed: Any = None, name: Any = None, rate: Any = None
) -> Any:
    """`tf.nn.dropout`: `keep_prob` is the share that stays, `rate` the share that goes."""
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


top_k = array_ops.top_k
sigmoid, tanh, log_sigmoid = (tf_math.FUNCTIONS[name] for name in ("sigmoid", "tanh", "log_sigmoid"))

nce_loss, sampled_softmax_loss = _sampling.nce_loss, _sampling.sampled_softmax_loss
log_uniform_candidate_sampler = _sampling.log_uniform_candidate_sampler
uniform_candidate_sampler = _sampling.uniform_candidate_sampler
deconv2d = FUNCTIONS["conv2d_transpose"]

PUBLIC = [
    "deconv2d",
    *(name for name in FUNCTIONS if name not in _OF_TWO),
    "dropout",
    "log_sigmoid",
    "log_uniform_candidate_sampler",
    "nce_loss",
    "sampled_softmax_loss",
    "sigmoid",
    "sigmoid_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits_v2",
    "sparse_softmax_cross_entropy_with_logits",
    "weighted_cross_entropy_with_logits",
    "tanh",
    "top_k",
    "uniform_candidate_sampler",
]
__getattr__, __dir__ = offered("tf.nn", lambda: PUBLIC)
