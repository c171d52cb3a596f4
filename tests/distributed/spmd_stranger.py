"""One process of the tests with a stranger: it trains until it has made some steps, or is stopped."""

from __future__ import annotations

import logging
import sys
import time

import jax.numpy as jnp

import hookline as hl


class Tells(hl.train.SessionRunHook):
    """Reports that the training has begun, and leaves time for others."""

    trigger = hl.train.every(1)

    def on_trigger(self, firing):
        time.sleep(0.005)
        if firing.global_step == 10:
            print("begun", flush=True)


logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
source = hl.data.from_arrays(jnp.arange(64), 8, epochs=None)
loop = hl.train.Loop(lambda total, batch: (total + batch.sum(), {}), 0, source)
steps = int(sys.argv[1])
total = loop.run(None, steps, hooks=[Tells()], progress=False)
print("ended", int(total), flush=True)
