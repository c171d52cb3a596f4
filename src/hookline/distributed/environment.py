"""The task of a job that environment variables assign to this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_EXAMPLE = '{"cluster": {"chief": ["host:port"], "worker": [...], "ps": [...]}, "task": {"type": "worker", "index": 0}}'


def check_task(kind: str, index: int, num_workers: int) -> None:
    """Checks that a job with this many training processes has such a task.

    Raises:
        ValueError: The job has no such task.
    """
    if kind not in ("chief", "worker"):
        raise ValueError(f"Cluster requires task_type 'chief' or 'worker', got {kind!r}. {_advice(kind)}")
    count = 1 if kind == "chief" else num_workers - 1
    if not 0 <= index < count:
        has = f"{count} of that type (num_workers={num_workers} counts the chief)" if count else "no workers"
        raise ValueError(
            f"Cluster requires the task_index of a {kind} to lie below their number, got {index}; the job has {has}."
        )


def find_task(environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of a `Cluster` that `HOOKLINE_*` or `TF_CONFIG` give; see `Cluster.from_environment`.

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
    return "Everything that trains is one of the two."
