"""Signals that a test sends to its own process, in which the launcher runs."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from hookline import clock


def when(path: Path, number: int, *after_secs: float) -> None:
    """This process gets a signal after a file is there, once or several times."""

    def send() -> None:
        deadline = clock.monotonic() + 60
        while not path.exists() and clock.monotonic() < deadline:
            clock.sleep(0.02)
        for secs in after_secs:
            clock.sleep(secs)
            os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()
