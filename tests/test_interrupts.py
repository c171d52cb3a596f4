"""Ctrl-C while hookline is imported, at the moments at which Python drops exceptions."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from hookline.extend import defer_sigint

# Presses Ctrl-C while garbage is collected, once a module is loaded; an exception raised there is dropped.
SCRIPT = """
import gc, os, signal, sys
presses = [None]

def press(phase, info):
    if "{during}" in sys.modules and presses:
        presses.pop()
        os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
gc.set_threshold(100)
gc.callbacks.append(press)
{statement}
print("it goes on, presses left:", len(presses))
"""


@pytest.fixture
def default_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ended(statement, during):
    script = SCRIPT.format(statement=statement, during=during)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("statement", "during"),
    [
        pytest.param("from hookline import Session", "jax", marks=pytest.mark.campaign),
        ("from hookline import Session", "hookline.session"),
        pytest.param("from hookline import train", "hookline.hooks", marks=pytest.mark.campaign),
    ],
)
def test_ctrl_c_during_an_import_ends_the_script_after_it(statement, during):
    done = ended(statement, during)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, ""), done.stderr
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert "Exception ignored" not in done.stderr


def test_second_ctrl_c_does_not_wait_for_the_end_of_the_import(default_handler):
    def press_twice():
        signal.raise_signal(signal.SIGINT)
        reached.append("the first is held back")
        signal.raise_signal(signal.SIGINT)
        reached.append("never")

    reached = []
    with pytest.raises(KeyboardInterrupt), defer_sigint():
        press_twice()
    assert reached == ["the first is held back"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_import_normally(default_handler):
    def imports():
        with defer_sigint():
            handlers.append(signal.getsignal(signal.SIGINT))

    handlers = []
    thread = threading.Thread(target=imports)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


def test_script_that_ignores_ctrl_c_keeps_ignoring_it():
    ignored = "signal.signal(signal.SIGINT, signal.SIG_IGN)\nfrom hookline import Session"
    done = ended(ignored, "jax")
    assert (done.returncode, done.stdout) == (0, "it goes on, presses left: 0\n"), done.stderr
