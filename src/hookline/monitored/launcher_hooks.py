"""What `hookline launch --spmd` adds to its processes: hooks of monitored sessions, and a note of their failure."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import MutableMapping
from typing import Any

from hookline.checkpoint.saving import save_operation
from hookline.coordination import Coordinator, service
from hookline.errors import PREEMPTION_ERRORS, DeadlineExceededError, from_exception
from hookline.graph.global_step import find_global_step
from hookline.hooks import SessionRunHook, WatchdogHook
from hookline.session import Session

_FAILURE_PATH = "HOOKLINE_FAILURE_PATH"
_ADDRESS = re.compile(r"\b0x[0-9a-f]+")
# A file that is not there may be a wrong name. Other errors of the system may pass: of the network, of a disk.
_MAY_PASS = (OSError, *PREEMPTION_ERRORS, DeadlineExceededError)
_WRONG_PATH = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)

_watched: tuple[float, int] | None = None
_failure_path: str | None = None
_begun_at: list[int] = []
_reached: int | None = None


@dataclasses.dataclass(frozen=True)
class Failure:
    """The failure of a process.

    Attributes:
        error: The type and the message of the error that has ended the script.
        begun_at: The steps at which its sessions began.
        reached: The step at which a session failed; None if none did.
        has_saved: Whether it has completed a checkpoint before.
    """

    error: str
    begun_at: list[int]
    reached: int | None
    has_saved: bool

    def repeats(self, before: Failure | None) -> bool:
        """Returns whether the start before has failed in the same way, and neither has led any further.

        Example:
            >>> failure = Failure("ValueError: a bad record", [20], 25, has_saved=False)
            >>> failure.repeats(dataclasses.replace(failure, has_saved=True)), failure.repeats(None)
            (True, False)
        """
        return before is not None and self == dataclasses.replace(before, has_saved=False)


def watch_for_stalls(stall_secs: float, pipe: int) -> None:
    """Makes each monitored session end the process on a stall, and send heartbeats to the launcher meanwhile."""
    global _watched
    _watched = stall_secs, pipe


def environment(failure_path: str) -> dict[str, str]:
    """Returns the environment variables with which a process notes its failure in a file."""
    return {_FAILURE_PATH: failure_path}


def pop_environment(environ: MutableMapping[str, str]) -> None:
    """Takes over what `environment` has passed, if anything."""
    global _failure_path
    _failure_path = environ.pop(_FAILURE_PATH, None)


def note_failure(error: BaseException) -> None:
    """Notes the error that ends the script, unless it may pass, and how far the training has come."""
    if _failure_path is not None and not _may_pass(error):
        text = _ADDRESS.sub("0x", f"{type(error).__name__}: {error}")
        with contextlib.suppress(OSError), open(_failure_path, "w", encoding="utf-8") as file:
            json.dump([text, _begun_at, _reached, save_operation.has_saved()], file)


def _may_pass(error: BaseException) -> bool:
    """Returns whether an error, or its cause, may be gone at the next start."""
    if service.is_connection_loss(error) or (isinstance(error, SystemExit) and error.code == os.EX_TEMPFAIL):
        return True
    seen: list[BaseException] = []  # Causes may form a cycle.
    cause: BaseException | None = error
    while cause is not None and not any(cause is each for each in seen):
        if isinstance(from_exception(cause), _MAY_PASS) and not isinstance(cause, _WRONG_PATH):
            return True
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False


def read_failure(failure_path: str) -> Failure | None:
    """Returns what `note_failure` has noted; None without a note."""
    with contextlib.suppress(OSError, ValueError), open(failure_path, encoding="utf-8") as file:
        return Failure(*json.load(file))
    return None


def launcher_hooks() -> list[Any]:
    """Returns new hooks for a session."""
    hooks: list[Any] = [] if _watched is None else [WatchdogHook.of_launcher(*_watched)]
    return hooks if _failure_path is None else [*hooks, _NoteBegin()]


class _NoteBegin(SessionRunHook):
    """Notes the steps at which a session begins and fails."""

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Notes the step."""
        if find_global_step(session.graph) is not None:
            _begun_at.append(int(session.global_step))

    def on_exception(self, session: Session, exception: BaseException) -> None:
        """Notes the step."""
        global _reached
        with contextlib.suppress(Exception):  # The session may be lost.
            _reached = int(session.global_step)
