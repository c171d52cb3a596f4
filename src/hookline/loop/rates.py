"""Counts per step, for rates per second."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import jax

from hookline import arguments, log
from hookline.graph import placement
from hookline.graph import spec as specs
from hookline.hooks.step_counter import FLOPS, rates_given
from hookline.loop.step import Step

_logger = log.of(__name__)


def rates_of(
    step: Step, values: Any, batch: Any, context: Any, given: Mapping[str, float] | None, peak_flops: float | None
) -> dict[str, float]:
    """Returns the counts per step whose rates are shown: the given ones or the examples, and FLOPs with `peak_flops`.

    Args:
        step: The step.
        values: The specs of its state.
        batch: The spec of a batch.
        context: The mesh in which it is traced.
        given: The argument `per_step` of `Loop.session`.
        peak_flops: As in `Loop.session`.

    Raises:
        TypeError, ValueError: `given` or `peak_flops` has something that is no number, or not above 0.
    """
    if peak_flops is not None and not arguments.number("Loop", "peak_flops", peak_flops) > 0:
        raise ValueError(f"Loop requires peak_flops above 0, got {peak_flops!r}.")
    count = examples_in(batch)
    rates = rates_given("Loop", {"examples": count} if given is None and count else given)
    if peak_flops is not None and FLOPS not in rates:
        flops = flops_of(step, values, batch, context)
        rates |= {} if flops is None else {FLOPS: flops}
    return rates


def examples_in(batch: Any) -> int | None:
    """Returns the number of examples in a batch of this spec: the common length of its arrays, if known."""
    lengths = {leaf.shape[0] for leaf in jax.tree.leaves(batch) if leaf.shape}
    length = lengths.pop() if len(lengths) == 1 else None
    return length if isinstance(length, int) and length else None


def flops_of(step: Step, values: Any, batch: Any, context: Any) -> float | None:
    """Returns and logs XLA's count of the floating point operations of a step.

    The step is traced and not compiled. The body of a loop counts once, recomputation (`jax.checkpoint`) counts again.
    For a sharded state the count covers all devices.
    """
    flops = 0.0
    if all(isinstance(size, int) for leaf in jax.tree.leaves(batch) for size in leaf.shape):
        with placement.inside(context):
            flops = _counted(step, specs.of_value(values), batch, *step.extra_specs())
    if not flops > 0 or not math.isfinite(flops):
        _logger.warning(
            "Loop: XLA does not report the floating point operations of a step, so no share of peak_flops is shown. "
            "Give them: per_step={'flops': ...}."
        )
        return None
    _logger.info(
        "Loop: XLA counts %.4g floating point operations a step, with the body of a loop (jax.lax.scan) once.", flops
    )
    return flops


def _counted(step: Step, *given: Any) -> float:
    """Returns XLA's count of the operations; 0 if it has none, as for a step that is bound to a mesh of GPUs."""
    found = jax.jit(step).lower(*given).cost_analysis()
    if found is None:  # XLA counts for a CPU, and not for a device behind a plugin, such as a GPU or TPU.
        with contextlib.suppress(Exception), jax.default_device(jax.local_devices(backend="cpu")[0]):
            found = jax.jit(step).lower(*given).cost_analysis()
    return (found or {}).get("flops", 0.0)
