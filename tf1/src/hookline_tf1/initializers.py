"""Initializers of variables: objects that return a tensor of a given shape."""

from __future__ import annotations

import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline_tf1 import random
from hookline_tf1._machinery import dtypes, nodes
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1._machinery.nodes import node
from hookline_tf1._rules.tensor_shape import TensorShape


class Initializer:
    """Creates initial values: `initializer(shape, dtype=None)` returns a tensor."""

    dtype: Any = dtypes.float32

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        """Returns a tensor of the shape."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, for `from_config`."""
        names = inspect.signature(type(self)).parameters
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Initializer:
        """Creates an initializer from the result of `get_config`."""
        return cls(**config)


class Constant(Initializer):
    """Initialises with a value, or with a list of values that fills the shape.

    References:
        `tf.constant_initializer`.
    """

    def __init__(self, value: Any = 0, dtype: Any = dtypes.float32, verify_shape: bool = False) -> None:
        self.value, self.dtype, self.verify_shape = value, dtypes.as_dtype(dtype), verify_shape

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        """Returns a tensor of the shape."""
        value = self.value.tolist() if isinstance(self.value, np.generic) else self.value
        if isinstance(value, bool | int | float) and not self.verify_shape:
            return _filled(value, shape, dtype or self.dtype)
        return nodes.constant(value, dtype or self.dtype, shape=shape, verify_shape=self.verify_shape)


class Zeros(Constant):
    """Zeros.

    References:
        `tf.zeros_initializer`.
    """

    def __init__(self, dtype: Any = dtypes.float32) -> None:
        super().__init__(0, dtype)


class Ones(Constant):
    """Ones.

    References:
        `tf.ones_initializer`.
    """

    def __init__(self, dtype: Any = dtypes.float32) -> None:
        super().__init__(1, dtype)


def _filled(value: Any, shape: Any, dtype: Any) -> Any:
    one = nodes.as_array(value, dtype)
    return node(lambda shape: jnp.full(shape, one, one.dtype), "Const", {"shape": shape}, static=("shape",))


class RandomUniform(Initializer):
    """Uniform random numbers from `minval` to `maxval`.

    References:
        `tf.random_uniform_initializer`.
    """

    def __init__(self, minval: Any = 0, maxval: Any = None, seed: Any = None, dtype: Any = dtypes.float32) -> None:
        self.minval, self.maxval, self.seed, self.dtype = minval, maxval, seed, dtypes.as_dtype(dtype)

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        """Returns a tensor of the shape."""
        return random.random_uniform(shape, self.minval, self.maxval, dtype or self.dtype, self.seed)


class RandomNormal(Initializer):
    """Random numbers of a normal distribution.

    References:
        `tf.random_normal_initializer`.
    """

    def __init__(self, mean: Any = 0.0, stddev: Any = 1.0, seed: Any = None, dtype: Any = dtypes.float32) -> None:
        self.mean, self.stddev, self.seed, self.dtype = mean, stddev, seed, dtypes.as_dtype(dtype)

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        """Returns a tensor of the shape."""
        return random.random_normal(shape, self.mean, self.stddev, dtype or self.dtype, self.seed)


class TruncatedNormal(RandomNormal):
    """Random numbers of a truncated normal distribution, within two standard deviations of the mean.

    References:
        `tf.truncated_normal_initializer`.
    """

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        """Returns a tensor of the shape."""
        return random.truncated_normal(shape, self.mean, self.stddev, dtype or self.dtype, self.seed)


def fans(shape: Any) -> tuple[int, int]:
    """Computes the fan-in and fan-out of a weight of this shape."""
    shape = TensorShape(shape).as_list()
    if len(shape) < 2:
        size = shape[0] if shape else 1
        return size, size
    field = math.prod(shape[:-2])
    return shape[-2] * field, shape[-1] * field


class VarianceScaling(Initializer):
    """Random numbers with variance `scale / n`, where n is the number of inputs, of outputs or their mean.

    References:
        `tf.variance_scaling_initializer`.
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: Any = None,
        dtype: Any = dtypes.float32,
    ) -> None:
        if scale <= 0.0:
            raise ValueError("`scale` must be positive float.")
        if mode not in ("fan_in", "fan_out", "fan_avg"):
            raise ValueError(f"Invalid `mode` argument: {mode}")
        distribution = distribution.lower()
        if distribution not in ("normal", "uniform", "truncated_normal", "untruncated_normal"):
            raise ValueError(f"Invalid `distribution` argument: {distribution}")
        self.scale, self.mode, self.distribution = scale, mode, distribution
        self.seed, self.dtype = seed, dtypes.as_dtype(dtype)

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        """Returns a tensor of the shape."""
        dtype = dtype or self.dtype
        fan_in, fan_out = fans(shape)
        n = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        variance = self.scale / max(1.0, n)
        if self.distribution == "uniform":
            limit = math.sqrt(3.0 * variance)
            return random.random_uniform(shape, -limit, limit, dtype, self.seed)
        if self.distribution == "untruncated_normal":
            return random.random_normal(shape, 0.0, math.sqrt(variance), dtype, self.seed)
        # The factor by which truncation reduces the standard deviation.
        return random.truncated_normal(shape, 0.0, math.sqrt(variance) / 0.87962566103423978, dtype, self.seed)


class Orthogonal(Initializer):
    """A matrix whose rows or columns are orthogonal.

    References:
        `tf.orthogonal_initializer`.
    """

    def __init__(self, gain: float = 1.0, seed: Any = None, dtype: Any = dtypes.float32) -> None:
        self.gain, self.seed, self.dtype = gain, seed, dtypes.as_dtype(dtype)

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        """Returns a tensor of the shape."""
        wanted, shape = dtypes.canonical(dtype or self.dtype), tuple(TensorShape(shape).as_list())
        make = jax.nn.initializers.orthogonal(self.gain)
        return random.draw(lambda key: make(key, shape, wanted), "orthogonal", self.seed, {})


class Identity(Initializer):
    """A matrix with `gain` on its diagonal.

    References:
        `tf.initializers.identity`.
    """

    def __init__(self, gain: float = 1.0, dtype: Any = dtypes.float32) -> None:
        self.gain, self.dtype = gain, dtypes.as_dtype(dtype)

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        """Returns a tensor of the shape."""
        rows, columns = TensorShape(shape).as_list()
        return nodes.constant(self.gain * np.eye(rows or 0, columns), dtype or self.dtype)


def _scaled(name: str, scale: float, mode: str, distribution: str) -> Any:
    class Scaled(VarianceScaling):
        def __init__(self, seed: Any = None, dtype: Any = dtypes.float32) -> None:
            super().__init__(scale, mode, distribution, seed, dtype)

    Scaled.__name__ = Scaled.__qualname__ = name
    Scaled.__doc__ = f"`tf.initializers.{name}`: `VarianceScaling({scale}, {mode!r}, {distribution!r})`."
    return Scaled


glorot_uniform = _scaled("glorot_uniform", 1.0, "fan_avg", "uniform")
glorot_normal = _scaled("glorot_normal", 1.0, "fan_avg", "truncated_normal")
he_uniform = _scaled("he_uniform", 2.0, "fan_in", "uniform")
he_normal = _scaled("he_normal", 2.0, "fan_in", "truncated_normal")
lecun_uniform = _scaled("lecun_uniform", 1.0, "fan_in", "uniform")
lecun_normal = _scaled("lecun_normal", 1.0, "fan_in", "truncated_normal")


def uniform_unit_scaling_initializer(factor: float = 1.0, seed: Any = None, dtype: Any = dtypes.float32) -> Any:
    """`tf.uniform_unit_scaling_initializer`."""
    return VarianceScaling(factor**2, "fan_in", "uniform", seed, dtype)


def made(initializer: Any) -> Any:
    """Creates an initializer from a class or a name; returns an object unchanged.

    Raises:
        ValueError: No initializer has that name.
    """
    if isinstance(initializer, str):
        if initializer not in NAMED:
            raise ValueError(f"No initializer is called {initializer!r}; known are {', '.join(sorted(NAMED))}.")
        initializer = NAMED[initializer]
    return initializer() if inspect.isclass(initializer) else initializer


constant = constant_initializer = Constant
zeros = zeros_initializer = Zeros
ones = ones_initializer = Ones
random_uniform = random_uniform_initializer = RandomUniform
random_normal = random_normal_initializer = RandomNormal
truncated_normal = truncated_normal_initializer = TruncatedNormal
variance_scaling = variance_scaling_initializer = VarianceScaling
orthogonal = orthogonal_initializer = Orthogonal
identity = Identity
glorot_uniform_initializer, glorot_normal_initializer = glorot_uniform, glorot_normal

NAMED = {
    "constant": Constant,
    "zeros": Zeros,
    "ones": Ones,
    "random_uniform": RandomUniform,
    "random_normal": RandomNormal,
    "truncated_normal": TruncatedNormal,
    "variance_scaling": VarianceScaling,
    "orthogonal": Orthogonal,
    "identity": Identity,
    "glorot_uniform": glorot_uniform,
    "glorot_normal": glorot_normal,
    "he_uniform": he_uniform,
    "he_normal": he_normal,
    "lecun_uniform": lecun_uniform,
    "lecun_normal": lecun_normal,
}

__all__ = [
    "constant_initializer",
    "glorot_normal_initializer",
    "glorot_uniform_initializer",
    "ones_initializer",
    "orthogonal_initializer",
    "random_normal_initializer",
    "random_uniform_initializer",
    "truncated_normal_initializer",
    "uniform_unit_scaling_initializer",
    "variance_scaling_initializer",
    "zeros_initializer",
]

__getattr__, __dir__ = offered("tf.initializers", lambda: [*NAMED, *__all__])
