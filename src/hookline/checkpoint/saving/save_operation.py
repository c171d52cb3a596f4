"""A save: the steps from a session's values to a complete checkpoint, and the thread that makes them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from hookline import clock, log
from hookline.checkpoint.directory import collective
from hookline.checkpoint.directory.lease import Lease
from hookline.checkpoint.directory.manifest import Manifest
from hookline.checkpoint.saving import contents, failures, host_copy, moves
from hookline.checkpoint.saving.failures import RetryPolicy
from hookline.checkpoint.saving.host_copy import HostCopy
from hookline.checkpoint.saving.manager import CheckpointManager
from hookline.checkpoint.saving.retention import KeptCheckpoint
from hookline.coordination.process_group import is_job_failure
from hookline.errors import InvalidArgumentError
from hookline.graph import Variable
from hookline.session import Session
from hookline.session.plan.source_positions import Position
from hookline.session.running import launch_log

T = TypeVar("T")

_logger = log.get_logger(__name__)


class SaveOperation:
    """One save of a checkpoint.

    The main thread calls `prepare` and `begin`; then a thread does the rest. Each SPMD process has such a thread, and
    each part of the save succeeds in all processes or fails in all. If a part fails for a temporary reason, the attempt
    ends and another one follows.

    Example: a save of step 100 while the disk is full for a moment.
        prepare    main thread   The values are copied to the host; the processes agree on the path.
        acquire    main thread   The lease is taken; 'model.ckpt-100.hookline-writing-1a2b3c4d' is created.
        write      thread        Orbax writes the arrays, meanwhile their checksums are computed: no space is left.
                                 That directory is removed. A second later:
        acquire    thread        The lease is checked; 'model.ckpt-100.hookline-writing-5e6f7a8b' is created.
        write      thread        Orbax writes the same arrays; the checksums are known.
        commit     thread        All is synced, the manifest last; the directory is renamed to 'model.ckpt-100'.
        finish     thread        The state file names it, and older checkpoints are removed; the lease is released.

    Args:
        manager: The manager of the saver's checkpoints.
        before_commit: Functions to call before the checkpoint becomes visible.
        path: Its path, without the step.
        state_file: The name of the state file.
        digits: The least number of digits of the step.
        retry: The policy for failed attempts.
        extra: As in `Saver.save_async`.
    """

    def __init__(
        self,
        manager: CheckpointManager,
        before_commit: Iterable[Callable[[], None]],
        path: str,
        state_file: str,
        digits: int,
        retry: RetryPolicy,
        extra: bool,
    ) -> None:
        self._manager, self._before_commit = manager, before_commit
        self._path, self._state_file, self._digits = path, state_file, digits
        self._retry, self._extra = retry, extra
        self._collective = collective.current()
        # The data to store. The session may be closed, or collected, before the checkpoint is complete.
        self._session: Callable[[], Session | None] = lambda: None
        self._manifest: Manifest | None = None
        self._stored: dict[str, HostCopy] = {}
        self._positions: Mapping[str, Position] = {}
        self._writing_processes: Sequence[int] = (0,)  # The processes that have arrays to write.
        # Checks that all processes have launched the same programs up to here.
        self._check_launches: Callable[[], None] | None = None
        # The progress.
        self._until_saved = contextlib.ExitStack()
        self._lease: Lease | None = None
        self._directory = ""  # The directory that all processes write to in this attempt.
        self._pieces: dict[str, Any] | None = None  # The pieces that this process stores, with their checksums.
        self._failures = 0
        self._failure: Exception = RuntimeError()
        self._failed_inside_orbax = False  # Whether a failure came from Orbax, which may hide the real one.

    # In the main thread -----------------------------------------------------------------------------------------

    def prepare(
        self, sess: Session, variables: Callable[[Session], Mapping[str, Variable]], global_step: Any, number: int
    ) -> None:
        """Copies this process's data to the host; after that the session may go on training.

        Args:
            sess: The session.
            variables: Returns its variables, by the names in the checkpoint.
            global_step: As in `Saver.save`.
            number: The number of the saver; all processes use the chief's.
        """
        found = self._collective.run_on_all(functools.partial(self._copy, sess, variables, global_step, number))
        (_, first, number) = found[0]
        for process, (_, place, _) in enumerate(found):
            if place != first:
                raise InvalidArgumentError.from_message(
                    f"{self._manager.name}: SPMD processes must save to one path, but process 0 saves to '{first}' and "
                    f"process {process} to '{place}'.",
                )
        for position in self._positions.values():
            position.before_save()
        self._writing_processes = [
            process for process, (has_arrays, _, _) in enumerate(found) if has_arrays or process == 0
        ]
        if not self._collective.is_alone:
            if (launched := launch_log.current()) is not None:
                self._check_launches = launched.begin_comparison(f"programs up to save {number}")
            self._collective = self._collective.with_tag(f"save {number}")

    def _copy(
        self, sess: Session, variables: Callable[[Session], Mapping[str, Variable]], global_step: Any, number: int
    ) -> tuple[bool, str, int]:
        sess.deliver_pending()
        copied = contents.copy_contents(sess, variables(sess), global_step, self._collective.is_chief)
        self._session, self._stored, self._positions = weakref.ref(sess), copied.stored, copied.positions
        self._manifest = dataclasses.replace(copied.manifest, extra=self._extra)
        if (step := copied.manifest.step) is not None:
            self._path = f"{self._path}-{step:0{self._digits}d}"
        if os.path.basename(self._path) == self._state_file:
            raise InvalidArgumentError.from_message(
                f"{self._manager.name} cannot save to '{self._path}': its state file has that name. Choose another.",
            )
        return bool(self._stored), os.path.abspath(self._path), number

    def begin(self) -> PendingSave:
        """Creates the directory, and starts the thread; raises an error after which there is no further attempt."""
        try:
            self._acquire_all()
            return PendingSave(self._path, self._complete)
        except BaseException:  # The directory, the lease and the copies must be released.
            self._abandon()
            self._until_saved.close()
            self._stored.clear()
            raise

    # In the thread ----------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        try:
            if self._check_launches is not None:
                try:
                    self._check_launches()
                except BaseException:  # The directory must be removed.
                    self._abandon()
                    raise
            while (timestamp := self._write_all()) is None:
                self._retry.wait(self._failure, self._failures)
                self._acquire_all()
            self._collective.gather_to_chief(functools.partial(self._finish, timestamp))
        finally:
            self._until_saved.close()
            self._stored.clear()  # An error's traceback would keep the copies alive.
        for position in self._positions.values():
            position.on_saved()

    def _finish(self, timestamp: float) -> None:
        assert self._manifest is not None
        new = KeptCheckpoint(self._path, timestamp, self._extra, self._manifest.step)
        self._manager.commit(new, self._state_file, self._lease, self._retry)

    def _acquire_all(self) -> None:
        if (found := self._attempt(self._acquire)) is not None:
            self._directory = found[0]

    def _write_all(self) -> float | None:
        """Returns the time in the manifest, in all processes; None if another attempt must follow."""
        if not self._directory or (pieces := self._attempt(self._write)) is None:
            return None
        done = self._attempt(functools.partial(self._commit, pieces))
        return None if done is None else done[0]

    # The parts of an attempt ------------------------------------------------------------------------------------

    def _acquire(self) -> str:
        """Returns the directory to write to, which the chief creates under the lease."""
        from hookline.checkpoint import orbax_io  # Importing Orbax takes 0.4 s.

        if self._collective.is_chief:
            if self._lease is None:
                given = self._session(), self._path, self._state_file
                self._lease = self._manager.acquire(*given, self._until_saved)
            with self._lease.ensure_held():
                self._directory = moves.prepare(os.path.abspath(self._path), self._was_saved)
            with self._in_orbax():
                orbax_io.prepare_directories(self._directory, self._writing_processes)
        return self._directory

    def _was_saved(self) -> bool:
        return self._manager.knows(self._path, self._state_file)

    def _write(self) -> dict[str, Any]:
        """Writes this process's part, and returns its pieces, by leaf name, as JSON values."""
        wait = self._start_writing()
        try:
            if self._pieces is None:
                pieces = host_copy.checksums(self._stored)
                for function in self._before_commit:
                    function()
                self._pieces = pieces
        finally:  # Files that are still being written are hard to remove.
            wait()
        return self._pieces

    def _start_writing(self) -> Callable[[], None]:
        """Starts to write this process's part, if it has one; returns a function that waits until the part is written.

        The chief syncs the whole directory later. In multi-process SPMD, each process also syncs its part.
        """
        from hookline.checkpoint import orbax_io

        if self._collective.index not in self._writing_processes:
            return lambda: None
        with self._in_orbax():
            wait = orbax_io.start_writing(self._directory, self._stored)

        def finish() -> None:
            with self._in_orbax():
                wait()
            if not self._collective.is_alone:
                orbax_io.sync_part(self._directory, self._collective.index)

        return finish

    def _commit(self, pieces: list[dict[str, Any]]) -> float:
        """Completes the checkpoint, in the chief, and returns the time in its manifest."""
        from hookline.checkpoint import orbax_io

        if not self._collective.is_chief:
            return 0.0
        assert self._lease is not None
        assert self._manifest is not None
        with self._in_orbax():
            orbax_io.merge_parts(self._directory, self._writing_processes)
        manifest = dataclasses.replace(self._manifest.with_pieces(pieces), timestamp=clock.time())
        moves.commit(self._directory, manifest, self._lease.ensure_held)
        return manifest.timestamp

    def _abandon(self) -> None:
        """Removes the files written so far."""
        if self._directory and self._collective.is_chief:
            moves.abandon(self._directory)
        self._directory = ""

    @contextlib.contextmanager
    def _in_orbax(self) -> Iterator[None]:
        self._failed_inside_orbax = True
        yield
        self._failed_inside_orbax = False

    def _attempt(self, part: Callable[[], T]) -> list[T] | None:
        """Calls `part` in all processes, as `gather_to_chief` does; returns None if another attempt must follow."""
        try:
            return self._collective.gather_to_chief(functools.partial(self._map_errors, part))
        except Exception as error:
            self._abandon()
            self._failures += 1
            if self._failures >= self._retry.max_attempts or not failures.is_transient(error):
                raise
            self._failure = error.with_traceback(None)
            return None

    def _map_errors(self, part: Callable[[], T]) -> T:
        try:
            return part()
        except Exception as error:
            mapped = failures.write_error(error, self._path)
            is_unclear, self._failed_inside_orbax = (
                self._failed_inside_orbax and failures.may_be_transient(error),
                False,
            )
            failures.set_transient(mapped, failures.is_transient(error) or is_unclear)
            if mapped is error:
                raise
            raise mapped from failures.without_tracebacks(error)


_under_way: set[PendingSave] = set()
_has_saved = threading.Event()


def finish_saves(directory: str) -> None:
    """Waits for this process's saves into a directory; their outcome is reported by the code that started them."""
    for save in list(_under_way):
        if os.path.realpath(os.path.dirname(save.path) or ".") == os.path.realpath(directory):
            save.join()


def bytes_under_way() -> int:
    """Returns the bytes in the files of the checkpoints that this process is writing: Orbax tells no progress."""
    total = 0
    for save in saves_under_way():
        for file in glob.iglob(f"{glob.escape(save)}*/**/*", recursive=True):
            with contextlib.suppress(OSError):  # It has just been renamed.
                total += os.path.getsize(file)
    return total


def saves_under_way() -> list[str]:
    """Returns the checkpoints that this process is writing."""
    return [save.path for save in list(_under_way)]


def has_saved() -> bool:
    """Returns whether this process has completed a checkpoint."""
    return _has_saved.is_set()


class PendingSave:
    """A checkpoint that is being written in the background.

    Wait for it before the process ends. Otherwise it is abandoned, with a line in the log, and does not appear.

    Example:
        >>> pending = PendingSave("runs/a/model.ckpt-1", finish=lambda: None)
        >>> pending.wait()
        >>> pending.done(), pending.path
        (True, 'runs/a/model.ckpt-1')
    """

    def __init__(self, path: str, finish: Callable[[], None]) -> None:
        self.path = path
        self._future: Future[None] = Future()
        self._is_raised = False
        # Only the thread holds `finish`, and drops it at the end, because it holds the copied values.
        self._thread = threading.Thread(
            target=self._run, args=(finish,), name=f"hookline-save-{os.path.basename(path)}"
        )
        _under_way.add(self)
        try:
            self._thread.start()
        except BaseException:  # Nobody must wait for it.
            _under_way.discard(self)
            raise

    def _run(self, finish: Callable[[], None]) -> None:
        error = None
        try:
            finish()
        except BaseException as raised:  # `wait` raises it.
            error = raised
            is_of_job = is_job_failure(raised)
            _logger.error("%s%s", f"'{self.path}' was not completed: " if is_of_job else "", error)
        _under_way.discard(self)
        if error is None:
            _has_saved.set()
            self._future.set_result(None)
        else:
            self._future.set_exception(error)

    def when_done(self, function: Callable[[BaseException | None], None]) -> None:
        """Calls a function once the save has succeeded or failed, before `wait` returns; at once if it has.

        Args:
            function: Gets the error, or None. The thread of the save calls it. It must not raise.
        """
        # Dropped after the call: it may refer to a session, which must not live as long as the saver of this save.
        functions = [function]
        self._future.add_done_callback(lambda end: functions.pop()(end.exception()))

    def join(self) -> None:
        """Blocks until it has succeeded or failed."""
        self._thread.join()

    def done(self) -> bool:
        """Returns whether it has succeeded or failed. Never blocks."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Blocks until the checkpoint is complete.

        Raises:
            OpError: It could not be written; the cause is attached. Each call raises it.
        """
        self._thread.join()
        self._is_raised = True
        self._future.result()

    def wait_unless_raised(self) -> None:
        """Blocks as `wait` does, but does not repeat an error that `wait` has raised."""
        if self._is_raised:
            self._thread.join()
        else:
            self.wait()
