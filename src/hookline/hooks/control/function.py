"""FunctionHook: calls a function at a cadence."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from hookline import arguments
from hookline.hooks.base import Firing, SessionRunHook
from hookline.hooks.control.checkpoint_saver import CheckpointSaverHook
from hookline.hooks.epochs import Epoch
from hookline.hooks.trigger import Trigger
from hookline.hooks.triggers import every as every_steps
from hookline.signals.interrupts import calls_user_code


class FunctionHook(SessionRunHook):
    """Calls `function(firing)` at a cadence, with the values of its fetches.

    If a checkpoint is saved at the same step, the function is called first: the checkpoint contains the function's
    changes of the state.

    Callback: `on_trigger`.

    Args:
        function: A function of a `Firing`. Its result is not used.
        every: Global steps between calls, "epoch", or a trigger: `train.every(secs=60)`.
        fetches: The fetches whose values are in `firing.values`: any structure that a session can fetch, such as
            `loop.metrics`.

    Raises:
        TypeError: `function` cannot be called with one argument; or `every` is neither a whole number, "epoch" nor a
            trigger.
        ValueError: `every` is less than 1.

    Example:
        >>> import hookline as hl, numpy as np
        >>> def train_step(state, batch):
        ...     return {"w": state["w"] + 1.0, "beta": state["beta"]}, {"loss": state["w"] * state["beta"]}
        >>> state = {"w": np.zeros(()), "beta": np.ones(())}
        >>> loop = hl.train.Loop(train_step, state, hl.data.from_arrays(np.arange(6), batch_size=1))
        >>> def anneal(firing):
        ...     print(firing.global_step, firing.values)
        ...     loop.state_in(firing.context.session)["beta"] *= 0.5
        >>> state = loop.run(hooks=[FunctionHook(anneal, every=2, fetches=loop.metrics["loss"])], progress=False)
        2 1.0
        4 1.5
        6 1.25
        >>> print(state["beta"])
        0.125

    References:
        None in `tf.train`. Compare `clu.periodic_actions.PeriodicCallback` and Keras's `LambdaCallback`.
    """

    comes_before = (CheckpointSaverHook,)

    def __init__(self, function: Callable[[Firing], Any], every: int | Epoch | Trigger, fetches: Any = None) -> None:
        self._function = arguments.check_callable("FunctionHook", "function", function)
        try:
            inspect.signature(function).bind(None)
        except ValueError:  # A built-in function has no signature.
            pass
        except TypeError:
            raise TypeError(
                "FunctionHook requires a function of one argument, the firing with its step, epoch and values; got "
                f"{getattr(function, '__qualname__', function)}{inspect.signature(function)}."
            ) from None
        self.trigger = every if isinstance(every, Trigger) else every_steps(every)
        self.fetches = fetches
        self.state_key = getattr(function, "__qualname__", None) or type(function).__qualname__

    @calls_user_code
    def on_trigger(self, firing: Firing) -> None:
        """Calls the function."""
        self._function(firing)
