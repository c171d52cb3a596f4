"""One writer per directory: the lease that a process holds while it saves there.

If the file system has locks, the process that has locked the lock file has the lease. The lock ends with its process,
even a killed one, and a forked process does not have it. An owner file beside it names the owner. If locks do not work
(hosts that share a directory whose file system does not lock across them), the owner's heartbeat decides. If the
waiting process sees no new heartbeat for three heartbeat intervals, by its own clock, it takes the lease, and the old
owner notices this before it writes again.

A user may remove the directory, or only the two files, or replace the directory with a copy. The owner notices this
before it writes again. It takes the lease again only if there is nothing that another process could have saved.

Example: process 1 has saved in D and still trains. Somebody removes D, or some of its files. Then 1 starts a save. The
table shows what it finds (the process that the owner file names; the process that has locked the lock file, or "new" if
the file that 1 locked is gone or replaced) and does:

    checkpoints   owner file   lock file          process 1
    (D is gone)                                   creates D again, and saves: after `rm -rf D` no later save is lost
    any           none         process 1          writes the owner file again, and saves
    none          none or 1    new                takes the lease again, and saves
    some          none         new                fails: 2 may have saved them and closed, or D is a copy
    some          process 1    new                fails: 2 may have saved them, or D is a copy with its owner file
    any           process 2    process 2          fails: "taken over by process 2"
    any           process 2    none: 2 killed     fails: "taken over by process 2, which has ended"
    any           none         process 2          retries for a second: a process that only waits also locks briefly
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import enum
import errno
import fcntl
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator

from hookline import clock, log
from hookline.checkpoint.directory import layout
from hookline.checkpoint.directory import owner_file as owner
from hookline.checkpoint.directory.owner_file import Owner
from hookline.checkpoint.saving import durable, failures
from hookline.errors import FailedPreconditionError, OpError
from hookline.regular_file import UnreadableFileError, open_regular, read_text
from hookline.signals import preemption

# Nothing else may open this file: closing any descriptor of it would give up the lock.
LOCK_NAME = ".hookline-lock"
OWNER_NAME = ".hookline-owner"
DEFAULT_WAIT_SECS = 120.0

_HEARTBEAT_SECS = 10.0
_MAX_MISSED_HEARTBEATS = 3
_POLL_SECS = 0.2
# A process that waits for a lease holds the lock for a moment at each attempt.
_MAX_RETRIES, _RETRY_LOCK_SECS = 20, 0.05
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
_HELD_BY_OTHERS = (errno.EACCES, errno.EAGAIN)
# Descriptions of processes without an owner file, for messages; also compared.
_UNNAMED_HOLDER, _UNNAMED_WRITER = "another process", "a writer that left no name"

_logger = log.get_logger(__name__)


class Lease:
    """The right of this process to save in a directory, taken by `acquire_lease`. All savers of a process share it."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock_path, self._owner_path = os.path.join(directory, LOCK_NAME), os.path.join(directory, OWNER_NAME)
        self._change_lock = threading.RLock()  # Held while this process changes the directory; taken first.
        self._acquire_lock = threading.RLock()  # Guards the attributes.
        # This process's entry in the owner file, None without the lease; and the text of the file.
        self._owner: Owner | None = None
        self._text = ""
        self._descriptor: int | None = None
        self._locked = False
        self._loss: str | None = None
        self._last_heartbeat = clock.monotonic()
        # Another owner's last heartbeat, and the time at which it was first seen.
        self._seen: tuple[Owner, float] | None = None
        self.holder_count, self.session = 0, object()  # `session` identifies the last session opened to save there.

    def acquire(self, wait_secs: float) -> None:
        """Waits until this process has the lease.

        Raises:
            FailedPreconditionError: Another process keeps the lease, or this process has lost it.
            OpError: The directory cannot be written to.
        """
        with self._acquire_lock:
            self._check_loss()
            if self._owner is not None:
                return
            start, has_warned = clock.monotonic(), False
            with preemption.waiting():
                while (blocker := self._try_acquire(self._acquire_blocker)) is not None:
                    waited = clock.monotonic() - start
                    if waited >= wait_secs:
                        raise FailedPreconditionError.from_message(
                            f"'{self._directory}' has a writer: {blocker} saves its checkpoints there, and has not "
                            f"ended within {wait_secs:g} s. End it, or use another directory.",
                        )
                    if not has_warned:
                        _logger.warning(
                            "'%s' has a writer: %s saves its checkpoints there. This process waits up to %g s for it "
                            "to end. Not to wait, end it, use another directory, or pass lock_timeout_secs=0, as in "
                            "CheckpointOptions(lock_timeout_secs=0).",
                            self._directory,
                            blocker,
                            wait_secs,
                        )
                        has_warned = True
                    preemption.sleep(min(_POLL_SECS, wait_secs - waited))

    def check(self) -> None:
        """Checks that this process still has the lease; takes it again if nothing can have been saved there since.

        Raises:
            FailedPreconditionError: This process has lost it for good.
            OpError: The directory cannot be read at the moment.
        """
        with self._change_lock, self._acquire_lock:
            self._check_loss()
            try:
                if not self._renew() and (blocker := self._reacquire()) is not None:
                    self._loss = self._loss_message(blocker)
            except OSError as error:
                raise failures.write_error(error, self._directory) from error
            self._check_loss()

    @contextlib.contextmanager
    def ensure_held(self) -> Iterator[None]:
        """Checks that this process still has the lease, before changes of the directory inside the block.

        Raises:
            OpError: As in `check`.
        """
        with self._change_lock:
            self.check()
            yield

    def heartbeat(self) -> None:
        """Writes a heartbeat, unless another process has taken over."""
        if not self._acquire_lock.acquire(blocking=False):
            return  # The thread that has the lock checks the lease, too.
        try:
            if self._owner is not None and self._loss is None and self._renew():
                self._owner = dataclasses.replace(self._owner, beat=self._owner.beat + 1)
                self._write_owner()
        except (OSError, OpError) as error:  # If this cannot be written, neither can a save, which raises the error.
            _logger.info("The lease of '%s' could not be renewed: %s", self._directory, error)
        finally:
            self._acquire_lock.release()

    def release(self) -> None:
        """Gives up the lease, so that others may take it."""
        with self._acquire_lock:
            if self._owner is None:
                return
            with contextlib.suppress(OSError):
                if self._loss is None and self._is_mine(owner.read(self._owner_path)):
                    os.remove(self._owner_path)
                    os.remove(self._lock_path)  # Others that have opened it check that it is still the same.
            self._close()
            self._owner = None

    def disown(self) -> None:
        """Leaves the lease to the parent process, after a fork: makes this object unusable."""
        self._acquire_lock, self._change_lock = threading.RLock(), threading.RLock()
        self._close()
        self._loss = f"The parent of this process saves its checkpoints in '{self._directory}'."

    def _check_loss(self) -> None:
        if self._loss is not None:
            raise FailedPreconditionError.from_message(self._loss)

    def _try_acquire(self, find_blocker: Callable[[Owner | None, bool], str | None]) -> str | None:
        """Takes the lease and returns None; or describes the process that prevents it, for messages.

        If no other process has the lock, calls `find_blocker` with the owner file's content and whether locks work. It
        describes the process that prevents it, or returns None if this process may take the lease.
        """
        durable.make_directories(self._directory)
        try:  # Do not follow a link: its target may be another directory's lock, or be created there.
            descriptor = open_regular(self._lock_path, os.O_RDWR | os.O_CREAT, follow_symlinks=False)
        except UnreadableFileError as error:
            raise FailedPreconditionError.from_message(
                f"'{self._lock_path}' cannot be locked: {error}. Remove it if no process saves there."
            ) from error
        try:
            lock = try_lock(descriptor)
            found = owner.read(self._owner_path)
            if lock is LockResult.HELD_BY_OTHER or not _same_file(descriptor, self._lock_path):
                return _UNNAMED_HOLDER if found is None or self._is_mine(found) else str(found)
            locked = lock is LockResult.ACQUIRED
            if (blocker := find_blocker(found, locked)) is not None:
                return blocker
            mine = Owner.this_process(_HEARTBEAT_SECS)
            if locked:  # Other processes may have been killed while they wrote owner files.
                for left in (os.path.join(self._directory, name) for name in os.listdir(self._directory)):
                    if owner.is_unfinished(left):
                        os.remove(left)
            text = owner.write(self._owner_path, mine)
            if not locked:
                clock.sleep(_POLL_SECS)  # If two processes take over at the same moment, the last writer has it.
                found = owner.read(self._owner_path)
                if found is None or found.token != mine.token:
                    return str(found or _UNNAMED_HOLDER)
            self._owner, self._text, self._locked, self._last_heartbeat = mine, text, locked, clock.monotonic()
            self._descriptor, descriptor = descriptor, None
            return None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _acquire_blocker(self, found: Owner | None, locked: bool) -> str | None:
        """Describes the live owner that prevents the first acquisition."""
        return None if found is None or self._is_gone(found, locked) else str(found)

    def _reacquire(self) -> str | None:
        """Takes the lease again if nothing can have been saved since it was lost; else as in `_try_acquire`."""
        self._close()  # Closing the same file later would release the new lock.
        blocker, retries = self._try_acquire(self._reacquire_blocker), 0
        while blocker == _UNNAMED_HOLDER and retries < _MAX_RETRIES:
            clock.sleep(_RETRY_LOCK_SECS)
            blocker, retries = self._try_acquire(self._reacquire_blocker), retries + 1
        if blocker is None:
            durable.sync_directory(os.path.dirname(self._directory))  # Another program may have created it.
            _logger.warning(
                "The files of the lease of '%s' were removed. No checkpoint is there: this process has taken the lease "
                "again.",
                self._directory,
            )
        return blocker

    def _reacquire_blocker(self, found: Owner | None, locked: bool) -> str | None:
        """Describes the process, even an ended one, that may have saved since the lease was lost."""
        if found is not None and not self._is_mine(found):
            return f"{found}, which has ended" if self._is_gone(found, locked) else str(found)
        return _UNNAMED_WRITER if layout.checkpoint_names(self._directory) else None

    def _loss_message(self, blocker: str) -> str:
        silent_secs = clock.monotonic() - self._last_heartbeat
        is_silent = silent_secs > _MAX_MISSED_HEARTBEATS * _HEARTBEAT_SECS
        silent = f"this process sent no heartbeat for {silent_secs:.0f} s"
        advice = " Was it suspended?" if is_silent else ""
        if blocker == _UNNAMED_WRITER:
            return (
                f"The lease files in '{self._directory}' ({LOCK_NAME}, {OWNER_NAME}) were removed or replaced, and "
                "checkpoints are there. Another process may have saved them, or somebody has restored a copy: this "
                f"process saves nothing more there{f'; {silent}' if is_silent else ''}.{advice} If no other training "
                "saves there, start this one again: it goes on from the newest checkpoint."
            )
        removed = f"the files of this process's lease there ({LOCK_NAME}, {OWNER_NAME}) were removed or replaced"
        why = silent if is_silent else f"{removed}, or this host was suspended"
        return (
            f"'{self._directory}' was taken over by {blocker}, because {why}: this process saves nothing more "
            f"there.{advice}"
        )

    def _renew(self) -> bool:
        """Returns whether this process still has the lease; restores the owner file if only that is missing."""
        if self._descriptor is None:
            return False
        if self._locked:
            # A process drops its lock when it closes any descriptor of the file, for example to copy the directory. So
            # this locks again; a waiting process may hold the lock for a moment.
            lock, retries = try_lock(self._descriptor), 0
            while lock is LockResult.HELD_BY_OTHER and retries < _MAX_RETRIES:
                clock.sleep(_RETRY_LOCK_SECS)
                lock, retries = try_lock(self._descriptor), retries + 1
            if lock is not LockResult.ACQUIRED or not _same_file(self._descriptor, self._lock_path):
                return False
        try:  # Without locks the owner file alone decides.
            text = read_text(self._owner_path, owner.MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError, UnreadableFileError):
            text = ""
        if text != self._text and not self._is_mine(found := owner.parse(text)):
            if found is not None or not self._locked:
                return False
            self._write_owner()
        return True

    def _is_gone(self, found: Owner, locked: bool) -> bool:
        # An owner that has copied the directory is alive without its lock: closing any descriptor of the lock file
        # drops the lock. So the lock decides only if the process ids of two namespaces cannot be compared.
        ended = found.has_ended if found.has_comparable_pid else found.shares_locks and locked
        return ended or self._is_silent(found)

    def _is_silent(self, found: Owner) -> bool:
        now = clock.monotonic()
        if self._seen is None or self._seen[0] != found:
            self._seen = found, now
        return now - self._seen[1] > _MAX_MISSED_HEARTBEATS * found.beat_secs

    def _is_mine(self, found: Owner | None) -> bool:
        return found is not None and self._owner is not None and found.token == self._owner.token

    def _write_owner(self) -> None:
        assert self._owner is not None
        self._text = owner.write(self._owner_path, self._owner)
        self._last_heartbeat = clock.monotonic()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class LockResult(enum.Enum):
    """The result of `try_lock`; `UNSUPPORTED` if the file system has no locks."""

    ACQUIRED = 0
    HELD_BY_OTHER = 1
    UNSUPPORTED = 2


def try_lock(descriptor: int) -> LockResult:
    """Tries to lock a file for this process, without waiting."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD_BY_OTHERS:
            return LockResult.HELD_BY_OTHER
        if error.errno in _NO_LOCKS:
            return LockResult.UNSUPPORTED
        raise
    return LockResult.ACQUIRED


_leases: dict[str, Lease] = {}
_guard = threading.RLock()
_Inbox = queue.SimpleQueue[Callable[[], None] | None]
_inbox = _Inbox()  # Functions for the thread to call; None ends it.


class LeaseHandle:
    """A counted handle on a lease. Calling it releases it, once; the last handle to be released releases the lease.

    Args:
        lease: The lease.
    """

    def __init__(self, lease: Lease) -> None:
        self.lease, self._is_held = lease, True
        with _guard:
            lease.holder_count += 1

    def __call__(self) -> None:
        """Releases the handle."""
        with _guard:
            if self._is_held:
                self._is_held = False
                self.lease.holder_count -= 1
                if not self.lease.holder_count:
                    _release_lease(self.lease)


def acquire_lease(directory: str, wait_secs: float = DEFAULT_WAIT_SECS, path: str = "") -> LeaseHandle:
    """Takes the lease of a directory, unless this process already has it, and returns a handle on it.

    Args:
        directory: The directory; created if it is missing.
        wait_secs: The longest wait for another writer to end.
        path: The file to be written there, for messages.

    Returns:
        The caller's handle, to be called to release it.

    Raises:
        OpError: As in `Lease.acquire`.
    """
    global _inbox
    with _guard:
        name = os.path.realpath(directory)
        if (lease := _leases.get(name)) is None:
            lease = _leases[name] = Lease(os.path.abspath(directory))
            if len(_leases) == 1:
                _inbox = _Inbox()
                threading.Thread(target=_heartbeat_loop, args=(_inbox,), name="hookline-leases", daemon=True).start()
        handle = LeaseHandle(lease)
    try:
        lease.acquire(wait_secs)
    except BaseException as error:  # The lease must be released.
        handle()
        if isinstance(error, OSError):
            raise failures.write_error(error, path or directory) from error
        raise
    return handle


def release_when_collected(holder: object, give_back: Callable[[], None]) -> None:
    """Releases a lease, in the heartbeat thread, after its holder, such as a session's hook, is garbage-collected."""
    weakref.finalize(holder, lambda: _inbox.put(give_back)).atexit = False


def get_lease(directory: str) -> Lease | None:
    """Returns the lease of this process on a directory, if it has one."""
    return _leases.get(os.path.realpath(directory))


def _release_lease(lease: Lease) -> None:
    lease.release()
    for name in [name for name, other in _leases.items() if other is lease]:
        del _leases[name]
    if not _leases:
        _inbox.put(None)


def _heartbeat_loop(inbox: _Inbox) -> None:
    while True:
        calls = []
        with contextlib.suppress(queue.Empty):
            if (release := inbox.get(timeout=_HEARTBEAT_SECS)) is None:
                return
            calls.append(release)
        with _guard:
            calls += [lease.heartbeat for lease in _leases.values()]
        for call in calls:
            try:
                call()
            except Exception:
                _logger.exception("A lease could not be renewed or released.")


@atexit.register
def _release_all() -> None:
    for lease in list(_leases.values()):
        lease.release()


def _disown_all() -> None:
    global _guard
    _guard = threading.RLock()
    for lease in _leases.values():
        lease.disown()
    _leases.clear()


os.register_at_fork(after_in_child=_disown_all)


def _same_file(descriptor: int, path: str) -> bool:
    """Returns whether an open file is the one at a path; raises an `OSError` if that cannot be decided."""
    try:
        there = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        return os.path.samestat(there, os.fstat(descriptor))
    except OSError as error:
        # A network file system reports an open file as stale if it was removed on another host.
        if error.errno == errno.ESTALE:
            return False
        raise
