"""Replay: runs steps of a past run again, in a folder of its own, and leaves the run's folder as it is."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from hookline import arguments
from hookline.checkpoint.directory import collective
from hookline.errors import END_OF_INPUT, NanLossDuringTrainingError, NotFoundError
from hookline.hooks import CheckpointSaverHook, SessionRunHook
from hookline.hooks.only_for import unwrap
from hookline.monitored.monitored_session import MonitoredSession
from hookline.monitored.replaying.looks import Looks
from hookline.monitored.replaying.past_run import PastRun
from hookline.monitored.replaying.proof import Proof
from hookline.summary.redirection import output_dir, redirected


class ReplayEnded(Exception):
    """Leaves the session of a replay without the `end` of hooks, which would save and evaluate once more."""


class Replay:
    """A replay of some steps of a run; a context manager.

    The run's own hooks work as they did, but in a temporary folder: it begins with the run's checkpoint, and gets the
    event files, checkpoints and everything else that they write. Their printed output and log lines below WARNING are
    dropped.

    Args:
        folder: The folder of the run.
        steps: A step and the last one.
        looks: The looks.
        hooks: The hooks of the run that the user has made.

    Attributes:
        scratch: The temporary folder.
        start: The checkpoint where it begins.
        hooks: The hooks that the replay adds to the session.
        proof: The proof, one of them.
        stopped: Why it ended before the last step, in words; empty if it did not.
    """

    def __init__(self, folder: str, steps: Any, looks: Iterable[Any], hooks: Sequence[Any]) -> None:
        self.first, self.last = _checked_steps(steps)
        self.run = PastRun(folder)
        self.run.begin_at(self.first, self.last)  # An error comes at once.
        self._looks = Looks(looks, self.first, self.last, self._shown)
        self._savers = [unwrap(hook) for hook in hooks if isinstance(unwrap(hook), CheckpointSaverHook)]
        self._until_left = contextlib.ExitStack()
        self.stopped = ""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as entered:
            self.scratch = entered.enter_context(_temporary_folder())
            self.start = self.run.hold(self.first, self.last, self.scratch)
            self.proof = Proof(self.run.on_the_way(self.start.step, self.last))
            self.hooks: list[SessionRunHook] = [self._looks, self.proof]
            entered.enter_context(redirected(self.run.folder, self.scratch))
            entered.enter_context(self._silent())
            for saver in self._savers:
                entered.callback(_move_saver(saver))
            self._until_left = entered.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._until_left.__exit__(*exc_info)

    def drive(self, session: MonitoredSession, train_op: Any) -> None:
        """Runs a session to the last step, and closes it without the `end` of the run's hooks."""
        try:
            with session:
                raw = session.raw_session()
                try:
                    while raw.global_step < self.last and not session.should_stop():
                        session.run(train_op)
                except (NanLossDuringTrainingError, *END_OF_INPUT) as error:
                    first_line, _, _ = str(error).partition("\n")
                    self.stopped = f"{type(error).__name__}: {first_line}"
                else:
                    reached = raw.global_step
                    if reached < self.last:
                        self.stopped = f"a hook of the run has stopped it at step {reached:,}."
                self._looks.close()
                collective.current().run_on_all(_nothing)  # The error in one process stops the others.
                ended = ReplayEnded("The replay is over.")
                raw.mark_invalid(ended)  # Else the hook would save a last checkpoint.
                raise ended
        except ReplayEnded:
            pass

    @contextlib.contextmanager
    def _silent(self) -> Iterator[None]:
        """Drops what the hooks of the run print and log."""
        logger, self._streams = logging.getLogger("hookline"), (sys.stdout, sys.stderr)
        level = logger.level
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            logger.setLevel(max(logging.WARNING, logger.getEffectiveLevel()))
            try:
                yield
            finally:
                logger.setLevel(level)

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        """Shows what looks print; of SPMD processes, only what those of the chief print."""
        if not collective.current().is_chief:
            yield
            return
        out, err = self._streams
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield


@contextlib.contextmanager
def _temporary_folder() -> Iterator[str]:
    """Yields a temporary folder, the same one in all SPMD processes, which the chief removes after all have left it."""
    together = collective.current()
    path = together.run_on_chief(lambda: tempfile.mkdtemp(prefix="hookline-replay-"))
    try:
        together.run_on_all(lambda: _check_sees(path))
        yield path
        together.run_on_all(_nothing)
    finally:
        if together.is_chief:
            shutil.rmtree(path, ignore_errors=True)


def _nothing() -> None:
    return None


def _check_sees(path: str) -> None:
    if not os.path.isdir(path):
        raise NotFoundError.from_message(
            f"A replay needs a temporary folder that all processes see, and '{path}' of process 0 is not one: set "
            f"TMPDIR to a folder on a shared disk."
        )


def _checked_steps(steps: Any) -> tuple[int, int]:
    if not isinstance(steps, tuple | list) or len(steps) != 2:
        raise TypeError(f"replay requires a pair of steps, such as (1200, 1300), got {steps!r}.")
    first, last = (arguments.check_steps("replay", "steps", step, at_least=0) for step in steps)
    if first >= last:
        raise ValueError(f"replay requires a first step below the last one, got {first} and {last}.")
    return first, last


def _move_saver(saver: CheckpointSaverHook) -> Any:
    """Lets a saver of the user save in the replay's folder; returns a function that undoes this."""
    before = saver.checkpoint_dir, saver.save_path

    def undo() -> None:
        saver.checkpoint_dir, saver.save_path = before

    saver.checkpoint_dir = output_dir(saver.checkpoint_dir)
    saver.save_path = os.path.join(saver.checkpoint_dir, os.path.basename(saver.save_path))
    return undo
