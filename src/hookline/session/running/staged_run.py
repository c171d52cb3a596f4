"""Staged runs: the stages around a program, for runs that consist of more than a program."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

from hookline import clock
from hookline.errors import FailedPreconditionError
from hookline.graph.graph import Operation
from hookline.session.plan.getters import Run
from hookline.session.plan.source_positions import feed
from hookline.session.running.cached_step import CachedStep, explained
from hookline.session.running.retry import RETRY


class StagedRuns:
    """Makes the runs of a session with host operations, with batches, with options, or with variables elsewhere."""

    def __init__(self, session: Any) -> None:
        self._session = session
        # The thread of the host operation that runs under the lock, if one does.
        self._host_thread: int | None = None
        self._host_locks: dict[Operation, Any] = {}

    def make(self, step: CachedStep, run: Run) -> None:
        """Makes a run."""
        session, hosts, plan, metadata = self._session, step.hosts, step.plan, run.metadata
        is_traced = metadata is not None and run.options is not None and run.options.trace_level > 0
        run.begin()
        start = clock.monotonic() if is_traced else 0.0
        if hosts.before and not hosts.before_needs_lock:
            hosts.compute(hosts.before, run, session)
        if step.exchanges:
            # Not under the lock: a thread that reads or closes must not wait for slower workers.
            nested = self._host_thread == threading.get_ident()
            self._wait_for_sources(step)
            with session.store.turn(plan.remote, nested=nested):
                self._exchange(step, run)
        else:
            self._exchange(step, run)
        if not step.exchanges or (step.program is not None and step.program.latches):
            ahead = session.ahead
            ahead.left -= 1
            if ahead.left <= 0:
                ahead.look(step, run)
        done = clock.monotonic() if is_traced else 0.0
        if hosts.after:
            hosts.compute(hosts.after, run, session)
        if metadata is not None and is_traced:
            times = {"before": run.begun - start, "device": done - run.begun, "after": clock.monotonic() - done}
            metadata.stage_secs.update(times)

    def _wait_for_sources(self, step: CachedStep) -> None:
        if step.plan.sources:
            with self._session.lock:
                self._session.check_usable()
                awaited = self._session.sources.opened(step.plan.sources)
            for source in awaited:
                source.wait()

    def _exchange(self, step: CachedStep, run: Run) -> None:
        """Makes the stages that need the variables, with a batch of each source.

        The batches are used up if the run is applied, and else given back.
        """
        hosts, plan = step.hosts, step.plan
        is_used = lambda: run.applied and not self._counted_before(step)  # noqa: E731
        while True:
            with self._session.lock, contextlib.ExitStack() as entered:
                self._session.check_usable()
                opened = self._session.sources.opened(plan.sources)
                awaited: Any = next((source for source in opened if not source.ready()), None)
                if awaited is None and hosts.before_needs_lock:
                    awaited = self._enter(plan.before, entered)
                if awaited is None:
                    return feed(plan.sources, opened, run, self._exchange_now, step, run, is_used=is_used)
            # Not under the session's lock: a thread inside may need it to come out, and a batch may take long.
            awaited.wait()

    def _counted_before(self, step: CachedStep) -> bool:
        """Returns whether an earlier attempt of this run was applied, and used up its batch."""
        retry = RETRY.get() if step.plan.remote else None
        sent = retry.latest if retry is not None else None
        if sent is None:
            return False
        counted, sent.counted = sent.counted, True
        return counted

    def _enter(self, operations: Iterable[Operation], entered: contextlib.ExitStack) -> Any:
        """Takes the locks of host operations without waiting; returns one to wait for if another thread holds it."""
        for operation in operations:
            lock = self.host_lock(operation)
            if not lock.acquire(blocking=False):
                return _Free(lock)
            entered.callback(lock.release)
        return None

    def _exchange_now(self, step: CachedStep, run: Run) -> None:
        session = self._session
        store = session.store
        if step.exchanges:
            store.begin_run(step.plan.remote)
        try:
            for variable in step.counters:
                run.counters[variable] = store.counter(variable)
        except FailedPreconditionError as error:
            raise explained(step.plan, error) from None
        if step.hosts.before_needs_lock:
            outer, self._host_thread = self._host_thread, threading.get_ident()
            try:
                step.hosts.compute(step.hosts.before, run, session)
            finally:
                self._host_thread = outer
        if run.metadata is not None:
            run.begun = clock.monotonic()
        session.check_usable()  # A host operation may have closed it.
        step.dispatch_with(run)
        if run.metadata is not None:
            run.metadata.global_step = session.step_or_none()

    def host_lock(self, operation: Operation) -> Any:
        """Returns the lock of a host operation for one thread at a time: an iterator cannot serve two at once."""
        return self._host_locks.get(operation) or self._host_locks.setdefault(operation, threading.RLock())


class _Free(NamedTuple):
    """A lock to wait for, to take it later."""

    lock: Any

    def wait(self) -> None:
        with self.lock:
            pass
