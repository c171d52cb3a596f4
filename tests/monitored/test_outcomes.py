"""Outcomes of SPEC.md section 1 beyond the table of docs/lifecycle.md, whose rows have their own test."""

from __future__ import annotations

import threading

import pytest

from hookline.errors import AbortedError, OutOfRangeError
from hookline.train import MonitoredSession, SessionRunHook, SingularMonitoredSession, every

pytestmark = pytest.mark.usefixtures("clock")

ENDS_OF_INPUT = [OutOfRangeError(None, None, "no more records"), StopIteration()]
START = ["a.begin", "b.begin", "a.created", "b.created"]
RUN = ["a.before", "b.before", "a.after", "b.after"]
END = ["a.end", "b.end"]


def fresh(error):
    return type(error)(*error.args)


# A run succeeds ------------------------------------------------------------------------------------------------------


def test_successful_run_gets_after_run_and_end_at_close(training, recorder, events):
    with MonitoredSession(hooks=[recorder("a"), recorder("b")]) as sess:
        assert sess.run(training.global_step) == 0
        assert events == START + RUN
    assert events == START + RUN + END


# A run raises the end of the input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ENDS_OF_INPUT, ids=lambda e: type(e).__name__)
def test_end_of_input_is_raised_without_a_with_block(training, recorder, events, error):
    training.faults.append(fresh(error))
    sess = MonitoredSession(hooks=[recorder("a"), recorder("b")])
    with pytest.raises(OutOfRangeError):  # a StopIteration of an op leaves the run as OutOfRangeError
        sess.run(training.train_op)
    sess.close()
    assert events == [*START, "a.before", "b.before", *END]


# A run raises anything else -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (MonitoredSession, ValueError("bad record")),
        (SingularMonitoredSession, ValueError("bad record")),
        (SingularMonitoredSession, AbortedError(None, None, "bad record")),  # It does not recover.
    ],
)
def test_other_error_of_a_run_is_raised_unchanged_without_end(training, recorder, events, kind, error):
    training.faults.append(error)
    with pytest.raises(type(error), match="bad record") as caught, kind(hooks=[recorder("a"), recorder("b")]) as sess:
        sess.run(training.train_op)
    assert caught.value is error
    assert any(frame.name == "pull" for frame in caught.traceback)
    told = f"exception:{type(error).__name__}"
    assert events == [*START, "a.before", "b.before", f"b.{told}", f"a.{told}"]


# A hook's before_run or after_run raises ----------------------------------------------------------------------------


@pytest.mark.parametrize("callback", ["before", "after"])
def test_error_of_a_hook_is_an_error_of_the_run(training, recorder, events, callback):
    error = KeyError("loss")
    hooks = [recorder("a", fails={callback: error}), recorder("b")]
    with pytest.raises(KeyError) as caught, MonitoredSession(hooks=hooks) as sess:
        sess.run(training.train_op)
    assert caught.value is error
    called = ["a.before"] if callback == "before" else ["a.before", "b.before", "a.after"]
    assert events == [*START, *called, "b.exception:KeyError", "a.exception:KeyError"]


# A thread reports an exception --------------------------------------------------------------------------------------


def report(coord, error):
    thread = threading.Thread(target=coord.request_stop, args=(error,))
    coord.register_thread(thread)
    thread.start()
    thread.join()


def test_threads_error_stops_the_training_and_close_raises_it_after_the_ends(training, recorder, events):
    a, error = recorder("a"), ValueError("reader")
    sess = MonitoredSession(hooks=[a, recorder("b")])
    assert not sess.should_stop()
    report(a.coord, error)
    assert sess.should_stop()
    sess.run(training.train_op)
    with pytest.raises(ValueError, match="reader") as caught:
        sess.close()
    assert caught.value is error
    assert events == START + RUN + END


def test_should_stop_of_a_singular_session_raises_a_threads_error(training, recorder, events):
    a, error = recorder("a"), ValueError("reader")
    with pytest.raises(ValueError, match="reader") as caught, SingularMonitoredSession(hooks=[a]) as sess:  # noqa: PT012
        report(a.coord, error)
        sess.should_stop()
    assert caught.value is error
    assert events == ["a.begin", "a.created", "a.exception:ValueError"]


def test_threads_error_does_not_mask_the_error_of_the_body(training, recorder):
    a = recorder("a")
    with pytest.raises(KeyError) as caught, MonitoredSession(hooks=[a]):  # noqa: PT012
        report(a.coord, ValueError("reader"))
        raise KeyError("mine")
    assert caught.value.__notes__ == ["While closing the session, after that: ValueError: reader"]


# close() ------------------------------------------------------------------------------------------------------------


def test_close_calls_the_ends_once_and_a_later_close_or_run_raises(training, recorder, events):
    sess = MonitoredSession(hooks=[recorder("a"), recorder("b")])
    sess.close()
    assert events == START + END
    for again in (
        sess.close,
        lambda: sess.run(training.train_op),
        lambda: sess.run_step_fn(lambda step_context: None),
        sess.request_stop,
        sess.__enter__,
    ):
        with pytest.raises(RuntimeError, match=r"^Session is already closed\.$"):
            again()
    assert events == START + END
    assert sess.should_stop()


# request_stop -------------------------------------------------------------------------------------------------------


def test_request_stop_of_the_session_stops_its_loop_and_its_threads(training, recorder):
    a = recorder("a")
    with MonitoredSession(hooks=[a]) as sess:
        sess.request_stop()
        assert sess.should_stop()
        assert a.coord.should_stop()
        sess.run(training.train_op)


@pytest.mark.parametrize("how", ["hook", "coordinator", "session"])
def test_requested_stop_survives_a_recovery(training, recorder, how):
    a = recorder("a", stops=["after"] if how == "hook" else [])
    b = recorder("b", fails={"after": [AbortedError(None, None, "x"), None]})
    with MonitoredSession(hooks=[a, b]) as sess:
        if how == "coordinator":
            a.coord.request_stop()
        elif how == "session":
            sess.request_stop()
        sess.run(training.train_op)
        assert sess.should_stop()


@pytest.mark.parametrize("how", ["coordinator", "session"])
def test_cleared_stop_of_the_coordinator_is_cleared_in_the_session(training, recorder, how):
    a = recorder("a", fails={"after": [None, AbortedError(None, None, "x"), None]})
    with MonitoredSession(hooks=[a]) as sess:
        (a.coord if how == "coordinator" else sess).request_stop()
        a.coord.clear_stop()
        assert not sess.should_stop()
        sess.run(training.train_op)
        sess.run(training.train_op)  # The session is lost, and created again: the stop does not come back.
        assert not sess.should_stop()
        assert not a.coord.should_stop()
        sess.request_stop()
        assert sess.should_stop()


# Beyond -------------------------------------------------------------------------------------------------------------


def test_all_ends_are_called_and_later_errors_are_notes_on_the_first(training, recorder, events):
    first, second = ValueError("disk"), KeyError("op")
    sess = MonitoredSession(hooks=[recorder("a", fails={"end": first}), recorder("b", fails={"end": second})])
    with pytest.raises(ValueError, match="disk") as caught:
        sess.close()
    assert caught.value is first
    assert first.__notes__ == [
        "Raised by end() of the hook Recorder.",
        "While closing the session, after that: KeyError: 'op'",
    ]
    assert events == START + END


def test_end_of_input_raised_by_an_end_is_an_error(training, recorder):
    with (
        pytest.raises(OutOfRangeError),
        MonitoredSession(hooks=[recorder(fails={"end": OutOfRangeError(None, None, "x")})]),
    ):
        pass


def test_failing_after_create_session_closes_threads_and_session(training, recorder):
    started: list = []

    class Starting(SessionRunHook):
        def after_create_session(self, session, coord):
            thread = threading.Thread(target=coord.wait_for_stop)
            coord.register_thread(thread)
            thread.start()
            started.extend([thread, session])

    hook = recorder("b", fails={"created": [ValueError("no disk"), None]})
    starting = Starting()
    with pytest.raises(ValueError, match="no disk"):
        MonitoredSession(hooks=[starting, hook])
    thread, session = started
    assert not thread.is_alive()
    assert session.closed
    assert not training.graph.finalized
    MonitoredSession(hooks=[starting, hook]).close()  # they are free again


def test_error_caught_by_the_body_was_reported_and_end_is_still_called(training, recorder, events):
    training.faults.append(ValueError("bad"))
    with MonitoredSession(hooks=[recorder("a")]) as sess:
        with pytest.raises(ValueError, match="bad"):
            sess.run(training.train_op)
        sess.run(training.train_op)
    assert events[-4:] == ["a.exception:ValueError", "a.before", "a.after", "a.end"]


class Late(SessionRunHook):
    """Raises when its value, which nothing waits for, is delivered."""

    trigger, fetches, deferred = every(runs=1), "global_step:0", 100

    def __init__(self, error):
        self._error = error

    def on_trigger(self, firing):
        raise self._error


def test_failed_delivery_is_a_failed_run(training, recorder, events):
    error = ValueError("NaN at step 7")
    with (
        pytest.raises(ValueError, match="NaN") as caught,
        MonitoredSession(hooks=[recorder("a"), Late(error)]) as sess,
    ):
        sess.run(training.train_op)
    assert caught.value is error
    assert events[-2:] == ["a.after", "a.exception:ValueError"]
