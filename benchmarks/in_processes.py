"""Contestants that live in environments of their own: processes that make so many steps each time they are told."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import interleaved

_HERE = Path(__file__).parent


class Peer:
    """A process that reads a number of steps from each line of its input, makes them, and answers with a line.

    Args:
        python: The interpreter of its environment.
        script: What it runs.
        *args: Its arguments.
    """

    def __init__(self, python: str, script: str, *args: str) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [python, str(_HERE / script), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    def run(self, steps: int) -> None:
        """Has it make steps, and waits for them."""
        assert self._process.stdin is not None, "it is a pipe"
        assert self._process.stdout is not None, "it is a pipe"
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        if not self._process.stdout.readline():
            raise RuntimeError(f"The peer has ended with exit code {self._process.wait()}.")

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()


def tensorflow(stack: contextlib.ExitStack) -> dict[str, interleaved.Run] | None:
    """Returns TensorFlow's contestants; None, with a word, where its environment is missing."""
    python = os.environ.get("TF_PYTHON", ".venv-tf/bin/python")
    if not Path(python).exists():
        print(f"Without TensorFlow: there is no {python}. `make bench-peers` makes one.", file=sys.stderr)
        return None
    kinds = {"Session.run": "bare", "monitored, standard hooks, NaN check": "standard"}
    made = {name: Peer(python, "peer_tensorflow.py", kind) for name, kind in kinds.items()}
    for peer in made.values():
        stack.callback(peer.close)
    return {name: peer.run for name, peer in made.items()}
