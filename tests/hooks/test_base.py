from __future__ import annotations

from hookline.train import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues


def test_every_callback_of_the_base_class_does_nothing():
    hook = SessionRunHook()
    context = SessionRunContext(SessionRunArgs(None), session=None)
    assert hook.begin() is None
    assert hook.after_create_session(None, None) is None
    assert hook.before_run(context) is None
    assert hook.after_run(context, SessionRunValues(None, None, None)) is None
    assert hook.before_trigger(context) is None
    assert hook.on_trigger(None) is None
    assert hook.get_state() is None
    assert hook.end(None) is None


def test_optional_callbacks_are_not_defined_in_the_base_class():
    for name in ("on_exception", "save_on_failure", "after_close"):
        assert not hasattr(SessionRunHook(), name)


def test_run_context_has_the_callers_request_and_keeps_a_stop():
    args, session = SessionRunArgs(["loss:0"], {"x:0": 1}), object()
    context = SessionRunContext(args, session)
    assert context.original_args is args
    assert context.session is session
    assert not context.stop_requested
    context.request_stop()
    assert context.stop_requested


def test_feeds_and_options_of_session_run_args_are_optional():
    assert SessionRunArgs("loss:0") == SessionRunArgs(fetches="loss:0", feed_dict=None, options=None)
