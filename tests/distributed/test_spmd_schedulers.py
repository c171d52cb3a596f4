"""The scripts of docs/spmd.md, with stand-ins for Slurm and a JobSet."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from tests.stand_ins import write_commands

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "spmd.md").read_text(encoding="utf-8")
SLURM = re.search(r"```sh\n(#!/bin/bash\n.*?)```", PAGE, re.DOTALL)[1]
KUBERNETES = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1]

# Starts the tasks of a step, and has the highest of their exit statuses.
SRUN = """#!/bin/bash
[ "$1" = --wait=120 ] || exit 99
shift
tasks=$(seq 0 $((SLURM_NTASKS - 1)))
for task in $tasks; do SLURM_PROCID=$task SLURM_LOCALID=$task "$@" & done
highest=0
for task in $tasks; do
    wait -n
    status=$?
    if [ $status -gt $highest ]; then highest=$status; fi
done
exit $highest
"""
SCONTROL = """#!/bin/bash
echo "$@" >> requeued
"""

pytestmark = pytest.mark.campaign


@pytest.fixture
def folder(tmp_path):
    """A folder with the training, in which `python` is this one."""
    shutil.copy(HERE / "spmd_train.py", tmp_path / "train.py")
    write_commands(tmp_path, srun=SRUN, scontrol=SCONTROL)
    return tmp_path


def environment(folder, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOOKLINE_", "SLURM_"))}
    return kept | {"PATH": f"{folder}:{os.environ['PATH']}"} | more


def ask_all_to_leave(folder, starts, processes=2):
    """Sends SIGTERM to all processes of this start, once they wait for it."""
    deadline = time.monotonic() + 60
    while not all((folder / f"waits-{process}").exists() for process in range(processes)):
        assert time.monotonic() < deadline, "They have not come to their step 45."
        time.sleep(0.1)
    for process in range(processes):
        pids = (folder / f"starts-{process}").read_text().split()
        assert len(pids) == starts
        os.kill(int(pids[-1]), signal.SIGTERM)


def assert_whole(folder, processes=2):
    """Asserts that each step was made once, and how many processes made the last ones."""
    for process in range(processes):
        total, expected, count = (folder / f"ended-{process}").read_text().split()
        assert total == expected
        assert int(count) == processes


def test_slurm_requeues_a_job_that_lost_a_process_or_its_time(folder):
    (folder / "job.sh").write_text(SLURM)
    variables = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2"}

    def start():
        return subprocess.Popen(["bash", "job.sh"], cwd=folder, env=environment(folder, **variables))

    assert start().wait(90) == 137
    second = start()
    ask_all_to_leave(folder, 2)
    assert second.wait(60) == 143
    assert start().wait(90) == 0
    assert (folder / "requeued").read_text() == f"requeue {os.getpid()}\n" * 2
    assert_whole(folder)


def test_slurm_continues_with_three_nodes_after_the_fourth_is_gone(folder):
    (folder / "job.sh").write_text(SLURM.replace("#SBATCH --nodes=2", "#SBATCH --nodes=3-4"))
    variables = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "127.0.0.1"}

    def start(nodes):
        more = environment(folder, SLURM_NTASKS=str(nodes), **variables)
        return subprocess.Popen(["bash", "job.sh"], cwd=folder, env=more)

    assert start(4).wait(120) == 137
    second = start(3)
    ask_all_to_leave(folder, 2, processes=3)
    assert second.wait(60) == 143
    assert start(3).wait(90) == 0
    assert_whole(folder, processes=3)


def test_slurm_does_not_requeue_a_job_with_a_wrong_script(folder):
    (folder / "job.sh").write_text(SLURM)
    (folder / "train.py").write_text("raise ValueError\n")
    variables = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2"}
    done = subprocess.run(["bash", "job.sh"], cwd=folder, env=environment(folder, **variables), stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert not (folder / "requeued").exists()


def test_slurm_requeues_a_job_up_to_the_limit(folder):
    (folder / "job.sh").write_text(SLURM)
    (folder / "train.py").write_text("raise SystemExit(75)\n")
    for count in (19, 20):
        variables = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "SLURM_RESTART_COUNT": str(count)}
        done = subprocess.run(["bash", "job.sh"], cwd=folder, env=environment(folder, **variables))
        assert done.returncode == 75
    assert (folder / "requeued").read_text() == "requeue 1\n"


def pods_of(folder, job_set):
    """Starts all pods of a JobSet with one job, as its controller does."""
    (replicated,) = job_set["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    first = f"{job_set['metadata']['name']}-{replicated['name']}-0-0.{job_set['metadata']['name']}"
    pods = []
    for index in range(job["parallelism"]):
        about = {"metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index)}
        variables = {
            each["name"]: each["value"] if "value" in each else about[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container["env"]
        }
        address, _, listens_at = variables["HOOKLINE_COORDINATOR_ADDRESS"].partition(":")
        assert (address, listens_at) == (first, "1234")
        variables["HOOKLINE_COORDINATOR_ADDRESS"] = f"127.0.0.1:{port}"
        pods.append(subprocess.Popen(container["command"], cwd=folder, env=environment(folder, **variables)))
    return pods, job["template"]["spec"]["terminationGracePeriodSeconds"]


def test_job_set_recreates_all_pods(folder):
    job_set = pytest.importorskip("yaml").safe_load(KUBERNETES)
    (replicated,) = job_set["spec"]["replicatedJobs"]
    assert replicated["template"]["spec"]["backoffLimit"] == 0
    statuses = []
    for restart in range(job_set["spec"]["failurePolicy"]["maxRestarts"]):
        pods, grace_secs = pods_of(folder, job_set)
        if restart == 1:
            ask_all_to_leave(folder, 2)
        while all(pod.poll() in (None, 0) for pod in pods) and any(pod.poll() is None for pod in pods):
            time.sleep(0.1)
        for pod in pods:
            pod.terminate()
        statuses.append([pod.wait(grace_secs) for pod in pods])
        if statuses[-1] == [0, 0]:
            break
    killed, asked, ended = statuses
    assert killed[1] == -signal.SIGKILL
    assert killed[0] in (75, -signal.SIGABRT)
    assert set(asked) <= {143, -signal.SIGTERM}  # The last to end has left the session when the controller stops it.
    assert ended == [0, 0]
    assert_whole(folder)
