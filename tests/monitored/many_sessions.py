"""A program that runs many sessions one after the other and prints their leftovers; see test_leaks.py.

Usage: many_sessions.py COUNT [KIND ...]
"""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import hookline as hl
from hookline import errors, summary, train

_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20
_SAMPLES = 10


class Writes(train.SessionRunHook):
    """Takes writers of directories of its own, at different times, and has a thread."""

    def __init__(self, logdir: Path) -> None:
        self._logdir = logdir

    def begin(self):
        summary.FileWriterCache.get(self._logdir / "begin").add_summary(b"", 0)

    def after_create_session(self, session, coord):
        summary.FileWriterCache.get(self._logdir / "created").add_summary(b"", 0)
        train.LooperThread.loop(coord, 0.001, threading.Event().is_set)

    def after_run(self, run_context, run_values):
        summary.FileWriterCache.get(self._logdir / "run").add_summary(b"", 1)

    def end(self, session):
        summary.FileWriterCache.get(self._logdir / "end").add_summary(b"", 2)


class Fails(train.SessionRunHook):
    """Raises an error at its first call of one callback."""

    def __init__(self, callback: str, error: BaseException) -> None:
        self._error: BaseException | None = error
        setattr(self, callback, self._fail)

    def _fail(self, *given):
        error, self._error = self._error, None
        if error is not None:
            raise error


def model() -> hl.Tensor:
    step = train.get_or_create_global_step()
    weight = hl.Variable(1.0, name="weight")
    summary.scalar("weight", weight)
    summary.scalar("read", hl.host_op(float)(weight))
    return hl.group(step.assign_add(1), weight.assign_add(1.0))


def run(session, train_op) -> None:
    with session:
        while not session.should_stop():
            session.run(train_op)


def training(logdir: Path) -> None:
    train_op = model()
    hooks = [train.StopAtStepHook(last_step=3), Writes(logdir)]
    run(train.MonitoredTrainingSession(summary_dir=str(logdir), hooks=hooks, save_summaries_steps=1), train_op)


def saving(logdir: Path) -> None:
    train_op = model()
    for last_step in (2, 4):  # The second one restores.
        hooks = [train.StopAtStepHook(last_step=last_step)]
        saves = {"save_checkpoint_steps": 2, "save_summaries_steps": 1}
        run(train.MonitoredTrainingSession(checkpoint_dir=str(logdir), hooks=hooks, **saves), train_op)


def recovering(logdir: Path) -> None:
    train_op = model()
    lost = Fails("after_run", errors.AbortedError(None, None, "lost"))
    hooks = [train.StopAtStepHook(last_step=3), lost, Writes(logdir)]
    policy = train.RecoveryPolicy(initial_backoff_secs=0.001)
    summaries = {"summary_dir": str(logdir), "save_summaries_steps": 1}
    run(
        train.MonitoredTrainingSession(hooks=hooks, checkpoints=train.CheckpointOptions(recovery=policy), **summaries),
        train_op,
    )


def singular(logdir: Path) -> None:
    train_op = model()
    run(train.SingularMonitoredSession(hooks=[train.StopAtStepHook(last_step=2), Writes(logdir)]), train_op)


def failing(logdir: Path) -> None:
    train_op = model()
    for callback in ("begin", "after_create_session", "before_run", "end"):
        hooks = [train.StopAtStepHook(num_steps=1), Writes(logdir), Fails(callback, ValueError(callback))]
        try:
            run(train.MonitoredSession(hooks=hooks, summary_dir=str(logdir)), train_op)
        except ValueError:
            continue
        raise AssertionError(f"{callback} should have failed.")


KINDS: dict[str, Callable[[Path], None]] = {
    kind.__name__: kind for kind in (training, saving, recovering, singular, failing)
}


def left() -> dict[str, float]:
    while gc.collect():  # Objects that a finalizer releases are garbage only then.
        pass
    for thread in set(threading.enumerate()) - {threading.main_thread()}:
        thread.join(1.0)  # A thread that was asked to end, such as that of the leases, may take a moment.
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "threads": threading.active_count(),
        # The thread that receives signals is asked to end with its session; nothing waits for it, and it has a file.
        "files": min(len(os.listdir("/proc/self/fd")) for _ in range(10) if time.sleep(0.02) is None),
        "graphs": sum(isinstance(known, hl.Graph) for known in gc.get_objects()),
        "mib": round(pages * _PAGE_MIB, 1),
    }


def main(count: int, kinds: list[str]) -> None:
    logging.disable(logging.CRITICAL)
    base = Path(tempfile.mkdtemp())
    try:
        for number in range(count):
            kind = KINDS[kinds[number % len(kinds)]]
            with hl.Graph().as_default():
                kind(base / f"{number:05d}")
            shutil.rmtree(base / f"{number:05d}", ignore_errors=True)
            if number % (count // _SAMPLES) == count // _SAMPLES - 1:
                print(json.dumps({"sessions": number + 1, **left()}), flush=True)
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or list(KINDS))
