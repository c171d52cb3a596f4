"""Runs leave nothing behind, nor do many sessions one after the other. `make leaks` runs a thousand."""

from __future__ import annotations

import gc
import json
import os
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from tests import python

import hookline as hl
from hookline import train
from hookline.summary import FileWriterCache

PROGRAM = Path(__file__).parent / "many_sessions.py"
COUNT = int(os.environ.get("HOOKLINE_SESSIONS", "20"))

# The allocator and the libraries may keep less than a tenth of a model with its programs.
MIB_AT_MOST = 10
MIB_A_SESSION = 0.04


def test_many_sessions_leave_no_threads_files_graphs_or_memory():
    if not Path("/proc/self/fd").exists():
        pytest.skip("what a process has open is read from /proc")
    done = python.run(PROGRAM, COUNT, check=True, timeout=60 + 4 * COUNT)
    samples = [json.loads(line) for line in done.stdout.splitlines()]
    print(done.stdout)
    assert samples[-1]["sessions"] == COUNT
    # The first samples: threads and files that libraries keep for the next time.
    settled = samples[len(samples) // 2 :]
    for what in ("threads", "files", "graphs"):
        assert len({sample[what] for sample in settled}) == 1, (what, samples)
    grown = settled[-1]["mib"] - settled[0]["mib"]
    assert grown <= MIB_AT_MOST + MIB_A_SESSION * COUNT, samples


def test_unclosed_session_releases_its_folder_and_writer(tmp_path):
    def writers():
        return [thread.name for thread in threading.enumerate() if str(tmp_path) in thread.name]

    for number in range(3):
        with hl.Graph().as_default():
            train_op = train.get_or_create_global_step().assign_add(1)
            folder = str(tmp_path / str(number))
            session = train.MonitoredTrainingSession(
                checkpoint_dir=folder, preemption=train.PreemptionOptions(on_signal="ignore")
            )
            session.run(train_op)
        owner = Path(folder, ".hookline-owner")
        assert owner.exists()
        del session
        gc.collect()
        while owner.exists():  # A thread gives it back.
            threading.Event().wait(0.001)
        assert len(writers()) == 1  # The next one that is made closes it.
    FileWriterCache.clear()


@pytest.mark.parametrize("late", [False, True, 2])
def test_values_fetched_by_a_hook_are_freed_with_their_run(late):
    size = 54321
    big = hl.op(lambda w: jnp.full(size, w))(hl.Variable(1.0, name="weight"))
    train_op = train.get_or_create_global_step().assign_add(1)

    class Watching(train.SessionRunHook):
        trigger, fetches = train.every(runs=1) if late else None, big

        def on_trigger(self, firing):
            assert firing.values.size == size

    class EachRun(train.SessionRunHook):
        def before_run(self, run_context):
            return train.SessionRunArgs(big)

    Watching.deferred = late
    with train.MonitoredSession(hooks=[Watching() if late else EachRun()]) as session:
        session.run(train_op)
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                session.run(train_op)
                jax.block_until_ready(jax.live_arrays())
            waiting = sum(array.size == size for array in jax.live_arrays())
            assert waiting <= int(late)  # the runs of a deferred hook that have not come yet
        finally:
            gc.enable()
