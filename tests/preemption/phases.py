"""A process that trains again and again, and in each training waits in one phase, for a signal that a test sends.

It reads phases as words on its standard input. In a phase it reports it; a further line lets it go on, if it does not
leave by itself. Afterwards it prints, as JSON, how the training ended.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading

import jax.numpy as jnp

import hookline as hl
from hookline import train
from hookline.errors import AbortedError, Preempted


class Loud(logging.Handler):
    """Reports on the standard output when hookline logs that it waits."""

    waits = ("has a writer", "Attempt 1 of", "waits for global step")

    def __init__(self):
        super().__init__()
        self.endings = []

    def emit(self, record):
        if record.getMessage().startswith(("SIGTERM: ", "SIGINT: ")):
            self.endings.append(record.getMessage().partition(": ")[2])
        if any(text in record.getMessage() for text in self.waits):
            print("waiting", flush=True)


loud = Loud()


def pause(name):
    print(name, flush=True)
    assert sys.stdin.readline() == "go on\n"


class Pausing(train.SessionRunHook):
    """Pauses in the callback of a phase, once."""

    def __init__(self, phase, evaluation):
        self.phase, self.evaluation, self.events = phase, evaluation, []

    def _note(self, callback):
        self.events.append(callback)
        if callback == self.phase:
            self.phase = pause(callback)

    def after_create_session(self, session, coord):
        self._note("after_create_session")

    def before_run(self, run_context):
        self._note("before_run")

    def after_run(self, run_context, run_values):
        self._note("after_run")
        if self.phase == "evaluation":
            self.phase = run_context.session.run(self.evaluation)

    def end(self, session):
        self._note("end")
        self.events.append(session.global_step)

    def on_exception(self, session, exception):
        self._note("on_exception")


class Settling(train.SessionRunHook):
    """Pauses once when it gets, in a delivery, a value for which nothing else waits."""

    trigger, fetches, deferred = train.first_run(), "global_step:0", 1000

    def on_trigger(self, firing):
        pause("settle")


class Listener(train.CheckpointSaverListener):
    def __init__(self, phase):
        self.phase = phase

    def before_save(self, session, global_step):
        if self.phase == "save" and global_step == 2:
            pause("save")


class Restoring(train.Saver):
    phase = ""

    def restore(self, session, path):
        if self.phase == "restore":
            self.phase = pause("restore")
        super().restore(session, path)


def heavy(x):
    """Takes long to compile, outside of Python."""
    for i in range(16):
        x = jnp.sort(jnp.sin(x * i + jnp.cumsum(x)))
    if heavy.running:
        print("compile", flush=True)
    return x.sum()


def play(phase, directory):
    with hl.Graph().as_default():
        step = train.get_or_create_global_step()
        at = {"step": iter([None, "step"])}.get(phase, iter(()))

        def fail_within_step():
            if next(at, None):
                pause("step")
            if phase == "recovery" and hook.events.count("before_run") == 2:
                raise AbortedError(None, None, "lost")

        with hl.control_dependencies([hl.host_op(fail_within_step).node()]):
            train_op = step.assign_add(1)
        heavy.running = False
        compiled = hl.op(heavy)(hl.Variable(jnp.ones(64), name="x"))
        heavy.running = True
        hook = Pausing(phase, hl.host_op(lambda: pause("evaluation"))())
        saver = Restoring()
        saver.phase = phase
        scaffold = train.Scaffold(saver=saver)
        hooks = [hook, Settling()] if phase == "settle" else [hook]
        if phase == "waiter":
            hooks.append(train.GlobalStepWaiterHook(10**9))
        hooks.append(train.CheckpointSaverHook(directory, save_steps=2, scaffold=scaffold, listeners=[Listener(phase)]))
        creator = train.ChiefSessionCreator(scaffold, checkpoint_dir=directory)
        if phase == "chief":
            del hooks[-1]

            def look():
                print("waiting", flush=True)
                return ["w"]

            creator = train.WorkerSessionCreator(train.Scaffold(ready_for_local_init_op=hl.host_op(look)()))
        policy = train.RecoveryPolicy(initial_backoff_secs=600)
        handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        status, steps = 0, 0
        try:
            with train.MonitoredSession(creator, hooks, recovery=policy) as session:
                if phase == "fork":
                    terminate_children()
                if phase == "compile":
                    session.run(compiled)
                for _ in range(5):
                    if phase == "body" and steps == 2:
                        pause("body")
                    session.run(train_op)
                    steps += 1
        except Preempted as error:
            status = error.code
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    newest = train.latest_checkpoint(directory)
    return {
        "status": status,
        "ends": [loud.endings.pop().partition(" ends ")[2].split()[0] for _ in loud.endings[:]],
        "events": hook.events,
        "saved": newest and int(newest.rpartition("-")[2]),
        "threads": [thread.name for thread in threading.enumerate() if thread.name == "hookline-preemption"],
    }


def terminate_children():
    """At once: they may not have left the fork behind."""
    for _ in range(20):
        child = os.fork()
        if child == 0:
            while True:
                signal.pause()
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


def main():
    logging.getLogger("hookline").setLevel(logging.INFO)
    logging.getLogger("hookline").addHandler(loud)
    for line in iter(sys.stdin.readline, ""):
        phase, directory = line.split()
        print(json.dumps(play(phase, directory)), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
