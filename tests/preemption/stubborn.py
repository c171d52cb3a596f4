"""A training that does not end by itself when it is asked to: it is busy in the way that it is told to be."""

from __future__ import annotations

import hashlib
import sys
import threading

import jax
import jax.numpy as jnp

from hookline import op, train


class Waiting(train.SessionRunHook):
    def end(self, session):
        print("busy", flush=True)
        threading.Event().wait()


def slow_to_compile(step):
    """Takes XLA a minute or more as users compile."""
    x = jnp.full((8, 8), step, "float32")
    for number in range(3000):
        x = jnp.sin(x @ x.T + number) * jax.nn.softmax(x + number)
    return x.sum()


def main(way, directory, grace_secs):
    step = train.get_or_create_global_step()
    train_op = step.assign_add(1)
    slow = op(slow_to_compile)(step)
    hooks = [Waiting()] if way == "waits at its end" else []
    with train.MonitoredTrainingSession(
        checkpoint_dir=directory, hooks=hooks, save_checkpoint_steps=1000, grace_secs=float(grace_secs)
    ) as session:
        session.run(train_op)
        if way != "waits at its end":
            print("busy", flush=True)
        if way == "computes":
            # Minutes outside of Python, where no handler runs.
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
        elif way == "compiles":
            jax.config.update("jax_log_compiles", True)
            session.run_step_fn(lambda step_context: step_context.session.run(slow))
        elif way == "waits":
            threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
