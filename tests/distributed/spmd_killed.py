"""An SPMD training that kills itself by a plan; see `spmd_campaign.py`.

Run by `hookline launch --spmd` with a folder in which `plan.json` is. Each start carries out the next mishap of the
plan, in one of the processes. What a step has come to is written down, so that it can be compared bit by bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from pathlib import Path

LAST_STEP, SAVE_STEPS, NOTE_STEPS = 180, 5, 3
STEPS_TO_POINT = 12
"""After how many steps a mishap happens that has not come to its point, unless that is one of the end."""

AT_THE_END = ("lease's end: before", "lease's end: after", "close: before", "close: after", "the end")


def number_of_start(folder, address):
    """Returns the number of earlier mishaps, the same to all processes of a start, which have their own address."""
    name = address.replace(":", "-")
    own = folder / f"counted-{name}-{os.getpid()}"
    own.write_text(str(len(list(folder.glob("mishap-*")))))
    with contextlib.suppress(FileExistsError):
        os.link(own, folder / f"start-{name}")
    return int((folder / f"start-{name}").read_text())


class Mishap:
    """Carries out the mishap of this process in this start: a signal at a given point."""

    def __init__(self, folder, number, plan, process):
        self.path, self.how = folder / f"mishap-{number}", None
        if number < len(plan) and plan[number]["process"] == process and plan[number]["point"] != "start":
            self.how = plan[number]

    @property
    def signal(self):
        return signal.Signals[self.how["signal"] if self.how else "SIGKILL"]

    def note(self, killed):
        """Writes down where it happens."""
        self.path.write_text(f"{self.signal.name} {killed}\n")
        self.how = None

    def happen(self, where):
        """Happens, if it has not yet."""
        number = self.signal
        if self.how is not None:
            self.note(where)
            os.kill(os.getpid(), number)


def main():
    folder = Path(sys.argv[1])
    me, how = int(os.environ["HOOKLINE_PROCESS_ID"]), json.loads((folder / "plan.json").read_text())
    number = number_of_start(folder, os.environ["HOOKLINE_COORDINATOR_ADDRESS"])
    mishap = Mishap(folder, number, how["mishaps"], me)
    train(folder, me, how, mishap)
    mishap.happen("the end")


def train(folder, me, how, mishap):
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from tests.reliability.crashing.points import Points

    import hookline as hl

    aim = mishap.how or {"point": None, "arrival": 1, "delay_secs": 0.0}
    points = Points(aim["point"], aim["arrival"], aim["delay_secs"], mishap.note, mishap.signal)
    points.install()
    if aim["point"] == "any time":
        timer = threading.Timer(aim["delay_secs"], mishap.happen, ["any time"])
        timer.daemon = True
        timer.start()
    examples = np.random.default_rng(0).normal(size=(130, 8)).astype("float32")
    optimizer = optax.adam(1e-2)

    def step(state, batch, key):
        points.traced()

        def loss_fn(params):
            kept = jax.random.bernoulli(key, 0.8, (batch.shape[0], 16))
            hidden = jnp.where(kept, jnp.tanh(batch @ params["in"]) / 0.8, 0.0)
            return jnp.mean((hidden @ params["out"] - batch.sum(axis=1, keepdims=True)) ** 2)

        params, opt_state = state
        loss, grads = jax.value_and_grad(loss_fn)(params)
        changes, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, changes), opt_state), {"loss": loss}

    class Steps(hl.train.SessionRunHook):
        """Writes down the results of steps, and reaches the points of steps."""

        trigger = hl.train.every(NOTE_STEPS)
        begun_at = 0

        def begin(self):
            self.fetches = loop.metrics["loss"]

        def after_create_session(self, session, coord):
            self.begun_at, points.training = session.global_step, True

        def on_trigger(self, firing):
            with (folder / f"steps-{me}").open("a") as file:
                file.write(f"{firing.global_step} {np.float32(firing.values).tobytes().hex()}\n")
            points.reach("step: amid")
            if firing.global_step - self.begun_at >= STEPS_TO_POINT and aim["point"] not in AT_THE_END:
                mishap.happen(f"a step, for it did not come to '{aim['point']}'")

    params = {"in": jax.random.normal(jax.random.key(1), (8, 16)), "out": jnp.zeros((16, 1))}
    state, layout = (params, optimizer.init(params)), {}
    if how["layout"] == "split":
        mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        layout = {"sharding": hl.sharding.fsdp(mesh, min_size=1)(state)}
    source = hl.data.from_arrays(examples, 26, shuffle_seed=3, epochs=None)
    loop = hl.train.Loop(step, state, source, seed=5, steps_per_run=how["steps_per_run"], **layout)
    saves = hl.train.CheckpointOptions(save_steps=SAVE_STEPS)
    state = loop.run(folder / "run", LAST_STEP, hooks=[Steps()], progress=False, checkpoints=saves)
    leaves = jax.tree.leaves(jax.experimental.multihost_utils.process_allgather(state, tiled=True))
    (folder / f"ended-{me}").write_text(" ".join(np.asarray(leaf).tobytes().hex() for leaf in leaves))


if __name__ == "__main__":
    main()
