"""The listener that is told about every checkpoint: before it is written, and when it is complete."""

from __future__ import annotations

from typing import Any


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
            True to ask the training to stop; ignored at the first and at the last checkpoint.
        """

    def end(self, session: Any, global_step_value: int) -> None:
        """Called once when training ends, after the last checkpoint.

        Args:
            session: The session, still open.
            global_step_value: The number of completed steps.
        """
