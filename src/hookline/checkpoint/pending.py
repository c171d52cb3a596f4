"""Saves under way in the background."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future

from hookline import log

_logger = log.of(__name__)

_under_way: set[PendingSave] = set()


def finish_saves(directory: str) -> None:
    """Waits for this process's saves into a directory; the code that began them reports their outcome."""
    for save in list(_under_way):
        if os.path.realpath(os.path.dirname(save.path) or ".") == os.path.realpath(directory):
            save.join()


def saves_under_way() -> list[str]:
    """Returns the checkpoints that this process is writing."""
    return [save.path for save in list(_under_way)]


class PendingSave:
    """A checkpoint that is being written in the background.

    Wait for it before the process ends. Otherwise it is abandoned, with a line in the log, and does not appear.

    Example:
        >>> pending = PendingSave("runs/a/model.ckpt-1", finish=lambda: None)
        >>> pending.wait()
        >>> pending.done(), pending.path
        (True, 'runs/a/model.ckpt-1')
    """

    def __init__(self, path: str, finish: Callable[[], None]) -> None:
        self.path = path
        self._end: Future[None] = Future()
        self._told = False
        # Only the thread holds `finish`, and drops it at the end, because it holds the copied values.
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
        error = None
        try:
            finish()
        except BaseException as raised:
            error = raised
            _logger.error("%s", error)
        _under_way.discard(self)
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)

    def when_done(self, function: Callable[[BaseException | None], None]) -> None:
        """Calls a function once the save has succeeded or failed, before `wait` returns; at once if it has.

        Args:
            function: Gets the error, or None. The thread of the save calls it. It must not raise.
        """
        functions = [function]  # It may hold a session, which the saver that holds this save is to outlive.
        self._end.add_done_callback(lambda end: functions.pop()(end.exception()))

    def join(self) -> None:
        """Blocks until it has succeeded or failed."""
        self._thread.join()

    def done(self) -> bool:
        """Returns whether it has succeeded or failed. Never blocks."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Blocks until the checkpoint is complete.

        Raises:
            OpError: It could not be written; the cause is attached. Each call raises it.
        """
        self._thread.join()
        self._told = True
        self._end.result()

    def wait_unless_told(self) -> None:
        """Blocks likewise, but does not repeat an error that `wait` has already raised."""
        if self._told:
            self._thread.join()
        else:
            self.wait()
