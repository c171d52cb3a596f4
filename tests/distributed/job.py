"""One task of a job that the tests start, stop and kill: it trains, and reports events in JSON lines.

Run as `python job.py '{"log": ..., "checkpoint_dir": ..., "last_step": ...}'`; the environment has its task.
Each accepted update adds 1 to the global step, to a counter, and to two vectors that may live on two servers.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time

import jax.numpy as jnp
import numpy as np
import optax

import hookline as hl
from hookline import RunMetadata
from hookline.distributed import Cluster, ClusterOptions

TRUTH = np.linspace(-1, 1, 8, dtype=np.float32)


class Log(logging.Handler):
    """Appends events, and hookline's log from WARNING on, to a file; a line is written whole or not at all."""

    def __init__(self, path, task):
        super().__init__(logging.WARNING)
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.task = task

    def tell(self, event, **more):
        line = {"task": self.task, "event": event, "pid": os.getpid(), "time": time.monotonic(), **more}
        os.write(self.file, (json.dumps(line) + "\n").encode())

    def emit(self, record):
        self.tell("log", level=record.levelname, text=record.getMessage())


class Teller(hl.train.SessionRunHook):
    """Reports every session, and the first run after the waiter."""

    def __init__(self, log):
        self.log, self.started = log, False

    def after_create_session(self, session, coord):
        self.log.tell("session", step=session.global_step)

    def before_run(self, run_context):
        if not self.started:
            self.started = True
            self.log.tell("started", step=run_context.session.global_step)

    def end(self, session):
        self.log.tell("end", step=session.global_step)


def build(learning_rate):
    x = hl.placeholder(np.float32, (None, 8), name="x")
    w = hl.Variable(np.zeros(8, np.float32), name="w")
    loss = hl.op(lambda x, w: jnp.mean((x @ (w - TRUTH)) ** 2), name="loss")(x, w)
    step = hl.train.get_or_create_global_step()
    train_op = hl.train.Optimizer(optax.adam(learning_rate)).minimize(loss, global_step=step)
    count = hl.Variable(0, name="count", trainable=False)
    left = hl.Variable(np.zeros(100, np.float32), name="left", trainable=False)
    right = hl.Variable(np.zeros(100, np.float32), name="right", trainable=False)
    one = np.ones(100, np.float32)
    return x, hl.group(train_op, count.assign_add(1), left.assign_add(one), right.assign_add(one))


def train(settings, cluster, log):
    x, train_op = build(settings.get("learning_rate", 0.05))
    hooks = [
        hl.train.GlobalStepWaiterHook(settings.get("wait_until", 0), timeout_secs=settings.get("wait_timeout")),
        hl.train.StopAtStepHook(last_step=settings["last_step"]),
        Teller(log),
    ]
    rng = np.random.default_rng(cluster.task_id)
    local = 0
    with hl.train.MonitoredTrainingSession(
        cluster,
        cluster.is_chief,
        settings.get("checkpoint_dir"),
        hl.train.Scaffold(saver=hl.train.Saver(max_to_keep=None)),
        hooks,
        save_checkpoint_steps=settings.get("save_steps", 100),
        save_summaries_steps=None,
        max_wait_secs=settings.get("max_wait_secs", 60),
    ) as sess:
        while not sess.should_stop() and local < settings.get("local_steps", float("inf")):
            metadata = RunMetadata()
            sess.run(train_op, {x: rng.normal(size=(16, 8)).astype(np.float32)}, run_metadata=metadata)
            local += metadata.applied
            log.tell("step", step=metadata.global_step, local=local, applied=metadata.applied)
            time.sleep(settings.get("pause_secs", 0))
    log.tell("done", local=local)


def main():
    if os.getpgrp() != os.getpid():
        os.setpgrp()
    settings = json.loads(sys.argv[1])
    wait_secs, call_secs = settings.get("wait_secs", 60), settings.get("call_secs", 60)
    options = ClusterOptions(
        placement=settings.get("placement", {}),
        max_staleness=settings.get("max_staleness"),
        wait_secs=wait_secs,
        call_secs=call_secs,
        over_ray=settings.get("over_ray", False),
    )
    cluster = Cluster.from_environment(options=options)
    log = Log(settings["log"], cluster.task_id)
    logging.getLogger("hookline").addHandler(log)
    log.tell("alive")
    try:
        train(settings, cluster, log)
    except Exception as error:
        log.tell("error", kind=type(error).__name__, text=str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
