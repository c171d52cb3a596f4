"""ReplayRequest: the wish of `hookline replay`, which the first session in the folder of the run fulfils."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

from hookline.monitored.replaying.result import ReplayResult


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
    """

    folder: str
    steps: tuple[int, int]
    names: Sequence[str]
    looks: Sequence[Callable[[], Any]]
    every: int
    result: ReplayResult | None = None
    is_claimed: bool = False

    def fulfil(self, replay: Callable[..., ReplayResult], **run_arguments: Any) -> None:
        """Replays, keeps the result, and raises `ReplayDone`."""
        look = [*self.names, *(make() for make in self.looks)]
        self.result = replay(self.folder, self.steps, look, every=self.every, **run_arguments)
        raise ReplayDone(0)


_requested: ReplayRequest | None = None


def request(wanted: ReplayRequest | None) -> None:
    """Makes the first session in the folder of a run a replay; None withdraws that."""
    global _requested
    _requested = wanted


def claim(who: str, folder: str | None) -> ReplayRequest | None:
    """Returns the request that a session in this folder fulfils; None for a session that runs as it is.

    Raises:
        ValueError: There is a request for another folder.
    """
    wanted = _requested
    if wanted is None or wanted.is_claimed or folder is None:
        return None
    if os.path.realpath(folder) != os.path.realpath(wanted.folder):
        raise ValueError(
            f"{who}: the script trains in '{folder}', and `hookline replay` is for '{wanted.folder}': it would write "
            f"there. Give the script the arguments of that run."
        )
    wanted.is_claimed = True
    return wanted
