"""ReplayRequest: the wish of `hookline replay`, which the first session in the folder of the run fulfils."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

from hookline.monitored.replaying.result import ReplayResult

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
        looks: Make the looks, once the script has been read.
        every: The steps from one row of the table to the next.

    Attributes:
        result: The result, once there is one.
        error: The error of the replay, or of a script that trains elsewhere.
    """

    folder: str
    steps: tuple[int, int]
    names: Sequence[str]
    looks: Sequence[Callable[[], Any]]
    every: int
    result: ReplayResult | None = None
    error: Exception | None = None
    is_claimed: bool = False

    def fulfil(self, replay: Callable[..., ReplayResult], **run_arguments: Any) -> None:
        """Replays, keeps the result or the error, and raises `ReplayDone`."""
        try:
            look = [*self.names, *(make() for make in self.looks)]
            self.result = replay(self.folder, self.steps, look, every=self.every, **run_arguments)
        except Exception as error:
            self.error = error
        raise ReplayDone(0)


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
    if wanted is None or wanted.is_claimed or folder is None:
        return None
    if os.path.realpath(folder) != os.path.realpath(wanted.folder):
        wanted.error = ValueError(
            f"{who}: the script trains in '{folder}', and `hookline replay` is for '{wanted.folder}': it would write "
            f"there. Give the script the arguments of that run."
        )
        raise ReplayDone(0)
    wanted.is_claimed = True
    return wanted


def refuse(who: str, folder: str | None) -> None:
    """Ends a script that trains without a `train.Loop`, if there is a request; without a folder it runs as it is."""
    if (wanted := claim(who, folder)) is not None:
        wanted.error = ValueError(f"{who} trains in '{folder}', and only the run of a train.Loop can be replayed.")
        raise ReplayDone(0)
