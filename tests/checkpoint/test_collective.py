"""A collective action of SPMD processes has one outcome in all of them."""

import threading

import pytest

# The protocol itself, with threads for processes.
from hookline.checkpoint.directory.collective import Collective
from hookline.coordination.key_value_store import MemoryKeyValueStore
from hookline.coordination.process_group import ProcessGroup

COUNT = 3


def in_all(act):
    """Returns the result of a function, or its error, in each of several processes."""
    store, outcomes = MemoryKeyValueStore(), [None] * COUNT

    def work(index):
        try:
            outcomes[index] = act(Collective(ProcessGroup(store, index, COUNT)), index)
        except Exception as error:
            outcomes[index] = error

    threads = [threading.Thread(target=work, args=(index,)) for index in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return outcomes


def part(index, fails=None):
    if fails is not None and index in fails:
        raise OSError(f"the disk of {index} is full")
    return [index, "done"]


def test_run_on_all_returns_all_results_in_all_processes():
    every = [[0, "done"], [1, "done"], [2, "done"]]
    assert in_all(lambda together, index: together.run_on_all(lambda: part(index))) == [every] * COUNT


def test_gather_to_chief_returns_all_results_only_in_the_chief():
    chief, *others = in_all(lambda together, index: together.gather_to_chief(lambda: part(index)))
    assert chief == [[0, "done"], [1, "done"], [2, "done"]]
    assert others == [[[0, "done"]]] * (COUNT - 1)


def test_run_on_chief_returns_the_chiefs_result_in_all_processes():
    assert in_all(lambda together, index: together.run_on_chief(lambda: index + 7)) == [7] * COUNT


@pytest.mark.parametrize("how", ["run_on_all", "gather_to_chief"])
@pytest.mark.parametrize("fails", [(0,), (1,), (2,), (1, 2), (0, 2)])
def test_first_failure_is_raised_in_all_processes(how, fails):
    outcomes = in_all(lambda together, index: getattr(together, how)(lambda: part(index, fails)))
    for outcome in outcomes:
        assert f"the disk of {fails[0]} is full" in str(outcome)


def test_processes_continue_after_a_failure():
    def act(together, index):
        with pytest.raises(Exception, match="the disk of 1 is full"):
            together.gather_to_chief(lambda: part(index, (1,)))
        return together.gather_to_chief(lambda: part(index))[0]

    assert in_all(act) == [[0, "done"]] * COUNT
