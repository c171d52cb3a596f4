"""`hookline launch`: the tasks of a job as processes. Most tests need no Ray, only the last ones start it."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.sending import when

from hookline import clock, errors, train
from hookline.cli import main
from hookline.train import RecoveryPolicy

launch = importlib.import_module("hookline.cli.launch")

ENVIRONMENT = """
import os, sys
names = ["TASK_TYPE", "TASK_INDEX", "NUM_WORKERS", "NUM_SERVERS", "ADDRESS", "JOB"]
print(*[os.environ["HOOKLINE_" + name] for name in names], os.environ.get("TF_CONFIG"), *sys.argv[1:])
"""


class NoRay:
    """Replaces a local Ray cluster."""

    def __init__(self):
        NoRay.stopped = 0

    def start(self, cancelled):
        return self

    def stop(self):
        NoRay.stopped += 1

    def environment(self):
        return {"HOOKLINE_ADDRESS": "127.0.0.1:7"}


@pytest.fixture
def no_ray(monkeypatch):
    monkeypatch.setattr(launch, "require_ray", lambda: None)
    monkeypatch.setattr(launch, "LocalRayCluster", NoRay)


@pytest.fixture
def script(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(text)
        return str(path)

    return write


@contextmanager
def signalled(number: int, *after_secs: float):
    """This process gets a signal, once or several times."""
    timers = [threading.Timer(secs, lambda: os.kill(os.getpid(), number)) for secs in after_secs]
    for timer in timers:
        timer.start()
    yield
    for timer in timers:
        timer.join()


def run(*words: str) -> int:
    return main(["launch", *words])


def test_each_task_gets_its_role_and_its_lines_have_its_name(no_ray, script, capsys, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    path = script(ENVIRONMENT)
    assert run("--workers", "3", "--servers", "2", "--job", "mine", path, "--steps", "4") == 0
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "chief    | chief 0 3 2 127.0.0.1:7 mine None --steps 4",
        "worker 0 | worker 0 3 2 127.0.0.1:7 mine None --steps 4",
        "worker 1 | worker 1 3 2 127.0.0.1:7 mine None --steps 4",
    ]
    assert NoRay.stopped == 1


def test_errors_keep_their_stream_and_redrawn_lines_are_shown(no_ray, script, capsys):
    text = "import sys; print('\\rstep 1', end=''); print('\\rstep 2\\n\\nend', end=''); print('oh', file=sys.stderr)"
    assert run(script(text)) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == ["chief | step 1", "chief | step 2", "chief | end"]
    assert err.splitlines() == ["chief | oh"]


TYPE = "import os, sys, time; kind = os.environ['HOOKLINE_TASK_TYPE']\n"


def test_failed_worker_is_reported_and_the_chief_gives_the_status(no_ray, script, capsys):
    assert run("--workers", "2", script(TYPE + "sys.exit(3 if kind == 'worker' else 0)")) == 0
    assert "hookline launch: worker 0 failed with exit status 3." in capsys.readouterr().err


def test_failed_chief_stops_the_workers_at_once(no_ray, script, capsys):
    started = clock.monotonic()
    assert run("--workers", "2", script(TYPE + "sys.exit(5) if kind == 'chief' else time.sleep(600)")) == 5
    assert clock.monotonic() - started < 20
    assert "hookline launch: chief failed with exit status 5." in capsys.readouterr().err


def test_chief_ended_by_a_signal_gives_a_shells_status(no_ray, script, capsys):
    assert run(script("import os; os.kill(os.getpid(), 9)")) == 137
    assert "chief was ended by SIGKILL" in capsys.readouterr().err


def test_workers_have_a_grace_period_after_the_chief(no_ray, script, capsys):
    text = TYPE + "time.sleep(600 if kind == 'worker' else 0)"
    assert run("--workers", "2", "--grace", "0.5", script(text)) == 0
    assert "worker 0 did not end within 0.5 seconds after the chief: stopped." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "status"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.campaign), (signal.SIGTERM, 143)]
)
def test_a_signal_stops_all_tasks(no_ray, script, capsys, number, status):
    before = signal.getsignal(number)
    with signalled(number, 1.0):
        assert run("--workers", "2", script("import time; time.sleep(600)")) == status
    assert f"stopping on {number.name}" in capsys.readouterr().err
    assert signal.getsignal(number) is before


def test_second_signal_does_not_wait_for_a_stubborn_task(no_ray, script):
    started = clock.monotonic()
    text = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    with signalled(signal.SIGTERM, 1.0, 2.5):
        assert run("--grace", "600", script(text)) == 137
    assert clock.monotonic() - started < 20


ASKED = f"""{TYPE}
import signal
from pathlib import Path

ready = Path(__file__).with_name("ready")
if kind == "chief":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(sys.argv[1])))
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.touch()
while kind == "chief" and not ready.exists():
    time.sleep(0.01)
if kind == "chief" and len(sys.argv) > 2:
    sys.exit(int(sys.argv[1]))
time.sleep(600)
"""


@pytest.mark.parametrize(("chief", "status"), [("143", 137), ("1", 1)])
def test_status_is_of_a_killed_task_or_a_failed_chief(no_ray, script, capsys, tmp_path, chief, status):
    when(tmp_path / "ready", signal.SIGTERM, 0.3)
    assert run("--workers", "2", "--grace", "0.5", script(ASKED), chief) == status
    assert "hookline launch: worker 0 was ended by SIGKILL." in capsys.readouterr().err


@pytest.mark.parametrize(("chief", "status"), [("143", 137), ("5", 5)])
def test_status_is_the_same_if_the_chief_ended_first(no_ray, script, chief, status):
    assert run("--workers", "2", "--grace", "0.5", script(ASKED), chief, "at once") == status


def test_signal_after_the_chief_failed_does_not_hide_the_failure(no_ray, script, tmp_path):
    when(tmp_path / "ready", signal.SIGTERM, 0.5)
    assert run("--workers", "2", "--grace", "2", script(ASKED), "5", "at once") == 5


FAILS = """
import os, sys, time
from pathlib import Path

failing, times, status, enough = sys.argv[1], *map(int, sys.argv[2:])
starts, over = Path(__file__).with_name("starts"), Path(__file__).with_name("over")
if os.environ["HOOKLINE_TASK_TYPE"] == failing:
    starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
    count = len(starts.read_text())
    if count == enough:
        over.touch()
    if count <= times:
        sys.exit(status)
    print("trained")
while not over.exists():
    time.sleep(0.01)
"""


@pytest.mark.parametrize(("kind", "name"), [("chief", "chief   "), ("worker", "worker 0")])
def test_failed_task_is_restarted(no_ray, script, capsys, kind, name):
    assert run("--workers", "2", "--restart", "on-failure", script(FAILS), kind, "1", "7", "2") == 0
    out, err = capsys.readouterr()
    assert out == f"{name} | trained\n"
    assert f"hookline launch: {name.strip()} failed with exit status 7. It is restarted in" in err


def test_restarts_are_limited_with_growing_waits(no_ray, script, capsys, monkeypatch):
    whole = RecoveryPolicy.backoff_secs
    monkeypatch.setattr(RecoveryPolicy, "backoff_secs", lambda self, *given: whole(self, *given) / 8)
    started = clock.monotonic()
    assert run("--restart", "on-failure", "--max-restarts", "2", script(FAILS), "chief", "9", "7", "0") == 7
    assert clock.monotonic() - started > (0.8 + 1.6) / 8
    err = capsys.readouterr().err
    assert "(1 of 2 times)" in err
    assert "(2 of 2 times)" in err
    assert err.splitlines()[-1] == "hookline launch: chief failed with exit status 7."


def test_signal_ends_the_wait_for_a_restart(no_ray, script, capsys):
    with signalled(signal.SIGINT, 1.0):
        assert run("--restart", "on-failure", script("import sys; sys.exit(7)")) == 130
    assert "stopping on SIGINT" in capsys.readouterr().err


@pytest.mark.parametrize("status", [143, 130])
def test_task_that_was_stopped_has_not_failed(no_ray, script, capsys, status):
    name = signal.Signals(status - 128).name
    assert run("--workers", "2", "--restart", "on-failure", script(FAILS), "worker", "1", str(status), "1") == 0
    assert f"hookline launch: worker 0 left the training on {name}.\n" == capsys.readouterr().err


def test_guardian_is_notified_of_each_ended_task(no_ray, script, capsys, monkeypatch):
    forgotten = []
    monkeypatch.setattr(launch.Guardian, "withdraw", lambda self, group: forgotten.append(str(group)))
    assert run("--workers", "3", script("import os; print(os.getpid())")) == 0
    assert sorted(forgotten) == sorted(line.split()[-1] for line in capsys.readouterr().out.splitlines())


def test_job_continues_without_its_guardian(no_ray, script, capsys, monkeypatch):
    class Mortal(launch.Guardian):
        def __init__(self, *args):
            super().__init__(*args)
            self._process.kill()
            self._process.wait()

    monkeypatch.setattr(launch, "Guardian", Mortal)
    assert run("--workers", "2", script("print('trained')")) == 0
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == ["chief    | trained", "worker 0 | trained"]
    assert err == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.py"], "there is no script 'nowhere.py'"),
        (["--address", "somewhere", __file__], "'host:port', got 'somewhere'"),
        (["--token-path", "a", __file__], "--token-path requires --address"),
        (["--max-restarts", "3", __file__], "--max-restarts requires --restart on-failure"),
    ],
)
def test_invalid_arguments_give_no_traceback(no_ray, capsys, words, message):
    assert run(*words) == 2
    err = capsys.readouterr().err
    assert err.startswith("hookline launch: ")
    assert message in err


@pytest.mark.parametrize("words", [["--workers", "0"], ["--servers", "x"], ["--grace", "-1"], ["--restart", "all"]])
def test_invalid_numbers_are_refused(capsys, words):
    with pytest.raises(SystemExit, match="2"):
        run(*words, __file__)
    assert f"argument {words[0]}" in capsys.readouterr().err


def test_missing_ray_names_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("hookline.distributed.cluster.local_ray_cluster.find_spec", lambda name: None)
    assert run(__file__) == 2
    assert "pip install ray" in capsys.readouterr().err


def test_cluster_that_does_not_start_or_respond_is_a_failure(monkeypatch, capsys):
    def refuse(address, timeout_secs):
        raise errors.UnavailableError(None, None, f"No Ray head listens at {address}")

    monkeypatch.setattr(launch, "wait_for_head", refuse)
    assert run("--address", "127.0.0.1:7", __file__) == 1
    assert capsys.readouterr().err == "hookline launch: No Ray head listens at 127.0.0.1:7\n"


# With Ray


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "hookline.cli", "launch", *words]


@pytest.fixture
def marker() -> str:
    """A variable in the environment of a launcher, and so of all that it starts."""
    if not os.path.isdir("/proc/self"):
        pytest.skip("needs /proc")
    return f"HOOKLINE_TEST={os.getpid()}-{clock.time()}"


def launched(marker: str, *words: str) -> subprocess.Popen[str]:
    name, _, value = marker.partition("=")
    pipe = subprocess.PIPE
    return subprocess.Popen(command(*words), stdout=pipe, stderr=pipe, text=True, env={**os.environ, name: value})


def in_environment(variable: str) -> list[int]:
    """The living processes that have a variable in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and variable.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def none_left(marker: str, within_secs: float) -> bool:
    deadline = clock.monotonic() + within_secs
    while in_environment(marker):
        if clock.monotonic() > deadline:
            return False
        clock.sleep(0.1)
    return True


def await_ready(job: subprocess.Popen[str]) -> None:
    """Waits until the chief and a worker have logged it."""
    assert job.stdout is not None
    ready = [job.stdout.readline() for _ in range(2)]
    assert sorted(ready) == ["chief    | ready\n", "worker 0 | ready\n"], job.communicate()


WITH_A_SERVER = """
from hookline.distributed.cluster.cluster import Cluster
from hookline.distributed.cluster import ray_connection as c
k = Cluster.from_environment()
c.connect(k.address, k.job, k.options.token_path, 5)
(c.create_servers(k.job, 1) if k.is_chief else c.find_servers(k.job, 1, 30))
import time; print('ready', flush=True); time.sleep(600)
"""


def test_ctrl_c_leaves_no_process(script, marker):
    with launched(marker, "--workers", "2", script(WITH_A_SERVER)) as job:
        await_ready(job)
        assert len(in_environment(marker)) > 5
        job.send_signal(signal.SIGINT)
        _, err = job.communicate(timeout=60)
    assert job.returncode == 130, err
    for name in ("chief", "worker 0"):
        assert f"hookline launch: {name} left the training on SIGTERM." in err
    assert "Traceback" not in err.replace("SystemExit", "")
    assert none_left(marker, within_secs=10)


TRAINS = """
import sys, time
import hookline as hl
from hookline.distributed.cluster.cluster import Cluster

k = Cluster.from_environment()
train_op = hl.train.get_or_create_global_step().assign_add(1)
with hl.train.MonitoredTrainingSession(k.target, k.is_chief, sys.argv[1], save_checkpoint_steps=10**9) as sess:
    sess.run(train_op)
    print("ready", flush=True)
    while not sess.should_stop():
        sess.run(train_op)
        time.sleep(0.01)
"""


@pytest.mark.slow_distributed
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_saves_the_work_of_all_tasks(script, marker, tmp_path, number, status):
    directory = str(tmp_path / "run")
    with launched(marker, "--workers", "2", script(TRAINS), directory) as job:
        await_ready(job)
        job.send_signal(number)
        _, err = job.communicate(timeout=60)
    assert job.returncode == status, err
    for name in ("chief", "worker 0"):
        assert f"hookline launch: {name} left the training on SIGTERM." in err
    newest = train.latest_checkpoint(directory)
    assert newest is not None
    assert train.load_variable(newest, "global_step") >= 2
    assert none_left(marker, within_secs=10)


# That the guardian ends all is seen in test_launch_spmd.py, without Ray.
@pytest.mark.parametrize(
    "listening",
    [
        pytest.param("SIG_DFL", marks=pytest.mark.campaign),
        pytest.param("SIG_IGN", marks=pytest.mark.slow_distributed),
    ],
)
def test_killed_launcher_leaves_no_process(script, marker, listening):
    path = script(
        f"import signal, time; signal.signal(signal.SIGTERM, signal.{listening})\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    with launched(marker, "--workers", "2", path) as job:
        await_ready(job)
        assert len(in_environment(marker)) > 5
        job.kill()
    assert none_left(marker, within_secs=20)


@pytest.fixture
def joined():
    """A Ray cluster that is there before the launcher."""
    from hookline.distributed import LocalRayCluster

    with LocalRayCluster(object_store_bytes=100_000_000) as ray:
        yield ray


def servers_left(ray, job: str) -> int:
    """Returns the number of servers that a job still had on a cluster, and ends them."""
    count = (
        "from hookline.distributed.cluster import ray_connection as c; import sys\n"
        f"c.connect({ray.address!r}, {job!r}, {ray.token_path!r}, 5); print(c.kill_servers({job!r}))"
    )
    left = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, timeout=60)
    assert left.returncode == 0, left.stderr
    return int(left.stdout)


@pytest.mark.slow_distributed
def test_joined_cluster_is_left_without_servers(script, joined):
    from hookline.distributed.cluster import ray_connection

    path = script(
        "from hookline.distributed.cluster.cluster import Cluster\n"
        "from hookline.distributed.cluster import ray_connection as c\n"
        "k = Cluster.from_environment()\n"
        "c.connect(k.address, k.job, k.options.token_path, 5)\n"
        "c.create_servers(k.job, 2); print(k.job)\n"
    )
    words = ["--address", joined.address, "--token-path", joined.token_path, "--job", "joined", path]
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "chief | joined\n"), done.stderr
    assert servers_left(joined, "joined") == 0
    assert ray_connection.listens(joined.address)


@pytest.mark.slow_distributed
def test_killed_launcher_leaves_no_server_on_a_joined_cluster(script, joined, marker):
    from hookline.distributed.cluster import ray_connection

    words = ["--address", joined.address, "--token-path", joined.token_path, "--job", "joined", "--workers", "2"]
    with launched(marker, *words, script(WITH_A_SERVER)) as job:
        await_ready(job)
        job.kill()
    assert none_left(marker, within_secs=60)
    assert servers_left(joined, "joined") == 0
    assert ray_connection.listens(joined.address)


def child_called(parent: int, name: str) -> int:
    """Returns the child of a process whose command line contains a name."""
    for folder in Path("/proc").iterdir():
        try:
            if not folder.name.isdigit() or name.encode() not in (folder / "cmdline").read_bytes():
                continue
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError(f"process {parent} has no child {name!r}")


@pytest.mark.slow_distributed
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
@pytest.mark.parametrize("part", ["gcs_server", "raylet/raylet", "ray::RuntimeEnvAgent"])
def test_killed_head_is_an_error_within_a_minute(script, marker, part):
    path = script(
        "import time\n"
        "import hookline as hl\n"
        "from hookline.distributed.cluster.cluster import Cluster\n"
        "k = Cluster.from_environment()\n"
        "step = hl.train.get_or_create_global_step()\n"
        "train_op = step.assign_add(1)\n"
        "with hl.train.MonitoredTrainingSession(k.target, k.is_chief) as sess:\n"
        "    sess.run(train_op); print('ready', flush=True)\n"
        "    while not sess.should_stop(): sess.run(train_op); time.sleep(0.01)\n"
    )
    with launched(marker, "--workers", "2", path) as job:
        await_ready(job)
        parent = child_called(job.pid, "ray_head.py")
        if part.startswith("ray::"):
            parent = child_called(parent, "raylet/raylet")
        os.kill(child_called(parent, part), signal.SIGKILL)
        killed = clock.monotonic()
        _, err = job.communicate(timeout=120)
    assert job.returncode == 1
    for name in ("chief   ", "worker 0"):
        assert re.search(rf"^{name} \| hookline.errors.InternalError: The (raylet of the )?Ray head at 127", err, re.M)
    assert re.search("^The local Ray cluster at 127.0.0.1:.* has ended by itself", err, re.M)
    assert clock.monotonic() - killed < 60
    assert none_left(marker, within_secs=10)
