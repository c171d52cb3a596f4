"""Ctrl-C in a training that saves nothing: it is raised there and then where the user's code is at work."""

from __future__ import annotations

import gc
import signal
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
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
    """Presses Ctrl-C in one callback, and records its other callbacks."""

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
def test_ctrl_c_is_raised_at_once_and_reported_to_every_hook(place):
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


# In every other user function ----------------------------------------------------------------------------------


class Pressing:
    """A function that presses Ctrl-C once it is armed, and returns its last argument."""

    def __init__(self):
        self.is_armed, self.calls, self.went_on = False, 0, False

    def __call__(self, *given):
        if self.is_armed:
            self.is_armed = False
            self.calls += 1
            signal.raise_signal(signal.SIGINT)
            self.went_on = True
        return given[-1] if given else None


class OwnTrigger(train.Trigger):
    """Fires on each step, and presses when it is asked."""

    def __init__(self, press):
        self.press = press

    def next_step(self, after):
        return after + 1

    def is_due(self, step):
        self.press()
        return True


class OwnCreator(train.SessionCreator):
    def __init__(self, press):
        self.press = press

    def create_session(self):
        self.press()


class OwnSink(hl.sinks.Sink):
    def __init__(self, press):
        self.press = press

    def open(self, start):
        self.press()

    def write(self, points):
        pass


class OwnLine(train.LoggingTensorHook):
    """Overrides a method that is no callback."""

    press = None

    def log(self, values, elapsed_secs):
        self.press()


def logging(press):
    hook = OwnLine(["global_step:0"], every_n_iter=1)
    hook.press = press
    return hook


def calling(function, trigger):
    hook = train.FunctionHook(function, every=1)
    hook.trigger = trigger
    return hook


HOOKS = {
    "predicate": lambda press: calling(print, train.when_step(lambda step: press(False))),
    "trigger": lambda press: calling(print, OwnTrigger(press)),
    "part of a trigger": lambda press: calling(print, OwnTrigger(press) & train.every(1)),
    "function hook": lambda press: calling(press, train.every(1)),
    "formatter": lambda press: train.LoggingTensorHook(["global_step:0"], every_n_iter=1, formatter=press),
    "overridden method": logging,
    "function of feeds": lambda press: train.FeedFnHook(lambda: press({})),
    "object as a callback": lambda press: SimpleNamespace(after_run=press),
}

TRACED = {
    "op": lambda press, weight: hl.op(lambda value: press(value + 1))(weight),
    "gradient of an op": lambda press, weight: hl.gradients(hl.op(lambda value: press(value * value))(weight), weight),
    "update": lambda press, weight: hl.update(weight, lambda value: press(value + 1)),
    "schedule": lambda press, weight: optimized(weight, optax.sgd, press),
    "transformation": lambda press, weight: optimized(weight, lambda learning_rate: own_sgd(press), 0.1),
}

CREATORS = {
    "creator": OwnCreator,
    "init_fn": lambda press: train.ChiefSessionCreator(train.Scaffold(init_fn=press)),
}


def optimized(weight, transformation, rate):
    return train.Optimizer(transformation, learning_rate=rate).minimize(weight * weight)


def own_sgd(press):
    return optax.stateless(lambda grads, params: press(jax.tree.map(jnp.negative, grads)))


@pytest.mark.parametrize("place", [*HOOKS, *TRACED, *CREATORS, "initial value", "sink"])
def test_ctrl_c_is_raised_at_once_in_every_user_function(place):
    press = Pressing()
    train_op = train.get_or_create_global_step().assign_add(1)
    weight = hl.Variable(lambda: press(jnp.ones(())) if place == "initial value" else jnp.ones(()), name="weight")
    fetches = [train_op, *([TRACED[place](press, weight)] if place in TRACED else [])]
    hooks = [*([HOOKS[place](press)] if place in HOOKS else []), watches := Hook()]

    def training():
        if place == "sink":
            options = train.LoggingOptions(sinks=[OwnSink(press)])
            session = train.MonitoredTrainingSession(hooks=hooks, logging=options)
        else:
            creator = CREATORS[place](press) if place in CREATORS else None
            session = train.MonitoredSession(creator, hooks=hooks)
        with session:
            for _ in range(3):
                session.run(fetches)

    press.is_armed = True
    with pytest.raises(KeyboardInterrupt):
        training()
    assert press.calls == 1
    assert not press.went_on
    before_the_hooks = ("initial value", "init_fn", "creator")
    assert watches.told == ([] if place in before_the_hooks else [KeyboardInterrupt])


@pytest.mark.parametrize("place", ["train step", "eval step", "on_result", "state", "learning_rate"])
def test_ctrl_c_is_raised_at_once_in_every_function_of_a_loop(place):
    press = Pressing()
    pressing = lambda here, value: press(value) if here == place else value  # noqa: E731

    def train_step(weight, batch):
        return pressing("train step", weight - 0.1 * batch), {"loss": weight}

    def eval_step(weight, batch):
        return {"error": pressing("eval step", weight - batch)}

    evaluate = train.Evaluate(
        eval_step, [np.float32(1)], every=1, on_result=press if place == "on_result" else None
    )  # fmt: skip
    loop = train.Loop(
        train_step,
        lambda: pressing("state", jnp.ones(())),
        [np.float32(1)] * 3,
        learning_rate=press if place == "learning_rate" else None,
    )
    press.is_armed = True
    with pytest.raises(KeyboardInterrupt):
        loop.run(hooks=[evaluate, watches := Hook()], progress=False)
    assert press.calls == 1
    assert not press.went_on
    assert watches.told == ([] if place in ("state", "eval step") else [KeyboardInterrupt])


def test_ctrl_c_that_python_would_drop_is_raised_at_the_end_of_the_run():
    """Python prints an error of a callback of the garbage collection, such as JAX's, and drops it."""
    press = Pressing()
    callback = lambda *given: press()  # noqa: E731

    def collect():
        press.is_armed = True
        gc.collect()

    collected = hl.host_op(collect).node()
    gc.callbacks.append(callback)
    try:
        with train.MonitoredSession() as session, pytest.raises(KeyboardInterrupt):
            session.run(collected)
    finally:
        gc.callbacks.remove(callback)
    assert press.went_on
