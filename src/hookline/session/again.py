"""Again: the latest run, to be made once more and once more, as a training loop does."""

from __future__ import annotations

from typing import Any

from hookline.session.device_stage import DeviceStage
from hookline.session.getters import Run

NOT_RUN = object()
"""In place of results: nothing was run."""


class Again:
    """Makes the latest run of a session again, as long as nothing else writes a variable or starts a program.

    Then nothing has to be looked up or checked: what the last run left is what the next one takes. It serves runs
    that are one program, of variables in this process, without feeds. Its caller keeps the runs within what the
    global step can count.

    Args:
        session: The session; its latest run was this one.
        prepared: The plan of that run.
        device: Its device stage.
    """

    __slots__ = ("_ahead", "_device", "_lock", "_prepared", "_session", "_writes")

    def __init__(self, session: Any, prepared: Any, device: DeviceStage) -> None:
        self._session, self._prepared, self._device = session, prepared, device
        self._lock, self._ahead, self._writes = session._lock, session._ahead, session.writes

    def run(self) -> Any:
        """Makes the run; returns the caller's results, or `NOT_RUN` where something else happened in between."""
        session = self._session
        with self._lock:
            if session.writes != self._writes or not self._device.is_latest:
                return NOT_RUN
            try:
                outputs = self._device.relaunch()
            except Exception as error:
                session._failed(error)
                raise
            session.writes = self._writes = self._writes + 1
        ahead = self._ahead
        ahead.left -= 1
        if ahead.left > 0 and self._prepared.nothing is not None:
            return None
        run = Run(())
        run.outputs = outputs
        if ahead.left <= 0:
            session._look(self._prepared.execution, run)
        return session._results(self._prepared, run)
