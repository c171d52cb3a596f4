"""Coordinator and LooperThread."""

from __future__ import annotations

import threading
from typing import Any

from conformance.parts import only, out_of_range, raised, report, said
from conformance.scenario import Record, scenario
from conformance.system import System


def _thread(target: Any) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


@scenario("coordinator.request_stop")
def _(s: System) -> Record:
    """A stop that was requested is seen, until it is cleared."""
    coord = s.train.Coordinator()
    seen = [coord.should_stop()]
    coord.request_stop()
    seen.append(coord.should_stop())
    coord.clear_stop()
    return {"seen": [*seen, coord.should_stop()], "joined": coord.joined}


@scenario("coordinator.wait_for_stop")
def _(s: System) -> Record:
    """Waiting tells whether the stop came."""
    coord = s.train.Coordinator()
    early = coord.wait_for_stop(0.01)
    thread = _thread(lambda: coord.wait_for_stop(10) and coord.request_stop())
    coord.request_stop()
    thread.join(10)
    return {"early": early, "then": coord.wait_for_stop(10), "woke": not thread.is_alive()}


@scenario("coordinator.join_raises_what_was_reported")
def _(s: System) -> Record:
    """`join` raises the error that a thread has reported."""
    coord = s.train.Coordinator()
    threads = [_thread(lambda: raised(report, coord, ValueError("broken")))]
    return {"error": said(coord.join, threads), "joined": coord.joined}


@scenario("coordinator.first_error_wins")
def _(s: System) -> Record:
    """The first of two errors is the one that is raised."""
    coord = s.train.Coordinator()
    report(coord, ValueError("first"))
    raised(report, coord, KeyError("second"))
    return {"error": said(coord.join, [])}


@scenario("coordinator.exc_info")
def _(s: System) -> Record:
    """An error may be given as the tuple of `sys.exc_info`."""
    import sys

    coord = s.train.Coordinator()
    try:
        raise ValueError("given")
    except ValueError:
        coord.request_stop(sys.exc_info())
    return {"error": said(coord.join, [])}


@scenario("coordinator.clean_errors")
def _(s: System) -> Record:
    """The end of the input is clean by default; other types may be named instead."""
    usual = s.train.Coordinator()
    report(usual, out_of_range(s))
    other = s.train.Coordinator(clean_stop_exception_types=(ValueError,))
    report(other, ValueError("clean here"))
    strict = s.train.Coordinator(clean_stop_exception_types=())
    report(strict, out_of_range(s))
    coords = usual, other, strict
    return {"stops": [c.should_stop() for c in coords], "errors": [raised(c.join, []) for c in coords]}


@scenario("coordinator.raise_requested_exception")
def _(s: System) -> Record:
    """The recorded error can be raised without joining."""
    coord = s.train.Coordinator()
    before = said(coord.raise_requested_exception)
    report(coord, ValueError("kept"))
    return {"before": before, "after": said(coord.raise_requested_exception)}


@scenario("coordinator.after_join")
def _(s: System) -> Record:
    """An error that is reported after `join` is raised at once."""
    coord = s.train.Coordinator()
    coord.request_stop()
    coord.join([])
    error = ValueError("late")

    def late() -> None:
        try:
            raise error
        except ValueError as caught:
            coord.request_stop(caught)

    return {"error": said(late), "joined": coord.joined}


@scenario("coordinator.stop_on_exception")
def _(s: System) -> Record:
    """The block swallows an error and reports it; what follows in the thread goes on."""
    coord = s.train.Coordinator()
    went_on = []
    with coord.stop_on_exception():
        raise KeyError("inside")
    went_on.append(True)
    return {"went_on": went_on, "stops": coord.should_stop(), "error": raised(coord.join, [])}


@scenario("coordinator.join_waits_for_registered_threads")
def _(s: System) -> Record:
    """`join` waits for the threads given and for those registered."""
    coord = s.train.Coordinator()
    ended: list[str] = []
    go = threading.Event()

    def work(name: str) -> None:
        go.wait(10)
        ended.append(name)

    given = _thread(lambda: work("given"))
    registered = _thread(lambda: work("registered"))
    coord.register_thread(registered)
    threading.Timer(0.05, go.set).start()
    coord.join([given])
    return {"ended": sorted(ended)}


@scenario("coordinator.thread_that_does_not_end")
def _(s: System) -> Record:
    """After a stop `join` waits as long as it is told, then names the threads that are still alive."""
    coord = s.train.Coordinator()
    go = threading.Event()
    thread = threading.Thread(target=lambda: go.wait(10), name="stubborn", daemon=True)
    thread.start()
    coord.request_stop()
    error = said(coord.join, [thread], stop_grace_period_secs=0.05) or ""
    go.set()
    return {"error": error.partition(":")[0], "named": "stubborn" in error}


@scenario("coordinator.ignore_live_threads")
def _(s: System) -> Record:
    """Threads that are still alive may be ignored, with a line in the log."""
    coord = s.train.Coordinator()
    go = threading.Event()
    thread = threading.Thread(target=lambda: go.wait(10), name="stubborn", daemon=True)
    thread.start()
    coord.request_stop()
    error = said(coord.join, [thread], stop_grace_period_secs=0.05, ignore_live_threads=True)
    go.set()
    return {"error": error, "logged": len(only(s.log, "stubborn"))}


@scenario("coordinator.error_wins_over_live_threads")
def _(s: System) -> Record:
    """A reported error is raised rather than the one about threads that are still alive."""
    coord = s.train.Coordinator()
    go = threading.Event()
    thread = _thread(lambda: go.wait(10))
    report(coord, ValueError("reported"))
    error = said(coord.join, [thread], stop_grace_period_secs=0.05)
    go.set()
    return {"error": error}


@scenario("coordinator.clear_stop_forgets_the_error")
def _(s: System) -> Record:
    """`clear_stop` forgets the error too."""
    coord = s.train.Coordinator()
    report(coord, ValueError("old"))
    coord.clear_stop()
    coord.request_stop()
    return {"error": said(coord.join, [])}


# Looper threads -------------------------------------------------------------------------------------------------------


@scenario("looper.arguments")
def _(s: System) -> Record:
    """The coordinator comes first; arguments need a target."""
    coord = s.train.Coordinator()
    return {
        "no_coordinator": raised(s.train.LooperThread, "coord", None),
        "args_alone": raised(s.train.LooperThread, coord, None, args=(1,)),
        "kwargs_alone": raised(s.train.LooperThread, coord, None, kwargs={"a": 1}),
    }


@scenario("looper.back_to_back")
def _(s: System) -> Record:
    """Without an interval the target runs back to back until the stop; start and end are told."""
    coord = s.train.Coordinator()
    events: list[str] = []

    class Looper(s.train.LooperThread):
        def start_loop(self) -> None:
            events.append("start")

        def run_loop(self) -> None:
            events.append("run")
            if events.count("run") == 3:
                coord.request_stop()

        def stop_loop(self) -> None:
            events.append("stop")

    thread = Looper(coord, None)
    thread.start()
    coord.join([thread])
    return {"events": events, "daemon": thread.daemon}


@scenario("looper.loop")
def _(s: System) -> Record:
    """`loop` starts one, which calls its target with the arguments and is joined without being named."""
    coord = s.train.Coordinator()
    calls: list[Any] = []

    def target(a: int, b: int = 0) -> None:
        calls.append([a, b])
        coord.request_stop()

    s.train.LooperThread.loop(coord, None, target=target, args=(1,), kwargs={"b": 2})
    coord.join()
    return {"calls": calls}


@scenario("looper.error_stops_all")
def _(s: System) -> Record:
    """An error of the target is reported."""
    coord = s.train.Coordinator()

    def target() -> None:
        raise ValueError("loop broke")

    s.train.LooperThread.loop(coord, None, target=target)
    coord.wait_for_stop(10)
    return {"error": said(coord.join)}


@scenario("looper.interval")
def _(s: System) -> Record:
    """With an interval the target runs at once, and again at the boundaries."""
    coord = s.train.Coordinator()
    calls: list[int] = []
    twice = threading.Event()

    def target() -> None:
        calls.append(1)
        if len(calls) == 2:
            twice.set()

    s.train.LooperThread.loop(coord, 0.01, target=target)
    came = twice.wait(10)
    coord.request_stop()
    coord.join()
    return {"twice": came}
