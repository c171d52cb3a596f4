from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from hookline import Operation, Tensor, Variable, group, host_op, op
from hookline.errors import AbortedError
from hookline.summary import FileWriterCache
from hookline.train import (
    ChiefSessionCreator,
    MonitoredSession,
    RecoveryPolicy,
    Scaffold,
    SessionRunHook,
    create_global_step,
)


@dataclass
class Model:
    """`train` advances one step and doubles the weight, `jump` advances five, `idle` reads the loss."""

    weight: Variable
    loss: Tensor
    global_step: Variable
    train: Operation
    jump: Operation

    def session(self, *hooks: Any, **arguments: Any) -> MonitoredSession:
        return MonitoredSession(hooks=hooks, recovery=RecoveryPolicy(initial_backoff_secs=0), **arguments)

    def session_to_lose(self, *hooks: Any, restored_step: int) -> tuple[MonitoredSession, Tensor]:
        """Returns a session, and a tensor: the first run that fetches it loses the session, to an earlier step."""
        losses = iter([AbortedError(None, None, "lost")])

        def lose_once() -> float:
            for loss in losses:
                raise loss
            return 0.0

        lose = host_op(lose_once).node()
        steps_at_start = iter([0, restored_step])
        scaffold = Scaffold(init_fn=lambda _, session: session.load({"global_step": next(steps_at_start)}))
        return self.session(*hooks, session_creator=ChiefSessionCreator(scaffold)), lose

    def train_until_stop(self, *hooks: Any, at_most: int = 30) -> int:
        """Trains, and returns how many runs it took."""
        runs = 0
        with self.session(*hooks) as session:
            while not session.should_stop() and runs < at_most:
                session.run(self.train)
                runs += 1
        return runs


@pytest.fixture(autouse=True)
def close_writers() -> Iterator[None]:
    yield
    FileWriterCache.clear()


@pytest.fixture
def model() -> Model:
    global_step = create_global_step()
    weight = Variable(1.0, name="weight")
    loss = op(lambda w: w * 0.5, name="loss")(weight)
    double = weight.assign(op(lambda w: w * 2)(weight))
    train = group(double, global_step.assign_add(1), name="train")
    jump = group(double, global_step.assign_add(5), name="jump")
    return Model(weight, loss, global_step, train, jump)


class Probe(SessionRunHook):
    """Calls functions in its callbacks, and shows the session and the steps."""

    def __init__(self, after_run=lambda context: None, created=lambda session: None):
        self._after_run, self._created = after_run, created
        self.session: Any = None
        self.coord: Any = None
        self.steps: list[int] = []

    def after_create_session(self, session, coord):
        self.session, self.coord = session, coord
        self._created(session)

    def after_run(self, run_context, run_values):
        self.steps.append(run_context.session.global_step)
        self._after_run(run_context)


@pytest.fixture
def probe() -> type[Probe]:
    return Probe
