"""`hookline launch --spmd`: in most tests the scripts form no SPMD job; in the last ones they do."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.sending import when

from hookline import clock
from hookline.cli import main

# Two processes without the command around them.
from hookline.distributed.cluster.initialize import environment
from hookline.train import RecoveryPolicy

launcher = importlib.import_module("hookline.cli.launch_spmd")

WHO = "import os, signal, sys, time; me = int(os.environ['HOOKLINE_PROCESS_ID'])\n"


@pytest.fixture
def script(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def plain(monkeypatch):
    """Runs scripts with Python alone, which starts at once."""
    monkeypatch.setattr(launcher, "_SPMD_COMMAND", (sys.executable,))


def run(*words: str, processes: int = 2) -> int:
    return main(["launch", "--spmd", "--processes", str(processes), *words])


def test_each_process_gets_its_index_and_its_lines_have_it(plain, script, capsys):
    names = "'NUM_PROCESSES', 'COORDINATOR_ADDRESS'"
    text = f"{WHO}print(me, *[os.environ['HOOKLINE_' + name] for name in ({names})], *sys.argv[1:])"
    assert run(script(text), "--steps", "4", processes=11) == 0
    lines = sorted(line.split() for line in capsys.readouterr().out.splitlines())
    assert [[line[0], *line[2:4]] for line in lines] == sorted([str(n), str(n), "11"] for n in range(11))
    (address,) = {line[4] for line in lines}
    assert address.startswith("127.0.0.1:")
    assert {tuple(line[5:]) for line in lines} == {("--steps", "4")}


@pytest.mark.parametrize(("given", "seed"), [(None, "0"), ("7", "7")])
def test_all_processes_order_sets_alike(plain, script, capsys, monkeypatch, given, seed):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if given is not None:
        monkeypatch.setenv("PYTHONHASHSEED", given)
    assert run(script("import os; print(os.environ['PYTHONHASHSEED'], [*{'a', 'b', 'c', 'd', 'e', 'f'}])")) == 0
    first, second = (line.split(" ", 2)[2] for line in capsys.readouterr().out.splitlines())
    assert first == second
    assert first.startswith(seed)


def test_each_start_has_its_own_secret_in_no_command_line(plain, script, capsys, monkeypatch):
    monkeypatch.setattr(RecoveryPolicy, "backoff_secs", lambda self, attempt, generator: 0.0)
    monkeypatch.setenv("HOOKLINE_TOKEN", "that of another")
    text = (
        f"{WHO}secret = os.environ['HOOKLINE_TOKEN']; time.sleep(0.3)\n"
        "commands = [open(f'/proc/{each}/cmdline', 'rb').read() for each in (os.getpid(), os.getppid())]\n"
        "assert not any(secret.encode() in command for command in commands)\n"
        "print(secret); sys.exit(1)"
    )
    assert run("--restart", "on-failure", "--max-restarts", "1", script(text)) == 1
    secrets = [line.split()[-1] for line in capsys.readouterr().out.splitlines()]
    assert len(secrets) == 4
    assert secrets[0] == secrets[1] != secrets[2] == secrets[3]
    assert all(len(secret) == 64 for secret in secrets)


def test_gloo_output_is_filtered_also_within_a_line(plain, script, capsys):
    line = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1"
    assert run(script(f"print('{line}'); print('los{line}s 0.5'); print('[Gloo] is good')"), processes=1) == 0
    assert capsys.readouterr().out == "0 | loss 0.5\n0 | [Gloo] is good\n"


@pytest.mark.parametrize(
    ("end", "status", "words"),
    [
        ("sys.exit(3)", 3, "failed with exit status 3"),
        pytest.param("sys.exit('no data')", 1, "failed with exit status 1", marks=pytest.mark.campaign),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was ended by SIGKILL"),
    ],
)
def test_failed_process_is_named_and_the_others_are_ended(plain, script, capsys, end, status, words):
    started = clock.monotonic()
    assert run(script(f"{WHO}if me == 1: {end}\ntime.sleep(600)"), processes=3) == status
    assert clock.monotonic() - started < 20
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hookline")]
    assert said == [f"hookline launch: process 1 {words}. The others are ended, within 3 s."]


def test_all_processes_that_fail_by_themselves_are_named(plain, script, capsys):
    text = (
        f"{WHO}if me == 2: sys.exit(os.EX_TEMPFAIL)\nif me < 3: time.sleep(me / 4); sys.exit(3 + me)\ntime.sleep(600)"
    )
    assert run(script(text), processes=4) == 3
    assert capsys.readouterr().err.splitlines() == [
        "hookline launch: process 0 failed with exit status 3. The others are ended, within 3 s.",
        "hookline launch: process 1 failed with exit status 4, too.",
    ]


def test_process_that_does_not_end_after_a_failure_is_killed(plain, script, capsys, tmp_path):
    ready = tmp_path / "ready"
    text = (
        f"{WHO}from pathlib import Path; ready = Path({str(ready)!r})\n"
        "if me: signal.signal(signal.SIGTERM, signal.SIG_IGN); ready.touch(); time.sleep(600)\n"
        "while not ready.exists(): time.sleep(0.01)\n"
        "sys.exit(5)"
    )
    assert run("--grace", "0.5", script(text)) == 5
    assert "process 0 failed with exit status 5" in capsys.readouterr().err


def test_failed_job_is_restarted_up_to_the_limit(plain, script, capsys, monkeypatch):
    monkeypatch.setattr(RecoveryPolicy, "backoff_secs", lambda self, attempt, generator: 0.1 * attempt)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    text = f"{WHO}print('programs in', os.environ['JAX_COMPILATION_CACHE_DIR'])\nsys.exit(7 if me else 0)"
    assert run("--restart", "on-failure", "--max-restarts", "2", script(text)) == 7
    out, err = capsys.readouterr()
    said = [line for line in err.splitlines() if "restarted" in line]
    assert said == [f"hookline launch: all processes are restarted in 0.{n} s ({n} of 2 times)." for n in (1, 2)]
    assert len(out.splitlines()) >= 3
    (folder,) = {line.split()[-1] for line in out.splitlines()}
    assert not Path(folder).exists()


def test_process_that_leaves_on_a_signal_is_not_restarted(plain, script, capsys):
    assert run("--restart", "on-failure", script("import sys; sys.exit(143)")) == 143
    assert "restarted" not in capsys.readouterr().err


@pytest.mark.parametrize("first", [pytest.param(0, marks=pytest.mark.campaign), 2])
def test_first_failure_not_caused_by_jax_is_named(plain, script, capsys, monkeypatch, tmp_path, first):
    monkeypatch.setattr(launcher, "_POLL_SECS", 3.0)
    gone = tmp_path / "gone"
    text = (
        f"{WHO}from pathlib import Path; gone = Path({str(gone)!r})\n"
        f"if me == {first}: gone.touch(); sys.exit(3 + me)\n"
        "while not gone.exists(): time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
        "os.abort() if me == 1 else sys.exit(3 + me)"
    )
    assert run(script(text), processes=3) == 3 + first
    assert capsys.readouterr().err.startswith(f"hookline launch: process {first} failed with exit status {3 + first}.")


def test_process_that_lost_a_peer_is_not_the_first_failure(plain, script, capsys, tmp_path):
    begun = tmp_path / "begun"
    text = (
        f"{WHO}from pathlib import Path; begun = Path({str(begun)!r})\n"
        "while me == 0 and not begun.exists(): time.sleep(0.01)\n"
        "if me == 0: sys.exit(os.EX_TEMPFAIL)\n"
        "begun.touch(); time.sleep(0.4)\n"
        "sys.exit(3)"
    )
    assert run(script(text)) == 3
    assert capsys.readouterr().err == "hookline launch: process 1 failed with exit status 3.\n"


def test_process_that_leaves_on_a_signal_lets_the_others_save(plain, script, capsys):
    text = "print('asked', flush=True)"
    text = f"{WHO}signal.signal(signal.SIGTERM, lambda *_: {text})\nif me: time.sleep(1); print('saved')\nsys.exit(143)"
    assert run(script(text)) == 143
    out, err = capsys.readouterr()
    assert out == "1 | saved\n"
    assert err == "hookline launch: process 0 left the training on SIGTERM.\n"


LISTENS = f"""{WHO}
def leave(number, frame):
    print("asked", flush=True)
    time.sleep(1.5)
    sys.exit(143)
signal.signal(signal.SIGTERM, leave)
open(os.path.join(os.path.dirname(__file__), f"ready{{me}}"), "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.campaign)]
)
def test_signal_is_forwarded_once_to_each_process(plain, script, capsys, tmp_path, number, status):
    when(tmp_path / "ready1", number, 0.5)
    assert run(script(LISTENS)) == status
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == ["0 | asked", "1 | asked"]
    assert err == f"hookline launch: stopping on {number.name}, within 30 s; once more to stop at once.\n"


def test_second_signal_does_not_wait(plain, script, tmp_path):
    text = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(tmp_path / 'r')!r}, 'w')"
    when(tmp_path / "r", signal.SIGTERM, 0.1, 1.2)
    started = clock.monotonic()
    assert run("--grace", "600", script(f"{text}; time.sleep(600)"), processes=1) == 137
    assert clock.monotonic() - started < 20


DEAF = f"""{WHO}
if me: signal.signal(signal.SIGTERM, signal.SIG_IGN)
else: signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(sys.argv[1])))
open(os.path.join(os.path.dirname(__file__), f"ready{{me}}"), "w").close()
while me or len(sys.argv) < 3: time.sleep(0.01)
while not os.path.exists(os.path.join(os.path.dirname(__file__), "ready1")): time.sleep(0.01)
sys.exit(143)
"""


@pytest.mark.parametrize(
    ("own", "status"), [("143", 137), ("1", 1), pytest.param("75", 137, marks=pytest.mark.campaign)]
)
def test_status_is_of_a_process_killed_or_failed_on_the_signal(plain, script, capsys, tmp_path, own, status):
    when(tmp_path / "ready1", signal.SIGTERM, 0.3)
    assert run("--grace", "0.5", script(DEAF), own) == status
    assert "hookline launch: process 1 was ended by SIGKILL.\n" in capsys.readouterr().err


def test_process_that_left_on_a_signal_does_not_hide_a_killed_one(plain, script, capsys):
    assert run("--grace", "0.5", script(DEAF), "143", "leave") == 137
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hookline")]
    assert said == [
        "hookline launch: process 0 left the training on SIGTERM.",
        "hookline launch: process 1 was ended by SIGKILL.",
    ]


def test_signal_while_a_process_leaves_lets_the_others_save(plain, script, capsys, tmp_path):
    left = tmp_path / "left"
    text = f"{WHO}signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif me: time.sleep(2); print('saved')\n"
    when(left, signal.SIGTERM, 0.5)
    assert run(script(f"{text}else: open({str(left)!r}, 'w')\nsys.exit(143)")) == 143
    assert capsys.readouterr().out == "1 | saved\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--spmd"], "--spmd requires --processes N"),
        (["--processes", "2"], "--processes requires --spmd"),
        (["--spmd", "--processes", "2", "--workers", "2"], "--workers does not go with --spmd"),
        (["--spmd", "--processes", "2", "--servers", "1"], "--servers does not go with --spmd"),
        (["--spmd", "--processes", "2", "--token-path", "t"], "--token-path does not go with --spmd"),
        (["--spmd", "--processes", "2", "--max-restarts", "2"], "--max-restarts requires --restart on-failure"),
    ],
)
def test_invalid_arguments_give_no_traceback(capsys, words, message):
    assert main(["launch", *words, __file__]) == 2
    assert capsys.readouterr().err.startswith(f"hookline launch: {message}")


def test_killed_launcher_leaves_no_process(script, tmp_path):
    text = f"open({str(tmp_path)!r} + '/' + str(os.getpid()) + '.pid', 'w').close(); time.sleep(600)"
    code = (
        "import importlib, sys; importlib.import_module('hookline.cli.launch_spmd')._SPMD_COMMAND = (sys.executable,)\n"
        "from hookline.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["launch", "--spmd", "--processes", "2", script(WHO + text)]
    with subprocess.Popen([sys.executable, "-c", code, *words]) as job:
        deadline = clock.monotonic() + 60
        while len(pids := [int(path.stem) for path in tmp_path.glob("*.pid")]) < 2 and clock.monotonic() < deadline:
            clock.sleep(0.05)
        job.kill()
    assert len(pids) == 2
    while (left := [pid for pid in pids if _is_there(pid)]) and clock.monotonic() < deadline:
        clock.sleep(0.05)
    assert left == []


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# For real

TOGETHER = """
import os, sys, pickle
import beside
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils
import hookline as hl

class Kept:
    pass

hl.distributed.initialize(require_token=True)
assert "HOOKLINE_TOKEN" not in os.environ, "Processes that this one starts do not get it."
assert type(pickle.loads(pickle.dumps(Kept()))) is Kept
total = multihost_utils.process_allgather(jnp.ones(2) * (jax.process_index() + 1)).sum()
print(jax.process_index(), jax.process_count(), jax.local_device_count(), int(total), __name__, beside.FOUND, sys.argv)
sys.exit()
"""


def test_script_runs_as_spmd_and_as_python_would_run_it(script, capsys, tmp_path):
    (tmp_path / "beside.py").write_text("FOUND = 'found'")
    path = script(TOGETHER)
    assert run("--grace", "5", path, "--steps", "4") == 0
    out, err = capsys.readouterr()
    rest = f"2 1 6 __main__ found ['{path}', '--steps', '4']"
    assert (sorted(out.splitlines()), err) == ([f"0 | 0 {rest}", f"1 | 1 {rest}"], "")


APART = """
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils

while True:
    multihost_utils.process_allgather(jnp.ones(2))
    if jax.process_index() == 1:
        jax.distributed.initialize("127.0.0.1:1", 2, 1)
"""


def test_failed_process_leaves_at_once_with_the_scripts_traceback_only(script, capsys):
    path = script(APART)
    assert run(path) == 1
    err = capsys.readouterr().err
    assert "hookline launch: process 1 failed with exit status 1." in err
    lines = [line.removeprefix("1 | ") for line in err.splitlines() if line.startswith("1 | ")]
    assert lines[:2] == ["Traceback (most recent call last):", f'  File "{path}", line 8, in <module>']
    assert lines[-1].startswith("The launcher has called jax.distributed.initialize. Call hookline.distributed")


REFUSED = """
import hookline as hl

hl.train.Loop(lambda state, batch: (state, {}), {"w": 0.0}, lambda: iter([1.0])).run()
"""


def test_refusal_is_one_sentence_in_every_process(script, capsys):
    assert run(script(REFUSED)) == 1
    err = capsys.readouterr().err
    for process in "01":
        lines = [line for line in err.splitlines() if line.startswith(f"{process} | ")]
        assert lines[-1].startswith(f"{process} | ValueError: Iterator 'batches': SPMD processes end"), err


LOST = """
import os, signal
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils

multihost_utils.process_allgather(jnp.ones(2))
if jax.process_index() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    multihost_utils.process_allgather(jnp.ones(2))
"""


@pytest.mark.campaign
def test_lost_peer_in_a_script_without_hookline_gives_status_75(script):
    command = [*launcher._SPMD_COMMAND, script(LOST)]
    with launcher._reserved_port() as port:
        places = [environment(f"127.0.0.1:{port}", 2, index, check_every_launch=False) for index in range(2)]
        processes = [subprocess.Popen(command, env={**os.environ, **place}) for place in places]
        assert [process.wait(60) for process in processes] == [75, -signal.SIGKILL]


ENDS_WITH_IT = """
import atexit, time
import jax, jax.numpy as jnp
import hookline as hl

class Fails(hl.train.SessionRunHook):
    trigger = hl.train.every(1)

    def on_trigger(self, firing):
        if jax.process_index() == 1 and firing.global_step == 3:
            atexit.register(time.sleep, 0.5)
            raise KeyError("batch")

source = hl.data.from_arrays(jnp.arange(64), 8, epochs=None)
hl.train.Loop(lambda total, batch: (total + batch.sum(), {}), 0, source).run(None, 60, hooks=[Fails()], progress=False)
"""


@pytest.mark.campaign
def test_process_with_another_ones_error_is_not_the_first_failure(script, capsys):
    assert run(script(ENDS_WITH_IT)) == 1
    err = capsys.readouterr().err
    assert "hookline launch: process 1 failed with exit status 1." in err
    assert "0 | hookline: Process 1 has failed, and the others end with it: KeyError: 'batch'" in err.splitlines()
    assert "0 | Traceback" not in err


ALONE = """
import os, signal, sys, time
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils

multihost_utils.process_allgather(jnp.ones(2))
print("begun", flush=True)
if jax.process_index() == int(sys.argv[1]):
    os.kill(os.getpid(), signal.SIGSTOP)
while sys.argv[2] == "in":
    multihost_utils.process_allgather(jnp.ones(2))
time.sleep(120)
"""


@pytest.mark.campaign
@pytest.mark.parametrize("where", ["in", "out"])
@pytest.mark.parametrize("stopped", [0, 1])
def test_stopped_process_ends_all_within_the_heartbeat_timeout(script, capsys, stopped, where):
    begun = clock.monotonic()
    assert run(script(ALONE), str(stopped), where) in (75, 134)
    # JAX checks heartbeats at intervals: up to twice the heartbeat timeout of 10 s, and the start.
    assert clock.monotonic() - begun < 40
    out, err = capsys.readouterr()
    assert out.count("begun") == 2
    assert f"process {1 - stopped} " in err


KILLED = """
import os, signal, sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
import hookline as hl

LOGDIR, ME = Path(sys.argv[1]), jax.process_index()
KILLS = [(1, 25), (0, 45), (1, 47)][: int(sys.argv[2])]
attempt = len(list(LOGDIR.glob(f"attempt-*-{ME}")))
(LOGDIR / f"attempt-{attempt}-{ME}").touch()

class Dies(hl.train.SessionRunHook):
    trigger = hl.train.every(1)

    def on_trigger(self, firing):
        if (ME, firing.global_step) in KILLS[attempt : attempt + 1]:
            os.kill(os.getpid(), signal.SIGKILL)

source = hl.data.from_arrays(np.arange(64, dtype=np.int32), 8, shuffle_seed=3, epochs=None)
step = lambda total, batch: (total + batch.sum(), {})
loop = hl.train.Loop(step, jnp.zeros((), jnp.int32), source)
saves = hl.train.CheckpointOptions(save_steps=10)
total = loop.run(LOGDIR, 60, hooks=[Dies()], nan_check=None, progress=False, checkpoints=saves)
print("ended", attempt, int(total), sum(int(batch.sum()) for batch, _ in zip(iter(source), range(60))))
"""


FAILS = """
import sys, time
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
import hookline as hl

LOGDIR, STEPS = Path(sys.argv[1]), list(map(int, sys.argv[2:]))
mine = LOGDIR / f"starts-{jax.process_index()}"
start = len(mine.read_text()) if mine.exists() else 0
mine.write_text("x" * (start + 1))

class Fails(hl.train.SessionRunHook):
    trigger = hl.train.every(1)

    def on_trigger(self, firing):
        if firing.global_step == STEPS[start]:
            time.sleep(1)  # Until the last save is complete.
            raise ValueError("a bad record")

source = hl.data.from_arrays(np.arange(64, dtype=np.int32), 8, epochs=None)
loop = hl.train.Loop(lambda total, batch: (total + batch.sum(), {}), jnp.zeros((), jnp.int32), source)
saves = hl.train.CheckpointOptions(save_steps=10)
loop.run(LOGDIR / "run", 60, hooks=[Fails()], nan_check=None, progress=False, checkpoints=saves)
print("ended in start", start)
"""


@pytest.mark.parametrize(
    ("steps", "starts", "begun_at"),
    [
        pytest.param((5, 5, 90), 2, 0, id="before the first checkpoint", marks=pytest.mark.campaign),
        pytest.param((5, 35, 35, 35, 90), 4, 30, id="after new checkpoints"),
    ],
)
def test_job_that_fails_twice_in_the_same_way_is_not_restarted(
    script, capsys, tmp_path, monkeypatch, steps, starts, begun_at
):
    monkeypatch.setattr(RecoveryPolicy, "backoff_secs", lambda self, attempt, generator: 0.0)
    assert run("--restart", "on-failure", script(FAILS), str(tmp_path), *map(str, steps)) == 1
    assert (tmp_path / "starts-0").read_text() == "x" * starts
    assert capsys.readouterr().err.splitlines()[-1] == (
        "hookline launch: the job is not restarted again: it has failed with the same error twice in a row, and both "
        f"times the training had begun at step {begun_at}. Remove the cause: ValueError: a bad record"
    )


@pytest.mark.parametrize(
    ("end", "status", "cause"),
    [
        pytest.param("raise ValueError('no')", 1, "ValueError: no", marks=pytest.mark.campaign),
        pytest.param("sys.exit(3)", 3, "SystemExit: 3", marks=pytest.mark.campaign),
        ("open('/data')", 1, "FileNotFoundError: [Errno 2] No such file or directory: '/data'"),
        pytest.param("raise ConnectionError('refused')", 1, None, marks=pytest.mark.campaign),
    ],
)
def test_job_that_fails_before_a_training_is_restarted_once_unless_the_error_may_pass(
    script, capsys, monkeypatch, end, status, cause
):
    monkeypatch.setattr(RecoveryPolicy, "backoff_secs", lambda self, attempt, generator: 0.0)
    assert run("--restart", "on-failure", "--max-restarts", "2", script(f"import sys\n{end}")) == status
    said = [line for line in capsys.readouterr().err.splitlines() if "restarted" in line]
    assert said[0] == "hookline launch: all processes are restarted in 0.0 s (1 of 2 times)."
    assert said[1:] == [
        "hookline launch: all processes are restarted in 0.0 s (2 of 2 times)."
        if cause is None
        else "hookline launch: the job is not restarted again: it has failed with the same error twice in a row, and "
        f"no training had begun. Remove the cause: {cause}"
    ]


def test_process_that_lost_a_peer_says_so_in_one_line(script, capsys, tmp_path):
    logdir = tmp_path / "run"
    logdir.mkdir()
    assert run(script(KILLED), str(logdir), "1") == 137
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("0 | ")]
    assert said[-1] == "0 | hookline: Process 1 is lost, and process 0 ends: only its last checkpoint remains."
    assert all("/model.ckpt-20' was not completed: A process of this job has failed" in line for line in said[:-1])


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.campaign)])
def test_often_killed_job_ends_with_the_numbers_of_an_uninterrupted_one(script, capsys, tmp_path, monkeypatch, kills):
    monkeypatch.setattr(RecoveryPolicy, "backoff_secs", lambda self, attempt, generator: 0.0)
    logdir = tmp_path / "run"
    logdir.mkdir()
    assert run("--restart", "on-failure", script(KILLED), str(logdir), str(kills)) == 0
    out, err = capsys.readouterr()
    ended = [line.split()[3:] for line in out.splitlines() if "ended" in line]
    assert [attempt for attempt, _, _ in ended] == [str(kills)] * 2
    assert all(total == expected for _, total, expected in ended)
    killed = [line.split(". ")[0] for line in err.splitlines() if "SIGKILL" in line]
    assert killed == [f"hookline launch: process {index} was ended by SIGKILL" for index in (1, 0, 1)[:kills]]
