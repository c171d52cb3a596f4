"""The agreement of SPMD processes, in many seeded schedules; their number is HOOKLINE_SCHEDULES."""

import json
import multiprocessing
import os

import pytest
from tests.coordination import simulation

# The protocol itself, broken on purpose.
from hookline.coordination.agreement import Decision

SCHEDULES = int(os.environ.get("HOOKLINE_SCHEDULES", "500"))


def test_no_schedule_breaks_an_invariant():
    step = 500
    parts = [range(first, min(first + step, SCHEDULES)) for first in range(0, SCHEDULES, step)]
    if SCHEDULES > 10_000:
        with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
            rounds = sum(pool.map(simulation.run, parts))
    else:
        rounds = sum(map(simulation.run, parts))
    assert rounds > SCHEDULES / 2


class DoorLeftOpen(simulation.Simulated):
    """Reads how many runs were started before it closes the door."""

    def _pledge(self):
        with self.changed:
            self._open_call = None
            started = min(self.started, self._hold)
            self.limit = started
            given, self._proposals = self._proposals, []
            return started, given


class SmallestPledge(simulation.Simulated):
    """Agrees on the smallest pledge."""

    def listen(self):
        listener = super().listen()
        found, pledges = None, []
        while True:
            try:
                request = listener.send(found)
            except StopIteration:
                return
            if isinstance(request, simulation.Set) and request.key.endswith("/decision"):
                _, proposals = json.loads(request.text)
                request = request._replace(text=json.dumps([min(pledges[-self.count :]), proposals]))
            found = yield request
            if isinstance(request, simulation.Get) and "/pledge/" in request.key:
                pledges.append(json.loads(found)[0])


class GoesOnWhileItAsks(simulation.Simulated):
    """Starts runs while what its main thread has proposed is undecided."""

    def add_proposal(self, kind, value=None, *, from_main_thread=False):
        return super().add_proposal(kind, value, from_main_thread=False)


class TakesLate(simulation.Simulated):
    """Takes a decision one run after its boundary."""

    def _decide(self, boundary, proposals):
        super()._decide(boundary, proposals)
        if self.index:
            self.decision = Decision(boundary + 1, proposals)
            self.limit = boundary + 1


@pytest.mark.parametrize("kind", [DoorLeftOpen, SmallestPledge, GoesOnWhileItAsks, TakesLate])
def test_broken_protocol_is_detected(kind):
    with pytest.raises((simulation.Broken, IndexError)):
        simulation.run(range(400), kind)
