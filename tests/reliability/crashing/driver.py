"""Runs jobs side by side, has them killed and checked, and counts."""

from __future__ import annotations

import collections
import gc
import itertools
import os
import select
import shutil
import sys
import tempfile
import time

from .checks import Violation
from .job import Job, uninterrupted
from .plan import Deck
from .points import POINTS

# So many lives that miss a point, for each that comes there, mean that it is no longer where it was.
_MOST_IN_VAIN = 8


class Driver:
    """Kills until it has killed enough; the arguments are those of `crash`."""

    def __init__(self, seed, kills, each, at_once, only=None, lives=None, cards=None):
        self.seed, self.kills, self.each, self.at_once, self.lives = seed, kills, each, at_once, lives
        self._deck = Deck(seed, cards)
        self._numbers = itertools.count() if only is None else iter([only])
        self._folder = tempfile.mkdtemp(prefix="hookline-crash-")
        self._reference, self._running = None, {}
        self.hits, self.aims = collections.Counter(), collections.Counter()
        self.ended, self.violations = 0, 0

    def drive(self):
        """Runs jobs until the kills are enough; prints the counts, and returns whether all held that must hold."""
        started = time.monotonic()
        gc.freeze()  # A child's garbage collector need not visit, and so copy, the imported objects.
        self._reference = uninterrupted(os.path.join(self._folder, "reference"))
        try:
            while self._fill():
                self._attend()
        finally:
            for job in self._running.values():
                job.process.end()
        self._print(time.monotonic() - started)
        if not self.violations:
            shutil.rmtree(self._folder)
        return not self.violations

    def _enough(self):
        return self.hits.total() >= self.kills and all(self.hits[point] >= self.each for point in POINTS)

    def _fill(self):
        """Starts jobs up to the limit, and returns whether one is running."""
        while not self._enough() and len(self._running) < self.at_once:
            number = next(self._numbers, None)
            if number is None:
                break
            folder = os.path.join(self._folder, f"job-{number}")
            job = Job(self.seed, number, folder, self._reference, self._deck, self.lives)
            self._running[job.process.file] = job
        return bool(self._running)

    def _attend(self):
        """Waits until a process has a message, or is to be killed."""
        secs_left = min(job.process.secs_left() for job in self._running.values())
        for file in select.select(list(self._running), [], [], secs_left)[0]:
            if not self._running[file].process.listen():
                self._go_on(self._running.pop(file))
        for job in self._running.values():
            job.process.kill_if_due()

    def _go_on(self, job):
        aim = job.process.life.aim
        self.aims[aim] += 1
        if aim is not None and self.aims[aim] > _MOST_IN_VAIN * (self.hits[aim] + 1):
            raise RuntimeError(f"{self.aims[aim]} lives were to be killed at '{aim}', {self.hits[aim]} came there.")
        if job.process.killed_at is not None:
            self.hits[job.process.killed_at] += 1
            if self.hits.total() % 100 == 0:
                print(f"{self.hits.total()} kills", file=sys.stderr, flush=True)
        try:
            ended = job.check()
        except Violation as violation:
            self.violations += 1
            print(f"VIOLATION: {violation}\n  {violation.__notes__[0]}", file=sys.stderr, flush=True)
            return
        if ended:
            self.ended += 1
            shutil.rmtree(job.folder)
        else:
            job.start(undisturbed=self._enough())
            self._running[job.process.file] = job

    def _print(self, secs):
        for point in POINTS:
            print(f"{self.hits[point]:6} of {self.aims[point]:4}  {point}")
        for moment in sorted(self.hits.keys() - set(POINTS)):
            print(f"{self.hits[moment]:6}          {moment}")
        print("       (kills, of lives that were to be killed there)")
        aimed = sum(self.hits[point] for point in POINTS)
        print(f"{self.hits.total():6}  kills, {aimed} of them aimed, in {secs:.0f} s with seed {self.seed}")
        print(f"{self.ended:6}  jobs came to their end, bit by bit that of the uninterrupted run")
        print(f"{self.violations:6}  violations")
