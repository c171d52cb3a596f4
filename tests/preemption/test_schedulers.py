"""The scripts of docs/preemption.md, with stand-ins that send the signals of Slurm and Kubernetes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from tests.stand_ins import write_commands

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "preemption.md").read_text(encoding="utf-8")
SLURM = re.search(r"```sh\n(#!/bin/bash\n.*?)```", PAGE, re.DOTALL)[1]
KUBERNETES = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1]

# Runs a step in a group of its own, and prints its pid.
SRUN = """#!/bin/bash
setsid "$@" &
echo $! > step.new && mv step.new step
wait $!
"""
SCONTROL = """#!/bin/bash
echo "$@" >> requeued
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with the training, in which `python` is this one."""
    shutil.copy(HERE / "train.py", tmp_path)
    write_commands(tmp_path, srun=SRUN, scontrol=SCONTROL)
    return tmp_path


@contextlib.contextmanager
def started(folder, command):
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
    process = subprocess.Popen(command, cwd=folder, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def await_step(folder, process, count):
    while not (folder / "steps").exists() or len((folder / "steps").read_text().splitlines()) < count:
        assert process.poll() is None
        threading.Event().wait(0.02)


def steps(folder):
    return [int(line) for line in (folder / "steps").read_text().splitlines()]


@pytest.mark.campaign
def test_slurm_ends_a_job_before_its_time_limit_and_restarts_it(folder):
    (folder / "job.sh").write_text(SLURM)
    assert "#SBATCH --signal=TERM@120\n" in SLURM
    with started(folder, ["bash", "job.sh"]) as job:
        await_step(folder, job, 20)
        os.killpg(int((folder / "step").read_text()), signal.SIGTERM)
        assert job.wait(60) == 143
    assert (folder / "requeued").read_text() == "requeue 17\n"
    assert 20 <= len(steps(folder)) < 150
    with started(folder, ["bash", "job.sh"]) as job:
        assert job.wait(60) == 0
    assert steps(folder) == list(range(1, 151))


def first_process(command):
    """Returns a command that runs like the first process of a container, if that is possible here."""
    container = ["unshare", "--pid", "--fork", "--kill-child"]
    allowed = shutil.which("unshare") and not subprocess.run([*container, "true"], capture_output=True).returncode
    if not allowed:
        pytest.skip("needs a process namespace")
    return [*container, *command]


def child_of(pid):
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@pytest.mark.campaign
def test_kubernetes_evicts_a_pod_and_restarts_it(folder):
    command = first_process(json.loads(re.search(r"command: (\[.*\])", KUBERNETES)[1]))
    grace_secs = int(re.search(r"terminationGracePeriodSeconds: (\d+)", KUBERNETES)[1])
    with started(folder, command) as pod:
        await_step(folder, pod, 20)
        os.kill(child_of(pod.pid), signal.SIGTERM)
        assert pod.wait(grace_secs) == 143
    assert "restartPolicy: OnFailure" in KUBERNETES
    with started(folder, command) as pod:
        assert pod.wait(60) == 0
    assert steps(folder) == list(range(1, 151))
