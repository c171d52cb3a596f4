"""Rates beside steps per second (examples, tokens, floating point operations), and device memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax

from hookline import arguments

FLOPS = "flops"
"""The name of floating point operations in `per_step`."""


def rates_given(who: str, per_step: Mapping[str, float] | None) -> dict[str, float]:
    """Returns the checked `per_step` argument of a hook: the count of examples, tokens, ... in one step, by name.

    Raises:
        TypeError: It is no dict from names to numbers.
        ValueError: A number is not above 0.
    """
    arguments.mapping(who, "per_step", per_step, optional=True)
    rates: dict[str, float] = {}
    for name, count in (per_step or {}).items():
        arguments.text(who, "a name in per_step", name)
        rates[name] = arguments.number(who, f"per_step[{name!r}]", count, at_least=0)
        if not rates[name] > 0:
            raise ValueError(f"{who} requires a number above 0 as per_step[{name!r}], got {count!r}.")
    return rates


class Memory(NamedTuple):
    """The memory of this process's fullest device, in bytes.

    Attributes:
        in_use: The memory in use.
        peak: The peak of the memory in use; None if the device does not report it.
        limit: The memory of the device; None if the device does not report it.
    """

    in_use: int
    peak: int | None
    limit: int | None

    def __str__(self) -> str:
        of = "" if self.limit is None else f" of {_gigabytes(self.limit)}"
        most = "" if self.peak is None else f", {_gigabytes(self.peak)} at most"
        return f"device memory: {_gigabytes(self.in_use)}{of}{most}"


def memory() -> Memory | None:
    """Returns the memory of the fullest device; None if the devices report none, as on a CPU."""
    found = [stats for device in jax.local_devices() if (stats := device.memory_stats()) and "bytes_in_use" in stats]
    if not found:
        return None
    fullest = max(found, key=lambda stats: stats["bytes_in_use"])
    return Memory(fullest["bytes_in_use"], fullest.get("peak_bytes_in_use"), fullest.get("bytes_limit"))


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB"
