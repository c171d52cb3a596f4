"""`tf.compat`: string conversions, and the switches between TensorFlow 2 and 1.x, which have no effect here."""

from __future__ import annotations

from typing import Any

from hookline_tf1._machinery.namespaces import offered


def disable_v2_behavior() -> None:
    """`tf.disable_v2_behavior`."""


def disable_eager_execution() -> None:
    """`tf.disable_eager_execution`."""


def disable_resource_variables() -> None:
    """`tf.disable_resource_variables`."""


def enable_resource_variables() -> None:
    """`tf.enable_resource_variables`."""


def disable_v2_tensorshape() -> None:
    """`tf.disable_v2_tensorshape`."""


def disable_tensor_equality() -> None:
    """`tf.disable_tensor_equality`."""


def disable_control_flow_v2() -> None:
    """`tf.disable_control_flow_v2`."""


def executing_eagerly() -> bool:
    """`tf.executing_eagerly`: returns False."""
    return False


def enable_eager_execution(*args: Any, **kwargs: Any) -> None:
    """Is refused: hookline_tf1 runs graphs in sessions."""
    raise NotImplementedError("tf.enable_eager_execution is not available: JAX itself computes eagerly.")


def as_bytes(bytes_or_text: Any, encoding: str = "utf-8") -> bytes:
    """`tf.compat.as_bytes`."""
    return bytes_or_text.encode(encoding) if isinstance(bytes_or_text, str) else bytes(bytes_or_text)


def as_text(bytes_or_text: Any, encoding: str = "utf-8") -> str:
    """`tf.compat.as_text`."""
    return bytes_or_text if isinstance(bytes_or_text, str) else bytes_or_text.decode(encoding)


as_str = as_text


def as_str_any(value: Any) -> str:
    """`tf.compat.as_str_any`."""
    return as_str(value) if isinstance(value, bytes) else str(value)


__all__ = [
    "as_bytes",
    "as_str",
    "as_str_any",
    "as_text",
    "disable_control_flow_v2",
    "disable_eager_execution",
    "disable_resource_variables",
    "disable_tensor_equality",
    "disable_v2_behavior",
    "disable_v2_tensorshape",
    "enable_eager_execution",
    "enable_resource_variables",
    "executing_eagerly",
]
__getattr__, __dir__ = offered("tf.compat", lambda: [*__all__, "v1"])
