"""A training that does not end cleanly ends at once: on a second signal, or after the grace period."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from tests.python import Python

from hookline import clock
from hookline.train import latest_checkpoint

SIGTERM, SIGINT = signal.SIGTERM, signal.SIGINT


class Stubborn:
    """A busy process, and its output on the standard error."""

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
            self.printed, _ = self.process.communicate(timeout=30)
        finally:
            self.process.kill()
            self.process.communicate()
        return self.process.returncode


@pytest.mark.parametrize(
    ("way", "number", "status"),
    [
        ("computes", SIGTERM, 137),
        ("waits", SIGINT, -SIGINT),
        ("keeps a thread", SIGINT, 130),
        pytest.param("computes", SIGINT, 130, marks=pytest.mark.campaign),
        pytest.param("waits", SIGTERM, 137, marks=pytest.mark.campaign),
    ],
)
def test_second_signal_ends_at_once(tmp_path, way, number, status):
    stubborn = Stubborn(way, tmp_path)
    stubborn.process.send_signal(number)
    assert " to end it at once" in stubborn.hear(f"{number.name}: the training ends")
    # Two within a second are one: some tools signal a process, and also the process that forwards signals to it.
    threading.Event().wait(1.2)
    stubborn.process.send_signal(number)
    stubborn.hear(f"{number.name} again: ending at once")
    assert stubborn.end() == status
    assert latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-0"


def test_duplicate_signal_within_a_moment_counts_once(tmp_path):
    stubborn = Stubborn("waits at its end", tmp_path, grace_secs=1)
    stubborn.process.send_signal(SIGTERM)
    stubborn.process.send_signal(SIGTERM)
    stubborn.hear("SIGTERM: the training ends after the end of the session")
    assert "The time to leave the training is over: ending at once" in stubborn.hear("ending at once")
    assert stubborn.end() == 137


@pytest.mark.parametrize(
    ("way", "number", "status"),
    [
        ("compiles", SIGINT, 130),
        ("compiles", SIGTERM, 137),
        pytest.param("compiles and catches", SIGINT, 130, marks=pytest.mark.campaign),
    ],
)
def test_second_signal_ends_a_compilation_at_once(tmp_path, way, number, status):
    """JAX 0.10 continues it in a thread, and would wait for it, or crash, when the process ends."""
    stubborn = Stubborn(way, tmp_path)
    stubborn.hear("Constant folding an instruction is taking > 1s")
    stubborn.process.send_signal(number)
    stubborn.hear(f"{number.name}: the training ends")
    threading.Event().wait(1.2 if number == SIGTERM else 0.4)
    stubborn.process.send_signal(number)
    begun = clock.monotonic()
    stubborn.hear(f"{number.name} again: ending at once, without saving any more.")
    assert stubborn.end() == status
    assert clock.monotonic() - begun < 5
    assert stubborn.printed == "printed\n"


def test_second_ctrl_c_ends_a_compilation_also_without_saves(tmp_path):
    stubborn = Stubborn("compiles, and saves nothing", tmp_path)
    stubborn.hear("Constant folding an instruction is taking > 1s")
    stubborn.process.send_signal(SIGINT)
    stubborn.hear("Ctrl-C: waiting for the step under way; repeat it to end at once.")
    stubborn.process.send_signal(SIGINT)
    begun = clock.monotonic()
    stubborn.hear("SIGINT again: ending at once")
    assert stubborn.end() in (130, -SIGINT)
    assert clock.monotonic() - begun < 5


def test_second_signal_ends_a_process_stuck_in_logging(tmp_path):
    stubborn = Stubborn("logs", tmp_path)
    stubborn.process.send_signal(SIGTERM)
    threading.Event().wait(1.7)
    stubborn.process.send_signal(SIGTERM)
    begun = clock.monotonic()
    stubborn.process.wait(timeout=20)  # Nobody reads its log meanwhile.
    assert clock.monotonic() - begun < 5
    assert stubborn.end() == 137
