"""A process that trains: forked from this one, which has imported everything and started nothing."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback

# Modules that a process would import later are imported here, in the forking process.
import tensorboard.backend.event_processing.event_file_loader  # noqa: F401

import hookline.checkpoint.orbax_io  # noqa: F401 - loaded by and by, like the next
from hookline.summary import Summary  # noqa: F401

from .points import Points
from .training import train

_PATIENCE_SECS = 120.0


class Process:
    """A forked process, seen from its parent.

    It does `job(directory, points, tell, life, **how)`, and writes its standard error to a file.

    Attributes:
        file: The descriptor to wait on: when it is readable, call `listen`.
        messages: Its messages, in order.
        killed_at: The point or the moment at which it was killed; None while it lives, or came to its end.
        status: The exit status, negative for a signal; None while it lives.
    """

    def __init__(self, directory, errors_to, life, job=train, **how):
        check_that_forking_is_clean()
        self.life, self.messages, self.killed_at, self.status = life, [], None, None
        self._text, self._deadline = b"", time.monotonic() + _PATIENCE_SECS
        self._kill_at = float("inf")
        self.file, write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.file)
            _live(directory, errors_to, life, write_end, job, how)
        os.close(write_end)

    def listen(self):
        """Receives its messages; returns False once it has ended."""
        text = os.read(self.file, 2**16)
        *lines, self._text = (self._text + text).split(b"\n")
        for line in lines:
            message = json.loads(line)
            self.messages.append(message)
            if "killed" in message:
                self.killed_at = message["killed"]
            elif self.life.moment in message and self._kill_at == float("inf"):
                self._kill_at = time.monotonic() + self.life.delay_secs
        if text:
            return True
        os.close(self.file)
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if self.status != -signal.SIGKILL:
            self.killed_at = None
        return False

    def secs_left(self):
        """Returns how long it may live on before `kill_if_due` has something to do."""
        return max(0.0, min(self._kill_at, self._deadline) - time.monotonic())

    def kill_if_due(self):
        """Kills it where its time has come, and where it hangs."""
        now = time.monotonic()
        if now >= self._deadline:
            os.kill(self.pid, signal.SIGABRT)  # With its stacks on standard error.
            self._deadline = float("inf")
        elif now >= self._kill_at:
            self.killed_at, self._kill_at = f"any time after '{self.life.moment}'", float("inf")
            os.kill(self.pid, signal.SIGKILL)

    def end(self):
        """Ends it, whatever it is doing: nobody will listen any more."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def check_that_forking_is_clean():
    """Raises unless this process has but one thread: a child has only the one that forks."""
    threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()
    if threads != 1:
        raise RuntimeError(f"The process that forks must have one thread, it has {threads}: a backend was started.")


def _live(directory, errors_to, life, write_end, job, how):
    status = 1
    try:
        errors = os.open(errors_to, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(errors, sys.stderr.fileno())
        faulthandler.enable()
        logging.basicConfig(format="%(asctime)s %(process)d %(levelname)s %(message)s", stream=sys.stderr)
        write = os.write

        def tell(**message):
            write(write_end, json.dumps(message).encode() + b"\n")

        tell(begun=True)
        points = Points(life.aim, life.arrival, life.delay_secs, tell)
        points.install()
        job(directory, points, tell, life, **how)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
