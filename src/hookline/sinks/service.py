"""A sink that is somebody else's service: its run is found again, and points that it has are not sent twice."""

from __future__ import annotations

import importlib
import json
import logging
import os
from collections.abc import Sequence
from typing import Any

from hookline.checkpoint import durable
from hookline.sinks.sink import Point, Sink, Start

_logger = logging.getLogger(__name__)


class Service(Sink):
    """A service that only takes more and forgets nothing.

    The id of the run, and to which step each tag was sent, are in a file in the directory for summaries. A session that
    goes on there goes on with the same run, and leaves out what was sent. A training that begins at its first step
    begins a new run.
    """

    name = ""
    """The client's package, the extra of hookline that installs it, and what the file is called."""

    def __init__(self) -> None:
        try:
            self.client: Any = importlib.import_module(self.name)
        except ImportError as error:
            raise ImportError(
                f"{type(self).__name__} requires the package {self.name}: pip install 'hookline[{self.name}]'"
            ) from error
        self._path: str | None = None
        self._run: str | None = None
        self._sent: dict[str, int] = {}
        self._before: dict[str, int] = {}

    def connect(self, run: str | None, start: Start) -> str:
        """Goes on with a run, or begins one; returns its id.

        Raises:
            ConnectionError: It cannot now.
        """
        raise NotImplementedError

    def send(self, points: Sequence[Point]) -> None:
        """Sends points."""
        raise NotImplementedError

    def disconnect(self, failed: bool) -> None:
        """Ends the run."""
        raise NotImplementedError

    def open(self, start: Start) -> None:
        """Finds or begins the run."""
        if self._run is None:
            self._path = os.path.join(start.folder, f".{self.name}.json") if start.folder else None
            known, self._sent = (None, {}) if start.is_new else self._recalled()
            try:
                self._run = self.connect(known, start)
            except Exception as error:
                if known is not None:
                    error.add_note(
                        f"The run to go on with, {known}, is that of {self._path}: without it a new one begins."
                    )
                raise
            self._remember()
        self._before = dict(self._sent)

    def write(self, points: Sequence[Point]) -> None:
        """Sends what was not sent before."""
        new = [point for point in points if point.step is None or point.step > self._before.get(point.tag, -1)]
        if new:
            self.send(new)
            self._sent |= {point.tag: point.step for point in new if point.step is not None}
            self._remember()

    def close(self, failed: bool) -> None:
        """Ends the run, which a later session may go on with."""
        self._run = None
        self.disconnect(failed)

    def _recalled(self) -> tuple[str | None, dict[str, int]]:
        if self._path is None or not os.path.exists(self._path):
            return None, {}
        with open(self._path, encoding="utf-8") as file:
            found = json.load(file)
        return found["run"], found["sent"]

    def _remember(self) -> None:
        if self._path is None:
            return
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            durable.write(self._path, json.dumps({"run": self._run, "sent": self._sent}))
        except OSError as error:
            _logger.warning(
                "%s goes on without '%s', which it could not write: after a restart, points may be sent twice, or "
                "to a new run. %s",
                type(self).__name__,
                self._path,
                error,
            )
