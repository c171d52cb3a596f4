"""What scripts ask about the machine: `tf.test`, and `device_lib` of `tensorflow.python.client`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from hookline.compat.v1._machinery.ignored_arguments import ignored


def is_gpu_available(cuda_only: bool = False, min_cuda_compute_capability: Any = None) -> bool:
    """`tf.test.is_gpu_available`: whether JAX has a GPU."""
    ignored("tf.test.is_gpu_available", min_cuda_compute_capability=min_cuda_compute_capability)
    found = [device.device_kind for device in jax.devices() if device.platform == "gpu"]
    return any("AMD" not in kind for kind in found) if cuda_only else bool(found)


def gpu_device_name() -> str:
    """`tf.test.gpu_device_name`: `/device:GPU:0`, or an empty text where JAX has no GPU."""
    return "/device:GPU:0" if any(device.platform == "gpu" for device in jax.devices()) else ""


def is_built_with_cuda() -> bool:
    """`tf.test.is_built_with_cuda`: whether JAX has a GPU of NVIDIA's."""
    return is_gpu_available(cuda_only=True)


class DeviceAttributes(NamedTuple):
    """A device.

    Attributes:
        name: As TensorFlow calls it: `/device:GPU:0`.
        device_type: `CPU`, `GPU` or `TPU`.
        memory_limit: The bytes that JAX may use of it; 0 where that is not known.
        physical_device_desc: What it is.
    """

    name: str
    device_type: str
    memory_limit: int
    physical_device_desc: str


def list_local_devices(session_config: Any = None) -> list[DeviceAttributes]:
    """`device_lib.list_local_devices`: the devices that JAX has, the first CPU before others."""
    ignored("device_lib.list_local_devices", session_config=session_config)
    others = [device for device in jax.local_devices() if device.platform != "cpu"]
    return [_attributes(device) for device in [jax.local_devices(backend="cpu")[0], *others]]


def _attributes(device: Any) -> DeviceAttributes:
    kind = device.platform.upper()
    limit = (device.memory_stats() or {}).get("bytes_limit", 0)
    return DeviceAttributes(f"/device:{kind}:{device.local_hardware_id or 0}", kind, limit, device.device_kind)


PUBLIC = {
    "gpu_device_name": gpu_device_name,
    "is_built_with_cuda": is_built_with_cuda,
    "is_gpu_available": is_gpu_available,
}
