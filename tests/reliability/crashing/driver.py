"""Runs jobs side by side, kills and checks them, and counts."""

from __future__ import annotations

import collections
import itertools
import os
import select
import shutil
import sys
import tempfile
import time

from crashing.checks import Checks, Reference, Violation
from crashing.plan import Life, lives_of
from crashing.points import POINTS
from crashing.process import Process


class Job:
    """A training that is started again until it comes to its end.

    Args:
        seed: Of the plan.
        number: Of the job.
        folder: What it writes goes below it.
        reference: The uninterrupted run.
    """

    def __init__(self, seed, number, folder, reference):
        self.seed, self.number, self.folder = seed, number, folder
        self.directory = os.path.join(folder, "training")
        self._plan = lives_of(seed, number)
        self._checks = Checks(self.directory, reference)
        self.lives = 0
        os.makedirs(self.directory)
        self.start()

    def start(self):
        """Starts its next process."""
        self.lives += 1
        self.process = Process(
            self.directory,
            os.path.join(self.folder, f"life-{self.lives}.txt"),
            next(self._plan),
            in_background=self.number % 2 == 0,
        )

    def check(self):
        """Checks the process that has ended; returns whether the job has come to its end."""
        process = self.process
        try:
            return self._checks.after_life(process.messages, process.status, process.killed_at)
        except Violation as violation:
            violation.add_note(
                f"seed {self.seed}, job {self.number}, life {self.lives} (to be killed at {process.life}; was: "
                f"{process.killed_at}). To repeat: crash.py --seed {self.seed} --only {self.number}. "
                f"What it left is in {self.folder}."
            )
            raise


class Driver:
    """Kills until it has killed enough.

    Args:
        seed: Of everything.
        kills: How many kills are enough.
        each: How many hits of each point are enough.
        at_once: How many jobs run side by side.
        only: The numbers of the jobs to run; empty means as many as it takes.
    """

    def __init__(self, seed, kills, each, at_once, only):
        self.seed, self.kills, self.each, self.at_once = seed, kills, each, at_once
        self._numbers = iter(only) if only else itertools.count()
        self.hits, self.jobs, self.violations = collections.Counter(), 0, []

    def drive(self):
        """Runs jobs until the kills are enough; prints the counts, and returns the status to exit with."""
        started = time.monotonic()
        folder = tempfile.mkdtemp(prefix="hookline-crash-")
        reference = _uninterrupted(os.path.join(folder, "reference"))
        running = {}
        while self._fill(running, folder, reference) or running:
            left = min(job.process.secs_left() for job in running.values())
            for file in select.select(list(running), [], [], left)[0]:
                job = running[file]
                if not job.process.listen():
                    del running[file]
                    self._go_on(job, running)
            for job in running.values():
                job.process.kill_if_due()
        self._print(time.monotonic() - started)
        if not self.violations:
            shutil.rmtree(folder)
        return bool(self.violations)

    def _fill(self, running, folder, reference):
        while not self._enough() and len(running) < self.at_once:
            number = next(self._numbers, None)
            if number is None:
                break
            job = Job(self.seed, number, os.path.join(folder, f"job-{number}"), reference)
            running[job.process.file] = job

    def _enough(self):
        return sum(self.hits.values()) >= self.kills and all(self.hits[point] >= self.each for point in POINTS)

    def _go_on(self, job, running):
        if job.process.killed_at is not None:
            self.hits[job.process.killed_at] += 1
        try:
            ended = job.check()
        except Violation as violation:
            self.violations.append(violation)
            print(f"VIOLATION: {violation}\n  {violation.__notes__[0]}", file=sys.stderr, flush=True)
            return
        if ended:
            self.jobs += 1
            shutil.rmtree(job.folder)
        else:
            job.start()
            running[job.process.file] = job

    def _print(self, secs):
        others = sorted(self.hits.keys() - set(POINTS))
        for point in (*POINTS, *others):
            print(f"{self.hits[point]:6}  {point}")
        aimed = sum(self.hits[point] for point in POINTS)
        total = sum(self.hits.values())
        print(f"{total:6}  kills, {aimed} of them aimed, in {secs:.0f} s with seed {self.seed}")
        print(f"{self.jobs:6}  jobs came to their end, bit by bit that of the uninterrupted run")
        print(f"{len(self.violations):6}  violations")


def _uninterrupted(folder):
    os.makedirs(folder)
    directory = os.path.join(folder, "training")
    os.makedirs(directory)
    nothing = Life(None, 0, None, 0.0, None)
    process = Process(directory, os.path.join(folder, "errors.txt"), nothing, every_step=True)
    while process.listen():
        pass
    if process.status != 0:
        with open(os.path.join(folder, "errors.txt"), encoding="utf-8") as file:
            raise RuntimeError(f"The uninterrupted run failed:\n{file.read()}")
    return Reference(directory, process.messages)
