"""`hookline completion`: completion scripts for shells."""

from __future__ import annotations

import argparse

from hookline.cli.main import parser

try:
    import shtab
except ModuleNotFoundError as error:
    if error.name != "shtab":
        raise
    raise ModuleNotFoundError("this requires shtab: pip install 'hookline[cli]'.", name="shtab") from error

_PATHS = {"RUN": shtab.DIRECTORY, "A": shtab.DIRECTORY, "B": shtab.DIRECTORY, "FILE": shtab.FILE}


def run(arguments: argparse.Namespace) -> int:
    """Prints the script, and returns the exit status."""
    whole = parser()
    commands = next(action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    for about in commands._choices_actions:
        command = commands.choices[about.dest]
        command.description = about.help
        for action in command._actions:
            kind = "FILE" if action.dest == "script" else action.metavar
            if isinstance(kind, str) and kind in _PATHS:
                action.complete = _PATHS[kind]  # pyright: ignore[reportAttributeAccessIssue]
    print(shtab.complete(whole, arguments.shell))
    return 0
