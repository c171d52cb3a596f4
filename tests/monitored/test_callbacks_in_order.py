"""Every callback of two hooks around a training that saves: which come, in which order, whatever becomes of it."""

from __future__ import annotations

import contextlib

import pytest
from tests.monitored.conftest import QUICK

from hookline import train
from hookline.errors import AbortedError

EVERY = (
    "begin", "after_create_session", "get_state", "set_state", "end", "on_exception", "save_on_failure", "after_close",
)  # fmt: skip


def noting(name, events, kinds, fails=None, stops=False):
    """Returns a hook with these callbacks, which fires each two steps; `fails` is a callback and its error."""
    faults = dict([fails] if fails else [])

    def callback(kind):
        def note(self, *given):
            events.append(f"{name}.{kind}")
            if kind == "after_run" and stops:
                given[0].request_stop()
            if kind in faults:
                raise faults.pop(kind)
            return {} if kind == "get_state" else None

        return note

    methods = {kind: callback(kind) for kind in (*EVERY, *kinds)}
    return type("Noting", (), {**methods, "trigger": train.every(2), "name": name})()


def both(*kinds):
    return [f"{name}.{kind}" for kind in kinds for name in "ab"]


BEGUN = both("begin", "get_state", "after_create_session")  # It saves when it has begun.
FIRST = ["a.before_run", "a.after_run"]
SECOND = ["a.before_run", "b.before_trigger", "a.after_run", "b.on_trigger"]
CUT = SECOND[:2]
ENDED = both("get_state", "end", "after_close")
TOLD = ["b.on_exception", "a.on_exception"]
SAVED = [*both("get_state", "save_on_failure"), *TOLD, *both("after_close")]


@pytest.mark.parametrize(
    ("arguments", "callbacks"),
    [
        ({}, [*BEGUN, *FIRST, *SECOND, *ENDED]),
        ({"stops": True}, [*BEGUN, *FIRST, *ENDED]),
        ({"fault": StopIteration()}, [*BEGUN, *FIRST, *CUT, *ENDED]),
        (
            {"fault": AbortedError(None, None, "lost")},
            [*BEGUN, *FIRST, *CUT, *both("set_state", "after_create_session"), *FIRST, *ENDED],
        ),
        ({"fault": ValueError("bad")}, [*BEGUN, *FIRST, *CUT, *SAVED]),
        ({"error": ValueError("bad")}, [*BEGUN, *FIRST, *SECOND, *SAVED]),
        ({"error": KeyboardInterrupt()}, [*BEGUN, *FIRST, *SECOND, *SAVED]),
        ({"error": SystemExit()}, [*BEGUN, *FIRST, *SECOND, *SAVED]),
        ({"fails": ("begin", ValueError("bad"))}, ["a.begin", *both("after_close")]),
        ({"fails": ("after_create_session", ValueError("bad"))}, [*BEGUN[:5], *TOLD, *both("after_close")]),
        ({"fails": ("after_run", ValueError("bad"))}, [*BEGUN, *FIRST, *TOLD, *both("after_close")]),
        ({"fails": ("end", ValueError("bad"))}, [*BEGUN, *FIRST, *SECOND, *ENDED]),
        ({"fails": ("after_close", ValueError("bad"))}, [*BEGUN, *FIRST, *SECOND, *ENDED]),
    ],
)
def test_callbacks_are_called_in_the_documented_order(arguments, callbacks, events, training, tmp_path):
    given = dict(arguments)
    fault, error = given.pop("fault", None), given.pop("error", None)
    hooks = [
        noting("a", events, ["before_run", "after_run"], **given),
        noting("b", events, ["before_trigger", "on_trigger"]),
    ]

    def trained():
        with train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), hooks=hooks, save_checkpoint_steps=100,
            log_step_count_steps=None, save_summaries_steps=None, checkpoints=train.CheckpointOptions(**QUICK),
        ) as session:  # fmt: skip
            training.faults.extend([None, fault])
            for _ in range(2):
                if not session.should_stop():
                    session.run(training.train_op)
            if error:
                raise error

    is_raised = error or "fails" in given or isinstance(fault, ValueError)
    with pytest.raises(type(error or ValueError())) if is_raised else contextlib.nullcontext():
        trained()
    assert events == callbacks
