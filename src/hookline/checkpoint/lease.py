"""One writer a directory: the lease that a process holds while it saves there.

Wherever a lock of the file system works, it decides. It ends with its process, however the process ends, and a forked
process does not have it. An owner file beside it names the owner. If locks do not work (hosts that share a directory
whose file system does not lock across them), the owner's heartbeat decides. An owner that gives no sign of life, by the
clock of the waiting process, loses the lease, and finds this out before it writes anything again.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import errno
import fcntl
import functools
import json
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator

from hookline import arguments, clock, preemption
from hookline.checkpoint import durable, failures, layout
from hookline.errors import FailedPreconditionError, OpError

# Nothing else may open this file: closing any descriptor of it would give up the lock.
LOCK_NAME = ".hookline-lock"
OWNER_NAME = ".hookline-owner"
DEFAULT_WAIT_SECS = 120.0

_HEARTBEAT_SECS = 10.0
_BEATS_TO_MISS = 3
_LOOK_EVERY_SECS = 0.2
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
_HELD_BY_OTHERS = (errno.EACCES, errno.EAGAIN)

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Owner:
    """The contents of an owner file.

    Attributes:
        token: Random; identifies one lease.
        host: Its host's name, for messages.
        boot_id: Changes with each start of its host; processes with the same one share the same locks.
        pid: Its process.
        pid_namespace: The namespace of that number.
        started: When the process was started, in the clock ticks of its host.
        beat_secs: The interval of its signs of life.
        beat: How many it has given.
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
    def this_process() -> Owner:
        """Returns a new one for this process."""
        return Owner(
            secrets.token_hex(16),
            socket.gethostname(),
            _boot_id(),
            os.getpid(),
            _namespace(),
            _started(os.getpid()),
            _HEARTBEAT_SECS,
        )


class Lease:
    """The right of this process to save in a directory; `hold` grants it. All savers of a process share it."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._acquiring = threading.RLock()
        self._owner: Owner | None = None
        self._descriptor: int | None = None
        self._locked = False
        self._loss: str | None = None
        # Another owner's last sign of life, and when it was first seen.
        self._seen: tuple[Owner, float] | None = None
        self.holds = 0

    def acquire(self, wait_secs: float) -> None:
        """Waits until this process has it.

        Raises:
            FailedPreconditionError: Another process has it and keeps it, or this process had it and lost it.
            OpError: The directory cannot be written to.
        """
        with self._acquiring:
            self._check_loss()
            if self._descriptor is not None:
                return
            start, told = clock.monotonic(), False
            while (obstacle := self._try()) is not None:
                waited = clock.monotonic() - start
                if waited >= wait_secs:
                    raise FailedPreconditionError(
                        None,
                        None,
                        f"'{self._directory}' has a writer: {obstacle} saves its checkpoints there, and still did "
                        f"after {wait_secs:g} s. End it, or use another directory.",
                    )
                if not told:
                    _logger.warning(
                        "'%s' has a writer: %s saves its checkpoints there. Waiting up to %g s for its end.",
                        self._directory,
                        obstacle,
                        wait_secs,
                    )
                    told = True
                preemption.sleep(min(_LOOK_EVERY_SECS, wait_secs - waited))

    def share(self) -> Callable[[], None]:
        """Keeps the lease even if other holders give it back; returns a function that gives this share back."""
        with _guard:
            self.holds += 1
        return functools.partial(_give_back, self, iter([None]))

    def check(self) -> None:
        """Checks that this process still has the lease; call it before anything in the directory changes.

        Raises:
            FailedPreconditionError: This process has lost it for good.
            OpError: The directory cannot be read at the moment.
        """
        with self._acquiring:
            self._check_loss()
            try:
                self._look()
            except OSError as error:
                raise failures.not_written(error, self._directory) from error
            self._check_loss()

    def beat(self) -> None:
        """Gives a sign of life, unless another process has taken over."""
        if not self._acquiring.acquire(blocking=False):
            return  # The thread inside checks too.
        try:
            if self._descriptor is None or self._loss is not None:
                return
            self._look()
            if self._loss is None and self._owner is not None:
                self._owner = dataclasses.replace(self._owner, beat=self._owner.beat + 1)
                self._write_owner()
        except OSError as error:  # If this cannot be written, no save can, and the save will say so.
            _logger.info("The lease of '%s' could not be renewed: %s", self._directory, error)
        finally:
            self._acquiring.release()

    def give_up(self) -> None:
        """Gives up the lease, so that others may take it."""
        with self._acquiring:
            if self._descriptor is None:
                return
            with contextlib.suppress(OSError):
                if self._loss is None and self._reads_as_mine():
                    os.remove(self._path(OWNER_NAME))
                    os.remove(self._path(LOCK_NAME))  # Others that have opened it check that it is still the same.
            os.close(self._descriptor)
            self._descriptor = self._owner = None

    def forget(self) -> None:
        """Leaves it to the process that this one was forked from."""
        self._acquiring = threading.RLock()
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._loss = None, f"'{self._directory}' is saved to by the process that this one came from."

    def _check_loss(self) -> None:
        if self._loss is not None:
            raise FailedPreconditionError(None, None, self._loss)

    def _try(self) -> str | None:
        """Takes the lease if it is free; otherwise returns its owner."""
        durable.make_directories(self._directory)
        descriptor = os.open(self._path(LOCK_NAME), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            locked = lock(descriptor)
            owner = self._read_owner()
            if locked is None or not _same_file(descriptor, self._path(LOCK_NAME)):
                return str(owner or "another process")
            if owner is not None and not self._is_gone(owner, locked):
                return str(owner)
            self._owner, self._locked = Owner.this_process(), locked
            if locked:
                self._remove_leftovers()
            self._write_owner()
            if not locked:
                clock.sleep(_LOOK_EVERY_SECS)  # If two processes take over at the same moment, the last one has it.
                if not self._reads_as_mine():
                    return str(self._read_owner() or "another process")
            self._descriptor, descriptor = descriptor, None
            return None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _remove_leftovers(self) -> None:
        """Removes owner files whose processes were killed while writing them."""
        for name in os.listdir(self._directory):
            if name.startswith(f"{OWNER_NAME}."):
                os.remove(self._path(name))

    def _is_gone(self, owner: Owner, locked: bool) -> bool:
        if owner.boot_id == _boot_id():
            if owner.pid_namespace == _namespace():
                # An owner may be alive without its lock if it copied the directory: reading a locked file drops the
                # lock.
                return owner.pid == os.getpid() or _started(owner.pid) != owner.started or self._is_silent(owner)
            if locked:
                return True  # It would have the lock.
        return self._is_silent(owner)

    def _is_silent(self, owner: Owner) -> bool:
        now = clock.monotonic()
        if self._seen is None or self._seen[0] != owner:
            self._seen = owner, now
        return now - self._seen[1] > _BEATS_TO_MISS * owner.beat_secs

    def _look(self) -> None:
        """Checks whether this process still has the lease, and notes a loss."""
        on_file = self._descriptor is not None and _same_file(self._descriptor, self._path(LOCK_NAME))
        if self._descriptor is not None and on_file and self._locked:
            # If anything in this process has read the lock file, the lock is gone.
            on_file = lock(self._descriptor) is True
        owner = self._read_owner()
        if owner is not None:
            mine = self._owner is not None and owner.token == self._owner.token and (on_file or not self._locked)
            obstacle = None if mine else str(owner)
        elif on_file and self._locked:
            obstacle = None
            self._write_owner()
        elif _is_empty(self._directory):  # Somebody has removed what was here.
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
            obstacle = self._try()
        else:
            obstacle = "another process, which has ended"
        if obstacle is not None:
            self._loss = (
                f"'{self._directory}' was taken over by {obstacle}, for this process gave no sign of life for "
                f"{_BEATS_TO_MISS * _HEARTBEAT_SECS:g} s: it saves nothing more there. Was it stopped?"
            )

    def _reads_as_mine(self) -> bool:
        owner = self._read_owner()
        return owner is not None and self._owner is not None and owner.token == self._owner.token

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _read_owner(self) -> Owner | None:
        """Returns the contents of the owner file, or None if there is none; raises other system errors."""
        try:
            with open(self._path(OWNER_NAME), encoding="utf-8") as file:
                return Owner(**json.load(file))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError):  # hookline does not write such a file; it names no owner.
            return None

    def _write_owner(self) -> None:
        assert self._owner is not None
        temporary = self._path(f"{OWNER_NAME}.{self._owner.token}")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(self._owner), file)
        os.replace(temporary, self._path(OWNER_NAME))


def lock(descriptor: int) -> bool | None:
    """Locks a file for this process: True if it did, None if another process has the lock, False without locks."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD_BY_OTHERS:
            return None
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


_leases: dict[str, Lease] = {}
_guard = threading.RLock()
_wake = threading.Event()


def hold(directory: str, wait_secs: float = DEFAULT_WAIT_SECS, path: str = "") -> Callable[[], None]:
    """Takes the lease of a directory, or a share in it if this process already has it.

    Args:
        directory: The directory; made if it is missing.
        wait_secs: How long to wait for another writer to end.
        path: The file to be written there, for messages.

    Returns:
        A function that gives it back; further calls do nothing.

    Raises:
        FailedPreconditionError: Another process saves there and still did when the time was over; the message names it.
        OpError: The directory cannot be written to.
    """
    arguments.number("A lease", "lease_wait_secs", wait_secs, at_least=0)
    with _guard:
        name = os.path.realpath(directory)
        lease = _leases.get(name) or Lease(os.path.abspath(directory))
        give_back = lease.share()
        _leases[name] = lease
        _beat_in_background()
    try:
        lease.acquire(wait_secs)
    except BaseException as error:
        give_back()
        if isinstance(error, OSError):
            raise failures.not_written(error, path or directory) from error
        raise
    return give_back


def of(directory: str) -> Lease | None:
    """Returns the lease of this process on a directory, if it has one."""
    return _leases.get(os.path.realpath(directory))


def _give_back(lease: Lease, once: Iterator[None]) -> None:
    for _ in once:
        with _guard:
            lease.holds -= 1
            if lease.holds:
                return
            lease.give_up()
            for name in [name for name, other in _leases.items() if other is lease]:
                del _leases[name]
            if not _leases:
                _wake.set()


def _beat_in_background() -> None:
    global _wake
    if len(_leases) == 1 and next(iter(_leases.values())).holds == 1:
        _wake = threading.Event()
        threading.Thread(target=_beat, args=(_wake,), name="hookline-leases", daemon=True).start()


def _beat(over: threading.Event) -> None:
    while not over.wait(_HEARTBEAT_SECS):
        with _guard:
            leases = list(_leases.values())
        for lease in leases:
            try:
                lease.beat()
            except Exception:
                _logger.exception("A lease could not be renewed")


def _is_empty(directory: str) -> bool:
    """Whether there is no checkpoint in a directory, or no directory."""
    try:
        return not layout.names(directory)
    except OpError:
        return False


@atexit.register
def _give_up_all() -> None:
    for lease in list(_leases.values()):
        lease.give_up()


def _forget_all() -> None:
    global _guard
    _guard = threading.RLock()
    for lease in _leases.values():
        lease.forget()
    _leases.clear()


os.register_at_fork(after_in_child=_forget_all)


def _same_file(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


@functools.cache
def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Returns when a process was started, which tells it from a later one of the same number; "" if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
