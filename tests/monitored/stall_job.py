"""A training that hangs at a place, or is slow everywhere; `test_stalls.py` runs it in one process and in two."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import hookline as hl
from hookline import train

PLACE, HANGING, STALL_SECS, UNIT_SECS, LOGDIR = (
    sys.argv[1],
    int(sys.argv[2]),
    float(sys.argv[3]),
    float(sys.argv[4]),
    Path(sys.argv[5]),
)
LAST_STEP = 30


def hang_here() -> None:
    time.sleep(600)


def slow_to_trace(x):
    time.sleep(4)
    return x


def hang_if(place: str) -> None:
    if place == PLACE and jax.process_index() == HANGING:
        hang_here()


def step(state, batch):
    if PLACE == "slow":
        time.sleep(5 * UNIT_SECS)  # While it is traced, which is a part of its compilation.
    if PLACE == "callback":
        jax.debug.callback(lambda n: hang_here() if n == 12 else None, state["n"])
    return {"n": state["n"] + 1, "w": state["w"] - 0.1 * batch.sum()}, {"loss": state["w"]}


def batches():
    for number in range(LAST_STEP):
        if PLACE == "slow" and number < 4:
            time.sleep(UNIT_SECS)
        if number == 12:
            hang_if("input")
        yield np.ones(4, np.float32)


def evaluated():
    for number in range(5):
        if PLACE == "slow":
            time.sleep(UNIT_SECS)
        if number == 3:
            hang_if("evaluation")
        yield np.ones(4, np.float32)


class Hangs(train.SessionRunHook):
    trigger = train.every(10)

    def on_trigger(self, firing):
        marker = LOGDIR / "hung"
        if jax.process_index() != HANGING or (PLACE == "once" and marker.exists()):
            return
        if PLACE == "once":
            marker.touch()
            hang_here()
        if PLACE == "save":
            os.fsync = lambda descriptor: hang_here()  # A disk that does not answer.
        if PLACE == "hook":
            hang_here()
        if PLACE == "log":  # The file of the log does not answer.
            logging.getLogger().handlers[0].acquire()
            hang_here()
        if PLACE == "busy":  # Longer than a stall, while the others wait.
            jax.jit(slow_to_trace)(1.0)
        if PLACE == "lock":
            ctypes.PyDLL(None).sleep(600)
        if PLACE == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)


LOGDIR.mkdir(exist_ok=True)
is_alone = jax.process_count() == 1
source = batches if is_alone else hl.data.from_arrays(np.ones(64, np.float32), 8, epochs=None)
if PLACE == "input" and not is_alone:
    source = hl.data.iterator(batches, num_batches=LAST_STEP, check_disjoint=False)
hooks = [Hangs()]
if PLACE in ("evaluation", "slow"):
    evaluate = train.Evaluate(lambda state, batch: {"loss": batch.sum()}, evaluated, every=10)
    hooks.append(evaluate)
if STALL_SECS:
    hooks.append(train.WatchdogHook(STALL_SECS, end=True))
loop = train.Loop(step, {"n": jnp.zeros((), jnp.int32), "w": jnp.zeros(())}, source)
state = loop.run(
    LOGDIR, LAST_STEP, hooks=hooks, progress=False, checkpoints=train.CheckpointOptions(save_steps=15), nan_check=None
)
print("ended at step", int(state["n"]), flush=True)
