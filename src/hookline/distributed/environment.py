"""The task of a job that environment variables assign to this process."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

_EXAMPLE = '{"cluster": {"chief": ["host:port"], "worker": [...], "ps": [...]}, "task": {"type": "worker", "index": 0}}'


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of a job.

    Attributes:
        kind: `"chief"` or `"worker"`.
        index: Its number among its kind, from 0.
    """

    kind: str
    index: int

    def check(self, num_workers: int) -> None:
        """Checks that a job with this many training processes has such a task.

        Raises:
            ValueError: It does not.
        """
        if self.kind not in ("chief", "worker"):
            raise ValueError(f"Cluster requires task_type 'chief' or 'worker', got {self.kind!r}. {_advice(self.kind)}")
        count = 1 if self.kind == "chief" else num_workers - 1
        if not 0 <= self.index < count:
            has = f"{count} of that type (num_workers={num_workers} counts the chief)" if count else "no workers"
            raise ValueError(
                f"Cluster requires the task_index of a {self.kind} to lie below their number, got {self.index}; "
                f"the job has {has}."
            )


class Found(NamedTuple):
    """The settings found in the environment.

    Attributes:
        address: The address of the Ray head.
        task: This process.
        num_workers: The number of processes that train.
        num_servers: The number of servers.
    """

    address: str
    task: Task
    num_workers: int
    num_servers: int


def find_task(environ: Mapping[str, str]) -> Found:
    """Reads `HOOKLINE_*` and `TF_CONFIG`; the rules are those of `Cluster.from_environment`.

    Raises:
        ValueError: Something is missing or wrong.
    """
    if environ.get("HOOKLINE_TASK_TYPE"):
        found = Found(
            environ.get("HOOKLINE_ADDRESS", ""),
            Task(environ["HOOKLINE_TASK_TYPE"], _number(environ, "HOOKLINE_TASK_INDEX", 0)),
            _number(environ, "HOOKLINE_NUM_WORKERS", 1),
            _number(environ, "HOOKLINE_NUM_SERVERS", 1),
        )
    elif environ.get("TF_CONFIG"):
        found = _from_tf_config(environ["TF_CONFIG"], environ.get("HOOKLINE_ADDRESS", ""))
    else:
        raise ValueError(
            "Cluster.from_environment requires TF_CONFIG, or HOOKLINE_TASK_TYPE and HOOKLINE_ADDRESS; none is set. "
            "Start the script with `hookline launch`, set them, or give Cluster(...) its arguments."
        )
    if not found.address:
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


def _from_tf_config(text: str, address: str) -> Found:
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
    return Found(
        address or (servers[0] if servers else ""),
        Task(kind, index),
        len(chiefs) + len(lists["worker"]),
        max(len(servers), 1),
    )


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
    return "Everything that trains is one of the two."
