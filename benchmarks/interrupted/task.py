"""The job that every program of this folder does: an MLP with dropout, Adam, shuffled batches. No framework in it.

Each program trains up to a step, saves and logs at a cadence, and goes on where it was interrupted. What a person
writes for that stands between `# begin` and `# end`; lines that speak of `progress` are the driver's.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import progress

INPUTS, WIDTH, CLASSES, BATCH, RATE, DROPOUT = 256, 512, 10, 64, 1e-3, 0.1
EXAMPLES = 250 * BATCH
STEPS_PER_EPOCH = EXAMPLES // BATCH
LOG_STEPS = 10


def data():
    """Returns examples and labels."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, INPUTS))
    y = rng.integers(0, CLASSES, EXAMPLES)
    return (centres[y] + 3 * rng.normal(size=(EXAMPLES, INPUTS))).astype("float32"), y.astype("int32")


def main(train):
    """Runs `train(folder, steps, every)`, which returns the trained weights; with 0 steps only the imports."""
    folder, steps, every = os.path.abspath(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if not steps:
        return
    os.makedirs(folder, exist_ok=True)
    progress.open_in(folder)
    progress.mark("started")
    progress.mark("finished", progress.digest(train(folder, steps, every)))
