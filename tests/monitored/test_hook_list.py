from __future__ import annotations

import logging

import pytest

from hookline.monitored.callbacks import override
from hookline.monitored.hook_list import HookList
from hookline.testing import ScriptedSession
from hookline.train import SessionRunHook


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
def test_what_is_no_hook_is_refused_by_its_place(item, message):
    with pytest.raises(TypeError, match=message):
        HookList([SessionRunHook(), item])


def test_a_callback_that_calling_does_not_run_is_refused():
    class Yields(SessionRunHook):
        def after_run(self, run_context, run_values):
            yield

    class Awaits(SessionRunHook):
        async def end(self, session):
            pass

    with pytest.raises(TypeError, match=r"hooks\[0\], a Yields, has a after_run that calling does not run"):
        HookList([Yields()])
    with pytest.raises(TypeError, match=r"hooks\[0\], a Awaits, has a end that calling does not run"):
        HookList([Awaits()])


def test_closing_the_session_in_after_create_session_is_an_error_that_names_the_hook(recorder, events):
    class Closing:
        def after_create_session(self, session, coord):
            session.close()

    with pytest.raises(RuntimeError, match="The hook Closing has closed the session in after_create_session"):
        HookList([Closing(), recorder()]).after_create_session(ScriptedSession(), None)  # type: ignore[arg-type]
    assert events == []


def test_a_single_hook_in_place_of_a_list_is_refused():
    with pytest.raises(TypeError, match="must be a list of hooks"):
        HookList(SessionRunHook())  # type: ignore[arg-type]


def test_no_ops_of_the_base_class_and_missing_methods_are_never_called():
    class OnlyEnd:
        def end(self, session):
            pass

    assert override(SessionRunHook(), "begin") is None
    assert override(OnlyEnd(), "begin") is None
    assert override(OnlyEnd(), "settle") is None
    assert override(OnlyEnd(), "end") is not None


def test_a_callback_set_on_the_instance_counts():
    hook = SessionRunHook()
    hook.begin = lambda: None  # type: ignore[method-assign]
    assert override(hook, "begin") is hook.begin


def test_on_exception_goes_in_reverse_order_and_its_errors_are_logged(recorder, events, caplog):
    hooks = HookList([recorder("a"), recorder("b", fails={"exception": KeyError("x")})])
    with caplog.at_level(logging.ERROR):
        hooks.on_exception(ScriptedSession(), ValueError("nan"))  # type: ignore[arg-type]
    assert events == ["b.exception:ValueError", "a.exception:ValueError"]
    assert "Recorder failed in on_exception" in caplog.text
