from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import hookline as hl
from hookline import errors
from hookline.distributed import ParameterServer
from hookline.distributed.protocol import Epoch, flatten
from hookline.distributed.server.server_state import Apply, Put

# The protocol of a server, in orders that no worker takes on purpose.
from hookline.distributed.staleness_bound import LEASE_SECS, StalenessBound
from hookline.distributed.worker.updates import portable
from hookline.testing import FakeClock

from .targets import at_once

WORKERS = 4


class Workers(RuleBasedStateMachine):
    """Workers that read, compute and commit in any order, and die; only the staleness bound limits them."""

    @initialize(bound=st.integers(0, 5))
    def start(self, bound):
        self.clock = FakeClock()
        self.clock.__enter__()
        self.bound, self.gate, self.count = bound, StalenessBound(bound), 0
        self.read = {}
        self.dead = set()
        self.seen = dict.fromkeys(range(WORKERS), 0)
        self.runs = dict.fromkeys(range(WORKERS), 0)
        self.late = []

    def teardown(self):
        if hasattr(self, "clock"):
            self.finish()
            self.clock.__exit__(None, None, None)

    workers = st.integers(0, WORKERS - 1)

    @rule(worker=workers, fresh=st.booleans())
    def begin(self, worker, fresh):
        """With values that came with its last commit, or newer ones."""
        if worker in self.read:
            return
        self.runs[worker] += 1
        found = self.gate.admit(str(worker), self.seen[worker], self.runs[worker])
        if found is None:
            assert len(set(self.read) - {worker}) + len(self.late) > 0, "the first one never waits"
            return
        since, count = found
        assert self.seen[worker] <= since <= count == self.count
        self.read[worker] = self.count if fresh else since

    @rule(worker=workers)
    def commit(self, worker):
        if worker not in self.read:
            return
        self.gate.check(str(worker))
        assert self.count - self.read.pop(worker) <= self.bound
        self.count += 1
        self.gate.record_decision(str(worker), self.count)
        self.seen[worker] = self.count

    @rule(worker=workers, late=st.booleans())
    def give_up(self, worker, late):
        """Fails a run before its commit; the next one starts again."""
        if self.read.pop(worker, None) is not None:
            self.late.append((worker, self.runs[worker]))
            if not late:
                self.hear(-1, False)

    @rule(which=st.integers(0, 10), admit=st.booleans())
    def hear(self, which, admit):
        """A message of a run that was given up arrives after those of later ones."""
        if self.late:
            worker, run = self.late.pop(which % len(self.late))
            if admit:
                self.gate.admit(str(worker), 0, run)
            self.gate.leave(str(worker), run)

    @rule(worker=workers)
    def be_silent(self, worker):
        """The others are alive; this one may be dead, and may return."""
        self.clock.advance(LEASE_SECS * 0.6)
        for other in self.read:
            if other != worker:
                self.gate.renew(str(other))
        self.clock.advance(LEASE_SECS * 0.6)
        for other in range(WORKERS):
            if other not in self.read:
                self.begin(other, True)
        if worker in self.read:
            alone = len(self.read) == 1 and self.count == self.read[worker]
            try:
                self.commit(worker)
            except errors.AbortedError:
                assert not alone
                self.give_up(worker, False)

    @precondition(lambda self: self.read)
    @rule()
    def finish(self):
        """All admitted workers can commit, at once and in any order."""
        for worker in list(self.read):
            self.commit(worker)


Workers.TestCase.settings = settings(
    max_examples=3 * settings.default.max_examples, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestWorkers = Workers.TestCase


def test_silent_worker_blocks_no_other_and_cannot_commit_a_stale_update():
    with FakeClock() as clock:
        gate = StalenessBound(bound=0)
        assert gate.admit("silent", 0) == (0, 0)
        assert gate.admit("other", 0) is None
        clock.advance(LEASE_SECS + 1)

        assert gate.admit("other", 0) == (0, 0)

        gate.check("other")
        gate.record_decision("other", 1)
        with pytest.raises(errors.AbortedError, match="no heartbeat .* max_staleness=0"):
            gate.check("silent")
        assert gate.admit("silent", 0) == (1, 1), "it reads again"


def test_worker_with_heartbeats_is_waited_for():
    with FakeClock() as clock:
        gate = StalenessBound(bound=0)
        gate.admit("slow", 0)
        for _ in range(10):
            clock.advance(LEASE_SECS * 0.9)
            gate.renew("slow")
            assert gate.admit("other", 0) is None
        gate.check("slow")


def begun(bound):
    """A server in an epoch with a bound, and its ticket."""
    server = ParameterServer()
    epoch = Epoch("epoch", (server.status().incarnation,), None, {}, {}, {}, bound)
    server.begin(epoch, 0, None)
    return server, epoch.ticket(0)


def test_heartbeat_is_received_while_the_step_server_compiles():
    """A worker that waits for admission checks the clock meanwhile."""
    compiles, go_on, compiling = threading.Event(), threading.Event(), None

    def slow(old):
        if threading.current_thread() is compiling:
            compiles.set()
            assert go_on.wait(60)
        return old + 1

    update = portable(hl.update(hl.Variable(np.float32(0), name="v"), slow).op)
    server, ticket = begun(0)
    server.dispatch(("register", ticket, [update]))
    server.dispatch(("commit", ticket, ("chief sets", 1), [Put("v", *flatten(np.float32(0)))]))

    with FakeClock() as clock:
        assert server.dispatch(("admit", ticket, "alive", 1, 0, 0.0)) is not None
        compiling = threading.Thread(
            target=server.dispatch, args=(("commit", ticket, ("chief sets", 2), [Apply(update.name, [])]),)
        )
        compiling.start()
        assert compiles.wait(60)
        try:
            for _ in range(3):
                clock.advance(LEASE_SECS * 0.9)
                sign = threading.Thread(target=server.dispatch, args=(("renew", ticket, "alive"),), daemon=True)
                sign.start()
                sign.join(5)
                assert server.dispatch(("admit", ticket, "other", 1, 0, 0.0)) is None
        finally:
            go_on.set()
            compiling.join()


@pytest.mark.parametrize("late", ["admit", "leave"])
def test_delayed_message_of_a_given_up_run_does_not_end_the_next(late):
    gate = StalenessBound(bound=0)
    assert gate.admit("a", 0, run=1) == (0, 0)
    if late == "admit":
        gate.leave("a", run=1)
    assert gate.admit("a", 0, run=2) == (0, 0)

    if late == "admit":
        assert gate.admit("a", 0, run=1) is None
    gate.leave("a", run=1)

    assert gate.admit("b", 0, run=1) is None, "the second run of the other one is under way"
    gate.leave("a", run=2)
    assert gate.admit("a", 0, run=2) is None, "nobody would leave again"
    assert gate.admit("b", 0, run=1) == (0, 0)


@pytest.mark.parametrize("bound", [0, 2])
def test_worker_admitted_during_a_commit_counts_that_update(bound):
    """Commits come one at a time, as to an actor; workers ask for admission in threads of their own."""
    server, ticket = begun(bound)
    commits, worst = threading.Lock(), []

    def work(name):
        since = 0
        for number in range(1, 400):
            while (found := server.dispatch(("admit", ticket, name, number, since, 1.0))) is None:
                pass
            with commits:
                before = server.dispatch(("commit", ticket, (name, number), [])).counts[0] - 1
            worst.append(before - found[0])
            since = before + 1

    at_once(*(partial(work, name) for name in "abcdef"))
    assert len(worst) == 6 * 399
    assert max(worst) <= bound
