"""`ConfigProto`, `device` and the like: taken, without effect, and said once.

JAX chooses the device (`JAX_PLATFORMS`, `CUDA_VISIBLE_DEVICES`) and manages its memory.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hookline.compat.v1.namespace import missing

_logger = logging.getLogger(__name__)


@functools.cache
def say_once(what: str, why: str = "JAX chooses the device and manages its memory") -> None:
    """Logs, once in a process, that something is taken without effect."""
    _logger.info("%s is taken, but has no effect: %s.", what, why)


@contextmanager
def device(device_name_or_function: Any) -> Iterator[None]:
    """Leaves what is made inside where JAX puts it.

    References:
        `tf.device`.
    """
    if device_name_or_function is not None:
        say_once("tf.device")
    yield


_missing = missing("tf.config", lambda: ())


def __getattr__(name: str) -> Any:
    """Returns `ConfigProto` and its parts, which TensorBoard has."""
    if name not in ("ConfigProto", "GPUOptions", "GraphOptions", "OptimizerOptions"):
        return _missing(name)
    from tensorboard.compat.proto import config_pb2

    return getattr(config_pb2, name)
