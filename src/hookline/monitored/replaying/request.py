"""ReplayRequest: the wish of `hookline replay`, which the first session in the folder of the run fulfils."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import pickle
import sys
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hookline.checkpoint.saving import failures
from hookline.coordination import process_group
from hookline.monitored.replaying.result import ReplayResult

_REQUEST = "HOOKLINE_REPLAY"

NORMS = "norms"
"""The name of all metrics, and of the norms of all arrays."""


class ReplayDone(SystemExit):
    """Ends the script of `hookline replay`: the replay is over."""


@dataclasses.dataclass
class ReplayRequest:
    """A replay that the command line wants.

    Args:
        folder: The folder of the run.
        steps: As in `Loop.replay`.
        names: The names to look at.
        looks: The classes of looks, as `module:Class`, which are made once the script has been read.
        every: The steps from one row of the table to the next.
        answer_path: The file for the answer of the first of several processes; None in the process of the command.

    Attributes:
        result: The result, once there is one.
        error: The error of the replay, or of a script that trains elsewhere.
    """

    folder: str
    steps: tuple[int, int]
    names: Sequence[str]
    looks: Sequence[str]
    every: int
    answer_path: str | None = None
    result: ReplayResult | None = None
    error: BaseException | None = None
    is_claimed: bool = False

    def fulfil(self, replay: Callable[..., ReplayResult], **run_arguments: Any) -> None:
        """Replays, keeps the result or the error, and raises `ReplayDone`."""
        try:
            look = [*self.names, *map(_make_look, self.looks)]
            result = replay(self.folder, self.steps, look, every=self.every, **run_arguments)
        except Exception as error:
            self.end(error)
        self.end(result)

    def end(self, outcome: ReplayResult | Exception) -> NoReturn:
        """Keeps the result or the error, and raises `ReplayDone`."""
        failed = isinstance(outcome, Exception)
        self.result, self.error = (None, outcome) if failed else (outcome, None)
        if self.answer_path is not None and process_group.is_primary():
            with open(self.answer_path, "wb") as file:
                pickle.dump((self.result, failures.serialize_error(outcome) if failed else None), file)
        raise ReplayDone(0)

    def environment(self) -> dict[str, str]:
        """Returns the environment variable that passes it to a process."""
        given = self.folder, self.steps, self.names, self.looks, self.every, self.answer_path
        return {_REQUEST: json.dumps(given)}

    def read_answer(self) -> None:
        """Takes the answer of the processes, if there is one."""
        if self.answer_path is not None and os.path.exists(self.answer_path):
            with open(self.answer_path, "rb") as file:
                self.result, error = pickle.load(file)
            self.error = None if error is None else failures.deserialize_error(error, 0)


def pop_environment(environ: MutableMapping[str, str]) -> ReplayRequest | None:
    """Returns the request that `environment` has passed, if any, and removes it, so that children do not get it."""
    if (text := environ.pop(_REQUEST, None)) is None:
        return None
    folder, (first, last), names, looks, every, answer_path = json.loads(text)
    return ReplayRequest(folder, (first, last), names, looks, every, answer_path)


def _make_look(text: str) -> Any:
    """Returns a look from the text `module:Class`; the script is not run again for a class of its own."""
    module, _, name = text.partition(":")
    is_own = module == Path(sys.argv[0]).stem
    try:
        return getattr(sys.modules["__main__"] if is_own else importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--look {text}: {error}. Give module:Class; the script's folder is searched, too.") from error


_requested: ReplayRequest | None = None


def request(wanted: ReplayRequest | None) -> None:
    """Makes the first session in the folder of a run a replay; None withdraws that."""
    global _requested
    _requested = wanted


def claim(who: str, folder: str | None) -> ReplayRequest | None:
    """Returns the request that a session in this folder fulfils; None for a session that runs as it is.

    Raises:
        ReplayDone: There is a request for another folder; it gets an error.
    """
    wanted = _requested
    if wanted is None or folder is None:
        return None
    if wanted.is_claimed:
        wanted.end(ValueError(f"{who}: a second training, in '{folder}', begins during the replay. Leave it out."))
    if os.path.realpath(folder) != os.path.realpath(wanted.folder):
        text = (
            f"{who}: the script trains in '{folder}', and `hookline replay` is for '{wanted.folder}': it would write "
            f"there. Give the script the arguments of that run."
        )
        wanted.end(ValueError(text))
    wanted.is_claimed = True
    return wanted


def refuse(who: str, folder: str | None) -> None:
    """Ends a script that trains without a `train.Loop`, if there is a request; without a folder it runs as it is."""
    if (wanted := claim(who, folder)) is not None:
        wanted.end(ValueError(f"{who} trains in '{folder}', and only the run of a train.Loop can be replayed."))
