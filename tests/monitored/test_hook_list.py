from __future__ import annotations

import logging

import pytest

from hookline.train import MonitoredSession, SessionRunHook


def generator_hook():
    yield


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (SessionRunHook, r"hooks\[1\] is the class SessionRunHook"),
        (generator_hook, r"hooks\[1\] is the generator function generator_hook"),
        (print, r"hooks\[1\] is the function print"),
        (None, r"hooks\[1\] is None, which has none of the callbacks"),
        (object(), r"none of the callbacks"),
    ],
)
def test_object_that_is_no_hook_is_refused_with_its_index(item, message):
    with pytest.raises(TypeError, match=message):
        MonitoredSession(hooks=[SessionRunHook(), item])


def test_callback_that_is_not_run_by_a_call_is_refused():
    class Yields(SessionRunHook):
        def after_run(self, run_context, run_values):
            yield

    class Awaits(SessionRunHook):
        async def end(self, session):
            pass

    with pytest.raises(TypeError, match=r"hooks\[0\], a Yields, has a generator or coroutine function as after_run"):
        MonitoredSession(hooks=[Yields()])
    with pytest.raises(TypeError, match=r"hooks\[0\], a Awaits, has a generator or coroutine function as end"):
        MonitoredSession(hooks=[Awaits()])


def test_closing_the_session_in_after_create_session_names_the_hook(recorder, events):
    class Closing:
        def after_create_session(self, session, coord):
            session.close()

    with pytest.raises(RuntimeError, match="The hook Closing has closed the session in after_create_session"):
        MonitoredSession(hooks=[Closing(), recorder()])
    assert "a.created" not in events


def test_single_hook_in_place_of_a_list_is_refused():
    with pytest.raises(TypeError, match="must be a list of hooks"):
        MonitoredSession(hooks=SessionRunHook())  # type: ignore[arg-type]


@pytest.mark.parametrize("callback", ["begin", "before_run", "on_trigger", "end"])
def test_callbacks_that_are_not_overridden_are_never_called(monkeypatch, training, callback):
    def never(self, *given):
        raise AssertionError

    monkeypatch.setattr(SessionRunHook, callback, never)
    with MonitoredSession(hooks=[SessionRunHook()]) as session:
        session.run(training.train_op)


def test_callback_set_on_the_instance_is_called(events):
    hook = SessionRunHook()
    hook.begin = lambda: events.append("begin")  # type: ignore[method-assign]
    with MonitoredSession(hooks=[hook]):
        assert events == ["begin"]


def test_on_exception_is_called_in_reverse_order_and_its_errors_are_logged(recorder, events, caplog):
    hooks = [recorder("a"), recorder("b", fails={"exception": KeyError("x")})]
    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="nan"), MonitoredSession(hooks=hooks):
        raise ValueError("nan")
    assert events[-2:] == ["b.exception:ValueError", "a.exception:ValueError"]
    assert "Recorder failed in on_exception" in caplog.text
