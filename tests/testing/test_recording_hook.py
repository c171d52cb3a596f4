from __future__ import annotations

import pytest

from hookline.errors import AbortedError
from hookline.testing import RecordedEvent, RecordingHook
from hookline.train import MonitoredSession, SessionRunArgs, SessionRunContext, get_or_create_global_step


@pytest.fixture
def train():
    return get_or_create_global_step().assign_add(1)


def test_every_callback_is_recorded_with_its_arguments(train):
    hook = RecordingHook("a", fetches={"step": "global_step:0"})
    with MonitoredSession(hooks=[hook]) as session:
        session.run(train)
    assert hook.events == [
        RecordedEvent("a", "begin"),
        RecordedEvent("a", "after_create_session", 0),
        RecordedEvent("a", "before_run", train),
        RecordedEvent("a", "after_run", {"step": 0}),
        RecordedEvent("a", "end", 1),
    ]


def test_hooks_that_share_a_list_record_their_order(train):
    events: list[RecordedEvent] = []
    with MonitoredSession(hooks=[RecordingHook("a", events), RecordingHook("b", events)]) as session:
        session.run(train)
    runs = [(event.hook, event.callback) for event in events if event.callback.endswith("_run")]
    assert runs == [("a", "before_run"), ("b", "before_run"), ("a", "after_run"), ("b", "after_run")]


def test_hook_stops_at_the_given_run(train):
    with MonitoredSession(hooks=[RecordingHook(stop_at_run=2)]) as session:
        session.run(train)
        assert not session.should_stop()
        session.run(train)
        assert session.should_stop()


def test_hook_fails_in_the_given_callback_every_time(train):
    failure = ValueError("told so")
    hook = RecordingHook(failures={"after_run": failure})
    with MonitoredSession(hooks=[hook]) as session:
        for _ in range(2):
            with pytest.raises(ValueError, match="told so"):
                session.run(train)
    assert hook.callbacks.count("after_run") == 2
    assert RecordedEvent("", "on_exception", failure) in hook.events


def test_hook_fails_at_the_given_calls(train):
    hook = RecordingHook(failures={"before_run": [None, AbortedError(None, None, "lost")]})
    with MonitoredSession(hooks=[hook]) as session:
        session.run(train)
        session.run(train)
    assert hook.callbacks.count("after_create_session") == 2
    assert hook.callbacks.count("before_run") == 3


def test_hook_requests_nothing_by_default(train):
    context = SessionRunContext(SessionRunArgs(train), session=None)
    assert RecordingHook().before_run(context) is None
    assert RecordingHook(fetches=train).before_run(context) == SessionRunArgs(train)
