"""Liveness checks of SPMD processes: all answer, whatever their main thread does, and all receive the diagnosis."""

import threading

# The protocol itself, with threads for processes.
from hookline.coordination.key_value_store import MemoryKeyValueStore
from hookline.coordination.liveness import LivenessMonitor
from hookline.coordination.process_group import ProcessGroup


class Process:
    """One process, which answers with `stands`."""

    def __init__(self, store, index, count, judge):
        self.stands, self.has_answered = index, threading.Event()
        self.monitor = LivenessMonitor(ProcessGroup(store, index, count))
        self.monitor.answer, self.monitor.diagnose = self.answer, judge

    def answer(self, question):
        self.has_answered.set()
        return self.stands


def together(count, judge):
    store = MemoryKeyValueStore()
    return [Process(store, index, count, judge) for index in range(count)]


def test_request_makes_all_answer_and_all_get_the_diagnosis():
    heard = []

    def judge(answers):
        heard.append(answers)
        return "process 2 is elsewhere" if answers[2] == 7 else None

    processes = together(3, judge)
    processes[1].monitor.request_status("")
    for process in processes:
        assert process.has_answered.wait(10)
    processes[2].stands = 7
    while processes[0].monitor.problem is None:
        processes[0].monitor.request_status("")
    processes[0].monitor.wait_until_acknowledged()
    assert [process.monitor.problem for process in processes] == ["process 2 is elsewhere"] * 3
    assert heard[0] == [0, 1, 2]
    assert heard[-1] == [0, 1, 7]
    processes[1].monitor.close()


def test_first_close_ends_the_liveness_checks_of_all():
    earlier = set(threading.enumerate())  # Also threads of another test that are about to end.
    processes = together(2, lambda answers: None)
    processes[1].monitor.close()
    processes[0].monitor.close()
    processes[0].monitor.request_status("")
    assert not any(process.has_answered.is_set() for process in processes)
    assert set(threading.enumerate()) <= earlier
