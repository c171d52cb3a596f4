"""The owner file of a directory: the process that has the lease."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
import secrets
import socket

from hookline.checkpoint.directory import schema
from hookline.checkpoint.saving import durable, failures
from hookline.regular_file import UnreadableFileError, read_text

MAX_BYTES = 2**16
"""The largest owner file that is read."""
_MAX_HEARTBEAT_SECS = 3600.0


_UNFINISHED = re.compile(r"\.hookline-owner\.[0-9a-f]{32}")


@dataclasses.dataclass(frozen=True)
class Owner:
    """The contents of an owner file.

    Attributes:
        token: A random id of the lease.
        host: The name of its host, for messages.
        boot_id: The boot id of its host; processes with the same one share locks.
        pid: Its process id.
        pid_namespace: The namespace of the process id.
        started: The start time of the process, in the clock ticks of its host.
        beat_secs: The interval of its heartbeats.
        beat: The number of its heartbeats so far.
    """

    token: str
    host: str
    boot_id: str
    pid: int
    pid_namespace: str
    started: str
    beat_secs: float
    beat: int = 0

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @staticmethod
    def this_process(beat_secs: float) -> Owner:
        """Returns a new owner for this process."""
        pid, token = os.getpid(), secrets.token_hex(16)
        return Owner(token, socket.gethostname(), boot_id(), pid, _pid_namespace(), _start_time(pid), beat_secs)

    @property
    def shares_locks(self) -> bool:
        """Whether it runs on this host, in the same boot."""
        return self.boot_id == boot_id()

    @property
    def has_comparable_pid(self) -> bool:
        """Whether its process id has a meaning here: host and namespace are the same."""
        return self.shares_locks and self.pid_namespace == _pid_namespace()

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended, or is this one; valid only if `has_comparable_pid`."""
        return self.pid == os.getpid() or _start_time(self.pid) != self.started


_OWNER = schema.record(
    Owner,
    token=schema.string(),
    host=schema.string(),
    boot_id=schema.string(),
    pid=schema.integer(1, 2**31 - 1),
    pid_namespace=schema.string(),
    started=schema.string(),
    beat_secs=schema.number(0, _MAX_HEARTBEAT_SECS),
    beat=schema.not_required(schema.integer(at_least=0)),
)


def read(path: str) -> Owner | None:
    """Returns the contents of an owner file, or None if there is none; raises other system errors."""
    try:
        return parse(read_text(path, MAX_BYTES))
    except (FileNotFoundError, NotADirectoryError, UnreadableFileError):
        return None


def parse(text: str) -> Owner | None:
    """Parses the text of an owner file; returns None if hookline did not write it."""
    try:
        return schema.parse(text, _OWNER)
    except ValueError:
        return None


def is_unfinished(path: str) -> bool:
    """Returns whether this is a temporary owner file, left by a process that was killed before the rename."""
    return _UNFINISHED.fullmatch(os.path.basename(path)) is not None and os.path.isfile(path)


def write(path: str, owner: Owner) -> str:
    """Writes an owner file atomically, and returns its text."""
    temporary, text = f"{path}.{owner.token}", json.dumps(dataclasses.asdict(owner))
    try:
        with durable.create(temporary) as file:
            file.write(text.encode())
        os.replace(temporary, path)
    except BaseException:  # The next heartbeat creates the same file.
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise
    return text


@functools.cache
def boot_id() -> str:
    """Returns the boot id of this host, or else its name."""
    return _read_proc("sys/kernel/random/boot_id").strip() or socket.gethostname()


def _pid_namespace() -> str:
    return _read_proc("self/ns/pid")


def _start_time(pid: int) -> str:
    """Returns the start time of a process, which distinguishes it from a later one of the same id; "" for none."""
    fields = _read_proc(f"{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def process_age() -> float:
    """Returns the seconds since this process began; 0 where the system does not tell."""
    started, up = _start_time(os.getpid()), _read_proc("uptime").split()
    return max(float(up[0]) - float(started) / os.sysconf("SC_CLK_TCK"), 0.0) if started and up else 0.0


def _read_proc(name: str) -> str:
    """Returns the target of a link, or the text of a file, in `/proc`; "" if there is none."""
    try:
        if os.path.islink(path := f"/proc/{name}"):
            return os.readlink(path)
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError as error:
        # A temporary error, such as too many open files, does not mean that the other process has ended.
        if failures.is_transient(error):
            raise
        return ""
