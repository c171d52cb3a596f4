"""`BatchNormalization`; the updates of its moving averages are in `GraphKeys.UPDATE_OPS`."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp

from hookline import Tensor, update
from hookline_tf1._machinery.ignored_arguments import ignored
from hookline_tf1._machinery.nodes import op
from hookline_tf1.layers._base import ONES, ZEROS, Layer, dimension


class BatchNormalization(Layer):
    """Batch normalisation by the batch's mean and variance in training, else by their moving averages.

    A training step must run the updates of the averages, in the collection `UPDATE_OPS`.

    References:
        `tf.layers.BatchNormalization`. As there, the unbiased variance is averaged if
        the inputs have four dimensions, unless `fused` is False.
    """

    def __init__(
        self,
        axis: Any = -1,
        momentum: Any = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = ZEROS,
        gamma_initializer: Any = ONES,
        moving_mean_initializer: Any = ZEROS,
        moving_variance_initializer: Any = ONES,
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        renorm: bool = False,
        renorm_clipping: Any = None,
        renorm_momentum: Any = 0.99,
        fused: bool | None = None,
        trainable: bool = True,
        virtual_batch_size: int | None = None,
        adjustment: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable, name, **kwargs)
        if renorm or virtual_batch_size is not None or adjustment is not None:
            raise NotImplementedError(
                "tf.layers.BatchNormalization: renorm, virtual_batch_size and adjustment are not available."
            )
        ignored("tf.layers.BatchNormalization", renorm_clipping=renorm_clipping)
        self.axis = axis[0] if isinstance(axis, list | tuple) else axis
        self.momentum, self.epsilon, self.center, self.scale, self.fused = momentum, epsilon, center, scale, fused
        self._beta = {"initializer": beta_initializer, "regularizer": beta_regularizer, "constraint": beta_constraint}
        self._gamma = {
            "initializer": gamma_initializer,
            "regularizer": gamma_regularizer,
            "constraint": gamma_constraint,
        }
        self._starts = (moving_mean_initializer, moving_variance_initializer)
        self.gamma: Any = None
        self.beta: Any = None

    def build(self, input_shape: Any) -> None:
        """Creates the scale, the offset and both averages."""
        shape = [dimension(self, input_shape, self.axis)]
        if self.scale:
            self.gamma = self.add_weight("gamma", shape, **self._gamma)
        if self.center:
            self.beta = self.add_weight("beta", shape, **self._beta)
        mean, variance = self._starts
        self.moving_mean = self.add_weight("moving_mean", shape, initializer=mean, trainable=False)
        self.moving_variance = self.add_weight("moving_variance", shape, initializer=variance, trainable=False)
        # As in TensorFlow, the fused kernel is for images.
        self._unbiased = input_shape.ndims == 4 and self.axis in (-1, 1, 3) and self.fused is not False

    def call(self, inputs: Any, training: Any = False) -> Any:
        """Normalises the inputs."""
        moving = (self.moving_mean, self.moving_variance)
        normalise = functools.partial(_normalised, self.axis, self.epsilon)
        if not isinstance(training, Tensor) and not training:
            return op(normalise, name="batchnorm")(inputs, *moving, self.gamma, self.beta)
        batch = op(functools.partial(_moments, self.axis), name="moments")(inputs)
        used = op(_chosen, name="cond")(training, tuple(batch), moving)
        outputs = op(normalise, name="batchnorm")(inputs, used[0], used[1], self.gamma, self.beta)
        # A `training` of unknown shape would make the result's shape unknown.
        outputs.spec = inputs.spec
        for i, variable in enumerate(moving):
            fn = functools.partial(_moved, self.axis, self._unbiased and i == 1)
            moved = update(variable, fn, batch[i], inputs, self.momentum, training, name="AssignMovingAvg")
            self.add_update(moved.op)
        return outputs


def _shape(axis: int, x: Any) -> tuple[int, ...]:
    return tuple(-1 if i == axis % x.ndim else 1 for i in range(x.ndim))


def _others(axis: int, x: Any) -> tuple[int, ...]:
    return tuple(i for i in range(x.ndim) if i != axis % x.ndim)


def _moments(axis: int, x: Any) -> tuple[Any, Any]:
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    others = _others(axis, x)
    return jnp.mean(wide, others), jnp.var(wide, others)


def _normalised(axis: int, epsilon: float, x: Any, mean: Any, variance: Any, gamma: Any, beta: Any) -> Any:
    scale = 1 / jnp.sqrt(variance + epsilon)
    scale = scale if gamma is None else scale * gamma
    offset = -mean * scale if beta is None else beta - mean * scale
    shape = _shape(axis, x)
    return (x * scale.reshape(shape) + offset.reshape(shape)).astype(x.dtype)


def _chosen(training: Any, batch: tuple[Any, Any], moving: tuple[Any, Any]) -> tuple[Any, ...]:
    return tuple(jnp.where(training, one, other) for one, other in zip(batch, moving, strict=True))


def _moved(axis: int, unbiased: bool, old: Any, value: Any, x: Any, momentum: Any, training: Any) -> Any:
    if unbiased:
        count = x.size // x.shape[axis]
        value = value * (count / max(count - 1, 1))
    share = jnp.where(training, 1 - jnp.asarray(momentum, old.dtype), 0)
    return old - (old - value.astype(old.dtype)) * share


def batch_normalization(
    inputs: Any,
    axis: Any = -1,
    momentum: Any = 0.99,
    epsilon: float = 1e-3,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = ZEROS,
    gamma_initializer: Any = ONES,
    moving_mean_initializer: Any = ZEROS,
    moving_variance_initializer: Any = ONES,
    beta_regularizer: Any = None,
    gamma_regularizer: Any = None,
    beta_constraint: Any = None,
    gamma_constraint: Any = None,
    training: Any = False,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
    renorm: bool = False,
    renorm_clipping: Any = None,
    renorm_momentum: Any = 0.99,
    fused: bool | None = None,
    virtual_batch_size: int | None = None,
    adjustment: Any = None,
) -> Any:
    """Creates a `BatchNormalization` and calls it.

    References:
        `tf.layers.batch_normalization`.
    """
    layer = BatchNormalization(
        axis, momentum, epsilon, center, scale, beta_initializer, gamma_initializer, moving_mean_initializer,
        moving_variance_initializer, beta_regularizer, gamma_regularizer, beta_constraint, gamma_constraint, renorm,
        renorm_clipping, renorm_momentum, fused, trainable, virtual_batch_size, adjustment, name, _reuse=reuse,
        _scope=name,
    )  # fmt: skip
    return layer(inputs, training=training)
