"""StepCounterHook: logs and writes the steps per second, and other rates."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax

from hookline import arguments, log, summary
from hookline.coordination import Coordinator
from hookline.hooks.base import Firing, SessionRunHook
from hookline.hooks.lookup import check_summary_writer, require_global_step
from hookline.hooks.timers import DefaultSteps, trigger_from_arguments
from hookline.hooks.trigger import Trigger
from hookline.session import Session
from hookline.summary import FileWriter, encode
from hookline.summary.writer_cache import get_writer

FLOPS = "flops"
"""The name of floating point operations in `per_step`."""

_logger = log.get_logger(__name__)
_EVERY_N_STEPS = DefaultSteps(100)


def checked_per_step(who: str, per_step: Mapping[str, float] | None) -> dict[str, float]:
    """Checks and returns the `per_step` argument of a hook: the counts of examples, tokens, ... in one step, by name.

    Raises:
        TypeError: `per_step` is not a dict from names to numbers.
        ValueError: A number is not above 0.
    """
    arguments.check_mapping(who, "per_step", per_step, optional=True)
    rates: dict[str, float] = {}
    for name, count in (per_step or {}).items():
        arguments.check_str(who, "a name in per_step", name)
        rates[name] = arguments.check_number(who, f"per_step[{name!r}]", count, at_least=0)
        if not rates[name] > 0:
            raise ValueError(f"{who} requires a number above 0 as per_step[{name!r}], got {count!r}.")
    return rates


class DeviceMemory(NamedTuple):
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


def device_memory() -> DeviceMemory | None:
    """Returns the memory of the fullest device; None if the devices report none, as on a CPU."""
    found = [stats for device in jax.local_devices() if (stats := device.memory_stats()) and "bytes_in_use" in stats]
    if not found:
        return None
    fullest = max(found, key=lambda stats: stats["bytes_in_use"])
    return DeviceMemory(fullest["bytes_in_use"], fullest.get("peak_bytes_in_use"), fullest.get("bytes_limit"))


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB"


class StepCounterHook(SessionRunHook):
    """Writes and logs the steps per second at a cadence.

    The tag is `<name of the global step>/sec`. The first firing starts the measurement and writes nothing. If a
    recovery moves the step back, the next firing starts it again.

    With `per_step` the hook also writes examples, tokens or floating point operations per second, under tags such as
    `examples/sec`, and logs them in the same line. To record something else, override `record`.

    Callbacks: `begin`, `after_create_session`, `on_trigger`, and `end`, which flushes; nothing after an exception.

    Args:
        every_n_steps: Global steps from one firing to the next. Pass None to use `every_n_secs`.
        every_n_secs: Seconds from one firing to the next.
        trigger: Used instead of `every_n_steps` and `every_n_secs`.
        output_dir: The directory of the event file; all hooks with this directory share one writer.
        summary_writer: A writer to use instead of `output_dir`. With neither, the rate is only logged.
        per_step: The counts in one step, by name: `{"examples": 32, "tokens": 32 * 512}`.
        peak_flops: The peak of floating point operations per second of all devices together. With `per_step["flops"]`,
            the share of this peak (MFU) is written under the tag `peak_share`.
        memory: Whether to write, for this process's fullest device, the bytes in use and their peak, under the tags
            `device_memory/bytes_in_use` and `device_memory/peak_bytes`. Devices that do not report them, such as a CPU,
            are skipped.

    Attributes:
        trigger: The trigger in use.
        output_dir: As given.
        summary_writer: The writer; None without one. With `output_dir` it is None before `begin`.
        tag: The name of the global step and `/sec`; empty before `begin`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Not exactly one of `every_n_steps`, `every_n_secs` and `trigger` is given, or a number is not above
            0.

    Example:
        >>> StepCounterHook(every_n_secs=60)
        Traceback (most recent call last):
        ...
        ValueError: StepCounterHook requires exactly one of every_n_steps (100 unless you pass None), every_n_secs ...

    References:
        `tf.train.StepCounterHook`. Differences: rates are never negative; it needs no run of its own; the session
        warns if the step does not advance; `trigger`; `record`; `per_step`, `peak_flops` and `memory`.
    """

    # For a subclass that does not call `__init__`.
    _per_step: Mapping[str, float] = MappingProxyType({})
    _peak_flops: float | None = None
    _shows_memory = False
    _opened_writer: FileWriter | None = None

    def __init__(
        self,
        every_n_steps: int | None = _EVERY_N_STEPS,
        every_n_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: FileWriter | None = None,
        *,
        trigger: Trigger | None = None,
        per_step: Mapping[str, float] | None = None,
        peak_flops: float | None = None,
        memory: bool = False,
    ) -> None:
        self.trigger = trigger_from_arguments(
            "StepCounterHook", trigger, ("every_n_steps", every_n_steps), ("every_n_secs", every_n_secs)
        )
        self.output_dir = arguments.check_path("StepCounterHook", "output_dir", output_dir, optional=True)
        check_summary_writer("StepCounterHook", summary_writer)
        if self.output_dir and summary_writer is None:
            self.output_description = f"the steps per second, events in '{self.output_dir}'"
        self.summary_writer = summary_writer
        self._per_step = checked_per_step("StepCounterHook", per_step)
        self._peak_flops = peak_flops
        if peak_flops is not None and not arguments.check_number("StepCounterHook", "peak_flops", peak_flops) > 0:
            raise ValueError(f"StepCounterHook requires peak_flops above 0, got {peak_flops!r}.")
        self._shows_memory = memory
        self.tag = ""

    def record(self, elapsed_steps: int, elapsed_secs: float, global_step: int) -> None:
        """Logs and writes the steps per second. Override it to record something else, or more.

        Args:
            elapsed_steps: Global steps since the last time.
            elapsed_secs: Seconds since then; more than 0.
            global_step: The global step now.

        Example:
            >>> class ExamplesPerSecond(StepCounterHook):
            ...     def record(self, elapsed_steps, elapsed_secs, global_step):
            ...         print(f"{32 * elapsed_steps / elapsed_secs:.0f} examples/sec at step {global_step}")
            >>> ExamplesPerSecond().record(elapsed_steps=100, elapsed_secs=2.0, global_step=200)
            1600 examples/sec at step 200
        """
        rate = elapsed_steps / elapsed_secs
        found = [(self.tag, rate, f"{self.tag}: {rate:g}"), *self._other_rates(rate)]
        _logger.info("%s", ", ".join(text for _, _, text in found if text))
        if self.summary_writer is None:
            return
        for tag, value, _ in found:
            # A user's writer may read the message, as in TF 1.x. Only `FileWriter` takes bytes, which are faster.
            serialized = encode.scalar(tag, value)
            own = type(self.summary_writer) is FileWriter
            self.summary_writer.add_summary(serialized if own else summary.Summary.FromString(serialized), global_step)

    def _other_rates(self, rate: float) -> Iterator[tuple[str, float, str]]:
        """Yields the tags, values and texts of the other rates."""
        for name, count in self._per_step.items():
            yield f"{name}/sec", count * rate, f"{name}/sec: {count * rate:.4g}"
        if self._peak_flops is not None and FLOPS in self._per_step:
            share = self._per_step[FLOPS] * rate / self._peak_flops
            yield "peak_share", share, f"{share:.1%} of the peak"
        if self._shows_memory and (found := device_memory()) is not None:
            yield "device_memory/bytes_in_use", found.in_use, str(found)
            if found.peak is not None:
                yield "device_memory/peak_bytes", found.peak, ""

    def begin(self) -> None:
        """Opens the writer and sets the tag."""
        self.tag = f"{require_global_step(self).op.name}/sec"
        if self.summary_writer is None or self.summary_writer is self._opened_writer:  # Else it was given.
            self.summary_writer = self._opened_writer = get_writer(self.output_dir)

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Lets the session warn if the global step does not advance."""
        session.backend.expects_steps = True

    def on_trigger(self, firing: Firing) -> None:
        """Writes the rate, except on the first firing."""
        if firing.elapsed_secs and firing.elapsed_steps is not None and firing.global_step is not None:
            self.record(firing.elapsed_steps, firing.elapsed_secs, firing.global_step)

    def steps_written(self, trigger: Trigger, first: int, last: int | None) -> Iterable[int] | None:
        """Returns the steps on which it writes: all firings, without the one that starts the measurement."""
        is_first = trigger.last_triggered_step() is None
        fired = trigger.firing_steps(first, last)
        return None if fired is None else itertools.islice(fired, is_first, None)

    def end(self, session: Session) -> None:
        """Flushes the writer."""
        if self.summary_writer is not None:
            self.summary_writer.flush()
