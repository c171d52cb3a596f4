"""The `hookline` command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from hookline.cli.in_step import InStepLaunch, launch_in_step
from hookline.cli.launch import Launch, launch
from hookline.distributed.cluster import Cluster, ClusterOptions
from hookline.errors import OpError
from hookline.monitored import RecoveryPolicy

FAILED = 1
MISUSED = 2
MAX_RESTARTS = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the `hookline` command and returns its exit status.

    Args:
        argv: The arguments after `hookline`; None means those of this process.

    Raises:
        SystemExit: The arguments are invalid (2), or ask for help (0).

    Example:
        >>> import pytest
        >>> with pytest.raises(SystemExit):
        ...     main(["--version"])
        hookline ...
    """
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except (OpError, ModuleNotFoundError, ValueError, OSError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name != "ray":
            raise
        print(f"hookline {arguments.command}: {error}", file=sys.stderr)
        return FAILED if isinstance(error, OpError | OSError) else MISUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hookline", description="Runs training scripts of hookline.")
    parser.add_argument("--version", action="version", version=f"hookline {version('hookline')}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    _add_launch(
        commands.add_parser(
            "launch",
            help="run a script in several processes: as a chief and workers with parameter servers, or in step",
        )
    )
    _add_stop(commands.add_parser("stop", help="end the parameter servers of a job on a Ray cluster"))
    return parser


def _add_launch(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs a script several times at once, as a chief and workers that find each other with "
        "Cluster.from_environment(). Without --address it starts a private Ray cluster on the loopback interface. "
        "Ctrl-C and SIGTERM ask every task to save and end, and stop all that was started. The exit status is that of "
        "the chief. With --in-step the processes run in step on this machine, as jax.distributed has it, without Ray; "
        "the exit status is that of the first one that fails."
    )
    add = parser.add_argument
    add("--in-step", action="store_true", help="run in step: every process does the same on its part of the data")
    add("--processes", type=_positive, default=None, metavar="N", help="how many processes run in step")
    add("--check-every-launch", action="store_true", help="have them compare each program before they launch it")
    add("--workers", type=_positive, default=None, help="how many processes train, the chief included (default: 1)")
    add("--servers", type=_positive, default=None, help="how many parameter servers hold the variables (default: 1)")
    add("--address", default=None, metavar="HOST:PORT", help="join the Ray cluster with this head")
    add("--token-path", default=None, metavar="FILE", help="the token of the Ray cluster that is joined")
    add("--job", default=None, help="name of the job among those of the Ray cluster (default: a new one)")
    add("--grace", type=_seconds, default=30.0, metavar="SECS", help="how long a stop may take (default: 30)")
    add(
        "--restart",
        choices=["none", "on-failure"],
        default="none",
        help="whether a task that failed is started again; with --in-step all are (default: none)",
    )
    add(
        "--max-restarts",
        type=_positive,
        default=None,
        metavar="N",
        help=f"how often each task, or all, with waits that grow from 1 to 60 seconds (default: {MAX_RESTARTS})",
    )
    add("script", type=Path, help="the Python script")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    parser.set_defaults(run=_launch)


def _add_stop(parser: argparse.ArgumentParser) -> None:
    parser.description = "Ends the parameter servers of a job, and what they hold. Their checkpoints stay."
    parser.add_argument("--address", required=True, metavar="HOST:PORT", help="head of the Ray cluster")
    parser.add_argument("--job", required=True, help="name of the job")
    parser.add_argument("--token-path", default=None, metavar="FILE", help="the token of the Ray cluster")
    parser.set_defaults(run=_stop)


def _launch(arguments: argparse.Namespace) -> int:
    if not arguments.script.is_file():
        raise ValueError(f"there is no script {str(arguments.script)!r}. Give the path of a Python file.")
    if arguments.in_step:
        return _launch_in_step(arguments)
    if arguments.processes is not None:
        raise ValueError(
            "--processes requires --in-step. The processes of a chief and workers are counted by --workers."
        )
    if arguments.check_every_launch:
        raise ValueError("--check-every-launch requires --in-step: a chief and workers launch what they like.")
    if arguments.address is None and arguments.token_path is not None:
        raise ValueError("--token-path requires --address: a private Ray cluster makes its own token.")
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


def _launch_in_step(arguments: argparse.Namespace) -> int:
    for name in ("workers", "servers", "address", "token_path", "job"):
        if getattr(arguments, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{option} does not go with --in-step: it is for a chief and workers, with parameter servers on Ray. "
                "Processes in step have neither, and are counted by --processes."
            )
    if arguments.processes is None:
        raise ValueError("--in-step requires --processes N, the number of processes on this machine.")
    return launch_in_step(
        InStepLaunch(
            command=(str(arguments.script), *arguments.arguments),
            processes=arguments.processes,
            grace_secs=arguments.grace,
            check_every_launch=arguments.check_every_launch,
            restarts=_restarts(arguments),
        )
    )


def _restarts(arguments: argparse.Namespace) -> RecoveryPolicy | None:
    if arguments.restart == "none":
        if arguments.max_restarts is not None:
            raise ValueError("--max-restarts requires --restart on-failure: without it no task is started again.")
        return None
    return RecoveryPolicy(arguments.max_restarts or MAX_RESTARTS, initial_backoff_secs=1.0)


def _stop(arguments: argparse.Namespace) -> int:
    options = ClusterOptions(token_path=arguments.token_path)
    count = Cluster(arguments.address, job=arguments.job, options=options).stop_servers()
    print(f"Ended {count} parameter servers of job {arguments.job!r}.")
    return 0


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"requires a whole number of at least 1, got {text!r}")
    return number


def _seconds(text: str) -> float:
    try:
        secs = float(text)
    except ValueError:
        secs = -1.0
    if not 0 <= secs < float("inf"):
        raise argparse.ArgumentTypeError(f"requires a number of seconds, got {text!r}")
    return secs
