"""Claims: the first session in the folder of a run that is to be replayed becomes the replay."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

from hookline.redirection import is_redirected_to


class Request(Protocol):
    """The request to replay a run: a `ReplayRequest`."""

    folder: str
    is_claimed: bool

    def fulfil(self, replay: Callable[..., Any], **run_arguments: Any) -> NoReturn:
        """See `ReplayRequest`."""
        ...

    def fulfil_in_session(self, hooks: Sequence[Any], make: Callable[[Any], Any]) -> Any:
        """See `ReplayRequest`."""
        ...

    def refuse(self, why: str) -> NoReturn:
        """See `ReplayRequest`."""
        ...


requested: Request | None = None
"""The request to replay, while the script or function runs that made the run."""


class ReplayDone(SystemExit):
    """Ends the script of a replay: it is over."""


def claim(who: str, folder: str | None) -> Request | None:
    """Returns the request that a session in this folder fulfils; None for a session that runs as it is.

    Raises:
        ReplayDone: There is a request for another folder, or the replay has begun; it gets an error.
    """
    wanted = requested
    if wanted is None or folder is None or is_redirected_to(folder):
        return None
    if wanted.is_claimed:
        wanted.refuse(f"{who}: a second training, in '{folder}', begins during the replay. Leave it out.")
    if os.path.realpath(folder) != os.path.realpath(wanted.folder):
        wanted.refuse(
            f"{who}: the script trains in '{folder}', and the replay is for '{wanted.folder}': it would write there. "
            f"Give the script the arguments of that run."
        )
    wanted.is_claimed = True
    return wanted


def refuse(who: str, folder: str | None) -> None:
    """Ends a script that opens another kind of session in a folder, if there is a request."""
    if (wanted := claim(who, folder)) is not None:
        wanted.refuse(
            f"{who} opens '{folder}', and only the run of a train.Loop or a MonitoredTrainingSession can be replayed."
        )
