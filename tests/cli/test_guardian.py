"""The guardian of a launcher, whose death is simulated by the end of a pipe."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest
from tests.stand_ins import ProcessTree

# Processes that outlive a killed command.
from hookline.cli.guardian import Guardian

SLEEP = "import time; print('ready', flush=True); time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"


@pytest.fixture
def start():
    """Starts announced processes, and leaves none."""
    started = []

    def start_one(guardian: Guardian, code: str) -> ProcessTree:
        command = guardian.wrap_command([sys.executable, "-c", code])
        group = ProcessTree(command, stdin=guardian.pipe, stdout=subprocess.PIPE)
        started.append(group)
        return group

    yield start_one
    for group in started:
        group.kill()
        group.stdout.close()


def await_line(group: ProcessTree) -> str:
    assert group.stdout is not None
    return group.stdout.readline().decode().strip()


def die(guardian: Guardian) -> None:
    """Ends the guardian's pipe, as the death of its launcher does."""
    guardian.pipe.close()


def await_end(guardian: Guardian) -> None:
    guardian._process.wait(timeout=30)


def test_just_started_process_groups_end_with_the_launcher(start):
    with Guardian(grace_secs=30) as guardian:
        groups = [start(guardian, SLEEP) for _ in range(2)]
        die(guardian)
        assert [group.wait(20) for group in groups] == [-signal.SIGTERM] * 2
        await_end(guardian)


def test_stubborn_process_is_killed_after_the_grace_period_before_the_command(start, tmp_path):
    left = "import os, sys; os.killpg(int(open(sys.argv[1] + '/group').read()), 0)"
    report = f"import sys, traceback\ntry: {left}\nexcept OSError as e: open(sys.argv[1] + '/then', 'w').write(repr(e))"
    with Guardian(1.0, [sys.executable, "-c", report, str(tmp_path)]) as guardian:
        deaf = start(guardian, DEAF)
        (tmp_path / "group").write_text(str(deaf.pid))
        await_line(deaf)
        die(guardian)
        assert deaf.wait(20) == -signal.SIGKILL
        await_end(guardian)
    assert "No such process" in (tmp_path / "then").read_text()


def test_ended_process_is_not_signalled_since_its_pid_may_be_reused(start):
    with Guardian(grace_secs=30) as guardian:
        spared, other = start(guardian, SLEEP), start(guardian, SLEEP)
        assert await_line(spared) == "ready"
        guardian.withdraw(spared.pid)
        die(guardian)
        assert other.wait(20) == -signal.SIGTERM
        await_end(guardian)
        assert spared.status() is None


def test_end_is_reported_after_the_children_end_and_before_the_pid_is_free():
    told = []

    def look(number: int) -> None:
        assert os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        assert select.select([group.stdout], [], [], 20)[0], "a child holds the pipe"
        told.append(number)

    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    group = ProcessTree([sys.executable, "-c", code], on_end=look, stdout=subprocess.PIPE)
    assert group.wait(60) == 0
    group.kill()
    assert told == [group.pid]
    assert group.stdout is not None
    group.stdout.close()


def test_launcher_that_ends_normally_is_followed_by_nothing(start, tmp_path):
    with Guardian(30, ["touch", str(tmp_path / "then")]) as guardian:
        group = start(guardian, SLEEP)
        assert await_line(group) == "ready"
    assert guardian._process.returncode == -signal.SIGKILL
    assert guardian.pipe.closed
    assert group.status() is None
    assert not (tmp_path / "then").exists()


def test_job_continues_after_the_guardian_is_killed(start):
    with Guardian(grace_secs=30) as guardian:
        before = start(guardian, SLEEP)
        guardian._process.kill()
        await_end(guardian)
        after = start(guardian, "print('started')")
        assert await_line(after) == "started"
        assert after.wait(60) == 0
        assert before.status() is None
        guardian.withdraw(before.pid)


def test_wrapped_command_keeps_arguments_and_environment_without_input(start):
    code = "import os, sys; print(sys.argv, os.environ['a.b'], os.getpgrp() == os.getpid(), repr(sys.stdin.read()))"
    with Guardian(grace_secs=30) as guardian:
        command = guardian.wrap_command([sys.executable, "-c", code, "--steps", "4"])
        done = subprocess.run(
            command, env={"a.b": "c d"}, stdin=guardian.pipe, capture_output=True, text=True, start_new_session=True
        )
    assert done.stdout == "['-c', '--steps', '4'] c d True ''\n", done.stderr


def test_guardian_has_its_own_session():
    with Guardian(grace_secs=30) as guardian:
        assert os.getsid(guardian._process.pid) == guardian._process.pid
