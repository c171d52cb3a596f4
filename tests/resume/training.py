"""The job that is interrupted: whatever must come through an interruption is in it."""

from __future__ import annotations

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hookline as hl
from hookline import train

from .sources import LAST_STEP, SOURCES

SAVE_STEPS = 6


class Model:
    """The graph: a regression with dropout, Adam at a rate that follows the global step, and averages.

    The fault is called in each run with the global step and whether the run is applied: before that, and after.
    """

    def __init__(self, kind, fault=lambda step, applied: None):
        self.graph = hl.Graph(seed=3)
        with self.graph.as_default():
            step = train.get_or_create_global_step()
            features, targets = hl.data.iterator(SOURCES[kind]())
            weights = hl.Variable(np.zeros(4, np.float32), name="weights")
            self.loss = hl.op(_loss)(weights, features, targets, hl.random_key())
            optimizer = train.Optimizer(optax.adam, learning_rate=optax.cosine_decay_schedule(0.1, LAST_STEP))
            trained = optimizer.minimize(self.loss, global_step=step)
            averages = train.ExponentialMovingAverage(0.9, num_updates=step)
            with hl.control_dependencies([trained]):
                averaged = averages.apply([weights])
            before = hl.host_op(lambda step: fault(int(step), False))(step)
            after = hl.host_op(lambda step, loss: fault(int(step), True))(step, self.loss)
            self.train_op = hl.group(averaged, before, after)
            hl.summary.scalar("loss", self.loss)
            average = hl.op(jnp.mean)(averages.average(weights))
            self.rare = [
                hl.summary.scalar("rate", optimizer.learning_rate, collections=[]),
                hl.summary.scalar("average", average, collections=[]),
            ]

    def train(self, directory, *hooks, body=lambda step: None):
        """Trains to the last step, from wherever the checkpoints in a directory have got to.

        The body is called with the global step after each run. Returns what must not depend on interruptions: the
        fingerprint of all variables, and what the user's hook keeps.
        """
        best = Best(self.loss, directory)
        with (
            self.graph.as_default(),
            train.MonitoredTrainingSession(
                checkpoint_dir=directory,
                hooks=[
                    train.SummarySaverHook(
                        trigger=train.log_spaced(4) | train.every(7), output_dir=directory, summary_op=self.rare
                    ),
                    best,
                    train.StopAtStepHook(last_step=LAST_STEP),
                    *hooks,
                ],
                save_checkpoint_steps=SAVE_STEPS,
                save_checkpoint_secs=None,
                save_summaries_steps=1,
                log_step_count_steps=3,
                checkpoints=train.CheckpointOptions(recovery=train.RecoveryPolicy(initial_backoff_secs=0)),
            ) as session,
        ):
            while not session.should_stop():
                session.run(self.train_op)
                body(session.raw_session().global_step)
            return fingerprint(session.raw_session()), best.kept()


class Best(train.SessionRunHook):
    """Keeps the best loss and the latest ones, and writes the best at every fifth step: a hook as users write them."""

    def __init__(self, loss, directory):
        self.loss, self.directory = loss, directory
        self.trigger = train.every(5)
        self.best, self.recent = float("inf"), np.zeros(3, np.float32)

    def begin(self):
        self.writer = hl.summary.FileWriterCache.get(self.directory)

    def get_state(self):
        return {"best": self.best, "recent": self.recent, "trigger": self.trigger.get_state()}

    def set_state(self, state):
        self.best, self.recent = state["best"], state["recent"]
        self.trigger.set_state(state["trigger"])

    def before_run(self, run_context):
        return train.SessionRunArgs(self.loss)

    def after_run(self, run_context, run_values):
        step = run_context.session.global_step
        self.best = min(self.best, float(run_values.results))
        self.recent = np.append(self.recent[1:], np.float32(run_values.results))
        if self.trigger.should_trigger_for_step(step):
            self.trigger.update_last_triggered_step(step)
            self.writer.add_summary(hl.summary.Summary(value=[{"tag": "best", "simple_value": self.best}]), step)

    def kept(self):
        return [self.best, *self.recent.tolist()]


def fingerprint(session):
    """Returns a fingerprint of all variables: equal means equal bit by bit."""
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(session.snapshot()):
        array = np.asarray(leaf)
        found.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n".encode() + array.tobytes())
    return found.hexdigest()


def _loss(weights, features, targets, key):
    kept = jax.random.bernoulli(key, 0.8, weights.shape)
    return jnp.mean((features @ jnp.where(kept, weights / 0.8, 0.0) - targets) ** 2)
