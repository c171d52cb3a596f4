"""Processes that train one model asynchronously: exact ends, gradual starts, and workers that join and leave."""

from __future__ import annotations

import logging
import math
import os

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.stand_ins import DirectTransport

import hookline as hl
from hookline import clock
from hookline.distributed import ParameterServer

from .targets import Target

SLOW = pytest.mark.slow_distributed


def check_whole(job, last_step: int) -> None:
    """Every update was applied once, and the last checkpoint holds all of them."""
    assert job.steps() == list(range(1, last_step + 1))
    assert max(job.checkpoints()) == last_step
    assert {t.events("end")[-1]["step"] for t in job.tasks if t.events("alive")[0]["task"] == 0} == {last_step}


@SLOW
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (8, 2)])
def test_training_ends_at_exactly_its_last_step(ray_cluster, start_job, workers, servers):
    last_step = 150
    job = start_job(ray_cluster, workers=workers, servers=servers, last_step=last_step, save_steps=50)
    for rank in range(workers):
        # So that all of them are still there at the end.
        job.start(rank, wait_until=100 if workers > 1 and rank == 0 else 0, pause_secs=0.002)
    assert [task.end(180) for task in job.tasks] == [0] * workers, "\n\n".join(t.story() for t in job.tasks)
    check_whole(job, last_step)


@SLOW
def test_workers_start_at_their_thresholds(ray_cluster, start_job):
    job = start_job(ray_cluster, workers=3, servers=1, last_step=400, pause_secs=0.01)
    thresholds = [int(100 * math.log(rank + 1)) for rank in range(3)]
    for rank, threshold in enumerate(thresholds):
        # The chief waits until the others wait, or it would end before they are there.
        job.start(rank, wait_until=threshold)
    assert [task.end() for task in job.tasks] == [0, 0, 0]
    starts = [task.events("started")[0]["step"] for task in job.tasks]
    for threshold, start, task in zip(thresholds, starts, job.tasks, strict=True):
        session = task.events("session")[0]["step"]
        assert start >= threshold
        # A worker that waits before its threshold starts within the steps of a tenth of a second.
        assert start - max(threshold, session) <= 25, task.story()
    assert all(min(task.applied()) > threshold for task, threshold in zip(job.tasks, thresholds, strict=True))
    check_whole(job, 400)


@pytest.mark.campaign
def test_two_workers_end_exactly_and_a_waiter_leaves_below_its_threshold(ray_cluster, start_job, monkeypatch):
    # The token that HOOKLINE_TOKEN_PATH names has priority over a stray one in the environment.
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-another-cluster")
    job = start_job(ray_cluster, workers=3, servers=2, last_step=150, save_steps=50, pause_secs=0.01)
    waiter, worker = job.start(2, wait_until=1000), job.start(1)
    # So that both train: the chief starts when the worker has.
    chief = job.start(0, wait_until=30)
    assert chief.end() == 0, chief.story()
    ended = clock.monotonic()
    assert worker.end(10) == 0, worker.story()
    assert waiter.end(10) == 0, waiter.story()
    assert clock.monotonic() - ended < 5
    for task, name, folder in ((chief, "chief", ""), (worker, "worker_0", "worker_0")):
        events = EventAccumulator(os.path.join(job.checkpoint_dir, folder)).Reload()
        means, largest = (events.Scalars(f"staleness/{name}/{what}") for what in ("mean", "max"))
        # Two workers that train: while one computes, the other one makes its steps. Alone with its last steps, each
        # is up to date.
        assert all(mean.value <= most.value for mean, most in zip(means, largest, strict=True)), task.story()
        assert max(mean.value for mean in means) > 0, task.story()
        assert means[-1].step == largest[-1].step == task.events("end")[-1]["step"]
    assert chief.applied()
    assert worker.applied()
    assert waiter.applied() == waiter.events("started") == []
    check_whole(job, 150)


@SLOW
def test_waiter_leaves_at_its_timeout(ray_cluster, start_job):
    job = start_job(ray_cluster, workers=2, servers=1, last_step=100_000)
    chief = job.start(0, pause_secs=0.05)
    chief.await_step(1)
    worker = job.start(1, wait_until=90_000, wait_timeout=1)
    assert worker.end() == 1
    (error,) = worker.events("error")
    assert error["kind"] == "DeadlineExceededError"
    assert "waited 1 s for global step 90000" in error["text"]
    chief.await_step(chief.step() + 5)


@SLOW
def test_workers_may_join_late_leave_and_rejoin(ray_cluster, start_job):
    job = start_job(ray_cluster, workers=3, servers=2, last_step=2000, pause_secs=0.01)
    chief = job.start(0)
    chief.await_step(20)
    leaver = job.start(1, local_steps=20)
    assert leaver.end() == 0
    assert leaver.events("done")[0]["local"] == 20
    chief.await_step(leaver.applied()[-1] + 10)
    back, late = job.start(1), job.start(2)
    assert back.await_("session", lambda: back.events("session"))[0]["step"] > leaver.applied()[-1]
    assert [task.end(120) for task in (chief, back, late)] == [0, 0, 0]
    assert late.applied()
    assert back.applied()
    assert job.steps() == list(range(1, 2001))


@SLOW
@pytest.mark.parametrize("servers", [1, 2])
def test_restarted_chief_finds_ready_servers_and_does_not_restore(ray_cluster, start_job, servers):
    job = start_job(ray_cluster, workers=2, servers=servers, last_step=1500, save_steps=20, pause_secs=0.005)
    first, worker = job.start(0), job.start(1)
    first.await_step(100)
    worker.await_step(100)
    first.kill()
    before = worker.step()
    worker.await_step(before + 50)
    second = job.start(0)
    (session,) = second.await_("session", lambda: second.events("session"))
    assert session["step"] >= before + 50 > max(first.applied())
    assert [second.end(), worker.end()] == [0, 0]
    assert len(worker.events("session")) == 1, worker.story()
    assert worker.events("log") == [], worker.story()
    # Of the update that was under way nobody knows but the servers.
    lost = set(range(1, 1501)) - set(job.steps())
    assert len(lost) <= 1
    assert len(job.steps()) == len(set(job.steps()))
    assert max(job.checkpoints()) == 1500


@SLOW
def test_worker_timeout_names_the_missing_condition(ray_cluster, start_job):
    job = start_job(ray_cluster, workers=2, servers=1, last_step=10)
    lonely = job.start(1, wait_secs=1)
    assert lonely.end() == 1
    (error,) = lonely.events("error")
    assert error["kind"] == "DeadlineExceededError"
    assert "for the chief to create parameter server 'hookline-server-0'" in error["text"]

    # Servers that nobody has filled.
    from hookline.distributed.cluster import ray_connection

    ray_connection.connect(ray_cluster.address, job.name, ray_cluster.token_path, 5)
    ray_connection.create_servers(job.name, 1)
    lonely = job.start(1, max_wait_secs=1)
    assert lonely.end() == 1
    (error,) = lonely.events("error")
    assert error["kind"] == "DeadlineExceededError"
    assert "for the chief to make the model ready (it still initialises or restores it)" in error["text"]


@SLOW
@pytest.mark.parametrize("servers", [1, 2])
def test_last_checkpoint_holds_every_update_though_the_chief_ends_early(ray_cluster, start_job, servers):
    job = start_job(ray_cluster, workers=3, servers=servers, last_step=1_000_000, save_steps=1000)
    workers = [job.start(1), job.start(2)]
    chief = job.start(0, local_steps=200, pause_secs=0.01)
    assert chief.end() == 0, chief.story()
    assert [worker.end(10) for worker in workers] == [0, 0], "\n\n".join(t.story() for t in workers)
    steps = job.steps()
    assert all(worker.applied() for worker in workers)
    assert steps == list(range(1, steps[-1] + 1))
    assert max(job.checkpoints()) == steps[-1]


@SLOW
def test_staleness_is_bounded_though_a_worker_is_killed_in_its_step(ray_cluster, start_job):
    job = start_job(ray_cluster, workers=4, servers=2, last_step=400, max_staleness=1, pause_secs=0.001)
    tasks = [job.start(rank) for rank in range(4)]
    tasks[3].await_step(50)
    tasks[3].kill()
    # If it died in a run, the others wait for it, for a minute.
    assert [task.end(150) for task in tasks[:3]] == [0, 0, 0], "\n\n".join(t.story() for t in tasks)
    assert max(job.checkpoints()) == 400
    for name in ("chief", "worker_0", "worker_1"):
        events = EventAccumulator(os.path.join(job.checkpoint_dir, name if name != "chief" else "")).Reload()
        assert max(event.value for event in events.Scalars(f"staleness/{name}/max")) <= 1


def one_server():
    return Target(DirectTransport([ParameterServer()]))


@pytest.mark.parametrize("bad", [3, 40, 200])
def test_nan_is_detected_in_time_with_remote_variables(bad):
    step = hl.train.get_or_create_global_step()
    x = hl.placeholder("float32", [], name="x")
    weight = hl.Variable(np.float32(1), name="weight")
    loss = hl.op(lambda w, x: w * x, name="loss")(weight, x)
    train_op = hl.group(weight.assign_add(np.float32(1)), step.assign_add(1))
    runs = 0

    def train_on() -> None:
        nonlocal runs
        creator = hl.train.ChiefSessionCreator(master=one_server())
        with hl.train.MonitoredSession(creator, hooks=[hl.train.NanTensorHook(loss)]) as session:
            for number in range(1, 400):
                session.run(train_op, {x: math.nan if number == bad else 1.0})
                runs += 1

    with pytest.raises(hl.errors.NanLossDuringTrainingError, match=f"at step {bad}\\b"):
        train_on()
    assert runs <= bad + hl.SessionConfig().max_runs_ahead


def test_assign_computed_from_its_variable_gives_one_warning(caplog):
    hl.train.get_or_create_global_step()
    decayed = hl.Variable(np.float32(8), name="decayed")
    kept = hl.Variable(np.float32(8), name="kept")
    halve = decayed.assign(hl.op(lambda x: x / 2)(decayed))
    add = kept.assign_add(np.float32(1))
    session = hl.Session(one_server())
    session.run(hl.global_variables_initializer())
    with caplog.at_level(logging.WARNING, "hookline"):
        for _ in range(3):
            session.run([halve, add])
    (warning,) = [record.getMessage() for record in caplog.records if "are lost" in record.getMessage()]
    assert "'decayed'" in warning
    assert "'kept'" not in warning
