"""Again: the latest run, made once more and once more, as a training loop does."""

from __future__ import annotations

from typing import Any

from hookline.session.getters import Run

NOT_RUN = object()
"""In place of results: nothing was run."""


class Again:
    """Makes the latest run of a session again, as long as nothing else writes a variable: then nothing is looked up.

    It serves runs that are one program, of variables in this process, without feeds.

    Args:
        session: The session.
        prepared: The plan of the run.
    """

    __slots__ = ("_ahead", "_device", "_execution", "_lock", "_prepared", "_run", "_session", "_writes")

    def __init__(self, session: Any, prepared: Any) -> None:
        self._session, self._prepared, self._execution = session, prepared, prepared.execution
        self._device = prepared.execution.device
        # Where nobody gets anything of a run, one serves for all.
        self._run = Run(()) if prepared.nothing is not None else None
        self._lock, self._ahead, self._writes = session._lock, session._ahead, session.writes

    def run(self) -> Any:
        """Makes the run; returns the caller's results, or `NOT_RUN` where something else came in between."""
        session, run = self._session, self._run
        if run is None:
            run = Run(())
        with self._lock:
            if session.writes != self._writes or session._closed or session._lost is not None:
                return NOT_RUN
            try:
                self._device.launch(run)
            except Exception as error:
                session._failed(error)
                raise
            if self._execution.writes:
                session.writes = self._writes = self._writes + 1
        self._ahead.left -= 1
        if self._ahead.left <= 0:
            session._look(self._execution, run)
        session.check_run()
        return None if self._run is not None else session._results(self._prepared, run)
