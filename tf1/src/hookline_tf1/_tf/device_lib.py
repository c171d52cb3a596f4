"""`device_lib` of `tensorflow.python.client`: the devices of this machine."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from hookline_tf1._machinery.ignored_arguments import ignored


class DeviceAttributes(NamedTuple):
    """A device.

    Attributes:
        name: As TensorFlow calls it: `/device:GPU:0`.
        device_type: `CPU`, `GPU` or `TPU`.
        memory_limit: The bytes of its memory that JAX may use; 0 if unknown.
        physical_device_desc: Its model.
    """

    name: str
    device_type: str
    memory_limit: int
    physical_device_desc: str


def list_local_devices(session_config: Any = None) -> list[DeviceAttributes]:
    """`device_lib.list_local_devices`: JAX's devices, the first CPU before others."""
    ignored("device_lib.list_local_devices", session_config=session_config)
    others = [device for device in jax.local_devices() if device.platform != "cpu"]
    return [_attributes(device) for device in [jax.local_devices(backend="cpu")[0], *others]]


def _attributes(device: Any) -> DeviceAttributes:
    kind = device.platform.upper()
    limit = (device.memory_stats() or {}).get("bytes_limit", 0)
    return DeviceAttributes(f"/device:{kind}:{device.local_hardware_id or 0}", kind, limit, device.device_kind)
