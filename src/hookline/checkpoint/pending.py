"""Saves that are under way in the background."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

_logger = logging.getLogger(__name__)

_under_way: set[PendingSave] = set()


def finish_saves(directory: str) -> None:
    """Waits for the saves into a directory that are under way in this process; who began them tells how they went."""
    for save in list(_under_way):
        if os.path.realpath(os.path.dirname(save.path) or ".") == os.path.realpath(directory):
            save.join()


def saves_under_way() -> list[str]:
    """Returns the checkpoints that this process is writing."""
    return [save.path for save in list(_under_way)]


class PendingSave:
    """A checkpoint that is being written in the background.

    Wait for it before the process ends: otherwise it is given up, with a line in the log, and does not appear.

    Example:
        >>> pending = PendingSave("runs/a/model.ckpt-1", finish=lambda: None)
        >>> pending.wait()
        >>> pending.done(), pending.path
        (True, 'runs/a/model.ckpt-1')
    """

    def __init__(self, path: str, finish: Callable[[], None]) -> None:
        self.path = path
        self._error: BaseException | None = None
        self._told = False
        # Only the thread knows `finish`, and forgets it: it holds the copied values.
        self._thread = threading.Thread(
            target=self._run, args=(finish,), name=f"hookline-save-{os.path.basename(path)}"
        )
        _under_way.add(self)
        try:
            self._thread.start()
        except BaseException:
            _under_way.discard(self)
            raise

    def _run(self, finish: Callable[[], None]) -> None:
        try:
            finish()
        except BaseException as error:
            self._error = error
            _logger.error("%s", error)
        finally:
            _under_way.discard(self)

    def join(self) -> None:
        """Blocks until it is over, well or badly."""
        self._thread.join()

    def done(self) -> bool:
        """Returns whether it is over, well or badly. Never blocks."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Blocks until the checkpoint is complete.

        Raises:
            OpError: It could not be written; the cause is attached. Raised by each call.
        """
        self._thread.join()
        self._told = True
        if self._error is not None:
            raise self._error

    def wait_unless_told(self) -> None:
        """Blocks likewise, but does not raise again what `wait` has raised before."""
        if self._told:
            self._thread.join()
        else:
            self.wait()
