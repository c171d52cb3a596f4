"""`tf.contrib.slim.model_analyzer`: the sizes of variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookline_tf1._machinery.namespaces import offered

__all__ = ["analyze_vars", "tensor_description"]

__getattr__, __dir__ = offered("tf.contrib.slim.model_analyzer", lambda: __all__)


def tensor_description(var: Any) -> str:
    """Returns the dtype and the shape of a tensor, such as `(float32_ref 784x10)`."""
    shape = "x".join(["?" if dim is None else str(dim) for dim in var.get_shape().as_list()])
    return f"({var.dtype.name}{'_ref' * hasattr(var, 'initializer')} {shape})"


def analyze_vars(variables: Sequence[Any], print_info: bool = False) -> tuple[int, int]:
    """Counts the elements and bytes of variables; prints them if requested."""
    sizes = [(var.get_shape().num_elements() or 0, var.dtype.size) for var in variables]
    numbers, bytes_ = sum(size for size, _ in sizes), sum(size * each for size, each in sizes)
    if print_info:
        print("---------\nVariables: name (type shape) [size]\n---------")
        for var, (size, each) in zip(variables, sizes, strict=True):
            print(f"{var.name} {tensor_description(var)} [{size}, bytes: {size * each}]")
        print(f"Total size of variables: {numbers}\nTotal bytes of variables: {bytes_}")
    return numbers, bytes_
