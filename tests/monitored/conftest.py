from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from hookline import Graph, Operation, Tensor, control_dependencies, host_op
from hookline.testing import FakeClock
from hookline.train import (
    MonitoredSession,
    RecoveryPolicy,
    SessionCreator,
    SessionRunArgs,
    SessionRunHook,
    first_run,
    get_or_create_global_step,
)

QUICK = {"recovery": RecoveryPolicy(initial_backoff_secs=0)}


def run(session, fetches, times):
    for _ in range(times):
        session.run(fetches)


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


class Recorder(SessionRunHook):
    """Records every call in the shared list of events, and raises, requests a stop or fetches as given."""

    def __init__(self, events: list[str], name: str, *, fails: dict[str, Any], asks: Any, stops: Iterable[str]) -> None:
        self.events, self.name = events, name
        self.fails = {
            callback: deque([fault] if not isinstance(fault, list) else fault) for callback, fault in fails.items()
        }
        self.asks, self.stops = asks, set(stops)
        self.results: list[Any] = []
        self.coord: Any = None
        self.session: Any = None

    def _note(self, callback: str, run_context: Any = None) -> None:
        self.events.append(f"{self.name}.{callback}")
        if callback in self.stops and run_context is not None:
            run_context.request_stop()
        if self.fails.get(callback):
            fault = self.fails[callback].popleft()
            if fault is not None:
                raise fault

    def begin(self) -> None:
        self._note("begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.session, self.coord = session, coord
        self._note("created")

    def before_run(self, run_context: Any) -> SessionRunArgs | None:
        self._note("before", run_context)
        return self.asks

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.results.append(run_values.results)
        self._note("after", run_context)

    def end(self, session: Any) -> None:
        self._note("end")

    def on_exception(self, session: Any, exception: BaseException) -> None:
        self.events.append(f"{self.name}.exception:{type(exception).__name__}")
        if self.fails.get("exception"):
            raise self.fails["exception"].popleft()


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def recorder(events: list[str]) -> Callable[..., Recorder]:
    def make(name: str = "a", fails: dict[str, Any] | None = None, asks: Any = None, stops: Iterable[str] = ()):
        return Recorder(events, name, fails=fails or {}, asks=asks, stops=stops)

    return make


@dataclass
class Training:
    """A graph whose train_op reads an input that fails in given runs."""

    graph: Graph
    global_step: Tensor
    train_op: Operation
    faults: deque[BaseException | Callable[[], object] | None]


@pytest.fixture
def training() -> Iterator[Training]:
    faults: deque[BaseException | Callable[[], object] | None] = deque()

    def pull() -> float:
        fault = faults.popleft() if faults else None
        if callable(fault):
            fault()
            return pull()
        if fault is not None:
            raise fault
        return 1.0

    with Graph().as_default() as graph:
        step = get_or_create_global_step()
        with control_dependencies([host_op(pull).node()]):
            train_op = step.assign_add(1)
        yield Training(graph, step, train_op.op, faults)


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock() as fake:
        yield fake


class Scripted(SessionCreator):
    """Hands out the given raw sessions, one a creation, and raises those that are exceptions."""

    def __init__(self, *sessions: Any) -> None:
        self.sessions = deque(sessions)
        self.created: list[Any] = []

    def create_session(self) -> Any:
        session = self.sessions.popleft()
        if isinstance(session, BaseException):
            raise session
        self.created.append(session)
        return session


@pytest.fixture
def creator_of() -> Callable[..., SessionCreator]:
    return Scripted


def monitored(raw: Any, *hooks: Any, recovery: RecoveryPolicy | None = None) -> MonitoredSession:
    """Opens a monitored session over one raw session."""
    return MonitoredSession(Scripted(raw), hooks, recovery=recovery)


@pytest.fixture
def train_op() -> Operation:
    """Counts a step, in the default graph."""
    return get_or_create_global_step().assign_add(1).op


class Fires(SessionRunHook):
    """Records its firings; its declarations are given."""

    def __init__(self, trigger=None, fetches=None, late=False):
        if trigger is not None:
            self.trigger = trigger
        self.fetches, self.deferred = fetches, late
        self.firings = []

    def on_trigger(self, firing):
        self.firings.append(firing)

    @property
    def steps(self):
        return [firing.global_step for firing in self.firings]

    @property
    def elapsed(self):
        return [(firing.elapsed_steps, firing.elapsed_secs) for firing in self.firings]


@pytest.fixture(scope="session")
def fires() -> type[Fires]:
    return Fires


class Reference:
    """A trigger that is asked after every run; `own` are the fetches that its hook is bound to, if it is."""

    def __init__(self, trigger, own=None):
        self.trigger, self.own = trigger, own
        self.steps, self.runs = [], 0
        trigger.start(0)

    def before(self, step):
        self.trigger.start(step)

    def renew(self):
        for leaf in self.trigger.leaves():
            if isinstance(leaf, type(first_run())):
                leaf.on_new_session(None)

    def after(self, fetched, step):
        self.trigger.count_runs(self.runs + 1)
        is_due = self.trigger.should_trigger_for_step(step)
        if self.own is None or fetched in self.own:
            self.runs += 1
            if is_due:
                self.trigger.update_last_triggered_step(step)
                self.steps.append(step)
