"""`tf.test`: its functions about GPUs. For test cases, use `unittest`."""

from __future__ import annotations

from typing import Any

import jax

from hookline_tf1._machinery.ignored_arguments import ignored
from hookline_tf1._machinery.namespaces import offered


def is_gpu_available(cuda_only: bool = False, min_cuda_compute_capability: Any = None) -> bool:
    """`tf.test.is_gpu_available`: whether JAX has a GPU."""
    ignored("tf.test.is_gpu_available", min_cuda_compute_capability=min_cuda_compute_capability)
    found = [device.device_kind for device in jax.devices() if device.platform == "gpu"]
    return any("AMD" not in kind for kind in found) if cuda_only else bool(found)


def gpu_device_name() -> str:
    """`tf.test.gpu_device_name`: `/device:GPU:0`, or an empty string if JAX has no GPU."""
    return "/device:GPU:0" if any(device.platform == "gpu" for device in jax.devices()) else ""


def is_built_with_cuda() -> bool:
    """`tf.test.is_built_with_cuda`: whether JAX has an NVIDIA GPU."""
    return is_gpu_available(cuda_only=True)


__all__ = ["gpu_device_name", "is_built_with_cuda", "is_gpu_available"]
__getattr__, __dir__ = offered("tf.test", lambda: __all__)
