"""Cluster: this process's task in a job with parameter servers, and the address of its Ray head."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

from hookline.arguments import check_int, check_number, check_optional
from hookline.distributed.cluster import ray_connection
from hookline.distributed.cluster.ray_actors import RayTransport
from hookline.session.store import TARGETS

if TYPE_CHECKING:
    from hookline.distributed.worker.remote_store import RemoteStore
    from hookline.graph import Graph

SCHEME = "hookline-ray"


@dataclasses.dataclass(frozen=True)
class ClusterOptions:
    """Further settings of a job. They should be the same in all its processes.

    Attributes:
        placement: The server of all variables whose names have a prefix, by prefix; other variables are assigned by
            size.
        max_staleness: The bound on staleness: the number of other workers' updates that an update may miss. A run waits
            for slower workers before it begins. It must be the same in all processes; None for no bound.
        overlap: Whether to pull the values of the next run while this one computes; they lack this worker's own last
            update.
        token_path: The file with the Ray cluster's token; None for Ray's default (`~/.ray/auth_token`).
        connect_secs: The timeout for the Ray head to listen.
        wait_secs: The timeout of a worker that waits for the chief to create the servers.
        call_secs: The timeout of a call to a server; choose more than XLA needs to compile an update. The timeout of
            messages between servers is this or 60 seconds, whichever is longer.
        over_ray: Whether servers are called over Ray alone, which is slower, and listen on no ports of their own; for
            networks that let only Ray through. The chief's setting counts. With `RAY_USE_TLS` it is always true.

    Raises:
        TypeError, ValueError: A setting is invalid.

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
    over_ray: bool = False

    def __post_init__(self) -> None:
        who = type(self).__name__
        for name in ("connect_secs", "wait_secs", "call_secs"):
            if check_number(who, name, getattr(self, name)) <= 0:
                raise ValueError(f"{who} requires {name} > 0, got {getattr(self, name)}.")
        if math.isinf(self.call_secs):
            raise ValueError(
                f"{who} requires a finite call_secs, got inf: without a timeout, no process notices a dead server."
            )
        if self.max_staleness is not None:
            check_int(who, "max_staleness", self.max_staleness, at_least=0)
        for prefix, server in (check_optional(who, "placement", self.placement, Mapping) or {}).items():
            if not isinstance(prefix, str):
                raise TypeError(
                    f"{who} requires names of variables, or prefixes of names, as keys of placement, got {prefix!r}."
                )
            check_int(who, f"placement[{prefix!r}]", server, at_least=0)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """One task of a job with asynchronous workers, which train variables on parameter servers.

    Pass it, or its `target`, as the `master` of a `MonitoredTrainingSession`. The servers are Ray actors. The chief
    creates them, and workers wait for them. A session joins the running Ray cluster when it is created; it never starts
    one.

    Args:
        address: The address of the Ray head, `"host:port"`.
        task_type: `"chief"` or `"worker"`.
        task_index: The index of the worker, from 0; 0 for the chief.
        num_workers: The number of processes that train, including the chief.
        num_servers: The number of parameter servers.
        job: The name of the job, unique on its Ray cluster.
        options: Further settings.

    Raises:
        TypeError, ValueError: An argument is invalid.

    Example:
        >>> cluster = Cluster("10.0.0.1:6379", "worker", 0, num_workers=4, num_servers=2)
        >>> cluster.is_chief, cluster.task_id
        (False, 1)

    References:
        `tf.train.ClusterSpec` with `tf.train.Server`, and `tf.estimator.RunConfig` for the properties. Differences:
        users start and join no server processes; Ray knows all addresses except that of its head.
    """

    address: str
    task_type: str = "chief"
    task_index: int = 0
    num_workers: int = 1
    num_servers: int = 1
    job: str = "hookline"
    options: ClusterOptions = dataclasses.field(default_factory=ClusterOptions)

    def __post_init__(self) -> None:
        host, _, port = str(self.address).rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise ValueError(
                f"Cluster requires the address of a Ray head, 'host:port', got {self.address!r}. `hookline launch` "
                f"starts a local Ray cluster and sets its address in HOOKLINE_ADDRESS."
            )
        for name in ("num_workers", "num_servers"):
            check_int("Cluster", name, getattr(self, name), at_least=1)
        check_int("Cluster", "task_index", self.task_index)
        if not self.job or not isinstance(self.job, str):
            raise ValueError(f"Cluster requires a job name, a string that is not empty, got {self.job!r}.")
        check_task(self.task_type, self.task_index, self.num_workers)

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, options: ClusterOptions | None = None
    ) -> Cluster:
        """Returns the cluster that environment variables describe.

        If `HOOKLINE_TASK_TYPE` is set, it reads this, `HOOKLINE_TASK_INDEX`, `HOOKLINE_NUM_WORKERS` and
        `HOOKLINE_NUM_SERVERS`. Otherwise it reads `TF_CONFIG`: `chief` and `worker` together give the number of
        workers, `ps` the number of servers; without a `chief`, the first worker is the chief. In both cases it also
        reads `HOOKLINE_ADDRESS` (else the first `ps`), `HOOKLINE_JOB` and `HOOKLINE_TOKEN_PATH`.

        Args:
            environ: The variables; those of this process if None.
            options: As in the constructor. Its `token_path` takes precedence over the variable.

        Raises:
            ValueError: A variable is missing or wrong.

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
        return cls(**found, job=environ.get("HOOKLINE_JOB") or "hookline", options=options)

    @classmethod
    def from_target(cls, target: str) -> Cluster:
        """Returns the cluster that a `target` describes.

        Raises:
            ValueError: The string is not a target.
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
            raise ValueError(f"{target!r} is not the `target` of a Cluster: {error}") from error

    @property
    def is_chief(self) -> bool:
        """Whether this task initialises, restores and saves."""
        return self.task_type == "chief"

    @property
    def task_id(self) -> int:
        """The index of the task among the training processes: 0 for the chief, i + 1 for worker i."""
        return 0 if self.is_chief else self.task_index + 1

    @property
    def target(self) -> str:
        """The cluster as a string, for arguments called `master` or `target`."""
        fields: dict[str, Any] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["options"] = json.dumps(dataclasses.asdict(self.options), default=dict)
        return f"{SCHEME}://{fields.pop('address')}/?{urlencode(fields)}"

    def open_store(self, graph: Graph) -> RemoteStore:
        """Joins Ray, creates the servers (the chief) or waits for them, and returns the store of a graph's variables.

        Raises:
            UnavailableError: No Ray head listens at the address.
            DeadlineExceededError: The chief has not created the servers in time.
            InternalError: The Ray head is gone.
            UnauthenticatedError, FailedPreconditionError: Ray does not admit this process.
        """
        from hookline.distributed.worker.remote_store import RemoteStore

        options = self.options
        head = ray_connection.connect(self.address, self.job, options.token_path, options.connect_secs)
        if self.is_chief:
            actors = ray_connection.create_servers(
                self.job, self.num_servers, self.num_workers, over_ray=options.over_ray
            )
        else:
            actors = ray_connection.find_servers(self.job, self.num_servers, options.wait_secs)
        return RemoteStore(
            graph,
            RayTransport(actors, timeout_secs=options.call_secs, check_head=head.poll),
            worker_index=self.task_id,
            placement=options.placement,
            max_staleness=options.max_staleness,
            overlap=options.overlap,
            # Messages also wait while a server compiles.
            deliver_secs=max(60.0, options.call_secs),
        )

    def hooks(self, summary_dir: str | None) -> list[Any]:
        """Returns the hooks that a `MonitoredTrainingSession` adds on every task: a `StalenessHook`.

        Args:
            summary_dir: The chief's directory. Worker n writes to its subdirectory `worker_<n>`, because TensorBoard
                expects one writer per directory.
        """
        from hookline.distributed.worker.staleness_hook import StalenessHook

        if summary_dir and not self.is_chief:
            summary_dir = os.path.join(summary_dir, f"worker_{self.task_index}")
        return [StalenessHook(output_dir=summary_dir)]

    def stop_servers(self) -> int:
        """Ends the job's servers, discards their values, and returns the number of servers.

        The servers outlive all workers, so that any worker may die and come back. They must be ended explicitly, as
        `hookline launch` and `hookline stop` do.

        Raises:
            UnavailableError: No Ray head listens at the address.
        """
        ray_connection.connect(self.address, self.job, self.options.token_path, self.options.connect_secs)
        return ray_connection.kill_servers(self.job)


TARGETS[SCHEME] = Cluster.from_target


_EXAMPLE = '{"cluster": {"chief": ["host:port"], "worker": [...], "ps": [...]}, "task": {"type": "worker", "index": 0}}'


def check_task(kind: str, index: int, num_workers: int) -> None:
    """Checks that a job with this many training processes has a task of this type and index.

    Raises:
        ValueError: The job has no such task.
    """
    if kind not in ("chief", "worker"):
        raise ValueError(f"Cluster requires task_type 'chief' or 'worker', got {kind!r}. {_advice(kind)}")
    count = 1 if kind == "chief" else num_workers - 1
    if not 0 <= index < count:
        has = f"{count} of that type (num_workers={num_workers} counts the chief)" if count else "no workers"
        raise ValueError(
            f"Cluster requires the task_index of a {kind} to be less than their number, got {index}; the job has {has}."
        )


def find_task(environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of a `Cluster` from `HOOKLINE_*` or `TF_CONFIG`; see `Cluster.from_environment`.

    Raises:
        ValueError: A variable is missing or wrong.
    """
    if environ.get("HOOKLINE_TASK_TYPE"):
        found = {
            "address": "",
            "task_type": environ["HOOKLINE_TASK_TYPE"],
            "task_index": _number(environ, "HOOKLINE_TASK_INDEX", 0),
            "num_workers": _number(environ, "HOOKLINE_NUM_WORKERS", 1),
            "num_servers": _number(environ, "HOOKLINE_NUM_SERVERS", 1),
        }
    elif environ.get("TF_CONFIG"):
        found = _from_tf_config(environ["TF_CONFIG"])
    else:
        raise ValueError(
            "Cluster.from_environment requires TF_CONFIG, or HOOKLINE_TASK_TYPE and HOOKLINE_ADDRESS; none is set. "
            "Start the script with `hookline launch`, set them, or give Cluster(...) its arguments."
        )
    found["address"] = environ.get("HOOKLINE_ADDRESS") or found["address"]
    if not found["address"]:
        raise ValueError(
            "Cluster.from_environment requires the address of the Ray head: set HOOKLINE_ADDRESS=host:port, or name a "
            "'ps' in TF_CONFIG."
        )
    return found


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"Cluster.from_environment requires a whole number in {name}, got {text!r}.") from None


def _from_tf_config(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"TF_CONFIG requires JSON like {_EXAMPLE}, got {text!r}: {error}.") from None
    cluster, task = _part(config, "cluster"), _part(config, "task")
    lists = {name: _hosts(cluster, name) for name in ("chief", "master", "worker", "ps")}
    chiefs = lists["chief"] or lists["master"]
    if len(chiefs) > 1:
        raise ValueError(f"TF_CONFIG requires one chief, got {len(chiefs)}: {chiefs}.")
    kind, index = task.get("type"), task.get("index", 0)
    if not isinstance(kind, str) or not isinstance(index, int) or isinstance(index, bool):
        raise ValueError(f'TF_CONFIG requires a "task" with a "type" and an "index", a whole number; got {task}.')
    if kind not in ("chief", "master", "worker"):
        raise ValueError(f"TF_CONFIG: task type {kind!r} is not one that trains. {_advice(kind)}")
    count = len(chiefs) if kind in ("chief", "master") else len(lists["worker"])
    if not 0 <= index < count:
        raise ValueError(f'TF_CONFIG: task {kind!r} has index {index}, and "cluster" lists {count} of that type.')
    if kind == "master":
        kind = "chief"
    if not chiefs:
        kind, index = ("chief", 0) if index == 0 else ("worker", index - 1)
    servers = lists["ps"]
    return {
        "address": servers[0] if servers else "",
        "task_type": kind,
        "task_index": index,
        "num_workers": len(chiefs) + len(lists["worker"]),
        "num_servers": max(len(servers), 1),
    }


def _part(config: Any, name: str) -> dict[str, Any]:
    part = config.get(name) if isinstance(config, dict) else None
    if not isinstance(part, dict):
        raise ValueError(f'TF_CONFIG requires an object "{name}", as in {_EXAMPLE}; got {part!r}.')
    return part


def _hosts(cluster: Mapping[str, Any], name: str) -> list[str]:
    hosts = cluster.get(name, [])
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise ValueError(f'TF_CONFIG requires "{name}" to be a list of "host:port", got {hosts!r}.')
    return hosts


def _advice(kind: str) -> str:
    if kind == "ps":
        return "Parameter servers are Ray actors: on their hosts run `ray start` instead of the script."
    if kind == "evaluator":
        return "Evaluate in a job of its own, from the checkpoints."
    return "Every training process has one of these two types."
