"""What hooks say of the speed beside steps a second: rates of what a step takes, and the memory of the devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax

from hookline import arguments

FLOPS = "flops"
"""The name of floating point operations among what a step takes."""


def rates_given(who: str, per_step: Mapping[str, float] | None) -> dict[str, float]:
    """Returns how many of what a step takes, as hooks are told it.

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
    """The memory of the device of this process that is the fullest, in bytes.

    Attributes:
        in_use: In use now.
        peak: The most that was in use; None where the device does not say.
        limit: All that there is; None where the device does not say.
    """

    in_use: int
    peak: int | None
    limit: int | None

    def __str__(self) -> str:
        of = "" if self.limit is None else f" of {_gigabytes(self.limit)}"
        most = "" if self.peak is None else f", {_gigabytes(self.peak)} at most"
        return f"device memory: {_gigabytes(self.in_use)}{of}{most}"


def memory() -> Memory | None:
    """Returns how full the devices of this process are; None where they do not say, as on a CPU."""
    found = [stats for device in jax.local_devices() if (stats := device.memory_stats()) and "bytes_in_use" in stats]
    if not found:
        return None
    fullest = max(found, key=lambda stats: stats["bytes_in_use"])
    return Memory(fullest["bytes_in_use"], fullest.get("peak_bytes_in_use"), fullest.get("bytes_limit"))


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB"
