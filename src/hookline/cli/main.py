"""The `hookline` command: its options and help, and the call of a subcommand. Importing it is quick."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import math
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from hookline.cli import output
from hookline.errors import OpError
from hookline.log import escape_text
from hookline.signals.interrupts import defer_sigint
from hookline.version import __version__

MAX_RESTARTS = 10
_NOT_WITH_SPMD = ("workers", "servers", "address", "token_path", "job")

_RUN = "folder with the checkpoints of a run, or one checkpoint in it, such as runs/a/model.ckpt-40"
_EVERY = """
The exit status is 0, or 1 if the command failed or there is no run, or 2 if the arguments are wrong.
"""


_Commands: TypeAlias = "argparse._SubParsersAction[Any]"

FAILED = 1
MISUSED = 2
_EXTRAS = ("ray", "shtab")


class _Parser(argparse.ArgumentParser):
    """Accepts no abbreviations, and escapes terminal codes in messages, which may contain arguments."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Reports unknown options with the usage of the subcommand, whose options they may resemble."""
        found, unknown = super().parse_known_args(args, namespace)
        for word in unknown:
            if not word.startswith("-"):
                self.error(f"there is an argument too many: {word}.")
            near = difflib.get_close_matches(word.partition("=")[0], self._option_string_actions, n=1)
            self.error(f"there is no option {word}.{f' Did you mean {near[0]}?' if near else ''}")
        return found, unknown

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(escape_text(message), file)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command. `module` and `function` in its result name the function to call."""
    made = _Parser(
        prog="hookline",
        description="Inspects runs of hookline, and starts training scripts in several processes.",
        epilog="hookline COMMAND --help describes a command, with examples.",
    )
    made.add_argument("--version", action="version", version=f"hookline {__version__}")
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_runs(commands)
    _add_inspect(commands)
    _add_report(commands)
    _add_account(commands)
    _add_diff(commands)
    _add_events(commands)
    _add_clean(commands)
    _add_replay(commands)
    _add_launch(commands)
    _add_stop(commands)
    _add_completion(commands)
    return made


def _command(
    commands: _Commands,
    module: str,
    name: str,
    summary: str,
    text: str,
    examples: str = "",
) -> argparse.ArgumentParser:
    paragraphs = (" ".join(part.split()) for part in text.strip().split("\n\n"))
    made = commands.add_parser(
        name,
        help=summary,
        description="\n\n".join(textwrap.fill(part, 78) for part in paragraphs),
        epilog=f"examples:\n{textwrap.indent(textwrap.dedent(examples).strip(), '  ')}" if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(module=module, function="run")
    return made


def _add_runs(commands: _Commands) -> None:
    made = _command(
        commands,
        "report.list_runs",
        "runs",
        "list the runs below a folder, the newest first",
        f"""
        Lists every folder with checkpoints or event files, with its step, state, age, best evaluation and size. It
        reads no arrays and writes nothing, so trainings may be running. A run that cannot be read does not hide the
        others.

        The state is "running", "finished" (by the last step, the end of the data or a final stop; a restart trains
        nothing), "stopped" (by a signal, an error, a time limit or a hook whose stop is not final; a restart
        continues), "killed", "broken" (the newest checkpoint), "unreadable", or "unknown" for a run without checkpoints
        whose event files have no end.

        {_EVERY}
        """,
        """
        hookline runs
        hookline runs experiments
        hookline runs experiments --json | jq '.[] | select(.state == "killed").run'
        """,
    )
    made.add_argument("folder", metavar="FOLDER", nargs="?", default=os.curdir, help="the folder (default: this one)")
    made.add_argument("--json", action="store_true", help="print JSON: sizes in bytes, times in seconds")


def _add_report(commands: _Commands) -> None:
    made = _command(
        commands,
        "report.report_run",
        "report",
        "write an HTML page about a run",
        f"""
        Writes one HTML page: the curves of the training with those of its evaluations, the best values and the
        restarts; the speed, the checkpoints, the devices, the hyperparameters and the versions. It needs no network and
        no script. The page lists what could not be read.

        It reads no arrays, and the training may be running.

        {_EVERY}
        """,
        """
        hookline report runs/a
        hookline report runs/a --out a.html
        """,
    )
    made.add_argument("run", metavar="RUN", help="folder of a run")
    made.add_argument("--out", metavar="FILE", help="the file to write (default: report.html in the folder of the run)")


def _add_account(commands: _Commands) -> None:
    made = _command(
        commands,
        "report.account_table",
        "account",
        "print where the time of a run went, over all its starts",
        f"""
        Prints the share of the time since the first start that went into steps that are part of the run's history, into
        steps that were made again, compilations, waiting for data, saves that blocked, evaluations, starts, restores,
        and the time between processes. The run may be going on.

        {_EVERY}
        """,
        """
        hookline account runs/a
        hookline account runs/a --json | jq '.[].useful_share'
        """,
    )
    made.add_argument("run", metavar="RUN", help="folder of a run")
    made.add_argument("--json", action="store_true", help="print JSON, an object for each process")


def _add_inspect(commands: _Commands) -> None:
    made = _command(
        commands,
        "inspect_run",
        "inspect",
        "show the checkpoints of a run, and the variables of one",
        f"""
        Lists the checkpoints of a run, newest first, with step, age, size and the devices that they were saved from;
        names the newest complete one, broken and half-written ones with the reason, and the process that saves there
        now. Then it reads the variables of the newest one, or of the given checkpoint, compares them with their
        checksums, and shows their shapes, dtypes and norms.

        It needs one CPU, whatever the devices were, and keeps one variable in memory at a time. It writes nothing, so
        the training may be running.

        {_EVERY} With --verify it is 1 as well if a checkpoint is broken.
        """,
        """
        hookline inspect runs/a
        hookline inspect runs/a/model.ckpt-40
        hookline inspect runs/a --no-values          # reads no arrays, for large models
        hookline inspect runs/a --verify             # reads every checkpoint
        hookline inspect runs/a --json | jq .newest
        """,
    )
    made.add_argument("run", metavar="RUN", help=_RUN)
    values = made.add_mutually_exclusive_group()
    values.add_argument("--no-values", action="store_true", help="read no variable: show shapes and dtypes, no norms")
    values.add_argument("--verify", action="store_true", help="read all checkpoints, not only one, and compare them")
    made.add_argument("--all", action="store_true", help="list the states of hooks too, not only how many there are")
    made.add_argument("--json", action="store_true", help="print JSON: sizes in bytes, times in seconds")


def _add_diff(commands: _Commands) -> None:
    made = _command(
        commands,
        "diff_runs",
        "diff",
        "compare the variables of two checkpoints",
        f"""
        Lists the variables that only B has, those that only A has, and those with another shape or dtype. For the
        others it lists the largest difference of an element, the norm of the difference over the norm of A, and the
        number of elements that differ. A NaN equals a NaN. Two variables are in memory at a time.

        For a run it compares the newest complete checkpoint; a line names a newer one that is broken.

        {_EVERY} It is 1 as well if a variable of a broken checkpoint could not be compared.
        """,
        """
        hookline diff runs/a runs/b
        hookline diff runs/a/model.ckpt-40 runs/a/model.ckpt-80
        hookline diff runs/a runs/b --all
        hookline diff runs/a runs/b --json
        """,
    )
    made.add_argument("a", metavar="A", help="folder of a run, or one checkpoint")
    made.add_argument("b", metavar="B", help="another one, to compare with A")
    made.add_argument("--all", action="store_true", help="list the states of hooks too, not only how many differ")
    made.add_argument("--json", action="store_true", help="print JSON, including the variables that are the same")


def _add_events(commands: _Commands) -> None:
    made = _command(
        commands,
        "show_events",
        "events",
        "show the scalars of runs as a table, as CSV or as JSON",
        f"""
        Reads event files with TensorBoard's reader: in each folder and in the folders below it, such as the
        "eval" of an evaluation. The table has a line for each scalar and folder: the number of points, the first and
        the last step, the last, least and greatest value, and the curve. Steps that a training repeated after a restart
        count once, as in TensorBoard.

        If an event file ends in the middle of a record, or a record is damaged, a line reports how much of it was read:
        TensorBoard reads no further either. In a running training the end may not be written yet.

        {_EVERY}
        """,
        """
        hookline events runs/a
        hookline events runs/a runs/b --tag 'loss*'
        hookline events runs/a --csv > scalars.csv
        hookline events runs/a --json | jq '.[].value'
        """,
    )
    made.add_argument("runs", metavar="RUN", nargs="+", help="folder with event files in it or below it")
    made.add_argument(
        "--tag",
        metavar="PATTERN",
        action="append",
        help="only scalars with a matching name, as in 'eval/*'; may be repeated",
    )
    form = made.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print every point as CSV: run,tag,step,wall_time,value")
    form.add_argument("--json", action="store_true", help="print every point as JSON, with the same fields")


def _add_clean(commands: _Commands) -> None:
    made = _command(
        commands,
        "clean_run",
        "clean",
        "remove old checkpoints, and half-written ones of killed processes",
        f"""
        Lists the checkpoints to remove, and removes them only with --yes. The newest N complete checkpoints are kept.
        In addition it keeps the best one, the last one marked as good, the last one of a failed training, those that
        keep_checkpoint_every_n_hours keeps permanently, and broken ones, which you may want to inspect. Half-written
        checkpoints of killed processes are removed.

        Without --keep, N is the max_to_keep of the training, from the run's state file. With --yes, the newest
        checkpoint is read first: if it is broken, nothing is removed. While another process saves there, nothing is
        removed either.

        {_EVERY}
        """,
        """
        hookline clean runs/a                        # only lists them
        hookline clean runs/a --keep 1 --yes
        """,
    )
    made.add_argument("run", metavar="RUN", help="folder with the checkpoints of a run")
    made.add_argument("--keep", type=_positive, metavar="N", help="the number of newest checkpoints to keep")
    made.add_argument("--yes", action="store_true", help="remove them, instead of only listing them")
    made.add_argument(
        "--wait",
        type=_seconds,
        default=0.0,
        metavar="SECS",
        help="with --yes: how long to wait for the end of another process that saves there (default: 0). A process "
        "on another host that sends no heartbeat for 30 seconds counts as ended",
    )


def _add_replay(commands: _Commands) -> None:
    made = _command(
        commands,
        "report.replay_run",
        "replay",
        "run steps of a past run again, prove that they are the same, and look at values",
        """
        Runs the training script of a run with its arguments. Its first training in the folder of the run becomes a
        replay: it begins at the newest checkpoint at or before the first step, launches the same programs on the same
        batches, with the same keys, and ends after the last step. hookline changes nothing in the folder, and the
        training may be running. Trainings without a folder run as they are; one in another folder is an error. A run
        of several SPMD processes is replayed by as many, on this machine.

        The table has the values of metrics, and of arrays of the state before the update of the step: of an array its
        norm. A line states at which checkpoints the state has the same bits as in the run.

        The exit status is 0, or 3 if the bits differ, or 1 if the command failed, or 2 if the arguments are wrong.
        """,
        """
        hookline replay runs/a --steps 1200:1300 --fetch loss train.py --logdir runs/a
        hookline replay runs/a --steps 1200:1300 --fetch loss --fetch params/dense/kernel --every 10 train.py
        hookline replay runs/a --steps 1200:1300 --nan train.py
        hookline replay runs/a --steps 1200:1300 --look looks:GradientHistogram train.py
        """,
    )
    add = made.add_argument
    add("run", metavar="RUN", help="folder of a run")
    add("--steps", required=True, metavar="N:M", help="show the steps after N, up to M")
    add(
        "--fetch",
        metavar="NAME",
        action="append",
        default=[],
        help="a metric, or an array of the state or the batch, as in 'params/kernel' or 'batch/0'; may be repeated "
        "(default: the metrics that are numbers)",
    )
    add(
        "--look",
        metavar="MODULE:CLASS",
        action="append",
        default=[],
        help="a hook that only reads, made without arguments; may be repeated",
    )
    add("--nan", action="store_true", help="find the first metric or array that is not finite, with norms before it")
    add("--every", type=_positive, default=1, metavar="N", help="the steps from one row to the next (default: 1)")
    add("--csv", metavar="FILE", help="write the table to a file as CSV, instead of printing it")
    add("--events", metavar="FOLDER", help="write the table as event files for TensorBoard, instead of printing it")
    add("script", type=Path, help="the Python script")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")


def _add_launch(commands: _Commands) -> None:
    made = _command(
        commands,
        "launch",
        "launch",
        "run a script in several processes: chief and workers with parameter servers, or SPMD",
        """
        Runs a script several times at once, as a chief and workers that find each other with
        Cluster.from_environment(): asynchronous training with parameter servers. Without --address it starts a local
        Ray cluster on the loopback interface. On Ctrl-C and SIGTERM every task saves and ends, and all started
        processes are stopped. The exit status is that of the chief.

        With --spmd the processes train synchronously on this machine, with jax.distributed and without Ray; the
        exit status is that of the first one that fails.
        """,
        """
        hookline launch --workers 4 --servers 2 train.py --steps 1000
        hookline launch --spmd --processes 4 train.py
        """,
    )
    add = made.add_argument
    add("--spmd", action="store_true", help="train synchronously: all processes compute each step together")
    add("--processes", type=_positive, default=None, metavar="N", help="with --spmd: the number of processes")
    add(
        "--stall-secs",
        type=_seconds_above_0,
        default=None,
        metavar="SECS",
        help="with --spmd: end all processes if none has made progress for so long (default: never)",
    )
    add("--check-every-launch", action="store_true", help="compare each program among the processes before its launch")
    add("--workers", type=_positive, default=None, help="the number of workers, including the chief (default: 1)")
    add("--servers", type=_positive, default=None, help="the number of parameter servers (default: 1)")
    add("--address", default=None, metavar="HOST:PORT", help="join the Ray cluster with this head")
    add("--token-path", default=None, metavar="FILE", help="the token of that Ray cluster")
    add("--job", default=None, help="name of the job on the Ray cluster (default: a new one)")
    add("--grace", type=_seconds, default=30.0, metavar="SECS", help="the time for tasks to save and end (default: 30)")
    add(
        "--restart",
        choices=["none", "on-failure"],
        default="none",
        help="whether to restart a failed task; with --spmd all processes (default: none)",
    )
    add(
        "--max-restarts",
        type=_positive,
        default=None,
        metavar="N",
        help=f"how often to restart a task, or all, after waits of 1 to 60 seconds (default: {MAX_RESTARTS})",
    )
    add("script", type=Path, help="the Python script")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")


def _add_stop(commands: _Commands) -> None:
    text = "Ends the parameter servers of a job and frees their variables. Checkpoints stay."
    made = _command(commands, "launch", "stop", "end the parameter servers of a job on a Ray cluster", text)
    made.set_defaults(function="stop")
    made.add_argument("--address", required=True, metavar="HOST:PORT", help="head of the Ray cluster")
    made.add_argument("--job", required=True, help="name of the job")
    made.add_argument("--token-path", default=None, metavar="FILE", help="the token of the Ray cluster")


def _add_completion(commands: _Commands) -> None:
    made = _command(
        commands,
        "main",
        "completion",
        "print a script that completes this command in a shell",
        """
        Prints a script with which a shell completes commands, options and folders on Tab, without starting Python.
        """,
        """
        eval "$(hookline completion bash)"           # in ~/.bashrc
        hookline completion zsh > ~/.zfunc/_hookline # a folder of $fpath, before compinit
        hookline completion fish > ~/.config/fish/completions/hookline.fish
        """,
    )
    made.set_defaults(function="complete")
    made.add_argument("shell", choices=["bash", "zsh", "fish"], help="the shell")


def complete(arguments: argparse.Namespace) -> int:
    """Prints a script that completes the command in a shell, and returns the exit status."""
    try:
        import shtab
    except ModuleNotFoundError as error:
        if error.name != "shtab":
            raise
        raise ModuleNotFoundError("this requires shtab: pip install shtab", name="shtab") from error
    paths = dict.fromkeys(("RUN", "A", "B", "FOLDER"), shtab.DIRECTORY) | {"FILE": shtab.FILE}
    whole = parser()
    commands = next(action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    for about in commands._choices_actions:
        command = commands.choices[about.dest]
        command.description = about.help
        for action in command._actions:
            kind = "FILE" if action.dest == "script" else action.metavar
            if isinstance(kind, str) and kind in paths:
                action.complete = paths[kind]  # pyright: ignore[reportAttributeAccessIssue]
    print(shtab.complete(whole, arguments.shell))
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
    return _number_of_seconds(text, "of at least 0", lambda secs: secs >= 0)


def _seconds_above_0(text: str) -> float:
    return _number_of_seconds(text, "above 0", lambda secs: secs > 0)


def _number_of_seconds(text: str, limit: str, is_allowed: Callable[[float], bool]) -> float:
    with contextlib.suppress(ValueError):
        if math.isfinite(secs := float(text)) and is_allowed(secs):
            return secs
    raise argparse.ArgumentTypeError(f"requires a number of seconds {limit}, got {text!r}")


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
        if arguments.command == "launch":
            # Before the imports, so that wrong options are reported without a wait for JAX.
            _check_launch(arguments)
        elif arguments.command == "replay":
            _check_script(arguments)
        with defer_sigint():
            module = importlib.import_module(f"hookline.cli.{arguments.module}")
        status = getattr(module, arguments.function)(arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # As with `| head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (OpError, ModuleNotFoundError, ValueError, OSError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name not in _EXTRAS:
            raise
        output.print_error(f"{command}: {_format_error(error)}")
        return MISUSED if isinstance(error, ValueError | ModuleNotFoundError) else FAILED


def _check_launch(arguments: argparse.Namespace) -> None:
    """Checks the combination of options, and chooses the module for it."""
    _check_script(arguments)
    if arguments.spmd:
        for name in _NOT_WITH_SPMD:
            if getattr(arguments, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"{option} does not go with --spmd: it is for a chief and workers, with parameter servers on "
                    "Ray. SPMD processes have neither; --processes sets their number."
                )
        if arguments.processes is None:
            raise ValueError("--spmd requires --processes N, the number of processes on this machine.")
    elif arguments.processes is not None:
        raise ValueError(
            "--processes requires --spmd. For a chief and workers, --workers sets the number of processes."
        )
    elif arguments.stall_secs is not None:
        raise ValueError(
            "--stall-secs requires --spmd. For a chief and workers, give each session a WatchdogHook(end=True)."
        )
    elif arguments.check_every_launch:
        raise ValueError("--check-every-launch requires --spmd: a chief and workers launch different programs.")
    elif arguments.address is None and arguments.token_path is not None:
        raise ValueError("--token-path requires --address: a local Ray cluster makes its own token.")
    if arguments.restart == "none" and arguments.max_restarts is not None:
        raise ValueError("--max-restarts requires --restart on-failure: without that no task is restarted.")
    if arguments.spmd:
        arguments.module = "launch_spmd"
    else:
        arguments.workers, arguments.servers = arguments.workers or 1, arguments.servers or 1


def _check_script(arguments: argparse.Namespace) -> None:
    if not arguments.script.is_file():
        raise ValueError(f"there is no script {str(arguments.script)!r}. Give the path of a Python file.")


def _format_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        file = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
        return f"'{file}' cannot be read: {error.strerror}." if file else f"{error.strerror}."
    return str(error)
