"""Real servers, stopped in the middle of a transaction: its parts are sent, and it is not decided yet."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
from tests.stand_ins import RayTransport

import hookline as hl
from hookline import errors

from .targets import apart, stopped, until


class Pair:
    """Each update adds the same number on two servers, and counts."""

    def __init__(self, transport):
        with hl.Graph().as_default() as graph:
            self.left, self.right = (hl.Variable(np.zeros(8, np.int32), name=name) for name in ("left", "right"))
            self.step = hl.train.create_global_step()
            x = hl.placeholder(np.int32, (), name="x")
            self.add = hl.group(self.left.assign_add(x), self.right.assign_add(x), self.step.assign_add(1))
            init = hl.global_variables_initializer()
        self.session = hl.Session(apart(transport), graph=graph)
        self.session.run(init)
        self.session.run(self.add, {"x:0": 1})

    def in_thread(self, number):
        """Starts an update; returns its thread, and where its error comes."""
        raised = []

        def run():
            try:
                self.session.run(self.add, {"x:0": number})
            except errors.OpError as error:
                raised.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread, raised

    def values(self):
        left, right, step = self.session.run([self.left, self.right, self.step])
        assert len({*left.tolist(), *right.tolist()}) == 1, "a part of an update is missing"
        return int(left[0]), int(step)


def undecided(actor):
    """How many requests and parts of transactions a server holds; the lambda travels by value."""
    import ray

    return ray.get(
        actor.__ray_call__.remote(
            lambda live: len(live._decisions._pending_commits._open) + len(live._decisions.owner._staged)
        )
    )


def assert_that_a_part_of_a_dead_worker_holds_nobody_back(pair, handles):
    store = pair.session.backend.store
    ticket, transport = store._members.ticket(1), store._transport
    # A worker that is killed between its two messages leaves this.
    transport.call(1, "stage", ticket, ("dead", 1), [], ["right"])
    pair.session.run(pair.add, {"x:0": 10})
    assert pair.values() == (11, 2)
    transport.call(0, "outcome", store._members.ticket(0), ("dead", 1), [1]).get()
    pair.session.run(pair.add, {"x:0": 100})
    assert pair.values() == (111, 3)
    assert [undecided(handle) for handle in handles] == [0, 0]


@pytest.mark.campaign
@pytest.mark.parametrize("over_ray", [False, True])
@pytest.mark.parametrize("victim", [0, 1])
def test_server_lost_before_the_decision_is_reported_at_once(actors, pid_of, victim, over_ray):
    handles = actors(2, over_ray=over_ray)
    pair = Pair(RayTransport(handles, timeout_secs=600))
    assert_that_a_part_of_a_dead_worker_holds_nobody_back(pair, handles)
    pids = [pid_of(handle) for handle in handles]
    with stopped(pids[victim]):
        thread, raised = pair.in_thread(10)
        until(lambda: undecided(handles[1 - victim]))
        os.kill(pids[victim], signal.SIGKILL)
        thread.join(60)

    assert not thread.is_alive()
    (error,) = raised
    assert isinstance(error, errors.PREEMPTION_ERRORS)


@pytest.mark.parametrize("over_ray", [pytest.param(False, marks=pytest.mark.campaign), True])
@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.campaign), 1])
def test_update_given_up_while_a_server_was_away_is_whole_or_not_applied(actors, pid_of, victim, over_ray):
    handles = actors(2, over_ray=over_ray)
    pid = [pid_of(handle) for handle in handles][victim]
    pair = Pair(RayTransport(handles, timeout_secs=2.0))
    with stopped(pid):
        thread, raised = pair.in_thread(10)
        thread.join(60)
    (error,) = raised
    # The step server knows, if the other one was away.
    assert ("Whether the update was applied is not known" in str(error)) == (victim == 0)

    pair.session.run(pair.add, {"x:0": 100})
    total, step = pair.values()

    assert (total, step) in ((101, 2), (111, 3))
    assert [undecided(handle) for handle in handles] == [0, 0]
