"""The `hookline` command line."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence

from hookline.cli import shown
from hookline.cli.parser import parser
from hookline.errors import OpError
from hookline.interrupts import held_back

FAILED = 1
MISUSED = 2
_EXTRAS = ("ray", "rich", "shtab")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the `hookline` command and returns its exit status.

    Args:
        argv: The arguments after `hookline`; None means those of this process.

    Raises:
        SystemExit: The arguments are invalid (2), or request help (0).

    Example:
        >>> import pytest
        >>> with pytest.raises(SystemExit):
        ...     main(["--version"])
        hookline ...
    """
    command = "hookline"
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        print("hookline: the standard output is closed.", file=sys.stderr)
        return FAILED
    try:
        arguments = parser().parse_args(argv)
        command = f"hookline {arguments.command}"
        with held_back():
            module = importlib.import_module(f"hookline.cli.{arguments.module}")
        status = module.run(arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # As of `| head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (OpError, ModuleNotFoundError, ValueError, OSError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name not in _EXTRAS:
            raise
        shown.complain(f"{command}: {_said(error)}")
        return MISUSED if isinstance(error, ValueError | ModuleNotFoundError) else FAILED


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        file = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
        return f"'{file}' cannot be read: {error.strerror}." if file else f"{error.strerror}."
    return str(error)
