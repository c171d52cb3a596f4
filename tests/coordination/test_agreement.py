"""The agreement of SPMD processes, with real threads on one key-value store."""

import random
import threading

import pytest

# The protocol itself, with threads for processes.
from hookline.coordination.agreement import FAILURE, Agreement
from hookline.coordination.key_value_store import MemoryKeyValueStore
from hookline.coordination.process_group import ProcessGroup
from hookline.errors import DeadlineExceededError, UnavailableError
from hookline.testing import FakeClock


def together(count, main):
    """Calls `main(agreement)` in a thread per process, with one key-value store; returns the results."""
    store, found = MemoryKeyValueStore(), [None] * count

    def work(index):
        agreement = Agreement(store, index, count, name="ours")
        found[index] = main(agreement)
        agreement.close()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return found


def test_threads_take_the_same_decisions_at_the_same_runs():
    def main(agreement):
        rng, taken = random.Random(agreement.index), []
        for run in range(3000):
            while (decision := agreement.before_run()) is not None:
                taken.append((run, decision.boundary, decision.proposals))
                if any(kind == "stop" for _, kind, _ in decision.proposals):
                    return taken
            if rng.random() < 0.02:
                agreement.propose("note", run)
            if run == 2000 and agreement.index == 1:
                agreement.propose("stop")
        return taken

    first, *others = together(3, main)
    assert len(first) > 10
    assert all(other == first for other in others)
    assert all(run == boundary for run, boundary, _ in first)


def test_stop_proposed_by_all_is_decided_for_that_run():
    def main(agreement):
        for run in range(1000):
            if agreement.before_run() is not None:
                return run
            if run == 500:
                agreement.propose("stop")
        return None

    assert together(4, main) == [501] * 4


def test_failure_is_broadcast_to_the_others():
    def main(agreement):
        for run in range(10**6):
            decision = agreement.before_run()
            if decision is not None:
                return decision.proposals
            if run == 50 and agreement.index == 1:
                agreement.propose(FAILURE, [1, "no disk"])
                return None
        return None

    told, _ = together(2, main)
    assert told == ((1, FAILURE, [1, "no disk"]),)


def test_proposal_after_the_others_left_is_decided_alone():
    def main(agreement):
        for _ in range(10):
            assert agreement.before_run() is None
        if agreement.index == 1:
            agreement.close()
            return None
        while not agreement.has_ended:
            pass
        agreement.propose("stop")
        return agreement.before_run().proposals

    assert together(2, main)[0] == ((0, "stop", None),)


def test_unavailable_key_value_store_is_an_error_at_the_next_run():
    class Gone(MemoryKeyValueStore):
        def get(self, key, timeout_secs):
            raise OSError("connection refused")

    agreement = Agreement(Gone(), 0, 1, "ours")
    agreement._thread.join(10)
    with pytest.raises(UnavailableError, match="connection refused"):
        agreement.before_run()
    agreement.close()


def test_missing_process_is_named():
    with FakeClock() as clock:

        class Slow(MemoryKeyValueStore):
            def get(self, key, timeout_secs):
                clock.advance(timeout_secs)

        with pytest.raises(DeadlineExceededError, match="process 1"):
            ProcessGroup(Slow(), 0, 2).all_gather("length", 3, timeout_secs=30)
