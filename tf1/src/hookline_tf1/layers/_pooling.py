"""Max pooling and average pooling over one, two and three dimensions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from hookline_tf1._machinery.nodes import op
from hookline_tf1.layers._base import Layer, functional
from hookline_tf1.layers._convolutional import layout, several
from hookline_tf1.nn import _convolution


class _Pooling(Layer):
    """The base of pooling layers. A subclass sets the number of dimensions."""

    rank = 0
    largest = True

    def __init__(
        self,
        pool_size: int | Sequence[int],
        strides: int | Sequence[int] | None,
        padding: str = "valid",
        data_format: str = "channels_last",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        if padding.lower() not in ("valid", "same"):
            raise ValueError(f"{type(self).__name__}: padding is 'valid' or 'same', got {padding!r}.")
        self.pool_size = several(pool_size, self.rank)
        self.strides = several(pool_size if strides is None else strides, self.rank)
        self.padding, self.data_format = padding, data_format

    def call(self, inputs: Any) -> Any:
        """Pools each window."""
        pool = _convolution.max_pooled if self.largest else _convolution.mean_pooled
        order, padding = layout(self.rank, self.data_format), self.padding.upper()
        how = {"size": self.pool_size, "strides": self.strides, "padding": padding, "data_format": order}
        return op(functools.partial(pool, **how), name="MaxPool" if self.largest else "AvgPool")(inputs)


class MaxPooling1D(_Pooling):
    """Max pooling over one dimension."""

    rank = 1


class MaxPooling2D(_Pooling):
    """Max pooling over two dimensions."""

    rank = 2


class MaxPooling3D(_Pooling):
    """Max pooling over three dimensions."""

    rank = 3


class AveragePooling1D(_Pooling):
    """Average pooling over one dimension."""

    rank, largest = 1, False


class AveragePooling2D(_Pooling):
    """Average pooling over two dimensions."""

    rank, largest = 2, False


class AveragePooling3D(_Pooling):
    """Average pooling over three dimensions."""

    rank, largest = 3, False


max_pooling1d, max_pooling2d, max_pooling3d = (functional(kind) for kind in (MaxPooling1D, MaxPooling2D, MaxPooling3D))
average_pooling1d, average_pooling2d, average_pooling3d = (
    functional(kind) for kind in (AveragePooling1D, AveragePooling2D, AveragePooling3D)
)
