"""Checkpoint listeners: called before each checkpoint is written, and when it is complete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hookline import arguments
from hookline.checkpoint.directory import collective
from hookline.signals import interrupts

_CALLBACKS = ("begin", "before_save", "after_save", "end")


class CheckpointSaverListener:
    """Called around every checkpoint that a `CheckpointSaverHook` writes. Override the methods you need.

    The order is `begin` once, then `before_save` and `after_save` around each checkpoint, and `end` once. The
    checkpoint is complete when `after_save` is called, so it can be copied or evaluated there.

    Example:
        >>> class Announce(CheckpointSaverListener):
        ...     def after_save(self, session, global_step_value):
        ...         print("saved step", global_step_value)
        >>> Announce().after_save(session=None, global_step_value=100)
        saved step 100

    References:
        `tf.train.CheckpointSaverListener`.
    """

    def begin(self) -> None:
        """Called once, before a session exists; may add to the graph."""

    def before_save(self, session: Any, global_step_value: int) -> None:
        """Called before a checkpoint is written.

        Args:
            session: The session whose variables are saved.
            global_step_value: The number of completed steps.
        """

    def after_save(self, session: Any, global_step_value: int) -> bool | None:
        """Called when the checkpoint is complete.

        Args:
            session: The session whose variables were saved.
            global_step_value: The number of completed steps, as in the checkpoint's name.

        Returns:
            True to stop the training; ignored at the first and at the last checkpoint.
        """

    def end(self, session: Any, global_step_value: int) -> None:
        """Called once when training ends, after the last checkpoint.

        Args:
            session: The session, still open.
            global_step_value: The number of completed steps.
        """


def check_listeners(who: str, listeners: Iterable[Any] | None) -> tuple[Any, ...]:
    """Returns the listeners of a hook. Like hooks, they need not inherit or have every callback.

    Raises:
        TypeError: A listener has none of the callbacks.
    """
    found = tuple(arguments.check_list(who, "listeners", listeners, optional=True))
    for position, listener in enumerate(found):
        if isinstance(listener, type) or not any(callable(getattr(listener, name, None)) for name in _CALLBACKS):
            raise TypeError(
                f"listeners[{position}] must be an object with a callback of a CheckpointSaverListener "
                f"({', '.join(_CALLBACKS)}), got {listener!r}."
            )
    return found


def any_after_save(listeners: Iterable[Any]) -> bool:
    """Returns whether a listener defines `after_save`, for which the checkpoint must be complete."""
    return any(map(_defines_after_save, listeners))


def call_listeners(listeners: Iterable[Any], callback: str, *given: Any) -> bool:
    """Calls all listeners that have this callback, and returns whether any of them returned True.

    In multi-process SPMD only the chief's are called, except for `begin`, which may add to the graph.
    """
    found = [getattr(listener, callback, None) for listener in listeners]
    callbacks = [function for function in found if function is not None]

    def call_all() -> bool:
        return any([interrupts.call_user_function(function, *given) is True for function in callbacks])

    if callback == "begin" or not callbacks:
        return call_all()
    return collective.current().run_on_chief(call_all)


def _defines_after_save(listener: Any) -> bool:
    after_save = getattr(listener, "after_save", None)
    return after_save is not None and getattr(after_save, "__func__", None) is not CheckpointSaverListener.after_save
