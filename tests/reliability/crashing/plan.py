"""Which lives a job has: where each is to be killed, or when. All of it follows from the seed and the job's number."""

from __future__ import annotations

import dataclasses
import itertools
import random

from crashing.points import LATEST, POINTS

_AIMED = 0.7
_VERIFY = 0.15
# After which of its messages, and how much later at most, a process is killed at any time.
_MOMENTS = {"begun": 0.9, "restored": 0.9, "saved": 0.15}
# A life that leaves something to clean up goes before one that is killed while it does.
_LEAVES_DEBRIS = ("Orbax's rename: after", "manifest: before")
_CARDS_A_JOB = 7


@dataclasses.dataclass(frozen=True)
class Life:
    """One process of a job.

    Attributes:
        aim: The point at which it kills itself, or None.
        arrival: At which arrival there.
        moment: The message after which it is killed from outside, where it does not aim.
        delay_secs: How long after that; also how long after the tracing a kill amid a compilation comes.
        fault_at: Which of its batches is an AbortedError, or None.
        verifies: Whether it verifies all checkpoints that it finds, before it trains.
    """

    aim: str | None
    arrival: int
    moment: str | None
    delay_secs: float
    fault_at: int | None
    verifies: bool

    def __str__(self) -> str:
        aimed = f"arrival {self.arrival} at '{self.aim}'"
        timed = f"{self.delay_secs:.3f} s after '{self.moment}'"
        fault = "" if self.fault_at is None else f", its batch {self.fault_at} an AbortedError"
        return f"{timed if self.aim is None else aimed}{fault}"


UNDISTURBED = Life(None, 0, None, 0.0, None, False)


def lives_of(seed: int, job: int):
    """Yields the lives of a job, without end.

    All jobs draw their aims from one deck of all points, shuffled anew each time it is used up; each starts a bit
    further down. So every point is aimed at as often as any other.
    """
    chance = random.Random(f"{seed}/{job}")
    for card in itertools.count(_CARDS_A_JOB * job):
        while chance.random() > _AIMED:
            moment = chance.choice(sorted(_MOMENTS))
            delay_secs, fault_at = chance.uniform(0, _MOMENTS[moment]), _fault(chance, 0.25)
            yield Life(None, 0, moment, delay_secs, fault_at, chance.random() < _VERIFY)
        aim = _deck(seed, card // len(POINTS))[card % len(POINTS)]
        if aim.startswith("clean-up"):
            yield _aimed(chance, chance.choice(_LEAVES_DEBRIS))
        yield _aimed(chance, aim)


def _aimed(chance: random.Random, aim: str) -> Life:
    fault = _fault(chance, 1 if aim.startswith("in recovery") else 0.1)
    arrival, delay_secs = chance.randint(1, LATEST[aim]), chance.uniform(0, 0.3)
    return Life(aim, arrival, None, delay_secs, fault, chance.random() < _VERIFY)


def _fault(chance: random.Random, share: float) -> int | None:
    return chance.randint(1, 9) if chance.random() < share else None


def _deck(seed: int, number: int) -> list[str]:
    return random.Random(f"{seed}/deck/{number}").sample(POINTS, len(POINTS))
