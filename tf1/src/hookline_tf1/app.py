"""`tf.app`: runs a program's main function with its flags, through absl."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from absl import app as absl_app

from hookline_tf1 import flags
from hookline_tf1._machinery.namespaces import offered

__all__ = ["flags", "run"]


def run(main: Callable[[list[str]], Any] | None = None, argv: list[str] | None = None) -> None:
    """Parses the flags, runs `main` with the rest of the command line, and exits with its result.

    Args:
        main: The function; `main` of the script if None.
        argv: The command line; `sys.argv` if None.

    References:
        `tf.app.run`. As there, undefined flags are passed to `main`.
    """
    absl_app.run(main or sys.modules["__main__"].main, argv, flags_parser=_parsed)


def _parsed(argv: list[str]) -> list[str]:
    return flags.absl_flags.FLAGS(argv, known_only=True)


__getattr__, __dir__ = offered("tf.app", lambda: __all__)
