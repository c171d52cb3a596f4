"""Real processes, killed with kill -9 under load: the promises hold.

No update is applied twice: each adds 1 to the global step and to variables on every server, and what checkpoints hold
agrees. A step that was shown disappears only by a restore, which is logged with the number of steps lost.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from hookline import clock
from hookline.distributed import LocalRayCluster

# How the command starts Ray, for processes that a test kills.
from hookline.distributed.cluster.local_ray_cluster import ray_environment, write_token

from .targets import stopped, until

SLOW = pytest.mark.slow_distributed
LOST = re.compile(r"The global step went from (\d+) to (\d+): (\d+) steps were lost")


def check_story(task) -> list[tuple[int, ...]]:
    """Checks that the steps a task saw go up, but for losses that it logged; returns these."""
    last, losses = -1, []
    for event in task.events():
        if event["event"] == "session" and event["step"] < last:
            last = event["step"]
            losses.append(None)
        elif "step" in event:
            assert event["step"] >= last, task.story()
            last = event["step"]
    logged = [tuple(map(int, found.groups())) for e in task.events("log") if (found := LOST.search(e["text"]))]
    assert all(before - after == lost for before, after, lost in logged if lost)
    assert len([loss for loss in logged if loss[2]]) == len(losses), task.story()
    return logged


def check_end(job, tasks, last_step: int, within_secs: float = 120) -> None:
    """The tasks end well, at the right step, with everything in the last checkpoint."""
    assert [task.end(within_secs) for task in tasks] == [0] * len(tasks), "\n\n".join(t.story() for t in tasks)
    assert max(job.checkpoints()) == last_step
    assert tasks[0].events("end")[-1]["step"] == last_step
    assert job.steps()[-1] == last_step


def recovered(task, count: int = 2):
    """The time of the first update after a task's session number `count`."""
    sessions = task.events("session")
    if len(sessions) < count:
        return None
    return next((e["time"] for e in task.events("step") if e["time"] > sessions[count - 1]["time"]), None)


@pytest.mark.campaign
@pytest.mark.parametrize("over_ray", [False, pytest.param(True, marks=pytest.mark.campaign)])
def test_job_survives_a_killed_worker_and_then_a_killed_server(ray_cluster, start_job, over_ray):
    settings = {"last_step": 250, "save_steps": 20, "pause_secs": 0.005, "over_ray": over_ray}
    job = start_job(ray_cluster, workers=2, servers=2, **settings)
    chief, worker = job.start(0), job.start(1)
    worker.await_step(10)
    worker.kill()
    chief.await_step(chief.step() + 30)
    assert chief.events("log") == [], chief.story()

    held = job.held()
    assert {"global_step", "count", "left"} <= held[0]
    assert "right" in held[1]
    os.kill(job.server_pids()[1], signal.SIGKILL)
    chief.await_("another session", lambda: len(chief.events("session")) == 2)
    check_end(job, [chief], 250)
    assert len(check_story(chief)) == 1
    assert chief.events("session")[1]["step"] in job.checkpoints()
    pids = job.server_pids()
    job.stop()
    until(lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()], within_secs=10)


@SLOW
def test_job_survives_a_worker_killed_repeatedly(ray_cluster, start_job):
    job = start_job(ray_cluster, workers=2, servers=2, last_step=1500, pause_secs=0.002)
    chief = job.start(0, pause_secs=0.02)
    for _ in range(3):
        worker = job.start(1)
        worker.await_step(worker.await_("a session", lambda w=worker: w.events("session"))[0]["step"] + 20)
        worker.kill()
    last = job.start(1)
    check_end(job, [chief, last], 1500)
    assert len(chief.events("session")) == 1
    assert chief.events("log") == []
    steps = job.steps()
    assert len(steps) == len(set(steps))
    assert len(steps) >= 1500 - 3


@SLOW
@pytest.mark.parametrize(("servers", "victim"), [(1, 0), (2, 0), (2, 1)])
def test_job_survives_a_server_killed_twice(ray_cluster, start_job, servers, victim, record_property):
    job = start_job(ray_cluster, workers=3, servers=servers, last_step=1200, save_steps=30, pause_secs=0.01)
    chief, *_workers = tasks = [job.start(rank) for rank in range(3)]
    for task in tasks:
        task.await_step(50)
    for count in (2, 3):
        killed = clock.monotonic()
        os.kill(job.server_pids()[victim], signal.SIGKILL)
        back = [t.await_("recovery", lambda t=t, c=count: recovered(t, c), 90) for t in tasks]
        secs = [round(moment - killed, 2) for moment in back]
        print(f"servers={servers} victim={victim}: training again after {secs} s")
        record_property("recovery_secs", secs)
        chief.await_step(chief.step() + 60)
    check_end(job, tasks, 1200)
    held = job.checkpoints()
    for task in tasks:
        assert len(check_story(task)) == 2, task.story()
    assert all(session["step"] in held for session in chief.events("session")[1:])
    assert any(chief.said("steps were lost"))


@SLOW
def test_job_survives_a_server_and_the_chief_killed_together(ray_cluster, start_job):
    job = start_job(ray_cluster, workers=2, servers=2, last_step=800, save_steps=20, pause_secs=0.01)
    chief, worker = job.start(0), job.start(1)
    chief.await_step(100)
    os.kill(job.server_pids()[0], signal.SIGKILL)
    chief.kill()
    again = job.start(0)
    check_end(job, [again, worker], 800)
    assert again.events("session")[0]["step"] in job.checkpoints()
    check_story(worker)


@SLOW
def test_briefly_stopped_servers_continue(ray_cluster, start_job):
    job = start_job(ray_cluster, workers=2, servers=2, last_step=600, save_steps=40, pause_secs=0.01)
    chief, worker = job.start(0), job.start(1)
    worker.await_step(30)
    for pid in job.server_pids():
        with stopped(pid):
            clock.sleep(3)
            step = chief.step()
            clock.sleep(1)
            assert chief.step() == step
        chief.await_step(step + 20)
    check_end(job, [chief, worker], 600)
    assert job.steps() == list(range(1, 601))
    assert len(chief.events("session")) == len(worker.events("session")) == 1


@SLOW
@pytest.mark.parametrize("victim", [0, 1])
def test_job_survives_a_server_stopped_beyond_the_call_timeout(ray_cluster, start_job, victim):
    job = start_job(ray_cluster, workers=2, servers=2, last_step=600, save_steps=40, pause_secs=0.01, call_secs=2)
    chief, worker = job.start(0), job.start(1)
    worker.await_step(30)
    with stopped(job.server_pids()[victim]):
        chief.await_("news of it", lambda: chief.said("gave no answer in time") or chief.said("has not got"), 30)
        clock.sleep(3)
    check_end(job, [chief, worker], 600)
    for task in (chief, worker):
        # Another session each, on the values as they are.
        assert all(lost == 0 for _, _, lost in check_story(task)), task.story()
    assert max(len(task.events("session")) for task in (chief, worker)) > 1
    # A call that timed out was applied, but once: each successful run is one step.
    assert len(job.steps()) == 600


@SLOW
def test_briefly_stopped_worker_continues(ray_cluster, start_job):
    # SIGSTOP of the whole worker process simulates the loss of its network: all its messages are delayed.
    job = start_job(ray_cluster, workers=2, servers=2, last_step=800, pause_secs=0.01, call_secs=2)
    chief, worker = job.start(0), job.start(1)
    worker.await_step(30)
    os.killpg(worker.group.pid, signal.SIGSTOP)
    try:
        step = chief.step()
        chief.await_step(step + 100)
        clock.sleep(3)
    finally:
        os.killpg(worker.group.pid, signal.SIGCONT)
    seen = worker.step()
    worker.await_step(seen + 20)
    check_end(job, [chief, worker], 800)
    assert len(job.steps()) == 800


@SLOW
def test_worker_stopped_during_a_restore_does_not_update_the_new_values(ray_cluster, start_job):
    job = start_job(ray_cluster, workers=2, servers=2, last_step=600, save_steps=20, pause_secs=0.01)
    chief, worker = job.start(0), job.start(1)
    worker.await_step(50)
    pids = job.server_pids()
    os.killpg(worker.group.pid, signal.SIGSTOP)
    try:
        os.kill(pids[1], signal.SIGKILL)
        chief.await_("recovery", lambda: recovered(chief))
    finally:
        os.killpg(worker.group.pid, signal.SIGCONT)
    worker.await_("recovery", lambda: recovered(worker))
    check_end(job, [chief, worker], 600)
    for task in (chief, worker):
        assert len(check_story(task)) == 1, task.story()


@SLOW
@pytest.mark.parametrize("seed", [1, 2])
def test_job_survives_faults_of_all_kinds(ray_cluster, start_job, seed):
    rng = random.Random(seed)
    job = start_job(ray_cluster, workers=3, servers=2, last_step=2000, save_steps=20, pause_secs=0.01)
    tasks = [job.start(rank) for rank in range(3)]
    tasks[0].await_step(30)
    for _ in range(8):
        victim = rng.choice(["chief", "worker", "server 0", "server 1"])
        clock.sleep(rng.uniform(0, 2.5))
        if victim.startswith("server"):
            pid = job.server_pids()[int(victim[-1])]
            if rng.random() < 0.3:
                tasks[0].kill()
                tasks[0] = job.start(0)
            os.kill(pid, signal.SIGKILL)
        else:
            rank = 0 if victim == "chief" else rng.choice([1, 2])
            tasks[rank].kill()
            tasks[rank] = job.start(rank)
    check_end(job, tasks, 2000)
    for task in job.tasks:
        check_story(task)


def kill_part(group: list[int], part: str) -> float:
    """kill -9 of the part of a Ray head with a text in its command; returns the time."""
    (pid,) = [pid for pid in group if part.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(pid, signal.SIGKILL)
    return clock.monotonic()


def check_told(tasks, killed: float) -> None:
    """All tasks end within a minute, with the reason."""
    statuses = [task.end(70) for task in tasks]
    print(f"told after {[round(t.events('error')[-1]['time'] - killed, 1) for t in tasks if t.events('error')]} s")
    assert statuses == [1] * len(tasks), "\n\n".join(t.story() for t in tasks)
    for task in tasks:
        (error,) = task.events("error")
        assert error["time"] - killed < 60
        assert re.search("The (raylet of the )?Ray head .* resumes from the last checkpoint", error["text"]), (
            task.story()
        )


PARTS = ["gcs_server", "raylet/raylet", "ray::RuntimeEnvAgent"]


@SLOW
@pytest.mark.parametrize("part", PARTS)
def test_restart_after_a_killed_head_resumes(start_job, members, part):
    with LocalRayCluster(object_store_bytes=100_000_000) as cluster:
        job = start_job(cluster, workers=3, servers=2, last_step=1000, save_steps=20, pause_secs=0.02)
        chief, worker = job.start(0), job.start(1)
        waiter = job.start(2, wait_until=10_000)
        lonely = start_job(cluster, workers=2, servers=1, last_step=1000).start(1, wait_secs=600)
        for task in (chief, worker):
            task.await_step(60)
        waiter.await_("a session", lambda: waiter.events("session"))
        lonely.await_("a start", lambda: lonely.events("alive"))
        killed = kill_part(members(cluster.head.pid), part)
        check_told([chief, worker, waiter, lonely], killed)
        group = cluster.head.pid
    until(lambda: not members(group), within_secs=10)
    held = max(job.checkpoints())

    with LocalRayCluster(object_store_bytes=100_000_000) as job.ray:
        again = [job.start(0), job.start(1)]
        check_end(job, again, 1000)
        assert again[0].events("session")[0]["step"] == held


class StartedByHand:
    """A Ray head from `ray start`, whose processes are not watched.

    To `start_job` it is what a `LocalRayCluster` is, but with no `address`: pytest has joined another one.
    """

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = sock.getsockname()[1]
        self.address, self.token_path = "", str(folder / "token")
        write_token(folder / "token")
        ray = ray_environment(self.token_path, loopback=True)
        self._environment = {"HOOKLINE_ADDRESS": f"127.0.0.1:{port}", "HOOKLINE_TOKEN_PATH": self.token_path, **ray}
        where = ["--node-ip-address=127.0.0.1", f"--port={port}", "--include-dashboard=false"]
        sizes = ["--num-cpus=0", "--object-store-memory=100000000", f"--temp-dir={folder / 'r'}"]
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", *where, *sizes]
        env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | ray
        # So that its servers end with the test, too.
        env["RAY_process_group_cleanup_enabled"] = "false"
        with open(folder / "start.log", "wb") as log:
            started = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        self.group = started.pid
        assert started.wait(60) == 0, (folder / "start.log").read_text()

    def environment(self) -> dict[str, str]:
        """Returns the settings of tasks."""
        return self._environment


@pytest.fixture
def started_by_hand():
    if find_spec("ray") is None:
        pytest.skip("needs Ray")
    # Names of Ray's sockets are long and may have no more than 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="hookline-hand-", dir="/tmp"))
    made = StartedByHand(folder)
    yield made
    os.killpg(made.group, signal.SIGKILL)
    shutil.rmtree(folder)


@SLOW
@pytest.mark.parametrize("part", PARTS[1:])
def test_job_survives_a_killed_unwatched_part_of_the_head(started_by_hand, start_job, members, part):
    job = start_job(started_by_hand, workers=3, servers=2, last_step=10_000, pause_secs=0.02)
    tasks = [job.start(0), job.start(1), job.start(2, wait_until=10_000)]
    for task in tasks[:2]:
        task.await_step(60)
    tasks[2].await_("a session", lambda: tasks[2].events("session"))
    servers = [p for p in members(started_by_hand.group) if b"Server" in Path(f"/proc/{p}/cmdline").read_bytes()]
    assert len(servers) == 2
    killed = kill_part(members(started_by_hand.group), part)
    check_told(tasks, killed)
    until(lambda: not (set(servers) & set(members(started_by_hand.group))), within_secs=10)
