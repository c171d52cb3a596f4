"""Real signals to a job: to all of its processes, as a scheduler sends them, and to a single worker."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from tests.stand_ins import DirectTransport

from hookline import train
from hookline.distributed import ParameterServer
from hookline.errors import Preempted

from .targets import Target

SIGTERM = signal.SIGTERM
ENDLESS = 10**9


def ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal, whatever its threads block."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn"))
    return bool(mask >> (number - 1) & 1)


@pytest.mark.parametrize("servers", [1, pytest.param(2, marks=pytest.mark.slow_distributed)])
def test_signal_to_all_processes_saves_all_updates(ray_cluster, start_job, members, servers):
    job = start_job(ray_cluster, workers=2, servers=servers, last_step=ENDLESS, save_steps=ENDLESS, pause_secs=0.01)
    chief, worker = job.start(0), job.start(1)
    worker.await_step(30)
    pids = job.server_pids()
    assert all(ignores(pid, SIGTERM) for pid in pids)
    for pid in [*members(ray_cluster.head.pid), *members(chief.group.pid), *members(worker.group.pid)]:
        os.kill(pid, SIGTERM)
    assert [task.end() for task in (chief, worker)] == [143, 143], chief.story() + worker.story()
    assert max(job.checkpoints()) == chief.events("end")[0]["step"] == job.steps()[-1] >= 30
    assert worker.events("end"), worker.story()
    assert job.server_pids() == pids
    again = job.start(0, last_step=job.steps()[-1] + 10)
    assert again.end() == 0, again.story()


@pytest.mark.slow_distributed
def test_worker_leaves_on_a_signal_and_the_others_continue(ray_cluster, start_job):
    job = start_job(ray_cluster, workers=3, servers=1, last_step=600, save_steps=ENDLESS, pause_secs=0.01)
    chief, leaves, stays = (job.start(rank) for rank in range(3))
    leaves.await_step(20)
    stays.await_step(20)
    leaves.group.ask_to_end()
    assert leaves.end() == 143, leaves.story()
    assert len(leaves.events("end")) == 1
    assert [chief.end(), stays.end()] == [0, 0], chief.story() + stays.story()
    assert max(job.checkpoints()) == 600
    assert len(job.steps()) == len(set(job.steps())) == 600


def test_run_that_waits_for_slower_workers_ends_on_a_signal(tmp_path):
    server = ParameterServer()
    # Nobody may be ahead of the slowest.
    target = Target(DirectTransport([server]), max_staleness=0)
    train_op = train.get_or_create_global_step().assign_add(1)

    def ask_to_end():
        while not server._waiting.count:
            threading.Event().wait(0.001)
        os.kill(os.getpid(), SIGTERM)

    thread = threading.Thread(target=ask_to_end)
    with pytest.raises(Preempted), train.MonitoredTrainingSession(target, checkpoint_dir=str(tmp_path)) as session:  # noqa: PT012
        session.run(train_op)
        server._decisions._staleness_bound.admit("slower", 0)
        thread.start()
        session.run(train_op)
    thread.join()
    assert train.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-1"
