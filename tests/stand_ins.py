"""Stand-ins for other code, for tests of several folders."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from tests.direct_transport import DirectTransport

from hookline.distributed import ParameterServer, RemoteStore

# Processes that end together, and the way to servers that are Ray actors.
from hookline.distributed.cluster.process_tree import ProcessTree
from hookline.distributed.cluster.ray_actors import RayTransport
from hookline.train import SessionRunContext, SessionRunHook

__all__ = [
    "DirectTransport",
    "Forwards",
    "ProcessTree",
    "RayTransport",
    "Servers",
    "await_saves",
    "forget_programs",
    "write_commands",
]


class Servers(DirectTransport):
    """Parameter servers in this process, as the target of a session."""

    def __init__(self, count=1):
        super().__init__([ParameterServer() for _ in range(count)])

    def open_store(self, graph):
        return RemoteStore(graph, self)

    def hooks(self, summary_dir):
        return []


def forget_programs() -> None:
    """Has the next program be compiled, also if this process has compiled an equal one."""
    from hookline.session.program import shared_jit

    shared_jit.clear_cache()


def await_saves() -> None:
    """Waits until nothing is saved in the background."""
    for thread in threading.enumerate():
        if thread.name.startswith("hookline-save"):
            thread.join()


def write_commands(folder: Path, **commands: str) -> None:
    """Writes commands into a folder, by name; and `python`, which is this one."""
    for name, text in {**commands, "python": f'#!/bin/bash\nexec {sys.executable} "$@"\n'}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


class Forwards(SessionRunHook):
    """Forwards to another hook, with a context of its own, as published code does."""

    def __init__(self, inner):
        self.inner = inner
        self.begin, self.after_create_session = inner.begin, inner.after_create_session

    def before_run(self, run_context):
        self.context = SessionRunContext(run_context.original_args, run_context.session)
        return self.inner.before_run(self.context)

    def after_run(self, run_context, run_values):
        self.inner.after_run(self.context, run_values)
        if self.context.stop_requested:
            run_context.request_stop()
