"""A training that does not end by itself when it is asked to: it is busy in the given way."""

from __future__ import annotations

import hashlib
import logging
import sys
import threading

import jax.numpy as jnp
import numpy as np

import hookline as hl
from hookline import train


class Waiting(train.SessionRunHook):
    def end(self, session):
        print("busy", flush=True)
        threading.Event().wait()


class Saying(train.SessionRunHook):
    def before_run(self, run_context):
        print("busy", flush=True)
        sys.stdout = open(sys.stdout.fileno(), "w", closefd=False)  # noqa: SIM115
        print("printed")


def slow(state, batch):
    """Takes minutes to compile, but no time to trace: XLA slowly computes values that depend only on constants."""
    return state + jnp.sort(np.random.default_rng(0).random(2_000_000, np.float32))[0], {}


def compile_for_long(directory, grace_secs):
    loop = train.Loop(slow, jnp.zeros(()), hl.data.from_arrays(np.ones(8, np.float32), 1, epochs=None))
    loop.run(
        directory, 10, hooks=[Saying()], progress=False, preemption=train.PreemptionOptions(timeout_secs=grace_secs)
    )


def main(way, directory, grace_secs):
    if way == "compiles, and saves nothing":
        compile_for_long(None, float(grace_secs))
    if way == "compiles":
        compile_for_long(directory, float(grace_secs))
    if way == "compiles and catches":
        try:
            compile_for_long(directory, float(grace_secs))
        except KeyboardInterrupt:
            sys.exit("interrupted")
    step = train.get_or_create_global_step()
    train_op = step.assign_add(1)
    hooks = [Waiting()] if way == "waits at its end" else []
    with train.MonitoredTrainingSession(
        checkpoint_dir=directory,
        hooks=hooks,
        save_checkpoint_steps=1000,
        preemption=train.PreemptionOptions(timeout_secs=float(grace_secs)),
    ) as session:
        session.run(train_op)
        if way != "waits at its end":
            print("busy", flush=True)
        if way == "computes":
            # Minutes outside of Python, where no handler runs.
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
        elif way == "waits":
            threading.Event().wait()
        elif way == "keeps a thread":
            threading.Thread(target=threading.Event().wait).start()
            threading.Event().wait()
        elif way == "logs":
            # Its log is not read, so it waits with the lock of the log.
            logging.getLogger("hookline").warning("x" * 2**20)


if __name__ == "__main__":
    main(*sys.argv[1:])
