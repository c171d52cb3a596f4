"""ConsoleHook: prints the start of a training run, the results of its evaluations, and the reason of its end."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from hookline import clock
from hookline.coordination import Coordinator, process_group
from hookline.graph import GraphKeys
from hookline.hooks.base import SessionRunHook
from hookline.hooks.epochs import known_epochs
from hookline.hooks.lookup import newest_saved_step
from hookline.hooks.only_for import unwrap
from hookline.hooks.reporting.progress import ProgressHook
from hookline.session import Session
from hookline.session.origin import FROM_MEMORY
from hookline.units import format_count, format_duration


class ConsoleHook(SessionRunHook):
    """Prints the start of a training run, its evaluations, and the reason of its end on `sys.stderr`, from process 0.

    It is the last hook of a session, because the `end` of another one may evaluate or save. `first` is the first hook,
    so that evaluations find this one. If nothing is trained, the hook prints nothing: the log has a warning with the
    reason.

    Args:
        folder: The directory of the run's files; None without one.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self.first = _FirstHook(self)
        self.open()

    def open(self) -> None:
        """Forgets an earlier session."""
        self._begin_secs = clock.monotonic()
        self._best: dict[str, str] = {}
        self._session: Session | None = None  # The one that was described last.
        self._is_silent = not process_group.is_primary()

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Prints the origin of the values; after the loss of a session, once more."""
        if self._session not in (None, session):
            self._session = session
            self._print(f"after the loss of the session: {_origin(session)}")
        elif not coord.should_stop():
            self._start(session)

    def end(self, session: Session) -> None:
        """Prints the reason of the end."""
        self._finish(session)

    def on_exception(self, session: Session, exception: BaseException) -> None:
        """Prints the reason of the end."""
        self._finish(session)

    def show(self, session: Session, text: str) -> None:
        """Prints a line about a session that trains, after its start."""
        self._start(session)
        self._print(text)

    def show_evaluation(self, session: Session, line: str | None, best: Mapping[str, str]) -> None:
        """Prints the line of an evaluation, unless it is None, and keeps the best values for the end, by name."""
        self._best |= best
        if line is not None:  # It may be before the first step.
            self.show(session, line)

    def _start(self, session: Session) -> None:
        if self._session is not None:
            return
        self._session = session
        epochs = known_epochs(session)
        per_epoch = f", {format_count(epochs.steps, 'step')} per epoch" if epochs else ""
        self._print(f"{_origin(session)}; on {_devices(session)}{per_epoch}")

    def _finish(self, session: Session) -> None:
        if self._session is None:
            return
        self._session = None
        after = format_duration(clock.monotonic() - self._begin_secs)
        at = "stopped"
        with contextlib.suppress(Exception):  # The session may be lost.
            at = f"stopped at step {session.global_step}"
        self._print(f"{at} after {after}: {session.stop_reason}")
        for name, best in self._best.items():
            self._print(f"best {name} {best}")
        if self._folder is not None:
            # TensorBoard calls a run by its path below logdir, and the logdir itself ".".
            parent = os.path.normpath(os.path.join(self._folder, os.pardir))
            show = f"tensorboard --logdir {shlex.quote(parent)}, hookline report {shlex.quote(self._folder)}"
            saved_step = newest_saved_step(session)
            saved = "" if saved_step is None else f", saved at step {saved_step}"
            self._print(f"files in {self._folder}{saved}; see {show}")

    def _print(self, text: str) -> None:
        if not self._is_silent:
            try:
                print(text, file=sys.stderr, flush=True)
            except (OSError, ValueError):  # A closed stream must not end the training.
                self._is_silent = True


class _FirstHook(SessionRunHook):
    """Opens a `ConsoleHook` before all other hooks."""

    def __init__(self, console: ConsoleHook) -> None:
        self._console = console

    def begin(self) -> None:
        self._console.open()

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        session.hook_data[ConsoleHook] = self._console


def has_progress_line(hooks: Iterable[Any]) -> bool:
    """Returns whether a `ProgressHook` is among hooks."""
    return any(isinstance(unwrap(hook), ProgressHook) for hook in hooks)


def _origin(session: Session) -> str:
    """Returns where the values of a session come from."""
    step, path = session.global_step, session.origin.removeprefix("restored from ")
    if session.origin == FROM_MEMORY:
        return f"continues in memory at step {step}"
    if path == session.origin:
        return f"starts at step {step}"
    age = ""
    with contextlib.suppress(OSError):  # Another process may have removed it.
        age = f" (saved {format_duration(clock.time() - os.path.getmtime(path))} ago)"
    return f"restored step {step} from {path}{age}"


def _devices(session: Session) -> str:
    """Returns the devices of the variables: "1 x cpu", "4 x cpu", "1 of 4 x cpu"."""
    local = jax.local_devices()
    variables = session.graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
    shardings = [sharding for variable in variables for sharding in variable.shardings if sharding is not None]
    devices = [*set().union(*(sharding.device_set for sharding in shardings))] or local[:1]
    count = f"{len(devices)} of {len(local)}" if len(devices) < len(local) else f"{len(devices)}"
    return f"{count} x {devices[0].device_kind}"
