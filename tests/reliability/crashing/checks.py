"""Invariants after each kill, and at the end of the job."""

from __future__ import annotations

import os
import re
import signal

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.util import tensor_util

import hookline as hl

from .training import KEPT, LAST_STEP, step_of

_CHECKPOINT = re.compile(r"model\.ckpt-(\d+)")
_KNOWN = re.compile(r"checkpoint|graph\.txt|account-\d+\.jsonl|\.hookline-lock|\.hookline-owner")


class Violation(Exception):
    """Something that must hold did not."""


class Reference:
    """The course of the uninterrupted run: the fingerprint of the state after each step, and each loss."""

    def __init__(self, directory, messages):
        self.digests = {message["step"]: message["digest"] for message in messages if "step" in message}
        self.digests |= {message["restored"]: message["digest"] for message in messages if "restored" in message}
        self.losses = Events().read(directory).losses
        require(sorted(self.digests) == [*range(LAST_STEP + 1)], f"The reference has states {sorted(self.digests)}.")
        require(sorted(self.losses) == [*range(1, LAST_STEP + 1)], f"The reference has losses {sorted(self.losses)}.")


class Events:
    """The contents of a job's event files. Those of ended processes are read once."""

    def __init__(self):
        self.losses, self.checkpoints, self._read = {}, set(), set()

    def read(self, directory):
        """Reads the files that are new, with TensorBoard's reader."""
        for name in sorted(name for name in os.listdir(directory) if "tfevents" in name):
            if name in self._read:
                continue
            self._read.add(name)
            for event in LegacyEventFileLoader(os.path.join(directory, name)).Load():
                if event.session_log.checkpoint_path:
                    self.checkpoints.add(step_of(event.session_log.checkpoint_path))
                for value in event.summary.value:
                    if value.tag == "loss":
                        self._add(event.step, _number(value), name)
        return self

    def _add(self, step, loss, name):
        before = self.losses.setdefault(step, loss)
        require(before == loss, f"Step {step} has loss {loss} in {name}, it had {before} in an earlier file.")


class Checks:
    """The record of a job, and its invariants by the course of the uninterrupted run (`reference`).

    Attributes:
        reported: The newest step that was reported as saved.
        latest: The step of the newest checkpoint there; None where there is none.
    """

    def __init__(self, directory, reference):
        self.directory, self.reference = directory, reference
        self.reported, self.latest, self.events = -1, None, Events()

    def after_life(self, messages, status, killed_at):
        """Checks a process's reports, and its files."""
        ended = bool(messages) and "done" in messages[-1]
        if killed_at is None or status != -signal.SIGKILL:
            require(ended and status == 0, f"It ended with status {status}, and nobody had killed it.")
        first = True
        for message in messages:
            if "restored" in message:
                self._restored(message, first)
                first = False
            elif "saved" in message:
                self._saved(message)
            elif "reported" in message:
                self.reported = max(self.reported, message["reported"])
            elif "ended" in message:
                require(message["ended"] == LAST_STEP, f"It ended at step {message['ended']}.")
                self._same(LAST_STEP, message["digest"], "The last state")
        self._left()
        if ended:
            self._finished()
        return ended

    def _restored(self, message, first):
        step = message["restored"]
        if first:
            require(
                step == (self.latest or 0), f"It began at step {step}; the newest checkpoint was that of {self.latest}."
            )
        require(step >= self.reported, f"It went on from step {step}, after {self.reported} was reported as saved.")
        self._same(step, message["digest"], "What it restored")

    def _saved(self, message):
        step, names = message["saved"], message["names"]
        require(step >= self.reported, f"It saved step {step}, after {self.reported} was reported as saved.")
        self.reported = step
        steps = sorted(int(found[1]) for found in map(_CHECKPOINT.fullmatch, names) if found)
        debris = [name for name in names if not (_CHECKPOINT.fullmatch(name) or _KNOWN.fullmatch(name))]
        require(not debris, f"After its save of step {step} there was debris: {debris}.")
        require(
            len(steps) <= KEPT and steps[-1] == step,
            f"After its save of step {step} there were the checkpoints of {steps}, where {KEPT} are kept.",
        )

    def _left(self):
        path = hl.train.latest_checkpoint(self.directory)
        latest = None if path is None else step_of(path)
        self.events.read(self.directory)
        self.reported = max([self.reported, *self.events.checkpoints])
        now = -1 if latest is None else latest
        require(now >= self.reported, f"Step {self.reported} was reported as saved, the newest checkpoint is {latest}.")
        require(now >= (self.latest or -1), f"The newest checkpoint was that of {self.latest}, now it is {latest}.")
        self.latest = latest
        missing = [step for step in range(1, now + 1) if step not in self.events.losses]
        require(not missing, f"The newest checkpoint is that of step {latest}, and there are no events of {missing}.")
        wrong = [step for step, loss in self.events.losses.items() if loss != self.reference.losses[step]]
        require(not wrong, f"The losses of steps {wrong} are not those of the uninterrupted run.")

    def _finished(self):
        require(self.latest == LAST_STEP, f"It came to its end, and the newest checkpoint is that of {self.latest}.")
        missing = [step for step in range(1, LAST_STEP + 1) if step not in self.events.losses]
        require(not missing, f"It came to its end, and there are no events of {missing}.")

    def _same(self, step, digest, what):
        require(digest == self.reference.digests[step], f"{what} is not the state of the uninterrupted run at {step}.")


def require(holds, otherwise):
    """Raises a `Violation` that names the broken invariant."""
    if not holds:
        raise Violation(otherwise)


def _number(value):
    return float(tensor_util.make_ndarray(value.tensor)) if value.HasField("tensor") else value.simple_value
