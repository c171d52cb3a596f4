"""`tf.config` and device settings: accepted without effect, logged once.

JAX chooses the device (`JAX_PLATFORMS`, `CUDA_VISIBLE_DEVICES`) and manages its memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hookline_tf1._machinery.ignored_arguments import log_once
from hookline_tf1._machinery.namespaces import missing


@contextmanager
def device(device_name_or_function: Any) -> Iterator[None]:
    """Has no effect: JAX chooses the device of operations.

    References:
        `tf.device`.
    """
    if device_name_or_function is not None:
        log_once("tf.device")
    yield


_missing = missing("tf.config", lambda: ())


def __getattr__(name: str) -> Any:
    """Returns `ConfigProto` and its parts from TensorBoard."""
    if name not in ("ConfigProto", "GPUOptions", "GraphOptions", "OptimizerOptions"):
        return _missing(name)
    from tensorboard.compat.proto import config_pb2

    return getattr(config_pb2, name)
