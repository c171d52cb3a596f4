"""Trainings with several steps a run whose processes are killed.

Run as `python -m tests.loop.killed_steps FOLDER KILLS SOURCE...`. Each kind of source gets a directory below the
folder, and is killed at so many steps, and once amid a save; each process makes another number of steps a run. The one
that nobody interrupts makes single steps. What came of them is printed as JSON, one line a job.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys

LAST_STEP, SAVE_STEPS, SEED = 150, 10, 32
WHOLE = "whole"
STEPS_PER_RUN = (1, 7, 64)
SAVING = ("manifest: before", "commit: before", "commit: after", "state file: after")


def sources():
    """Returns the same batches in different ways; the last one of an epoch is smaller."""
    import numpy as np

    import hookline as hl

    examples = np.random.default_rng(0).normal(size=(130, 4)).astype("float32")
    shuffled = hl.data.from_arrays(examples, 4, shuffle_seed=7, epochs=5)
    with hl.Graph().as_default():  # Prefetched in blocks, of which runs take parts.
        ahead = hl.data.iterator(shuffled, prefetch=2)
    return {"arrays": ahead, "generators": lambda: iter(list(shuffled))}


def trained(directory, source, steps_per_run, points):
    """Trains up to the last step, and returns a fingerprint of the state, the draws and the optimizer's opt_state."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import hookline as hl

    optimizer = optax.adam(optax.cosine_decay_schedule(0.1, LAST_STEP))

    def step(state, batch, key):
        def loss_fn(weights):
            kept = jax.random.bernoulli(key, 0.8, weights.shape)
            return jnp.mean((batch @ jnp.where(kept, weights / 0.8, 0.0) - batch.sum(axis=1)) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(state["weights"])
        changes, opt_state = optimizer.update(grads, state["opt_state"])
        return {"weights": optax.apply_updates(state["weights"], changes), "opt_state": opt_state}, {"loss": loss}

    class At(hl.train.SessionRunHook):
        """Reports its progress to the killing process."""

        stacked, reached = True, 0

        def after_create_session(self, session, coord):
            self.reached = session.global_step

        def after_run(self, run_context, run_values):
            for number in range(self.reached + 1, run_context.session.global_step + 1):
                points.reach(f"step {number}")
            self.reached = run_context.session.global_step

    weights = jnp.zeros(4)
    loop = hl.train.Loop(
        step,
        {"weights": weights, "opt_state": optimizer.init(weights)},
        sources()[source],
        seed=3,
        steps_per_run=steps_per_run,
    )
    state = loop.run(
        directory,
        LAST_STEP,
        hooks=[At()],
        progress=False,
        log_steps=5,
        checkpoints=hl.train.CheckpointOptions(save_steps=SAVE_STEPS, save_secs=None),
        logging=hl.train.LoggingOptions(summary_steps=7, rate_steps=13),
    )
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        found.update(np.asarray(leaf).tobytes())
    return found.hexdigest()


def live(directory, points, tell, life, source, steps_per_run):
    """One process of a job."""
    if life.aim in SAVING:  # The thread that saves is killed, maybe while another one keeps a program.
        import jax

        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)
    tell(done=trained(directory, source, steps_per_run, points))


def lives_of(source, kills):
    """Yields where each process is killed, and how many steps a run it makes; the last one is not killed."""
    chance = random.Random(f"{SEED}/{source}")
    room = 2 * SAVE_STEPS  # A process killed amid its first save comes no further than that.
    steps = sorted(chance.sample(range(1, LAST_STEP - 2 * room), kills))
    aims = [(f"step {step}", 1) for step in steps] + [(chance.choice(SAVING), chance.randint(1, 2)), (None, 0)]
    for number, aim in enumerate(aims):
        yield *aim, STEPS_PER_RUN[-number % len(STEPS_PER_RUN)]


def job(folder, source, lives):
    """Runs the processes of a job, one after the other, and prints the result."""
    from tests.reliability.crashing.plan import Life
    from tests.reliability.crashing.process import Process

    directory, errors, killed_at = os.path.join(folder, source), os.path.join(folder, f"{source}.txt"), []
    os.makedirs(directory)
    for aim, arrival, steps_per_run in lives:
        life = Life(aim, arrival, None, 0.0, None, False)
        kind = "arrays" if source == WHOLE else source
        process = Process(directory, errors, life, live, source=kind, steps_per_run=steps_per_run)
        while process.listen():
            pass
        if process.killed_at is not None:
            killed_at.append(process.killed_at)
        elif process.status != 0:
            with open(errors, encoding="utf-8") as file:
                raise RuntimeError(f"The job '{source}' failed:\n{file.read()}")
    outcome = process.messages[-1]["done"]
    print(json.dumps({"source": source, "outcome": outcome, "killed_at": killed_at}))


def main(folder, kills, sources):
    """Runs all jobs."""
    # JAX reads these once, and a child has no thread but the one that forks.
    os.environ.update(
        JAX_PLATFORMS="cpu",
        OPENBLAS_NUM_THREADS="1",
        OMP_NUM_THREADS="1",
    )
    # Once for all processes: this starts no thread.
    import optax  # noqa: F401

    import hookline.train  # noqa: F401

    job(folder, WHOLE, [(None, 0, 1)])
    for source in sources:
        job(folder, source, lives_of(source, kills))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
