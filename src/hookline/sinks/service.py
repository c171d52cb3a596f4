"""The base of sinks that send to a service: a restart continues the same run and sends no point twice."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Sequence
from typing import Any

from hookline import log
from hookline.checkpoint import durable
from hookline.sinks.sink import Point, Sink, Start

_logger = log.of(__name__)


class Service(Sink):
    """A service whose runs only grow.

    The id of the run, and the last step sent of each tag, are in a file in the directory for summaries. A session that
    continues a training there continues the same run, and leaves out the points already sent. A new training starts a
    new run.
    """

    name = ""
    """The name of the client's package, of the extra of hookline that installs it, and of the file."""

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
        """Continues a run, or starts one; returns its id.

        Raises:
            ConnectionError: The service cannot be reached now.
        """
        raise NotImplementedError

    def send(self, points: Sequence[Point]) -> None:
        """Sends points."""
        raise NotImplementedError

    def disconnect(self, failed: bool) -> None:
        """Ends the run."""
        raise NotImplementedError

    def open(self, start: Start) -> None:
        """Continues or starts the run."""
        if self._run is None:
            self._path = os.path.join(start.folder, f".{self.name}.json") if start.folder else None
            known, self._sent = (None, {}) if start.is_new else self._recalled()
            try:
                self._run = self.connect(known, start)
            except Exception as error:
                if known is not None:
                    error.add_note(
                        f"The run to continue, {known}, is that of '{self._path}'. Without that file a new run starts."
                    )
                raise
            self._remember()
        self._before = dict(self._sent)

    def write(self, points: Sequence[Point]) -> None:
        """Sends the points that were not sent before."""
        new = [point for point in points if point.step is None or point.step > self._before.get(point.tag, -1)]
        if new:
            self.send(new)
            self._sent |= {point.tag: point.step for point in new if point.step is not None}
            self._remember()

    def close(self, failed: bool) -> None:
        """Ends the run; a later session may continue it."""
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
