"""The points at which a process kills itself, and how it notices that it has come to one.

`POINTS` names them all. A process aims at one: at its k-th arrival there it sends itself SIGKILL, or another signal.
What counts as an arrival is found by wrapping the calls of the operating system that change a directory, and the public
methods of hookline that restore, run and close. The wrappers are put in place in the child, after the fork.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import threading

import jax

import hookline as hl

# Moments at which a process is killed.
from hookline.checkpoint import orbax_io
from hookline.session.running.session_backend import SessionBackend

# The points of each kind, and how late, at most, it is worth aiming there: the k of the k-th arrival.
_KINDS = (
    ("sync", "before after", 60),
    ("event write", "before after", 4),
    ("save", "before amid", 3),
    ("joining", "before after", 3),
    ("manifest", "before after", 3),
    ("commit", "before after", 3),
    ("state file", "before after", 3),
    ("removal", "before renamed amid after", 3),
    ("clean-up", "before amid after", 1),
    ("graph", "before after", 1),
    ("owner file", "before after", 1),
    ("lease's end", "before amid after", 1),
    ("restore", "before amid after", 1),
    ("compile", "tracing amid after", 1),
    ("step", "before amid after", 12),
    ("close", "before after", 1),
    ("in recovery, close", "before after", 1),
    ("in recovery, restore", "before amid after", 1),
    ("in recovery, compile", "tracing", 1),  # Of an equal program, which is there.
    ("in recovery, step", "before after", 1),
)
LATEST = {f"{kind}: {moment}": latest for kind, moments, latest in _KINDS for moment in moments.split()}
POINTS = tuple(LATEST)


class Points:
    """Counts arrivals, and kills this process at the one that was aimed at, or sends it another signal.

    A kill amid a compilation comes so long after the tracing (`delay_secs`), one amid a save after a fifth of that.
    The event is reported just before.
    """

    def __init__(self, aim, arrival, delay_secs, tell, signal_number=signal.SIGKILL):
        self.aim, self.left, self.delay_secs = aim, arrival, delay_secs
        self.tell, self.signal_number = tell, signal_number
        self.recovering = False
        self.training = False  # Before, functions are traced for their shapes only.
        self._lock = threading.Lock()
        self._inside = threading.local()

    def reach(self, point):
        """Reports that the process has reached a point."""
        aloud = f"in recovery, {point}"
        if self.aim != (aloud if self.recovering and aloud in LATEST else point):
            return
        with self._lock:
            self.left -= 1
            if self.left == 0:
                self.tell(killed=self.aim)
                os.kill(os.getpid(), self.signal_number)

    def traced(self):
        """Reports that a function of the step is being traced: the compiler comes next."""
        if not self.training:
            return
        self.reach("compile: tracing")
        self._reach_later("compile: amid", self.delay_secs)

    def _reach_later(self, point, delay_secs):
        if self.aim is not None and self.aim.endswith(point):
            timer = threading.Timer(delay_secs, self.reach, [point])
            timer.daemon = True
            timer.start()

    def install(self):
        """Wraps the calls that lead to the points, for the rest of this process's life."""
        for name in ("fsync", "fdatasync"):
            if hasattr(os, name):
                self._wrap(os, name, lambda *_: "sync")
        for name in ("rename", "replace"):
            self._wrap(os, name, _kind_of_rename, _AFTER)
        self._wrap(os, "remove", lambda path, *_: _LEASE_ENDS.get(os.path.basename(path), "other removal"), _AFTER)
        self._wrap_removals()
        self._wrap_event_files()
        self._wrap(hl.train.Saver, "restore", lambda *_: "restore")
        self._wrap(hl.train.Saver, "save_async", self._saving)
        self._wrap(orbax_io, "merge_parts", lambda *_: "joining")
        self._wrap(hl.Session, "close", lambda *_: "close")
        # Runs that hooks ride on; initialisers are runs as well.
        self._wrap(
            SessionBackend,
            "run_with_hook_fetches",
            lambda engine, fetches, watched, *_: "step" if watched else "other run",
        )
        self._wrap(SessionBackend, "load", lambda *_: "load")
        jax.monitoring.register_event_duration_secs_listener(self._compiled)

    def _wrap(self, owner, name, kind_of, after=None):
        function = getattr(owner, name)

        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            kind = kind_of(*args)
            self.reach(_BEFORE.get(kind, f"{kind}: before"))
            result = function(*args, **kwargs)
            self.reach((after or {}).get(kind, f"{kind}: after"))
            if kind == "step":
                self.recovering = False
            return result

        setattr(owner, name, wrapped)

    def _saving(self, *_):
        # The C++ library that writes the arrays can be interrupted only by the clock.
        self._reach_later("save: amid", self.delay_secs / 5)
        return "save"

    def _wrap_removals(self):
        remove_tree, unlink = shutil.rmtree, os.unlink

        def rmtree(path, *args, **kwargs):
            kind = "removal" if "-removed-" in os.path.basename(path) else "clean-up"
            if kind == "clean-up":
                self.reach("clean-up: before")
            self._inside.kind = kind
            try:
                remove_tree(path, *args, **kwargs)
            finally:
                self._inside.kind = None
            self.reach(f"{kind}: after")

        def unlink_and_tell(*args, **kwargs):
            unlink(*args, **kwargs)
            if getattr(self._inside, "kind", None):
                self.reach(f"{self._inside.kind}: amid")

        shutil.rmtree, os.unlink = rmtree, unlink_and_tell

    def _wrap_event_files(self):
        event_files, open_file = set(), os.open

        def open_and_note(path, *args, **kwargs):
            descriptor = open_file(path, *args, **kwargs)
            (event_files.add if "tfevents" in str(path) else event_files.discard)(descriptor)
            return descriptor

        os.open = open_and_note
        self._wrap(os, "write", lambda file, *_: "event write" if file in event_files else "other write")

    def _compiled(self, event, *_, **__):
        if self.training and event.endswith("backend_compile_duration"):
            self.reach("compile: after")


# Values are put into the session at the end of a restore.
_BEFORE = {"load": "restore: amid"}
# A removal begins with a rename; a lease ends with the removal of two files.
_AFTER = {"removal": "removal: renamed", "lease's end": "lease's end: amid", "lease's last end": "lease's end: after"}
_LEASE_ENDS = {".hookline-owner": "lease's end", ".hookline-lock": "lease's last end"}
_RENAMED_TO = {
    "checkpoint": "state file",
    "graph.txt": "graph",
    "hookline.json": "manifest",
    ".hookline-owner": "owner file",
}


def _kind_of_rename(source, target, *_):
    source, target = os.path.basename(os.fspath(source)), os.path.basename(os.fspath(target))
    if target in _RENAMED_TO:
        return _RENAMED_TO[target]
    if ".hookline-removed-" in target:
        return "removal"
    return "commit" if ".hookline-writing-" in source else "other rename"
