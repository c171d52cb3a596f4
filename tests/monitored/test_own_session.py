"""A `SessionCreator` of one's own may return any `RawSession`; what that does not say is as if it were alone."""

from __future__ import annotations

import pytest

import hookline as hl
from hookline import errors, train
from hookline.session import RawSession


class Table(RawSession):
    """Runs nothing: the value of a fetch is looked up, and each run is a step."""

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


class Creator(train.SessionCreator):
    def __init__(self, *sessions):
        self.sessions = list(sessions)

    def create_session(self):
        return self.sessions.pop(0)


class Notes(train.SessionRunHook):
    fetches = "loss"

    def __init__(self, trigger, late=False):
        self.trigger, self.late, self.seen = trigger, late, []

    def on_trigger(self, firing):
        self.seen.append((firing.global_step, firing.values))


@pytest.fixture
def graph():
    with hl.Graph().as_default() as graph:
        train.get_or_create_global_step()
        yield graph


@pytest.mark.parametrize("late", [False, True])
def test_hooks_ride_on_a_session_that_can_only_run(graph, late):
    hook, raw = Notes(train.every(2), late), Table(graph)
    with train.MonitoredSession(Creator(raw), [hook, train.StopAtStepHook(5)]) as session:
        while not session.should_stop():
            last = session.run(["train"])
    assert last == ["train 5"]
    assert hook.seen == [(2, "loss 2"), (4, "loss 4")]
    assert raw.closed


def test_a_new_one_takes_the_place_of_one_that_was_lost(graph):
    hook = Notes(train.every(1))
    policy = train.RecoveryPolicy(initial_backoff_secs=0)
    with train.MonitoredSession(Creator(Table(graph, lost_at=2), Table(graph, 1)), [hook], recovery=policy) as session:
        for _ in range(4):
            session.run("train")
    assert [step for step, _ in hook.seen] == [1, 2, 2, 3]


def test_a_session_that_does_not_say_what_it_runs_says_so_itself():
    with RawSession(hl.Graph()) as session, pytest.raises(NotImplementedError):
        session.run("train")
    assert session.closed
    with pytest.raises(RuntimeError, match="RawSession has no global step"):
        _ = session.global_step
