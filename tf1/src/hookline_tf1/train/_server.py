"""`tf.train.Server` and `ClusterSpec`: parameter servers and workers, over `hookline.distributed`.

A script is started once for each task, as in TF 1.x. On one machine the first `ps` task starts a local Ray cluster, and
the others find it by the address of that task. On several machines a Ray head listens at the address of the first `ps`
task, as hookline's docs/distributed.md describes.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hookline import clock
from hookline.distributed import Cluster, ClusterOptions, LocalRayCluster
from hookline.errors import DeadlineExceededError
from hookline.extend import log
from hookline_tf1._machinery.ignored_arguments import ignored, log_once

_logger = log.get_logger("hookline.tf1")

_POLL_SECS = 0.2
_LISTENS_WITHIN_SECS = 1.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")


class ClusterSpec:
    """The addresses of the tasks of each job.

    Args:
        cluster: A dict of lists, or of dicts from index to address; or another `ClusterSpec`.

    Example:
        >>> spec = ClusterSpec({"ps": ["a:1"], "worker": ["b:1", "c:1"]})
        >>> spec.jobs, spec.num_tasks("worker"), spec.task_address("worker", 1)
        (['ps', 'worker'], 2, 'c:1')

    References:
        `tf.train.ClusterSpec`.
    """

    def __init__(self, cluster: Mapping[str, Any] | ClusterSpec) -> None:
        if isinstance(cluster, ClusterSpec):
            cluster = cluster._tasks
        if not isinstance(cluster, Mapping):
            raise TypeError(f"ClusterSpec requires a dict from jobs to addresses, got {cluster!r}.")
        self._tasks: dict[str, dict[int, str]] = {}
        for job, tasks in cluster.items():
            if isinstance(tasks, str) or not isinstance(tasks, Mapping | Sequence):
                raise TypeError(f"ClusterSpec requires a list of addresses for job {job!r}, got {tasks!r}.")
            found = dict(tasks) if isinstance(tasks, Mapping) else dict(enumerate(tasks))
            self._tasks[job] = {int(index): str(found[index]) for index in sorted(found)}

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return list(self._tasks)

    def num_tasks(self, job_name: str) -> int:
        """Returns the number of tasks of a job."""
        return len(self._of(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """Returns the indices of the tasks of a job."""
        return list(self._of(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Returns the address of a task."""
        tasks = self._of(job_name)
        if task_index not in tasks:
            raise ValueError(f"The cluster has no task {task_index} in job {job_name!r}, but {list(tasks)}.")
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str]:
        """Returns the addresses of the tasks of a job."""
        return list(self._of(job_name).values())

    def as_dict(self) -> dict[str, Any]:
        """Returns the addresses by job."""
        lists = {job: list(tasks) == list(range(len(tasks))) for job, tasks in self._tasks.items()}
        return {job: list(tasks.values()) if lists[job] else dict(tasks) for job, tasks in self._tasks.items()}

    def _of(self, job: str) -> dict[int, str]:
        if job not in self._tasks:
            raise ValueError(f"The cluster has no job {job!r}, but {', '.join(self._tasks) or 'none'}.")
        return self._tasks[job]

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSpec) and self._tasks == other._tasks

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"


class Server:
    """One task of a cluster. If all tasks are local, the first `ps` task starts the Ray cluster of the variables.

    Args:
        server_or_cluster_def: The cluster: a `ClusterSpec` or a dict.
        job_name: The job of this task: `ps`, `worker`, or `chief` (or `master`). Without a chief, worker 0 is the
            chief.
        task_index: The number of this task in its job.
        protocol: Without effect, logged once.
        config: Without effect, logged once.
        start: Whether to call `start` at once.

    References:
        `tf.train.Server`. The variables live in Ray actors, and the `ps` tasks only wait.
    """

    def __init__(
        self,
        server_or_cluster_def: Any,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: Any = None,
        start: bool = True,
    ) -> None:
        ignored("tf.train.Server", protocol=protocol, config=config)
        self._spec = ClusterSpec(server_or_cluster_def)
        jobs = self._spec.jobs
        self._job = job_name or (jobs[0] if len(jobs) == 1 else "")
        if self._job not in ("ps", "worker", "chief", "master", "local"):
            raise ValueError(f"Server requires ps, worker, chief or master as job_name, got {job_name!r}.")
        self._index = task_index or 0
        self._spec.task_address(self._job, self._index)
        self._stopped = threading.Event()
        self._ray: LocalRayCluster | None = None
        if start:
            self.start()

    @staticmethod
    def create_local_server(config: Any = None, start: bool = True) -> Server:
        """Returns a server for this process alone."""
        return Server({"local": ["localhost:0"]}, "local", 0, config=config, start=start)

    def start(self) -> None:
        """Starts the Ray cluster in the first `ps` task of a cluster on this machine; otherwise does nothing."""
        if self._job == "ps" and self._index == 0 and self._is_here() and self._ray is None:
            self._ray = LocalRayCluster().start()
            atexit.register(self._ray.stop)
            _publish(self._spec.task_address("ps", 0), self._ray)

    def join(self) -> None:
        """Blocks forever, as a parameter server's task does until its process is killed.

        Raises:
            UnavailableError: The Ray cluster that this task started has ended by itself.
        """
        while not clock.wait(self._stopped, _POLL_SECS):
            if self._ray is not None:
                self._ray.check()

    @property
    def target(self) -> str:
        """The `target` or `master` of sessions. Waits for the start of the first `ps` task."""
        if "ps" not in self._spec.jobs:
            if len([address for job in self._spec.jobs for address in self._spec.job_tasks(job)]) == 1:
                return ""
            raise NotImplementedError(
                "tf.train.Server without ps tasks, for a graph over several processes, is not available. Add ps tasks, "
                "or see 'Asynchronous training' in hookline's documentation."
            )
        return self._cluster().target

    @property
    def server_def(self) -> ClusterSpec:
        """The cluster."""
        return self._spec

    def _cluster(self) -> Cluster:
        chiefs = [job for job in ("chief", "master") if job in self._spec.jobs]
        workers = self._spec.num_tasks("worker") if "worker" in self._spec.jobs else 0
        is_chief = self._job in chiefs or (not chiefs and self._job == "worker" and self._index == 0)
        first = self._spec.task_address("ps", 0)
        address, token_path = os.environ.get("HOOKLINE_ADDRESS", first), os.environ.get("HOOKLINE_TOKEN_PATH")
        if "HOOKLINE_ADDRESS" not in os.environ and self._is_here():
            address, token_path = _published(first)
        return Cluster(
            address,
            "chief" if is_chief else "worker",
            0 if is_chief else self._index - (not chiefs),
            num_workers=workers + bool(chiefs),
            num_servers=self._spec.num_tasks("ps"),
            job=f"tf-{hashlib.sha256(repr(self._spec).encode()).hexdigest()[:12]}",
            options=ClusterOptions(token_path=token_path),
        )

    def _is_here(self) -> bool:
        addresses = [address for job in self._spec.jobs for address in self._spec.job_tasks(job)]
        return all(address.rpartition(":")[0] in _LOOPBACK for address in addresses)


def replica_device_setter(
    ps_tasks: int = 0,
    ps_device: str = "/job:ps",
    worker_device: str = "/job:worker",
    merge_devices: bool = True,
    cluster: Any = None,
    ps_ops: Any = None,
    ps_strategy: Any = None,
) -> Callable[[Any], str] | None:
    """Returns a function for `tf.device`, without effect: variables are assigned to servers by size.

    References:
        `tf.train.replica_device_setter`.
    """
    log_once("tf.train.replica_device_setter", "variables are assigned to servers by size")
    spec = ClusterSpec(cluster) if cluster else None
    if not ps_tasks and (spec is None or "ps" not in spec.jobs):
        return None
    return lambda operation: ""


# The address of the first ps task's Ray cluster --------------------------------------------------------------------


def _address_file(address: str) -> Path:
    """Returns the file with the address of a `ps` task's Ray cluster; only its owner can read it."""
    folder = Path(tempfile.gettempdir()) / f"hookline-servers-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} must belong to this user, and to nobody else: remove it, or set TMPDIR.")
    return folder / f"{address.replace(':', '_')}.json"


def _publish(address: str, ray: LocalRayCluster) -> None:
    path = _address_file(address)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps([ray.address, ray.token_path]), encoding="utf-8")
    partial.rename(path)
    atexit.register(path.unlink, missing_ok=True)


def _published(address: str) -> tuple[str, str]:
    """Returns the address and the token file of a `ps` task's Ray cluster; waits for its start."""
    path, wait_secs = _address_file(address), ClusterOptions().wait_secs
    deadline, is_logged = clock.monotonic() + wait_secs, False
    while clock.monotonic() < deadline:
        if path.exists():
            found, token_path = json.loads(path.read_text(encoding="utf-8"))
            if _listens(found):  # Otherwise it is the file of an earlier task.
                return found, token_path
        if not is_logged:
            _logger.info("Waiting for the ps task at %s.", address)
            is_logged = True
        clock.sleep(_POLL_SECS)
    raise DeadlineExceededError.from_message(
        f"Waited {wait_secs:g} seconds for the ps task at {address}: start the script with job ps, task 0."
    )


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _LISTENS_WITHIN_SECS).close()
    except OSError:
        return False
    return True
