"""An SPMD training with integers only, so that a repeated or missing step shows.

Its second process is killed in step 25 of the first start. The second start waits in step 45 until it gets a signal.
With STEP_SECS in the environment nothing of that happens: a step takes so long.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import hookline as hl


class Mishap(hl.train.SessionRunHook):
    """The mishap of each start."""

    trigger = hl.train.every(1)

    def __init__(self, start, process):
        self.start, self.process = start, process
        self.step_secs = float(os.environ.get("STEP_SECS", "0"))

    def on_trigger(self, firing):
        if self.step_secs:
            Path(f"step-{self.process}").write_text(str(firing.global_step))
            threading.Event().wait(self.step_secs)
            return
        if (self.start, self.process, firing.global_step) == (1, 1, 25):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.start == 2 and firing.global_step >= 45:
            Path(f"waits-{self.process}").touch()
            threading.Event().wait(0.05)


def main():
    hl.distributed.initialize()
    me = jax.process_index()
    starts = Path(f"starts-{me}")
    with starts.open("a") as file:
        file.write(f"{os.getpid()}\n")
    source = hl.data.from_arrays(np.arange(96, dtype=np.int32), 12, shuffle_seed=3, epochs=None)
    loop = hl.train.Loop(lambda total, batch: (total + batch.sum(), {}), jnp.zeros((), jnp.int32), source)
    mishap = Mishap(len(starts.read_text().splitlines()), me)
    saves = hl.train.CheckpointOptions(save_steps=10)
    total = loop.run("run", 600, hooks=[mishap], nan_check=None, progress=False, checkpoints=saves)
    expected = sum(int(batch.sum()) for batch, _ in zip(iter(source), range(600), strict=False))
    Path(f"ended-{me}").write_text(f"{int(total)} {expected} {jax.process_count()}")


if __name__ == "__main__":
    main()
