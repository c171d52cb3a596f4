"""The loop by hand: what a careful person writes around a jitted step to do the jobs of the standard hooks."""

from __future__ import annotations

import logging
import math
import struct
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint
import tiny_step

from hookline.summary import FileWriter, Summary

logger = logging.getLogger("by_hand")

EVERY = 100
SAVE_SECS = 600
_FLOAT = struct.Struct("f")


def bare(x: jax.Array, y: jax.Array, *, returns_loss: bool) -> Callable[[], object]:
    """Returns the jitted step, and nothing around it.

    Most steps return their loss. Without it the step is that of a session that runs the train op alone.
    """

    def step(state, x, y):
        *state, count = state
        state, loss = tiny_step.step(state, x, y)
        return (*state, count + 1), loss if returns_loss else None

    compiled, state = jax.jit(step, donate_argnums=0), (*tiny_step.state(), jnp.zeros((), jnp.int32))

    def run() -> None:
        nonlocal state
        state, _ = compiled(state, x, y)

    return run


def with_jobs(
    x: jax.Array, y: jax.Array, writer: FileWriter, *, checks_nan: bool, every: int = EVERY
) -> Callable[[], object]:
    """Returns the step with the jobs of the standard hooks.

    It stops at a step, measures steps a second, logs the loss and writes a scalar each 100 steps (or `every` so many),
    saves each 600 seconds, and, where asked, looks for a NaN one step late, so that the device always has work.
    """
    # The host counts: a count in the state would be one more array in each call.
    compiled, state = jax.jit(tiny_step.step, donate_argnums=0), tiny_step.state()
    saver = orbax.checkpoint.StandardCheckpointer()
    last_step, number = 10**9, 0
    started, next_save, next_report = time.monotonic(), time.monotonic() + SAVE_SECS, every
    before: Any = None

    def run() -> None:
        nonlocal state, number, started, next_save, next_report, before
        if number >= last_step:
            raise StopIteration
        state, loss = compiled(state, x, y)
        number += 1
        if checks_nan:
            # Straight from the array's memory: by NumPy it takes 1.6 times as long, by `before.item()` 4 times.
            if before is not None and not math.isfinite(_FLOAT.unpack(before)[0]):
                raise FloatingPointError(f"NaN at step {number - 1}")
            before = loss
        if number >= next_report:
            next_report += every
            now, (value,) = time.monotonic(), _FLOAT.unpack(loss)
            rate, started = every / (now - started), now
            writer.add_summary(Summary(value=[Summary.Value(tag="loss", simple_value=value)]), number)
            writer.add_summary(Summary(value=[Summary.Value(tag="global_step/sec", simple_value=rate)]), number)
            logger.info("global_step/sec: %g", rate)
            logger.info("loss = %s, step = %d (%.3f sec)", value, number, every / rate)
        if time.monotonic() >= next_save:
            next_save = time.monotonic() + SAVE_SECS
            saver.save(f"{writer.get_logdir()}/{number}", (*state, number))

    return run
