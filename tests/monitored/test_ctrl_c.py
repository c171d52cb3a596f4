"""Ctrl-C in a training that saves nothing: it is raised there and then where the user's code is at work."""

from __future__ import annotations

import signal

import numpy as np
import pytest

import hookline as hl
from hookline import train


class Presses:
    """Sends the signal of a Ctrl-C to this process at the third call, and notes whether that was survived."""

    def __init__(self):
        self.calls, self.went_on = 0, False

    def __call__(self):
        self.calls += 1
        if self.calls == 3:
            signal.raise_signal(signal.SIGINT)
            self.went_on = True


class Hook(train.SessionRunHook):
    """Presses in one callback, and notes what it is told of."""

    def __init__(self, press=None, callback=""):
        self.told = []
        if callback:
            setattr(self, callback, lambda *given: press())
        if callback == "on_trigger":
            self.trigger = train.every(1)

    def on_exception(self, session, exception):
        self.told.append(type(exception))

    def end(self, session):
        self.told.append("end")


def batches(press, place):
    number = 0
    while True:
        if place == "source":
            press()
        yield np.float32(number)
        number += 1


PLACES = [
    "body", "step function", "before_run", "after_run", "on_trigger", "host operation", "source",
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_it_is_raised_there_and_then_and_every_hook_is_told(place):
    press = Presses()
    hooks = [Hook(press, place if place in ("before_run", "after_run", "on_trigger") else ""), watches := Hook()]
    batch = hl.data.iterator(lambda: batches(press, place), prefetch=0)
    pressed = hl.host_op(press if place == "host operation" else lambda: None).node()
    with hl.control_dependencies([batch * 1.0, pressed]):
        train_op = train.get_or_create_global_step().assign_add(1)

    def step(step_context):
        if place == "step function":
            press()
        step_context.run_with_hooks(train_op)

    def training():
        with train.MonitoredSession(hooks=hooks) as session:
            for _ in range(10):
                session.run_step_fn(step) if place == "step function" else session.run(train_op)
                if place == "body":
                    press()

    with pytest.raises(KeyboardInterrupt):
        training()
    assert press.calls == 3
    assert not press.went_on
    assert watches.told == [KeyboardInterrupt]
