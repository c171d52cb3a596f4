"""Cluster: which task of a job this process is, and where the job's parameter servers are."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

from hookline.distributed import connection
from hookline.distributed.environment import Task, find_task
from hookline.distributed.transport import RayTransport
from hookline.session.store import TARGETS

if TYPE_CHECKING:
    from hookline.distributed.store import RemoteStore
    from hookline.graph import Graph

SCHEME = "hookline-ray"


@dataclasses.dataclass(frozen=True)
class ClusterOptions:
    """What a job may set beside its tasks. All its processes should agree on it.

    Attributes:
        placement: Which server the variables live on whose names start so; the others are placed by size.
        max_staleness: How many updates of others an update may miss: runs wait for slower workers before they begin.
            The same in all processes; None for no limit.
        overlap: Pull the values of the next run while this one computes; they lack this worker's own last update.
        token_path: The file with the Ray cluster's token; None for where Ray looks (`~/.ray/auth_token`).
        connect_secs: How long to wait for the Ray head to listen.
        wait_secs: How long a worker waits for the chief to create the servers.
        call_secs: How long a call may take before its server counts as away; longer than XLA compiles an update.

    Example:
        >>> ClusterOptions(placement={"embedding": 1}, max_staleness=8).wait_secs
        1800.0
    """

    placement: Mapping[str, int] = dataclasses.field(default_factory=dict)
    max_staleness: int | None = None
    overlap: bool = False
    token_path: str | None = None
    connect_secs: float = 10.0
    wait_secs: float = 1800.0
    call_secs: float = 60.0

    def __post_init__(self) -> None:
        for name in ("connect_secs", "wait_secs", "call_secs"):
            if getattr(self, name) <= 0:
                raise ValueError(f"ClusterOptions requires {name} > 0, got {getattr(self, name)}.")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise ValueError(f"ClusterOptions requires max_staleness >= 0 or None, got {self.max_staleness}.")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """One task of a job whose workers train out of step, against variables on parameter servers.

    Give it, or its `target`, as the `master` of a `MonitoredTrainingSession`. The servers are Ray actors: the chief
    creates them, workers wait for them. Ray is joined when a session is made, and never started by accident.

    Args:
        address: Of the Ray head, `"host:port"`.
        task_type: `"chief"` or `"worker"`.
        task_index: Which worker, from 0; 0 for the chief.
        num_workers: How many processes train, the chief included.
        num_servers: How many servers hold the variables.
        job: Names the job among those of the same Ray cluster.
        options: Everything else.

    Raises:
        ValueError: An argument cannot be right.

    Example:
        >>> cluster = Cluster("10.0.0.1:6379", "worker", 0, num_workers=4, num_servers=2)
        >>> cluster.is_chief, cluster.task_id
        (False, 1)

    References:
        `tf.train.ClusterSpec` with `tf.train.Server`, and `tf.estimator.RunConfig` for the properties. Differences:
        there are no server processes of one's own to start and to join; Ray finds addresses, but for its head's.
    """

    address: str
    task_type: str = "chief"
    task_index: int = 0
    num_workers: int = 1
    num_servers: int = 1
    job: str = "hookline"
    options: ClusterOptions = dataclasses.field(default_factory=ClusterOptions)

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(
                f"Cluster requires the address of a Ray head, 'host:port', got {self.address!r}. `hookline launch` "
                f"starts a private Ray cluster and tells its address."
            )
        for name in ("num_workers", "num_servers"):
            if getattr(self, name) < 1:
                raise ValueError(f"Cluster requires {name} >= 1, got {getattr(self, name)}.")
        if not self.job:
            raise ValueError("Cluster requires a job name that is not empty.")
        Task(self.task_type, self.task_index).check(self.num_workers)

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, options: ClusterOptions | None = None
    ) -> Cluster:
        """Returns the cluster that environment variables describe.

        With `HOOKLINE_TASK_TYPE`: that, `HOOKLINE_TASK_INDEX`, `HOOKLINE_NUM_WORKERS` and `HOOKLINE_NUM_SERVERS`. Else
        `TF_CONFIG`: the numbers are those of its lists, `chief` and `worker` together and `ps`; without a `chief` the
        first worker is it. In both cases `HOOKLINE_ADDRESS` (else the first `ps`), `HOOKLINE_JOB` and
        `HOOKLINE_TOKEN_PATH`.

        Args:
            environ: The variables; those of this process if None.
            options: As for the constructor. Its `token_path` goes before the variable.

        Raises:
            ValueError: Something is missing or wrong.

        Example:
            >>> config = '{"cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:6379"]},'
            >>> config += ' "task": {"type": "worker", "index": 0}}'
            >>> cluster = Cluster.from_environment({"TF_CONFIG": config})
            >>> cluster.address, cluster.task_id, cluster.num_workers
            ('c:6379', 1, 2)
        """
        environ = os.environ if environ is None else environ
        found = find_task(environ)
        options = options or ClusterOptions()
        if options.token_path is None and environ.get("HOOKLINE_TOKEN_PATH"):
            options = dataclasses.replace(options, token_path=environ["HOOKLINE_TOKEN_PATH"])
        return cls(
            found.address,
            found.task.kind,
            found.task.index,
            found.num_workers,
            found.num_servers,
            environ.get("HOOKLINE_JOB") or "hookline",
            options,
        )

    @classmethod
    def from_target(cls, target: str) -> Cluster:
        """Returns the cluster of a `target`.

        Raises:
            ValueError: It is none.
        """
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        try:
            if parts.scheme != SCHEME:
                raise ValueError(f"the scheme is {parts.scheme!r}")
            fields = {name: int(query[name]) for name in ("task_index", "num_workers", "num_servers")}
            options = ClusterOptions(**json.loads(query["options"]))
            return cls(parts.netloc, query["task_type"], job=query["job"], options=options, **fields)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"A target looks like that of a Cluster, got {target!r}: {error}") from error

    @property
    def is_chief(self) -> bool:
        """Whether this task initialises, restores and saves."""
        return self.task_type == "chief"

    @property
    def task_id(self) -> int:
        """Number of the task among those that train: 0 for the chief, i + 1 for worker i."""
        return 0 if self.is_chief else self.task_index + 1

    @property
    def target(self) -> str:
        """All of this as a string, for what takes a `master` or a `target`."""
        fields: dict[str, Any] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["options"] = json.dumps(dataclasses.asdict(self.options), default=dict)
        return f"{SCHEME}://{fields.pop('address')}/?{urlencode(fields)}"

    def open_store(self, graph: Graph) -> RemoteStore:
        """Joins Ray, creates the servers (the chief) or waits for them, and returns the store of a graph's variables.

        Raises:
            UnavailableError: No Ray head listens at the address.
            DeadlineExceededError: The chief has not created the servers in time.
            InternalError: The Ray head is gone.
            UnauthenticatedError, FailedPreconditionError: Ray does not let this process in.
        """
        from hookline.distributed.store import RemoteStore

        options = self.options
        connection.connect(self.address, self.job, options.token_path, options.connect_secs)
        if self.is_chief:
            actors = connection.create_servers(self.job, self.num_servers, self.num_workers)
        else:
            actors = connection.find_servers(self.job, self.num_servers, options.wait_secs)
        transport = RayTransport(actors, timeout_secs=options.call_secs)
        return RemoteStore(
            graph,
            connection.GuardedTransport(transport, self.address),
            worker_index=self.task_id,
            placement=options.placement,
            max_staleness=options.max_staleness,
            overlap=options.overlap,
        )

    def hooks(self, summary_dir: str | None) -> list[Any]:
        """Returns what a `MonitoredTrainingSession` adds on every task: a `StalenessHook`.

        Args:
            summary_dir: The chief's. A worker writes to `worker_<n>` in it: TensorBoard follows one process a folder.
        """
        from hookline.distributed.staleness_hook import StalenessHook

        if summary_dir and not self.is_chief:
            summary_dir = os.path.join(summary_dir, f"worker_{self.task_index}")
        return [StalenessHook(output_dir=summary_dir)]

    def stop_servers(self) -> int:
        """Ends the job's servers, and what they hold, and returns how many there were.

        They outlive all workers, so that any of these may die and come back; somebody has to end them, as `hookline
        launch` and `hookline stop` do.

        Raises:
            UnavailableError: No Ray head listens at the address.
        """
        connection.connect(self.address, self.job, self.options.token_path, self.options.connect_secs)
        return connection.kill_servers(self.job)


TARGETS[SCHEME] = Cluster.from_target
