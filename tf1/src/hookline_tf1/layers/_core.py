"""The layers `Dense`, `Dropout` and `Flatten`."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from hookline import Tensor
from hookline import op as lifted
from hookline_tf1 import nn
from hookline_tf1._machinery.nodes import op
from hookline_tf1.layers._base import ZEROS, Layer, activated, dimension, functional


class Dense(Layer):
    """Multiplies the last dimension by a matrix and adds a bias.

    References:
        `tf.layers.Dense`.
    """

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = None,
        bias_initializer: Any = ZEROS,
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        trainable: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable, name, activity_regularizer=activity_regularizer, **kwargs)
        self.units, self.activation, self.use_bias = int(units), activation, use_bias
        self._kernel = {
            "initializer": kernel_initializer,
            "regularizer": kernel_regularizer,
            "constraint": kernel_constraint,
        }
        self._bias = {"initializer": bias_initializer, "regularizer": bias_regularizer, "constraint": bias_constraint}
        self.kernel: Any = None
        self.bias: Any = None

    def build(self, input_shape: Any) -> None:
        """Creates the matrix and the bias."""
        self.kernel = self.add_weight("kernel", [dimension(self, input_shape, -1), self.units], **self._kernel)
        if self.use_bias:
            self.bias = self.add_weight("bias", [self.units], **self._bias)

    def call(self, inputs: Any) -> Any:
        """Computes the products and their activation."""
        outputs = op(_product, name="MatMul" if inputs.shape.ndims == 2 else "Tensordot")(inputs, self.kernel)
        if self.use_bias:
            outputs = op(jnp.add, name="BiasAdd")(outputs, self.bias)
        return activated(self.activation, outputs)


def _product(inputs: Any, kernel: Any) -> Any:
    return lax.dot_general(inputs, kernel, (((inputs.ndim - 1,), (0,)), ((), ())))


class Flatten(Layer):
    """Flattens all dimensions but the first.

    References:
        `tf.layers.Flatten`.
    """

    def __init__(self, data_format: str | None = None, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.data_format = data_format

    def call(self, inputs: Any) -> Any:
        """Flattens the inputs to a matrix."""
        first = self.data_format == "channels_first"
        return op(lambda x: _flat(jnp.moveaxis(x, 1, -1) if first and x.ndim > 2 else x), name="Reshape")(inputs)


def _flat(x: Any) -> Any:
    return x.reshape((x.shape[0], math.prod(x.shape[1:])))


class Dropout(Layer):
    """Sets a fraction of the inputs to zero in training, and scales up the others.

    References:
        `tf.layers.Dropout`.
    """

    def __init__(
        self,
        rate: Any = 0.5,
        noise_shape: Any = None,
        seed: int | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.rate, self.noise_shape, self.seed = rate, noise_shape, seed

    def call(self, inputs: Any, training: Any = False) -> Any:
        """Applies dropout in training; otherwise returns the inputs."""
        if not isinstance(training, Tensor):
            return self._dropped(inputs) if training else lifted(lambda x: x, name="Identity")(inputs)
        outputs = chosen(training, self._dropped(inputs), inputs)
        outputs.set_shape(inputs.shape)
        return outputs

    def _dropped(self, inputs: Any) -> Any:
        return nn.dropout(inputs, noise_shape=self.noise_shape, seed=self.seed, rate=self.rate)


def chosen(condition: Any, one: Any, other: Any) -> Any:
    """Selects one of two tensors of one shape, by a condition that only a run knows."""
    made = op(lambda condition, one, other: jnp.where(condition, one, other), name="cond")(condition, one, other)
    # A condition of unknown shape would make the result's shape unknown.
    made.spec = other.spec
    return made


def dropout(
    inputs: Any,
    rate: Any = 0.5,
    noise_shape: Any = None,
    seed: int | None = None,
    training: Any = False,
    name: str | None = None,
) -> Any:
    """Creates a `Dropout` and calls it.

    References:
        `tf.layers.dropout`.
    """
    return Dropout(rate, noise_shape, seed, name)(inputs, training=training)


dense = functional(Dense)


def flatten(inputs: Any, name: str | None = None, data_format: str = "channels_last") -> Any:
    """Creates a `Flatten` and calls it.

    References:
        `tf.layers.flatten`.
    """
    return Flatten(data_format, name)(inputs)
