"""A training that is started again after each kill, until it comes to its end."""

from __future__ import annotations

import os

from .checks import Checks, Reference, Violation
from .plan import UNDISTURBED, lives_of
from .process import Process


class Job:
    """One job, and its process of the moment.

    Those with an even number save in the background. It has so many lives, at most, in which it is to be killed at the
    points that the deck deals; `lives` counts them.
    """

    def __init__(self, seed, number, folder, reference, deck, lives=None):
        self.seed, self.number, self.folder = seed, number, folder
        self.lives, self._limit, self._started = 0, lives, 0
        self._directory = os.path.join(folder, "training")
        self._deck, self._cards = deck, []
        self._plan = lives_of(seed, number, deck)
        self._checks = Checks(self._directory, reference)
        os.makedirs(self._directory)
        self.start()

    def start(self, undisturbed=False):
        """Starts its next process."""
        self._started += 1
        life = UNDISTURBED
        if not undisturbed and self.lives != self._limit:
            self.lives += 1
            life = next(self._plan, UNDISTURBED)
            if life.card is not None and life.card not in self._cards:
                self._cards.append(life.card)
        errors_to = os.path.join(self.folder, f"life-{self._started}.txt")
        self.process = Process(self._directory, errors_to, life, in_background=self.number % 2 == 0)

    def check(self):
        """Checks the process that has ended; returns whether the job has come to its end."""
        process = self.process
        if process.life.card is not None and process.killed_at is None:
            self._deck.take_back(process.life.card)
        try:
            return self._checks.after_life(process.messages, process.status, process.killed_at)
        except Violation as violation:
            violation.add_note(
                f"Job {self.number}, life {self._started}: it was to be killed at {process.life}, and was: "
                f"{process.killed_at}. To repeat: --seed {self.seed} --only {self.number} --lives "
                f"{self.lives} --cards {','.join(map(str, self._cards))}. What it left is in {self.folder}."
            )
            raise


def uninterrupted(folder):
    """Runs the job without a kill, and returns its course."""
    directory, errors_to = os.path.join(folder, "training"), os.path.join(folder, "life.txt")
    os.makedirs(directory)
    process = Process(directory, errors_to, UNDISTURBED, every_step=True)
    while process.listen():
        pass
    if process.status != 0:
        with open(errors_to, encoding="utf-8") as file:
            raise RuntimeError(f"The uninterrupted run failed:\n{file.read()}")
    return Reference(directory, process.messages)
