"""ReplayRequest: the request that the first session in the folder of a run fulfils; `replay` makes one."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax

from hookline import arguments
from hookline.errors import OpError
from hookline.monitored.monitored_session import MonitoredSession
from hookline.monitored.replaying import claims
from hookline.monitored.replaying.answer import read_answer, write_answer
from hookline.monitored.replaying.claims import ReplayDone
from hookline.monitored.replaying.replay import ENDS_OF_RUN, ReplayEnded, temporary_folder
from hookline.monitored.replaying.result import ReplayResult
from hookline.monitored.replaying.session_replay import SessionReplay
from hookline.redirection import redirected

VARIABLE = "HOOKLINE_REPLAY"
"""The environment variable that has the request of a process, as text."""


class _Failed(Exception):
    """Leaves the temporary folder after an error."""


@dataclasses.dataclass
class ReplayRequest:
    """The request to replay.

    Args:
        folder: The folder of the run.
        steps: As in `Loop.replay`.
        look: As in `Loop.replay`.
        classes: Looks as `module:Class`, which are made once the script has been read.
        every: The steps from one row of the table to the next.
        answer_path: The beginning of the files for the answers of processes; None in the process of the request.

    Attributes:
        result: The result, once there is one.
        error: The error of the replay, or of a script that trains elsewhere.
    """

    folder: str
    steps: tuple[int, int]
    look: Sequence[Any]
    classes: Sequence[str] = ()
    every: int = 1
    answer_path: str | None = None
    result: ReplayResult | None = None
    error: BaseException | None = None
    is_claimed: bool = False
    _in_session: SessionReplay | None = None
    _scratch: str = ""

    @classmethod
    def from_json(cls, text: str) -> ReplayRequest:
        """Returns what `to_json` has written."""
        folder, (first, last), look, classes, every, answer_path = json.loads(text)
        return cls(folder, (first, last), look, classes, every, answer_path)

    def to_json(self) -> str:
        """Returns the request as text, for another process; `look` has names alone."""
        return json.dumps([self.folder, self.steps, self.look, self.classes, self.every, self.answer_path])

    def fulfil(self, replay: Callable[..., ReplayResult], **run_arguments: Any) -> NoReturn:
        """Replays a loop, keeps the result or the error, and raises `ReplayDone`."""
        try:
            self.result = replay(self.folder, self.steps, self._looks(), every=self.every, **run_arguments)
        except Exception as error:
            self.error = error
        raise ReplayDone(0)

    def fulfil_in_session(
        self, hooks: Sequence[Any], make: Callable[[SessionReplay], MonitoredSession]
    ) -> MonitoredSession:
        """Begins the replay of a monitored session, whose runs the script makes; raises `ReplayDone` if that fails."""
        try:
            given = self.folder, self.steps, self._looks(), self.every, hooks, self._scratch
            self._in_session = SessionReplay("replay", *given)
            return self._in_session.begin(make)
        except Exception as error:
            self.error = error
        raise ReplayDone(0)

    def refuse(self, why: str) -> NoReturn:
        """Keeps an error, unless the replay is over, and raises `ReplayDone`."""
        if self._in_session is None or not self._in_session.is_over:
            self.error = ValueError(why)
        raise ReplayDone(0)

    def _looks(self) -> list[Any]:
        return [*self.look, *map(_make_look, self.classes)]

    def run(self, script: Callable[[], Any]) -> None:
        """Runs the script, whose first session in the folder becomes the replay; its output goes to a temporary folder.

        Raises:
            RuntimeError: A replay is under way.
            BaseException: The script failed before that session.
        """
        if claims.requested is not None:
            raise RuntimeError("A replay cannot begin inside of a replay.")
        streams = sys.stdout, sys.stderr
        claims.requested = self
        try:
            with temporary_folder() as self._scratch, redirected(self.folder, self._scratch, everywhere=True):
                self._run(script)
                if self.error is not None:
                    raise _Failed  # The other processes are elsewhere, so this one must not wait for them.
        except _Failed:
            pass
        finally:
            claims.requested = None
            sys.stdout, sys.stderr = streams  # The script may have left them redirected.
            if self.answer_path is not None:
                write_answer(f"{self.answer_path}.{jax.process_index()}", self.result, self.error)

    def _run(self, script: Callable[[], Any]) -> None:
        try:
            script()
        except (ReplayDone, ReplayEnded):
            pass
        except SystemExit as left:
            if not self.is_claimed and left.code not in (None, 0):
                raise
        except Exception as error:
            if self._in_session is None:
                raise
            if not self._in_session.is_over and not isinstance(error, ENDS_OF_RUN):
                self.error = self.error or error
        finally:
            if self._in_session is not None:
                self._in_session.close()
        if self._in_session is not None and self.error is None:
            try:
                self.result = self._in_session.result()
            except Exception as error:
                self.error = error

    def read_answers(self, processes: int) -> None:
        """Takes the answers of processes, as far as there are any: the result of the first one, or the first error."""
        assert self.answer_path is not None, "They have no file for it."
        paths = [f"{self.answer_path}.{index}" for index in range(processes)]
        answers = [read_answer(path, index) for index, path in enumerate(paths) if os.path.exists(path)]
        errors = [error for _, error in answers if error is not None]
        # An OpError may be a consequence of the error of another process.
        self.error = next(iter(sorted(errors, key=lambda error: isinstance(error, OpError))), None)
        self.result = next((result for result, _ in answers if result is not None), None)

    def outcome(self, trainer: str) -> ReplayResult:
        """Returns the result.

        Raises:
            BaseException: The error of the replay.
            ValueError: The trainer has trained nothing in the folder.
        """
        if self.error is not None:
            raise self.error
        if self.result is None:
            raise ValueError(
                f"{trainer} has trained nothing in '{self.folder}'. Give it the arguments of that run; its train.Loop "
                f"must have that folder as logdir, its MonitoredTrainingSession as checkpoint_dir."
            )
        return self.result


def replay(
    train: Callable[[], Any], folder: str, steps: tuple[int, int], look: Iterable[Any] = (), *, every: int = 1
) -> ReplayResult:
    """Runs steps of a past run again, by the function that made the run: for a `MonitoredTrainingSession`.

    The first session in the folder of the run becomes the replay; the function ends with it. Sessions without a folder
    run as they are. All else is as in `Loop.replay`. The command `hookline replay` does the same with a script.

    A monitored session is replayed by the runs that the function makes. So what it feeds, fetches and runs in between
    is as it was. What is looked at is computed before each run that advances the global step, with its feeds. If the
    run stopped within these steps, its hooks get their `end`.

    Args:
        train: The function; it gets no arguments.
        folder: The folder of the run.
        steps: Two steps: the steps after the first one, up to the last one, are looked at.
        look: Names, or hooks with `fetches` and a `trigger` that only read. Names are those of tensors ("loss:0"), of
            arrays of variables ("params/dense/kernel"), and of batches of iterators ("batches/0"). The name "norms"
            stands for the tensors that `NanTensorHook` checks, and the norms of all arrays. Without any, these tensors
            are looked at.
        every: Global steps between two rows of the names in the table.

    Returns:
        The values by step, and the proof; `print` shows them as a table.

    Raises:
        ValueError: The function trains nothing in the folder, or in another folder. This and other errors as in
            `Loop.replay`.

    Example:
        >>> import hookline as hl, tempfile
        >>> def train():
        ...     with hl.Graph().as_default():
        ...         w = hl.Variable(1.0, name="w")
        ...         with hl.control_dependencies([w.assign_add(w)]):
        ...             train_op = hl.train.get_or_create_global_step().assign_add(1)
        ...         stop = hl.train.StopAtStepHook(last_step=6)
        ...         with hl.train.MonitoredTrainingSession(
        ...             checkpoint_dir=logdir, save_checkpoint_steps=2, hooks=[stop]
        ...         ) as sess:
        ...             while not sess.should_stop():
        ...                 sess.run(train_op)
        >>> with tempfile.TemporaryDirectory() as logdir:
        ...     train()
        ...     print(replay(train, logdir, (3, 6), ["w"]))
        step  w
           4  8
           5  16
           6  32
        The same bits as the run at step 4 and 6.
    """
    if not callable(train):
        raise TypeError(f"replay requires a function as train, which is called without arguments, got {train!r}.")
    looks = arguments.check_list("replay", "look", look)
    wanted = ReplayRequest(arguments.check_path("replay", "folder", folder), steps, looks, every=every)
    wanted.run(train)
    return wanted.outcome("the function")


def _make_look(text: str) -> Any:
    """Returns a look from the text `module:Class`; the script is not run again for a class of its own."""
    module, _, name = text.partition(":")
    is_own = module == Path(sys.argv[0]).stem
    try:
        return getattr(sys.modules["__main__"] if is_own else importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--look {text}: {error}. Give module:Class; the script's folder is searched, too.") from error
