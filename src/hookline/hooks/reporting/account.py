"""AccountHook: keeps the account of a run in its folder."""

from __future__ import annotations

import os
import socket
import threading
import weakref
from importlib.metadata import version
from typing import Any

import jax

from hookline import clock, summary
from hookline.checkpoint.directory.owner_file import boot_id, process_age
from hookline.coordination import Coordinator, process_group
from hookline.hooks.base import Firing, SessionRunHook
from hookline.hooks.triggers import FirstRun
from hookline.redirection import output_dir
from hookline.session import Session
from hookline.session.activity import Activity
from hookline.summary.account import AccountWriter, path_of, rounded
from hookline.summary.file_writer import FileWriter
from hookline.version import __version__

_EVERY_SECS = 10.0
_is_first = True


class AccountHook(SessionRunHook):
    """Writes a line of `account-<process>.jsonl` at each boundary, and one of progress every ten seconds.

    A thread writes the lines of progress, so a step costs nothing. For TensorBoard it writes two scalars with each of
    them, as the run `account` beside that of the training: the shares of the time since the first start that went into
    steps that count (`useful_share`) and into waiting for data (`data_share`). It is the last hook, so that its `end`
    comes after the last save.

    Args:
        folder: The directory of the run.
    """

    deferred = True

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._writer: AccountWriter | None = None
        self._events: FileWriter | None = None
        self._stop: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Writes the start."""
        global _is_first
        self.trigger = FirstRun(1)
        # Of the first session of a process the start includes the imports.
        age = process_age() if _is_first else 0.0
        _is_first = False
        self._begin = clock.REAL.monotonic() - age
        # Seconds add up over the sessions of a recovery, each of which has an activity of its own.
        self._before: dict[str, float] = {}
        self._activity = Activity()
        self._session: weakref.ref[Session] | None = None
        self._is_ready, self._has_stopped, self._lock = False, False, threading.Lock()
        self._note_lock = threading.Lock()
        self._start_secs = 0.0
        group = process_group.current()
        index, count = (0, 1) if group is None else (group.index, group.count)
        self._path = os.path.abspath(path_of(output_dir(self._folder), index))
        self._writer = AccountWriter(self._path)
        self._write(
            "start",
            age=round(age, 3),
            boot=boot_id(),
            host=socket.gethostname(),
            process=index,
            of=count,
            versions={"hookline": __version__, "jax": version("jax")},
            devices=[str(device) for device in jax.local_devices()],
        )

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Writes the step at which the model is ready, and starts the thread."""
        with self._lock:
            self._before = _sum(self._before, self._activity.secs())
            self._activity, self._session = session.activity, weakref.ref(session)
            if not self._is_ready:
                self._is_ready = True
                known = sum(self._activity.secs().values())
                self._start_secs = max(clock.REAL.monotonic() - self._begin - known, 0.0)
        session.activity.listener, session.activity.account_path = self._note, self._path
        self._note("session", step=session.global_step, origin=session.origin)
        if self._thread is None:
            self._stop = threading.Event()
            # It holds no reference to the hook, so that a session that is dropped can be freed.
            self._thread = threading.Thread(
                target=_write_progress, args=(weakref.ref(self), self._stop), name="hookline-account", daemon=True
            )
            weakref.finalize(self, self._stop.set).atexit = False  # Of a session that is dropped without being closed.
            self._thread.start()

    def on_trigger(self, firing: Firing) -> None:
        """Writes that the first step is made."""
        self._note("first step", step=firing.global_step)

    def end(self, session: Session) -> None:
        """Writes the end."""
        self._finish(session)

    def on_exception(self, session: Session, exception: BaseException) -> None:
        """Writes the end."""
        self._finish(session)

    def after_close(self) -> None:
        """Stops the thread, and closes the file."""
        if self._stop is not None and self._thread is not None:
            self._stop.set()
            self._thread.join()
        self._stop = self._thread = None
        if self._events is not None:
            self._events.close()
        self._events = None
        if self._writer is not None:
            self._writer.close()

    def write_progress(self) -> None:
        """Writes a line of progress."""
        session = None if self._session is None else self._session()
        if session is not None and not session.closed:
            self._note("progress")
            self._write_shares()

    def _finish(self, session: Session) -> None:
        if not self._has_stopped:
            self._has_stopped = True
            self._note("stop", reason=session.stop_reason or "")
            if self._events is not None:
                self._write_shares()

    def _write_shares(self) -> None:
        """Writes the two scalars; their event file has no part in the sinks and the exact resume of the training."""
        if self._writer is None:
            return
        if self._events is None:
            self._events = FileWriter(os.path.join(self._folder, "account"), strict=False)
        found = self._writer.account
        shares = {"useful_share": found.useful_share, "data_share": found.share("data")}
        values = [summary.Summary.Value(tag=name, simple_value=share) for name, share in shares.items()]
        self._events.add_summary(summary.Summary(value=values), found.step)

    def _note(self, event: str, **facts: Any) -> None:
        """Writes an event with the step and the seconds so far."""
        session = None if self._session is None else self._session()
        facts = {"step": None if session is None else _known_step(session), **facts}
        with self._note_lock:  # The lines of threads must be in the order of their seconds.
            self._write(event, **facts, secs=self._secs())

    def _secs(self) -> dict[str, float]:
        """Returns the seconds in each state since the start of the process."""
        with self._lock:
            found = _sum(self._before, self._activity.secs())
            found["start"] = self._start_secs
            found["steps"] = max(clock.REAL.monotonic() - self._begin - sum(found.values()), 0.0)
            return rounded(found)

    def _write(self, event: str, **facts: Any) -> None:
        if self._writer is not None:
            at, monotonic = round(clock.REAL.time(), 3), round(clock.REAL.monotonic(), 3)
            self._writer.write(event=event, at=at, monotonic=monotonic, pid=os.getpid(), **facts)


def _write_progress(hook: weakref.ref[AccountHook], stop: threading.Event) -> None:
    while not clock.REAL.wait(stop, _EVERY_SECS):
        if (found := hook()) is None:
            return
        found.write_progress()
        del found


def _known_step(session: Session) -> int | None:
    """Returns the step that the host knows: that of the newest run, which the device may still compute."""
    if session.closed or getattr(session.backend, "shared", False):
        return None
    try:
        step = session.backend.known_step
    except Exception:  # The session may be lost.
        return None
    return None if step is None else int(step)


def _sum(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {what: one.get(what, 0.0) + other.get(what, 0.0) for what in one | other}
