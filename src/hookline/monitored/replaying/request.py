"""ReplayRequest: the wish to replay, which the first session in the folder of the run fulfils; `replay` makes one."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hookline import arguments
from hookline.checkpoint.saving import failures
from hookline.coordination import process_group
from hookline.monitored.monitored_session import MonitoredSession
from hookline.monitored.replaying import claims
from hookline.monitored.replaying.answer import read_answer, write_answer
from hookline.monitored.replaying.claims import ReplayDone
from hookline.monitored.replaying.replay import ReplayEnded
from hookline.monitored.replaying.result import ReplayResult
from hookline.monitored.replaying.session_replay import SessionReplay

_REQUEST = "HOOKLINE_REPLAY"


@dataclasses.dataclass
class ReplayRequest:
    """The wish to replay.

    Args:
        folder: The folder of the run.
        steps: As in `Loop.replay`.
        look: As in `Loop.replay`.
        classes: Looks as `module:Class`, which are made once the script has been read.
        every: The steps from one row of the table to the next.
        answer_path: The file for the answer of the first of several processes; None in the process of the request.

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

    def fulfil(self, replay: Callable[..., ReplayResult], **run_arguments: Any) -> NoReturn:
        """Replays a loop, keeps the result or the error, and raises `ReplayDone`."""
        with self._errors_kept():
            self._keep(replay(self.folder, self.steps, self._looks(), every=self.every, **run_arguments))
        raise ReplayDone(0)

    def fulfil_in_session(
        self, who: str, hooks: Sequence[Any], make: Callable[[SessionReplay], MonitoredSession]
    ) -> MonitoredSession:
        """Begins the replay of a monitored session, whose runs the script makes; raises `ReplayDone` if that fails."""
        with self._errors_kept():
            self._in_session = SessionReplay(who, self.folder, self.steps, self._looks(), self.every, hooks)
            return self._in_session.begin(make)
        raise ReplayDone(0)

    def refuse(self, why: str) -> NoReturn:
        """Keeps an error, unless the replay is over, and raises `ReplayDone`."""
        if self._in_session is None or not self._in_session.is_over:
            self._keep(ValueError(why))
        raise ReplayDone(0)

    def _looks(self) -> list[Any]:
        return [*self.look, *map(_make_look, self.classes)]

    @contextlib.contextmanager
    def _errors_kept(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._keep(error)

    def _keep(self, outcome: ReplayResult | Exception) -> None:
        failed = isinstance(outcome, Exception)
        self.result, self.error = (None, outcome) if failed else (outcome, None)
        if self.answer_path is not None and process_group.is_primary():
            with open(self.answer_path, "wb") as file:
                write_answer(file, self.result, failures.serialize_error(outcome) if failed else None)

    @contextlib.contextmanager
    def made_by_script(self) -> Iterator[None]:
        """Makes the first session in the folder a replay, in the `with` block of the script."""
        claims.requested = self
        try:
            yield
        except (ReplayDone, ReplayEnded):
            pass
        except Exception:
            if self._in_session is None:
                raise
        finally:
            claims.requested = None
            if self._in_session is not None:
                result = self._in_session.finish()
                if self.error is None and result is not None:
                    self._keep(result)

    def environment(self) -> dict[str, str]:
        """Returns the environment variable that passes it to a process; it has names and `classes` alone."""
        given = self.folder, self.steps, self.look, self.classes, self.every, self.answer_path
        return {_REQUEST: json.dumps(given)}

    def read_answer(self) -> None:
        """Takes the answer of the processes, if there is one."""
        if self.answer_path is not None and os.path.exists(self.answer_path):
            with open(self.answer_path, "rb") as file:
                self.result, error = read_answer(file)
            self.error = None if error is None else failures.deserialize_error(error, 0)

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
    with wanted.made_by_script():
        train()
    return wanted.outcome("the function")


def pop_environment(environ: MutableMapping[str, str]) -> ReplayRequest | None:
    """Returns the request that `environment` has passed, if any, and removes it, so that children do not get it."""
    if (text := environ.pop(_REQUEST, None)) is None:
        return None
    folder, (first, last), look, classes, every, answer_path = json.loads(text)
    return ReplayRequest(folder, (first, last), look, classes, every, answer_path)


def _make_look(text: str) -> Any:
    """Returns a look from the text `module:Class`; the script is not run again for a class of its own."""
    module, _, name = text.partition(":")
    is_own = module == Path(sys.argv[0]).stem
    try:
        return getattr(sys.modules["__main__"] if is_own else importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--look {text}: {error}. Give module:Class; the script's folder is searched, too.") from error
