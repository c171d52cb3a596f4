"""Which lives a job has: where each is to be killed, or when.

The points to aim at are dealt from one deck, to whichever job asks first; all else follows from the seed and the job.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random

from .points import LATEST, POINTS

_AIMED = 0.8
_VERIFY = 0.15
# After which of its messages, and how much later at most, a process is killed at any time.
_MOMENTS = {"begun": 0.9, "restored": 0.9, "saved": 0.15}
# A life that leaves something to clean up goes before one that is killed while it does.
_LEAVES_DEBRIS = ("joining: after", "manifest: before")


@dataclasses.dataclass(frozen=True)
class Life:
    """One process of a job.

    Attributes:
        aim: The point at which it kills itself, or None.
        arrival: At which arrival there.
        moment: The message after which it is killed from outside, where it does not aim.
        delay_secs: How long after that; also the delay of a kill amid a compilation or a save.
        fault_at: Which of its batches is an AbortedError, or None.
        verifies: Whether it verifies all checkpoints that it finds, before it trains.
        card: The card that led to it, or None.
    """

    aim: str | None
    arrival: int
    moment: str | None
    delay_secs: float
    fault_at: int | None
    verifies: bool
    card: int | None = None

    def __str__(self) -> str:
        aimed = f"arrival {self.arrival} at '{self.aim}'"
        timed = f"{self.delay_secs:.3f} s after '{self.moment}'"
        fault = "" if self.fault_at is None else f", its batch {self.fault_at} an AbortedError"
        return f"{timed if self.aim is None else aimed}{fault}"


UNDISTURBED = Life(None, 0, None, 0.0, None, False)


class Deck:
    """All points, each as often as the others, in an order that follows from the seed; or only some cards, once."""

    def __init__(self, seed, only=None):
        self._seed, self._only, self._next = seed, None if only is None else iter(only), 0
        self._returned = collections.deque()

    def deal(self, again):
        """Returns the next card, one that was taken back if it may be dealt `again`."""
        if self._only is not None:
            return next(self._only, None)
        if again and self._returned:
            return self._returned.popleft()
        self._next += 1
        return self._next - 1

    def take_back(self, card):
        """Takes back a card whose point a job has not come to before its end, for another one."""
        self._returned.append(card)

    def aim_of(self, card):
        """Returns the point on a card."""
        order = random.Random(f"{self._seed}/deck/{card // len(POINTS)}").sample(POINTS, len(POINTS))
        return order[card % len(POINTS)]


def lives_of(seed, job, deck):
    """Yields the lives of a job, as long as the deck has a card for it."""
    chance = random.Random(f"{seed}/{job}")
    for number in itertools.count():
        while chance.random() > _AIMED:
            moment = chance.choice(sorted(_MOMENTS))
            delay_secs, fault_at = chance.uniform(0, _MOMENTS[moment]), _fault(chance, 0.25)
            yield Life(None, 0, moment, delay_secs, fault_at, chance.random() < _VERIFY)
        card = deck.deal(again=number > 0)  # Most missed points are missed by jobs that have just begun.
        if card is None:
            return
        aim = deck.aim_of(card)
        if aim.startswith("clean-up"):
            yield _aimed(chance, chance.choice(_LEAVES_DEBRIS), card)
        yield _aimed(chance, aim, card)


def _aimed(chance: random.Random, aim: str, card: int) -> Life:
    fault = _fault(chance, 1 if aim.startswith("in recovery") else 0.1)
    arrival, delay_secs = chance.randint(1, LATEST[aim]), chance.uniform(0, 0.3)
    return Life(aim, arrival, None, delay_secs, fault, chance.random() < _VERIFY, card)


def _fault(chance: random.Random, share: float) -> int | None:
    return chance.randint(1, 9) if chance.random() < share else None
