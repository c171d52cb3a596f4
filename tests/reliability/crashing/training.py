"""The training that is killed: a small regression with Adam and random noise, under a MonitoredTrainingSession."""

from __future__ import annotations

import hashlib
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hookline as hl

LAST_STEP = 62  # No multiple of SAVE_STEPS: the last checkpoint is written while the session closes.
SAVE_STEPS = 5
KEPT = 3
TRUTH = np.linspace(-1, 1, 8, dtype=np.float32)


def digest_of(session):
    """Returns a fingerprint of all variables: equal means equal bit by bit."""
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(session.snapshot()):
        array = np.asarray(leaf)
        found.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n".encode() + array.tobytes())
    return found.hexdigest()


def build(points, fault_at):
    """Makes the graph; batch number `fault_at` of this process is an AbortedError."""
    step = hl.train.get_or_create_global_step()
    asked = 0

    def batch(step):
        nonlocal asked
        asked += 1
        if asked == fault_at:
            points.recovering = True
            raise hl.errors.AbortedError(None, None, "The data are gone, as they were told to be.")
        points.reach("step: amid")
        return features(int(step))

    def loss_fn(params, features, targets, key):
        points.traced()
        noise = 0.1 * jax.random.uniform(key)  # One number: each more makes the compiler slower, and nothing better.
        return jnp.mean((features @ params["weights"] + params["bias"] - targets + noise) ** 2)

    features_and_targets = hl.host_op(batch, spec=features(0))(step)
    params = hl.Variable({"weights": jnp.zeros(8), "bias": jnp.zeros(())}, name="params")
    loss = hl.op(loss_fn)(params, *features_and_targets, hl.random_key())
    hl.summary.scalar("loss", loss)
    return hl.train.Optimizer(optax.adam(1e-2)).minimize(loss, global_step=step)


def features(step):
    """Returns the batch of a step: it belongs to the step, so a resumed run goes on with the right one."""
    found = np.random.default_rng(step).normal(size=(16, 8)).astype(np.float32)
    return found, found @ TRUTH


class Telling(hl.train.SessionRunHook, hl.train.CheckpointSaverListener):
    """Reports every session, every checkpoint as a listener, and on request every step."""

    def __init__(self, points, tell, every_step=False):
        self.points, self.tell, self.every_step = points, tell, every_step

    def after_create_session(self, session, coord):
        self.points.training = True
        self.tell(restored=session.global_step, digest=digest_of(session))

    def after_run(self, run_context, run_values):
        if self.every_step:
            self.tell(step=run_context.session.global_step, digest=digest_of(run_context.session))

    def after_save(self, session, global_step):
        self.tell(reported=global_step)

    def end(self, session, global_step=None):
        if global_step is None:  # As a hook.
            self.tell(ended=session.global_step, digest=digest_of(session))


class TellingSaver(hl.train.Saver):
    """Reports a save when it is complete, with the contents of the directory."""

    def __init__(self, tell):
        super().__init__(max_to_keep=KEPT)
        self.tell = tell

    def save_async(self, *args, **kwargs):
        pending = super().save_async(*args, **kwargs)
        wait = pending.wait

        def wait_and_tell():
            wait()
            pending.wait = wait
            self.tell(saved=step_of(pending.path), names=names_in(os.path.dirname(pending.path)))

        pending.wait = wait_and_tell
        return pending


def step_of(path):
    """Returns the step in the name of a checkpoint."""
    return int(path.rpartition("-")[2])


def names_in(directory):
    """Returns the contents of a directory without the event files: each process leaves one."""
    return sorted(name for name in os.listdir(directory) if "tfevents" not in name)


def train(directory, points, tell, life, in_background=True, every_step=False):
    """Trains to the last step, from wherever the checkpoints in `directory` have got to.

    In the background checkpoints are written while the training goes on: no listener has an `after_save`.
    """
    if life.verifies:
        verify_all(directory)
    train_op = build(points, life.fault_at)
    telling = Telling(points, tell, every_step)
    scaffold = hl.train.Scaffold(saver=TellingSaver(tell))
    chief_only = []
    if not in_background:
        chief_only = [
            hl.train.CheckpointSaverHook(directory, save_steps=SAVE_STEPS, scaffold=scaffold, listeners=[telling])
        ]
    with hl.train.MonitoredTrainingSession(
        checkpoint_dir=directory,
        scaffold=scaffold,
        hooks=[telling, hl.train.StopAtStepHook(last_step=LAST_STEP)],
        chief_only_hooks=chief_only,
        save_checkpoint_steps=SAVE_STEPS if in_background else None,
        save_checkpoint_secs=None,
        save_summaries_steps=1,
        log_step_count_steps=10,
        checkpoints=hl.train.CheckpointOptions(recovery=hl.train.RecoveryPolicy(initial_backoff_secs=0)),
    ) as session:
        while not session.should_stop():
            session.run(train_op)
    verify_all(directory)
    tell(done=True)


def verify_all(directory):
    """Verifies all checkpoints in a directory. The one that is restored is verified anyway."""
    state = hl.train.get_checkpoint_state(directory)
    for path in state.all_model_checkpoint_paths if state else ():
        hl.train.verify(path)
