"""A training that does not end by itself when it is asked to: it is busy in the way that it is told to be."""

from __future__ import annotations

import hashlib
import sys
import threading

from hookline import train


class Waiting(train.SessionRunHook):
    def end(self, session):
        print("busy", flush=True)
        threading.Event().wait()


def main(way, directory, grace_secs):
    step = train.get_or_create_global_step()
    train_op = step.assign_add(1)
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
        elif way == "waits":
            threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
