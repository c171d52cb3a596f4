"""The table of outcomes of SPEC.md section 1, cell by cell, with real sessions."""

from __future__ import annotations

import threading

import pytest

from hookline.errors import AbortedError, OutOfRangeError, UnavailableError
from hookline.hooks import SessionRunHook, every
from hookline.monitored import MonitoredSession, RecoveryPolicy, SingularMonitoredSession

pytestmark = pytest.mark.usefixtures("clock")

ENDS_OF_INPUT = [OutOfRangeError(None, None, "no more records"), StopIteration()]
PREEMPTIONS = [AbortedError(None, None, "preempted"), UnavailableError(None, None, "peer away")]
START = ["a.begin", "b.begin", "a.created", "b.created"]
RUN = ["a.before", "b.before", "a.after", "b.after"]
END = ["a.end", "b.end"]


def fresh(error):
    return type(error)(*error.args)


# A run succeeds ------------------------------------------------------------------------------------------------------


def test_a_run_that_succeeds_gets_after_run_and_end_at_close(training, recorder, events):
    with MonitoredSession(hooks=[recorder("a"), recorder("b")]) as sess:
        assert sess.run(training.global_step) == 0
        assert events == START + RUN
    assert events == START + RUN + END


# A run raises the end of the input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ENDS_OF_INPUT, ids=lambda e: type(e).__name__)
def test_the_end_of_the_input_leaves_the_with_block_quietly(training, recorder, events, error):
    training.faults.append(fresh(error))
    with MonitoredSession(hooks=[recorder("a"), recorder("b")]) as sess:
        sess.run(training.train_op)
        pytest.fail("not reached")
    assert events == [*START, "a.before", "b.before", *END]


@pytest.mark.parametrize("error", ENDS_OF_INPUT, ids=lambda e: type(e).__name__)
def test_the_end_of_the_input_reaches_a_caller_without_a_with_block(training, recorder, events, error):
    training.faults.append(fresh(error))
    sess = MonitoredSession(hooks=[recorder("a"), recorder("b")])
    with pytest.raises(OutOfRangeError):  # a StopIteration of an op leaves the run as OutOfRangeError
        sess.run(training.train_op)
    sess.close()
    assert events == [*START, "a.before", "b.before", *END]


# A run raises anything else -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MonitoredSession, SingularMonitoredSession])
def test_any_other_error_of_a_run_reaches_the_caller_as_it_is_and_no_end_is_called(training, recorder, events, kind):
    error = ValueError("bad record")
    training.faults.append(error)
    with pytest.raises(ValueError, match="bad record") as caught, kind(hooks=[recorder("a"), recorder("b")]) as sess:
        sess.run(training.train_op)
    assert caught.value is error
    assert any(frame.name == "pull" for frame in caught.traceback)
    assert events == [*START, "a.before", "b.before", "b.exception:ValueError", "a.exception:ValueError"]


# A hook's before_run or after_run raises ----------------------------------------------------------------------------


@pytest.mark.parametrize("callback", ["before", "after"])
def test_an_error_of_a_hook_counts_as_one_of_the_run(training, recorder, events, callback):
    error = KeyError("loss")
    hooks = [recorder("a", fails={callback: error}), recorder("b")]
    with pytest.raises(KeyError) as caught, MonitoredSession(hooks=hooks) as sess:
        sess.run(training.train_op)
    assert caught.value is error
    called = ["a.before"] if callback == "before" else ["a.before", "b.before", "a.after"]
    assert events == [*START, *called, "b.exception:KeyError", "a.exception:KeyError"]


@pytest.mark.parametrize("callback", ["before", "after"])
@pytest.mark.parametrize("error", ENDS_OF_INPUT, ids=lambda e: type(e).__name__)
def test_the_end_of_the_input_from_a_hook_ends_cleanly(training, recorder, events, callback, error):
    with MonitoredSession(hooks=[recorder("a", fails={callback: fresh(error)}), recorder("b")]) as sess:
        sess.run(training.train_op)
        pytest.fail("not reached")
    called = ["a.before"] if callback == "before" else ["a.before", "b.before", "a.after"]
    assert events == START + called + END


@pytest.mark.parametrize("callback", ["before", "after"])
@pytest.mark.parametrize("error", PREEMPTIONS, ids=lambda e: type(e).__name__)
def test_a_preemption_from_a_hook_recovers_and_retries(training, recorder, events, callback, error):
    with MonitoredSession(hooks=[recorder("a", fails={callback: fresh(error)}), recorder("b")]) as sess:
        sess.run(training.train_op)
    called = ["a.before"] if callback == "before" else ["a.before", "b.before", "a.after"]
    assert events == [*START, *called, "a.created", "b.created", *RUN, *END]


# A preemption error in the run --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", PREEMPTIONS, ids=lambda e: type(e).__name__)
def test_a_preempted_run_is_retried_in_a_new_session_without_begin(training, recorder, events, error):
    training.faults.append(fresh(error))
    a = recorder("a")
    with MonitoredSession(hooks=[a, recorder("b")]) as sess:
        first = a.session
        sess.run(training.train_op)
        assert a.session is not first
        assert first.closed
    assert events == [*START, "a.before", "b.before", "a.created", "b.created", *RUN, *END]


@pytest.mark.parametrize("error", PREEMPTIONS, ids=lambda e: type(e).__name__)
def test_without_recovery_a_preemption_passes_like_any_other_error(training, recorder, events, error):
    error = fresh(error)
    for kind in (lambda **kw: MonitoredSession(recovery=None, **kw), SingularMonitoredSession):
        events.clear()
        training.faults.append(error)
        with pytest.raises(type(error)) as caught, kind(hooks=[recorder("a"), recorder("b")]) as sess:
            sess.run(training.train_op)
        assert caught.value is error
        assert events[-2:] == [f"b.exception:{type(error).__name__}", f"a.exception:{type(error).__name__}"]


# The body of the with block raises ----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), AbortedError(None, None, "mine")], ids=repr)
def test_an_error_of_the_body_reaches_the_caller_and_no_end_is_called(training, recorder, events, error):
    hooks = [recorder("a"), recorder("b")]
    with pytest.raises(type(error)) as caught, MonitoredSession(hooks=hooks) as sess:  # noqa: PT012
        sess.run(training.train_op)
        raise error
    assert caught.value is error
    name = type(error).__name__
    assert events == [*START, *RUN, f"b.exception:{name}", f"a.exception:{name}"]


def test_the_end_of_the_input_from_the_body_is_clean(training, recorder, events):
    with MonitoredSession(hooks=[recorder("a"), recorder("b")]):
        raise StopIteration
    assert events == START + END


# A thread reports an exception --------------------------------------------------------------------------------------


def report(coord, error):
    thread = threading.Thread(target=coord.request_stop, args=(error,))
    coord.register_thread(thread)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    "error", [ValueError("reader"), OutOfRangeError(None, None, "reader")], ids=lambda e: type(e).__name__
)
def test_an_error_of_a_thread_makes_should_stop_true_and_close_raises_it_after_the_ends(
    training, recorder, events, error
):
    a = recorder("a")
    sess = MonitoredSession(hooks=[a, recorder("b")])
    assert not sess.should_stop()
    report(a.coord, error)
    assert sess.should_stop()
    sess.run(training.train_op)
    with pytest.raises(type(error), match="reader") as caught:
        sess.close()
    assert caught.value is error
    assert events == START + RUN + END


def test_an_end_of_input_reported_by_a_thread_leaves_the_with_block(training, recorder):
    a = recorder("a")
    with pytest.raises(OutOfRangeError, match="reader"), MonitoredSession(hooks=[a]) as sess:  # noqa: PT012
        report(a.coord, OutOfRangeError(None, None, "reader"))
        assert sess.should_stop()


def test_in_a_singular_session_should_stop_raises_a_threads_error(training, recorder, events):
    a, error = recorder("a"), ValueError("reader")
    with pytest.raises(ValueError, match="reader") as caught, SingularMonitoredSession(hooks=[a]) as sess:  # noqa: PT012
        report(a.coord, error)
        sess.should_stop()
    assert caught.value is error
    assert events == ["a.begin", "a.created", "a.exception:ValueError"]


def test_should_stop_recovers_from_a_preemption_that_a_thread_reported(training, recorder, events):
    a = recorder("a")
    with MonitoredSession(hooks=[a]) as sess:
        report(a.coord, UnavailableError(None, None, "peer away"))
        assert not sess.should_stop()
        sess.run(training.train_op)
    assert events == ["a.begin", "a.created", "a.created", "a.before", "a.after", "a.end"]


def test_a_threads_error_does_not_mask_the_one_leaving_the_body(training, recorder):
    a = recorder("a")
    with pytest.raises(KeyError) as caught, MonitoredSession(hooks=[a]):  # noqa: PT012
        report(a.coord, ValueError("reader"))
        raise KeyError("mine")
    assert caught.value.__notes__ == ["While closing the session, after that: ValueError: reader"]


# close() ------------------------------------------------------------------------------------------------------------


def test_close_calls_the_ends_and_a_second_close_or_run_only_raises(training, recorder, events):
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


def test_closing_inside_the_with_block_is_enough(training, recorder, events):
    with MonitoredSession(hooks=[recorder("a"), recorder("b")]) as sess:
        sess.close()
    assert events == START + END


# request_stop -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("callback", ["before", "after"])
def test_a_hooks_request_stops_after_the_run_and_a_further_run_is_an_error(training, recorder, events, callback):
    with MonitoredSession(hooks=[recorder("a", stops=[callback]), recorder("b")]) as sess:
        sess.run(training.train_op)
        assert sess.should_stop()
        with pytest.raises(RuntimeError, match=r"^Run called even after should_stop requested\.$"):
            sess.run(training.train_op)
    assert events[: len(START + RUN)] == START + RUN


def test_after_a_stop_of_the_coordinator_alone_run_still_works(training, recorder):
    a = recorder("a")
    with MonitoredSession(hooks=[a]) as sess:
        a.coord.request_stop()
        assert sess.should_stop()
        sess.run(training.train_op)


def test_request_stop_of_the_session_stops_its_loop_and_its_threads(training, recorder):
    a = recorder("a")
    with MonitoredSession(hooks=[a]) as sess:
        sess.request_stop()
        assert sess.should_stop()
        assert a.coord.should_stop()
        sess.run(training.train_op)


@pytest.mark.parametrize("how", ["hook", "coordinator", "session"])
def test_a_requested_stop_survives_a_recovery(training, recorder, how):
    a = recorder("a", stops=["after"] if how == "hook" else [])
    b = recorder("b", fails={"after": [AbortedError(None, None, "x"), None]})
    with MonitoredSession(hooks=[a, b]) as sess:
        if how == "coordinator":
            a.coord.request_stop()
        elif how == "session":
            sess.request_stop()
        sess.run(training.train_op)
        assert sess.should_stop()


# Beyond -------------------------------------------------------------------------------------------------------------


def test_every_end_runs_the_first_error_is_raised_and_the_others_are_noted_on_it(training, recorder, events):
    first, second = ValueError("disk"), KeyError("op")
    sess = MonitoredSession(hooks=[recorder("a", fails={"end": first}), recorder("b", fails={"end": second})])
    with pytest.raises(ValueError, match="disk") as caught:
        sess.close()
    assert caught.value is first
    assert first.__notes__[-1] == "While closing the session, after that: KeyError: 'op'"
    assert events == START + END


def test_an_end_of_input_raised_by_an_end_is_an_error(training, recorder):
    with (
        pytest.raises(OutOfRangeError),
        MonitoredSession(hooks=[recorder(fails={"end": OutOfRangeError(None, None, "x")})]),
    ):
        pass


def test_a_failing_after_create_session_closes_threads_and_session(training, recorder):
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


def test_on_exception_is_not_called_for_what_was_recovered(training, recorder, events):
    training.faults.append(AbortedError(None, None, "x"))
    with MonitoredSession(hooks=[recorder("a")]) as sess:
        sess.run(training.train_op)
    assert not [event for event in events if "exception" in event]


def test_on_exception_is_called_once_for_one_error_and_its_own_errors_do_not_mask_it(training, recorder, events):
    training.faults.append(ValueError("bad"))
    hooks = [recorder("a"), recorder("b", fails={"exception": KeyError("x")})]
    with pytest.raises(ValueError, match="bad"), MonitoredSession(hooks=hooks) as sess:
        sess.run(training.train_op)
    assert events[-2:] == ["b.exception:ValueError", "a.exception:ValueError"]


def test_an_error_that_the_body_catches_was_told_and_the_end_still_comes(training, recorder, events):
    training.faults.append(ValueError("bad"))
    with MonitoredSession(hooks=[recorder("a")]) as sess:
        with pytest.raises(ValueError, match="bad"):
            sess.run(training.train_op)
        sess.run(training.train_op)
    assert events[-4:] == ["a.exception:ValueError", "a.before", "a.after", "a.end"]


class Late(SessionRunHook):
    """Raises when its value, which nothing waits for, is delivered."""

    trigger, fetches, late = every(runs=1), "global_step:0", 100

    def __init__(self, error):
        self._error = error

    def on_trigger(self, firing):
        raise self._error


def test_settling_that_fails_counts_as_a_failed_run(training, recorder, events):
    error = ValueError("NaN at step 7")
    with (
        pytest.raises(ValueError, match="NaN") as caught,
        MonitoredSession(hooks=[recorder("a"), Late(error)]) as sess,
    ):
        sess.run(training.train_op)
    assert caught.value is error
    assert events[-2:] == ["a.after", "a.exception:ValueError"]


def test_the_end_of_the_input_found_in_settling_is_clean(training, recorder, events):
    with MonitoredSession(hooks=[Late(StopIteration()), recorder("b")]) as sess:
        sess.run(training.train_op)
    assert events[-2:] == ["b.after", "b.end"]


def test_recovery_that_gives_up_raises_the_error_with_a_note_and_never_loops_for_ever(training, recorder, events):
    training.faults.extend(AbortedError(None, None, f"x{i}") for i in range(100))
    policy = RecoveryPolicy(max_attempts=3)
    with pytest.raises(AbortedError) as caught, MonitoredSession(hooks=[recorder("a")], recovery=policy) as sess:
        sess.run(training.train_op)
    assert "gave up after 3 attempts" in caught.value.__notes__[-1]
    assert events.count("a.created") == 4
    assert events.count("a.exception:AbortedError") == 1
    assert "a.end" not in events
