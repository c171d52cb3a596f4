"""A local Ray cluster, started once for the tests that need it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from tests.python import Python
from tests.stand_ins import ProcessTree

from hookline import clock

# Its parts, which a session holds and does not show.
from hookline.distributed import ClusterOptions, LocalRayCluster
from hookline.distributed.cluster import ray_connection
from hookline.distributed.cluster.ray_actors import actor_class
from hookline.train import get_checkpoint_state, load_variable

from .targets import until

SMALL_BYTES = 100_000_000


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[LocalRayCluster]:
    """One Ray cluster for the whole run; this process leaves it before it ends."""
    # Importing Ray is left to hookline, which sets its environment before.
    if find_spec("ray") is None:
        pytest.skip("needs Ray")
    with LocalRayCluster(object_store_bytes=SMALL_BYTES) as cluster:
        group, folder = cluster.head.pid, Path(cluster.token_path).parent
        yield cluster
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()
    assert not folder.exists(), "A stop leaves no file,"
    if os.path.isdir("/proc/self"):
        until(lambda: not pids_of_group(group), within_secs=10)  # and no process.


@pytest.fixture
def job() -> str:
    """A name for a job, so that tests do not meet on the cluster."""
    return f"job-{uuid4().hex[:8]}"


@pytest.fixture
def options(ray_cluster: LocalRayCluster) -> ClusterOptions:
    return ClusterOptions(token_path=ray_cluster.token_path, connect_secs=5, wait_secs=30)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port at which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


def pids_of_group(group: int) -> list[int]:
    """The living processes of a process group."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, _, pgrp = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(pgrp) == group and state != "Z":
                found.append(int(folder.name))
    return found


@pytest.fixture
def members():
    """Returns a function that gives the living processes of a process group."""
    if not os.path.isdir("/proc/self"):
        pytest.skip("needs /proc")
    return pids_of_group


class Forked(Python):
    """Replaces `ProcessTree` for a task, with Python from a fork server; job.py makes a group for itself."""

    def status(self) -> int | None:
        return self.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return super().wait(timeout)
        return None

    def ask_to_end(self) -> None:
        self.terminate()


class Task:
    """A process of a job, and its reported events."""

    def __init__(self, group: ProcessTree | Forked, folder: Path, name: str) -> None:
        self.group, self.name = group, name
        self._log, self._errors = folder / f"{name}.jsonl", folder / f"{name}.err"

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Returns the reported events, in order."""
        text = self._log.read_text() if self._log.exists() else ""
        told = [json.loads(line) for line in text.splitlines()]
        return [event for event in told if kind in (None, event["event"])]

    def step(self) -> int:
        """Returns the last reported global step; -1 before."""
        return max((event["step"] for event in self.events()[-1:] if "step" in event), default=-1)

    def applied(self) -> list[int]:
        """The global steps that its accepted updates led to."""
        return [event["step"] for event in self.events("step") if event["applied"]]

    def said(self, text: str) -> list[dict[str, Any]]:
        """Returns log lines and errors that contain a text."""
        return [event for event in self.events() if text in event.get("text", "")]

    def await_(self, what: str, condition: Callable[[], Any], within_secs: float = 60) -> Any:
        """Waits until something is true, and returns it."""
        deadline = clock.monotonic() + within_secs
        while not (found := condition()):
            status = self.group.status()
            if status is not None and not (found := condition()):
                pytest.fail(f"{self.name} ended with {status} before {what}:\n{self.story()}")
            if clock.monotonic() > deadline:
                pytest.fail(f"{self.name}: no {what} within {within_secs} s:\n{self.story()}")
            clock.sleep(0.02)
        return found

    def await_step(self, step: int, within_secs: float = 60) -> None:
        """Waits until it has made an update that led to `step` or later."""
        self.await_(f"step {step}", lambda: (self.applied() or [-1])[-1] >= step, within_secs)

    def end(self, within_secs: float = 60) -> int:
        """Waits for its end and returns its status."""
        status = self.group.wait(within_secs)
        assert status is not None, f"{self.name} did not end within {within_secs} s:\n{self.story()}"
        return status

    def kill(self) -> None:
        """kill -9."""
        self.group.kill()

    def story(self) -> str:
        """Returns a summary to read when a test fails."""
        events = self.events()
        short = [e for e in events if e["event"] != "step"] + [e for e in events if e["event"] == "step"][-3:]
        return "\n".join(map(str, short)) + "\n" + self._errors.read_text()[-3000:]


class Job:
    """Tasks that run job.py on a Ray cluster; the settings apply to all its tests."""

    def __init__(self, folder: Path, ray: LocalRayCluster, name: str, workers: int, servers: int, **settings) -> None:
        self.folder, self.ray, self.name, self.servers = folder, ray, name, servers
        self.checkpoint_dir = str(folder / "checkpoints")
        placement = {"left": 0, "right": servers - 1}
        self._settings = {"checkpoint_dir": self.checkpoint_dir, "placement": placement, **settings}
        numbers = {"HOOKLINE_NUM_WORKERS": str(workers), "HOOKLINE_NUM_SERVERS": str(servers)}
        self._environment = {"HOOKLINE_JOB": name, "JAX_PLATFORMS": "cpu", **numbers}
        self.tasks: list[Task] = []

    def start(self, rank: int, *, on: Sequence[str] = (), **settings: Any) -> Task:
        """Starts a task: 0 is the chief. `on` precedes a command to run it on another host."""
        name = f"task{rank}-{len(self.tasks)}"
        kind = {"HOOKLINE_TASK_TYPE": "worker" if rank else "chief", "HOOKLINE_TASK_INDEX": str(max(rank - 1, 0))}
        env = {**os.environ, **self.ray.environment(), **self._environment, **kind}
        env.pop("TF_CONFIG", None)
        given = json.dumps({**self._settings, **settings, "log": str(self.folder / f"{name}.jsonl")})
        with open(self.folder / f"{name}.err", "wb") as file, open(os.devnull) as nothing:
            command, pipes = [str(Path(__file__).with_name("job.py")), given], {"stdout": file, "stderr": file}
            if on:
                group = ProcessTree([*on, sys.executable, *command], env, stdin=nothing, **pipes)
            else:
                numbers = {name: pipe.fileno() for name, pipe in pipes.items()}
                group = Forked(*command, env=env, stdin=nothing.fileno(), **numbers)
        task = Task(group, self.folder, name)
        self.tasks.append(task)
        return task

    def server_pids(self) -> list[int]:
        """The processes of its servers, in order."""
        # A lambda, which travels by value: the servers cannot import tests.
        return self._ask("__ray_call__", lambda server: __import__("os").getpid())

    def held(self) -> list[frozenset[str]]:
        """Which variables its servers hold, in order."""
        return [status.initialized for status in self._ask("status")]

    def _ask(self, method: str, *args: Any) -> list[Any]:
        self._join()
        import ray
        from ray.exceptions import RayActorError

        actors = ray_connection.find_servers(self.name, self.servers, 30)
        deadline = clock.monotonic() + 30
        while True:
            try:
                return [ray.get(getattr(actor, method).remote(*args), timeout=30) for actor in actors]
            except RayActorError:
                # One that was killed a moment ago is on its way back.
                if clock.monotonic() > deadline:
                    raise
                clock.sleep(0.1)

    def _join(self) -> None:
        ray_connection.connect(self.ray.address, self.name, self.ray.token_path, 5)

    def steps(self) -> list[int]:
        """The global steps of all accepted updates that the tasks know of."""
        return sorted(step for task in self.tasks for step in task.applied())

    def checkpoints(self) -> dict[int, str]:
        """The checkpoints, by the step that they hold; each must be of one moment on all servers."""
        found = {}
        state = get_checkpoint_state(self.checkpoint_dir)
        assert state is not None
        for path in state.all_model_checkpoint_paths:
            values = {name: np.asarray(load_variable(path, name)) for name in ("global_step", "count", "left", "right")}
            numbers = {float(number) for value in values.values() for number in value.ravel()}
            assert len(numbers) == 1, f"{path} is a mixture: {numbers}"
            assert int(path.rpartition("-")[2]) == min(numbers)
            found[int(numbers.pop())] = path
        return found

    def stop(self) -> None:
        """Ends all remaining processes, and the servers."""
        for task in self.tasks:
            task.kill()
        if self.ray.address and ray_connection.listens(self.ray.address):
            self._join()
            assert ray_connection.kill_servers(self.name) <= self.servers


@pytest.fixture
def start_job(tmp_path: Path, job: str) -> Iterator[Callable[..., Job]]:
    """Makes a job; `start_job(ray_cluster, workers=2, servers=1, last_step=100)`."""
    jobs: list[Job] = []

    def make(ray: LocalRayCluster, *, workers: int, servers: int, **settings: Any) -> Job:
        folder = tmp_path / str(len(jobs))
        folder.mkdir()
        jobs.append(Job(folder, ray, f"{job}-{len(jobs)}", workers, servers, **settings))
        return jobs[-1]

    yield make
    for made in jobs:
        made.stop()


@pytest.fixture
def actors(ray_cluster, options, job):
    """Makes servers that are actors on the private cluster, and ends them afterwards."""
    ray_connection.connect(ray_cluster.address, job, options.token_path, options.connect_secs)
    import ray

    made = []

    def make(count, **arguments):
        made.extend(actor_class().remote(**arguments) for _ in range(count))
        return made[-count:]

    yield make
    for actor in made:
        ray.kill(actor)


@pytest.fixture
def pid_of():
    """Returns a function that gives the process of an actor."""

    def ask(actor):
        import ray

        # A lambda, which travels by value: the servers cannot import tests.
        return ray.get(actor.__ray_call__.remote(lambda server: __import__("os").getpid()))

    return ask
