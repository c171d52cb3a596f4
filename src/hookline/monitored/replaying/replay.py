"""Replay: runs steps of a past run again, in a folder of its own, and leaves the run's folder as it is."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from hookline import arguments
from hookline.checkpoint.directory import collective
from hookline.errors import END_OF_INPUT, InvalidArgumentError, NanLossDuringTrainingError, NotFoundError
from hookline.graph import Tensor
from hookline.hooks import SessionRunHook, SinkHook
from hookline.hooks.only_for import unwrap
from hookline.monitored.monitored_session import MonitoredSession
from hookline.monitored.replaying.looks import Looks, TableLook
from hookline.monitored.replaying.names import METRICS
from hookline.monitored.replaying.past_run import PastRun
from hookline.monitored.replaying.proof import Proof
from hookline.monitored.replaying.result import ReplayResult
from hookline.redirection import redirected
from hookline.session import Session

ENDS_OF_RUN = (NanLossDuringTrainingError, *END_OF_INPUT)
"""The errors that end a run; in a replay they are a part of the result."""


def describe_end(error: BaseException) -> str:
    """Describes the error that ended a run."""
    first_line, _, _ = str(error).partition("\n")
    return f"{type(error).__name__}: {first_line}"


class ReplayEnded(BaseException):
    """Leaves the session of a replay without the `end` of hooks, which would save and evaluate once more.

    It is no `Exception`: a script that catches errors must not go on.
    """


class Replay:
    """A replay of some steps of a run; a context manager.

    The run's own hooks work as they did, but in a temporary folder: it begins with the run's checkpoint, and gets the
    event files, checkpoints and everything else that they write. Their printed output and log lines below WARNING are
    dropped.

    Args:
        who: The caller, for messages.
        folder: The folder of the run.
        steps: A step and the last one.
        look: Names and hooks.
        every: The steps from one row of the table to the next.
        find: Returns tensors by name, for names. Without names and hooks it gets `METRICS`.

    Attributes:
        scratch: The temporary folder.
        hooks: The hooks of the replay, which come first in the session.
        last: The last step.
        stopped: Why it ended before the last step, in words; empty if it did not.
    """

    def __init__(
        self,
        who: str,
        folder: str,
        steps: Any,
        look: Iterable[Any],
        every: int,
        find: Callable[[Sequence[str]], Mapping[str, Tensor]],
    ) -> None:
        self.first, self.last = _checked_steps(steps)
        arguments.check_int(who, "every", every, at_least=1)
        looks = arguments.check_list(who, "look", look) or [METRICS]
        names = [each for each in looks if isinstance(each, str)]
        self._table = TableLook(find(names) if names else {}, every)
        looks = [*([self._table] if names else []), *(each for each in looks if not isinstance(each, str))]
        self.run = PastRun(folder)
        self.run.begin_at(self.first, self.last)  # An error comes at once.
        self._looks = Looks(looks, self.first, self.last, self._shown)
        self.stopped = ""

    @contextlib.contextmanager
    def open(self, scratch: str | None = None) -> Iterator[Self]:
        """Holds the checkpoint and redirects all output, until the `with` block is left.

        Args:
            scratch: The temporary folder, to which output is redirected already; None for one of its own.
        """
        with contextlib.ExitStack() as entered:
            if scratch is None:
                scratch = entered.enter_context(temporary_folder())
                entered.enter_context(redirected(self.run.folder, scratch))
            self.scratch = scratch
            self._start = self.run.hold(self.first, self.last, scratch)
            self._proof = Proof(self.run.on_the_way(self._start.step, self.last))
            self.hooks: list[SessionRunHook] = [self._looks, self._proof]
            entered.enter_context(self._silent())
            yield self

    def restored(self, make: Callable[[], MonitoredSession]) -> MonitoredSession:
        """Makes the session; the error of a checkpoint that does not fit tells of the run, and not of a training."""
        try:
            return make()
        except (NotFoundError, InvalidArgumentError) as error:
            first, *rest = error.message.splitlines()
            if not any(line.startswith("  ") for line in rest):
                raise
            differences = "\n".join(line for line in rest if line.startswith("  "))
            raise type(error).from_message(
                f"{first.replace(self.scratch, self.run.folder)}\n{differences}\nThe script builds another model than "
                f"that of the run: give it the arguments of the run."
            ) from None

    def drive(self, session: MonitoredSession, train_op: Any) -> None:
        """Runs a session to the last step, and closes it without the `end` of the run's hooks."""
        try:
            with session:
                raw = session.raw_session()
                try:
                    while raw.global_step < self.last and not session.should_stop():
                        session.run(train_op)
                except ENDS_OF_RUN as error:
                    self.stopped = describe_end(error)
                else:
                    reached = raw.global_step
                    if reached < self.last:
                        self.stopped = f"a hook of the run has stopped it at step {reached:,}."
                raise self.ended(raw)
        except ReplayEnded:
            pass

    def ended(self, session: Session) -> ReplayEnded:
        """Ends the looks and the proof after the last step, and returns the error to raise."""
        self._proof.check(session)
        self._looks.close()
        collective.current().meet()  # The error in one process stops the others.
        ended = ReplayEnded("The replay is over.")
        session.mark_invalid(ended)  # Else the hook would save a last checkpoint.
        return ended

    def result(self) -> ReplayResult:
        """Returns what it has seen."""
        after = [each.step for each in self.run.saved if each.step > self.last]
        steps, comparisons = (self.first, self.last), self._proof.comparisons
        next_saved = after[0] if after else None
        return ReplayResult(
            self.run.folder, steps, self._start.path, self._table.rows, comparisons, self.stopped, next_saved
        )

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
def temporary_folder() -> Iterator[str]:
    """Yields a temporary folder, the same one in all SPMD processes, which the chief removes after all have left it."""
    together = collective.current()
    path = together.run_on_chief(lambda: tempfile.mkdtemp(prefix="hookline-replay-"))
    try:
        together.run_on_all(lambda: _check_sees(path))
        yield path
        together.meet()
    finally:
        if together.is_chief:
            shutil.rmtree(path, ignore_errors=True)


def _check_sees(path: str) -> None:
    if not os.path.isdir(path):
        raise NotFoundError.from_message(
            f"A replay needs a temporary folder that all processes see, and '{path}' of process 0 is not one: set "
            f"TMPDIR to a folder on a shared disk."
        )


def without_sinks(hooks: Iterable[Any]) -> list[Any]:
    """Returns hooks but for sinks: other programs and services, which must not get the same numbers once more."""
    return [hook for hook in hooks if not isinstance(unwrap(hook), SinkHook)]


def _checked_steps(steps: Any) -> tuple[int, int]:
    if not isinstance(steps, tuple | list) or len(steps) != 2:
        raise TypeError(f"replay requires a pair of steps, such as (1200, 1300), got {steps!r}.")
    first, last = (arguments.check_count("replay", "steps", step, at_least=0) for step in steps)
    if first >= last:
        raise ValueError(f"replay requires a first step below the last one, got {first} and {last}.")
    return first, last
