"""Jobs whose processes are killed, one after the other."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import select

from hookline import train

from .plan import WHOLE, aims_of
from .training import Model

AT_ONCE = 2


class At(train.SessionRunHook):
    """Reports to the killing process which step has begun or is done."""

    def __init__(self, points):
        self.points = points

    def before_run(self, run_context):
        self.points.reach(f"before {run_context.session.global_step + 1}")

    def after_run(self, run_context, run_values):
        self.points.reach(f"after {run_context.session.global_step}")


def live(directory, points, tell, life, kind):
    """One process of a job."""
    tell(done=Model(kind).train(directory, At(points)))


class Job:
    """One job, which is killed at each of its aims, one after the other; its directory is below the folder."""

    def __init__(self, folder, kind, aims):
        self.kind, self.killed_at = kind, []
        self._directory, self._errors_to = os.path.join(folder, kind), os.path.join(folder, f"{kind}.txt")
        self._aims = iter(aims)
        os.makedirs(self._directory)
        self.start()

    def start(self):
        # Not above: pytest looks for doctests in this file too, and finds no folder but this one.
        from reliability.crashing.plan import UNDISTURBED
        from reliability.crashing.process import Process

        aim, kind = next(self._aims, None), "list" if self.kind == WHOLE else self.kind
        life = UNDISTURBED if aim is None else dataclasses.replace(UNDISTURBED, aim=aim, arrival=1)
        self.process = Process(self._directory, self._errors_to, life, live, kind=kind)

    def went_on(self):
        """Handles a process that has ended, and returns whether another one was started."""
        process = self.process
        if process.killed_at is not None:
            self.killed_at.append(process.killed_at)
            self.start()
            return True
        if process.status != 0:
            with open(self._errors_to, encoding="utf-8") as file:
                raise RuntimeError(f"The job '{self.kind}' failed:\n{file.read()}")
        return False

    @property
    def outcome(self):
        return self.process.messages[-1]["done"]


def kill_all(folder, steps_each, kinds):
    """Runs all jobs, some side by side, kills each at several random steps, and prints the results."""
    gc.freeze()
    jobs, running = [], {}
    waiting = [WHOLE, *kinds]
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            kind = waiting.pop(0)
            jobs.append(Job(folder, kind, aims_of(kind, steps_each)))
            running[jobs[-1].process.file] = jobs[-1]
        secs_left = min(job.process.secs_left() for job in running.values())
        for file in select.select(list(running), [], [], secs_left)[0]:
            job = running[file]
            if not job.process.listen():
                del running[file]
                if job.went_on():
                    running[job.process.file] = job
        for job in running.values():
            job.process.kill_if_due()
    for job in jobs:
        print(json.dumps({"kind": job.kind, "outcome": job.outcome, "killed_at": job.killed_at}))
