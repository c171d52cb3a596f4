"""`hookline launch`: checks the combination of options, and starts the job."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from hookline.cli.parser import MAX_RESTARTS

if TYPE_CHECKING:
    from hookline.monitored import RecoveryPolicy

_NOT_IN_STEP = ("workers", "servers", "address", "token_path", "job")


def run(arguments: argparse.Namespace) -> int:
    """Starts the processes, waits, and returns the exit status."""
    _check(arguments)
    # Only now, so that wrong options are reported without a wait for JAX.
    if arguments.in_step:
        from hookline.cli.in_step import InStepLaunch, launch_in_step

        return launch_in_step(
            InStepLaunch(
                command=(str(arguments.script), *arguments.arguments),
                processes=arguments.processes,
                grace_secs=arguments.grace,
                check_every_launch=arguments.check_every_launch,
                restarts=_restarts(arguments),
            )
        )
    from hookline.cli.launch import Launch, launch

    return launch(
        Launch(
            command=(sys.executable, str(arguments.script), *arguments.arguments),
            workers=arguments.workers or 1,
            servers=arguments.servers or 1,
            address=arguments.address,
            token_path=arguments.token_path,
            job=arguments.job,
            grace_secs=arguments.grace,
            restarts=_restarts(arguments),
        )
    )


def _check(arguments: argparse.Namespace) -> None:
    if not arguments.script.is_file():
        raise ValueError(f"there is no script {str(arguments.script)!r}. Give the path of a Python file.")
    if arguments.in_step:
        for name in _NOT_IN_STEP:
            if getattr(arguments, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"{option} does not go with --in-step: it is for a chief and workers, with parameter servers on "
                    "Ray. Processes in step have neither, and are counted by --processes."
                )
        if arguments.processes is None:
            raise ValueError("--in-step requires --processes N, the number of processes on this machine.")
    elif arguments.processes is not None:
        raise ValueError(
            "--processes requires --in-step. The processes of a chief and workers are counted by --workers."
        )
    elif arguments.check_every_launch:
        raise ValueError("--check-every-launch requires --in-step: a chief and workers launch different programs.")
    elif arguments.address is None and arguments.token_path is not None:
        raise ValueError("--token-path requires --address: a private Ray cluster makes its own token.")
    if arguments.restart == "none" and arguments.max_restarts is not None:
        raise ValueError("--max-restarts requires --restart on-failure: without it no task is started again.")


def _restarts(arguments: argparse.Namespace) -> RecoveryPolicy | None:
    from hookline.monitored import RecoveryPolicy

    if arguments.restart == "none":
        return None
    return RecoveryPolicy(arguments.max_restarts or MAX_RESTARTS, initial_backoff_secs=1.0)
