"""A user's `SessionCreator` may return any `RawSession`; its missing methods have defaults."""

from __future__ import annotations

import pytest
from tests.monitored.conftest import QUICK

import hookline as hl
from hookline import RawSession, errors, train


class Table(RawSession):
    """Runs nothing: the value of a fetch comes from a table, and each run is a step."""

    def __init__(self, graph, step=0, lost_at=None):
        super().__init__(graph)
        self.step, self.lost_at = step, lost_at

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        if self.step == self.lost_at:
            raise errors.AbortedError(None, None, "gone")
        self.step += 1
        return self._value(fetches)

    def _value(self, fetches):
        return [self._value(item) for item in fetches] if isinstance(fetches, list) else f"{fetches} {self.step}"

    @property
    def global_step(self):
        return self.step


@pytest.fixture
def graph():
    with hl.Graph().as_default() as graph:
        train.get_or_create_global_step()
        yield graph


@pytest.mark.parametrize("late", [False, True])
def test_hooks_work_with_a_session_that_only_has_run(graph, late, fires, creator_of):
    hook, raw = fires(train.every(2), "loss", late), Table(graph)
    with train.MonitoredSession(creator_of(raw), [hook, train.StopAtStepHook(5)]) as session:
        while not session.should_stop():
            last = session.run(["train"])
    assert last == ["train 5"]
    assert [(firing.global_step, firing.values) for firing in hook.firings] == [(2, "loss 2"), (4, "loss 4")]
    assert raw.closed


def test_lost_session_is_replaced(graph, fires, creator_of):
    hook, creator = fires(train.every(1), "loss"), creator_of(Table(graph, lost_at=2), Table(graph, 1))
    with train.MonitoredSession(creator, [hook], **QUICK) as session:
        for _ in range(4):
            session.run("train")
    assert hook.steps == [1, 2, 2, 3]


def test_session_without_run_raises_not_implemented():
    with RawSession(hl.Graph()) as session, pytest.raises(NotImplementedError):
        session.run("train")
    assert session.closed
    with pytest.raises(RuntimeError, match="RawSession has no global step"):
        _ = session.global_step
