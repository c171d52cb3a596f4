"""What does not end in order ends at once: on a second signal, or when the time is over."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from tests.python import Python

from hookline.checkpoint import latest_checkpoint

SIGTERM, SIGINT = signal.SIGTERM, signal.SIGINT


class Stubborn:
    """A process that is busy, and what it says on its standard error."""

    def __init__(self, way, directory, grace_secs=600):
        self.process = Python(Path(__file__).with_name("stubborn.py"), way, directory, grace_secs)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "busy\n", self.process.communicate()

    def hear(self, text):
        assert self.process.stderr is not None
        for line in iter(self.process.stderr.readline, ""):
            if text in line:
                return line
        raise AssertionError(f"It ended without saying {text!r}.")

    def end(self):
        """Returns its exit status."""
        try:
            self.process.communicate(timeout=30)
        finally:
            self.process.kill()
            self.process.communicate()
        return self.process.returncode


@pytest.mark.parametrize(
    ("way", "number", "status"),
    [
        ("computes", SIGTERM, 143),
        ("waits", SIGINT, -SIGINT),
        pytest.param("computes", SIGINT, 130, marks=pytest.mark.campaign),
        pytest.param("waits", SIGTERM, 143, marks=pytest.mark.campaign),
    ],
)
def test_a_second_signal_means_now(tmp_path, way, number, status):
    stubborn = Stubborn(way, tmp_path)
    stubborn.process.send_signal(number)
    assert "repeat it to end at once" in stubborn.hear(f"{number.name}: leaving the training")
    # Two within a second are one: some send a signal to a process, and to who passes it on.
    threading.Event().wait(1.2)
    stubborn.process.send_signal(number)
    stubborn.hear(f"{number.name} again: ending at once")
    assert stubborn.end() == status
    assert latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-0"


def test_a_signal_that_comes_twice_in_a_moment_is_one(tmp_path):
    stubborn = Stubborn("waits at its end", tmp_path, grace_secs=1)
    stubborn.process.send_signal(SIGTERM)
    stubborn.process.send_signal(SIGTERM)
    stubborn.hear("SIGTERM: leaving the training. Waiting for the end of the session")
    assert "The time to leave the training is over: ending at once" in stubborn.hear("ending at once")
    assert stubborn.end() == 143
