"""Makes staged runs: runs with host stages around the program, with options, or with remote variables."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

from hookline import clock
from hookline.coordination import progress
from hookline.errors import FailedPreconditionError
from hookline.graph.graph import Operation
from hookline.session.plan.result_readers import RunState
from hookline.session.plan.source_positions import run_with_batches
from hookline.session.running.cached_step import CachedStep, explain_uninitialized
from hookline.session.running.retry import RETRY


class StagedRuns:
    """Makes the runs of a session that need more than one program: host operations, options or remote variables."""

    def __init__(self, session: Any) -> None:
        self._session = session
        # The thread that runs a host operation under the lock; None if there is none.
        self._host_thread: int | None = None
        self._host_locks: dict[Operation, Any] = {}

    def run(self, step: CachedStep, run: RunState) -> None:
        """Makes a run."""
        session, hosts, plan, metadata = self._session, step.host_stage, step.plan, run.metadata
        is_traced = metadata is not None and run.options is not None and run.options.trace_level > 0
        run.reset()
        progress.count += 1
        start = clock.monotonic() if is_traced else 0.0
        if hosts.before and not hosts.before_needs_lock:
            hosts.compute(hosts.before, run, session)
        if step.uses_remote_variables:
            # Without the lock: a thread that reads or closes the session must not wait for slower workers.
            nested = self._host_thread == threading.get_ident()
            self._wait_for_sources(step)
            with session.store.admit_run(plan.remote_updates, nested=nested):
                self._run_stages(step, run)
        else:
            self._run_stages(step, run)
        if not step.uses_remote_variables or (step.program is not None and step.program.latches):
            throttle = session.throttle
            throttle.runs_until_poll -= 1
            if throttle.runs_until_poll <= 0:
                throttle.poll(step, run)
        done = clock.monotonic() if is_traced else 0.0
        if hosts.after:
            hosts.compute(hosts.after, run, session)
        if metadata is not None and is_traced:
            times = {
                "before": run.device_start - start,
                "device": done - run.device_start,
                "after": clock.monotonic() - done,
            }
            metadata.stage_secs.update(times)

    def _wait_for_sources(self, step: CachedStep) -> None:
        if step.plan.sources:
            with self._session.lock:
                self._session.check_usable()
                awaited = self._session.sources.open_all(step.plan.sources)
            with self._session.session.activity.during("data", "waited for data"):
                for source in awaited:
                    source.wait()

    def _run_stages(self, step: CachedStep, run: RunState) -> None:
        """Makes the stages that need the variables, with a batch of each source.

        If the updates of the run are applied, the batches are marked as used; otherwise they are given back.
        """
        hosts, plan = step.host_stage, step.plan
        is_used = lambda: run.applied and not self._were_batches_used(step)  # noqa: E731
        while True:
            with self._session.lock, contextlib.ExitStack() as entered:
                self._session.check_usable()
                opened = self._session.sources.open_all(plan.sources)
                awaited: Any = next((source for source in opened if not source.num_ready()), None)
                if awaited is None and hosts.before_needs_lock:
                    awaited = self._try_locks(plan.before, entered)
                if awaited is None:
                    return run_with_batches(plan.sources, opened, run, self._run_stages_now, step, run, is_used=is_used)
            # Without the session's lock: the thread in the host operation may need it, and a batch may take long.
            awaited.wait()

    def _were_batches_used(self, step: CachedStep) -> bool:
        """Returns whether an earlier attempt of this run has marked its batches as used; records that they are."""
        retry = RETRY.get() if step.plan.remote_updates else None
        sent = retry.latest if retry is not None else None
        if sent is None:
            return False
        counted, sent.batches_used = sent.batches_used, True
        return counted

    def _try_locks(self, operations: Iterable[Operation], entered: contextlib.ExitStack) -> Any:
        """Takes the locks of host operations without a wait; if another thread holds one, returns that lock."""
        for operation in operations:
            lock = self.host_lock(operation)
            if not lock.acquire(blocking=False):
                return _HeldLock(lock)
            entered.callback(lock.release)
        return None

    def _run_stages_now(self, step: CachedStep, run: RunState) -> None:
        session = self._session
        store = session.store
        if step.uses_remote_variables:
            store.begin_run(step.plan.remote_updates)
        try:
            for variable in step.counters:
                run.counters[variable] = store.read_counter(variable)
        except FailedPreconditionError as error:
            raise explain_uninitialized(step.plan, error) from None
        if step.host_stage.before_needs_lock:
            outer, self._host_thread = self._host_thread, threading.get_ident()
            try:
                step.host_stage.compute(step.host_stage.before, run, session)
            finally:
                self._host_thread = outer
        if run.metadata is not None:
            run.device_start = clock.monotonic()
        session.check_usable()  # A host operation may have closed it.
        step.dispatch_staged(run)
        if run.metadata is not None:
            run.metadata.global_step = session.step_or_none()

    def host_lock(self, operation: Operation) -> Any:
        """Returns the lock of a host operation: its function, such as a generator, may not allow two threads."""
        return self._host_locks.get(operation) or self._host_locks.setdefault(operation, threading.RLock())


class _HeldLock(NamedTuple):
    """A lock that another thread holds; `wait` returns when that thread has released it."""

    lock: Any

    def wait(self) -> None:
        with self.lock:
            pass
