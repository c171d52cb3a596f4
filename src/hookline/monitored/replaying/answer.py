"""The answer of a process that replays to the process that has started it: a file with the result or an error."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

from hookline.checkpoint.saving import failures
from hookline.monitored.replaying.proof import Comparison
from hookline.monitored.replaying.result import ReplayResult


def write_answer(path: str, result: ReplayResult | None, error: BaseException | None) -> None:
    """Writes a result, or an error."""
    members: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    if result is not None:
        fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
        for step, row in fields.pop("rows").items():
            for name, value in row.items():
                array = np.asarray(value)
                # NumPy's files do not have the types of JAX, such as bfloat16.
                members[f"{step} {name}"] = array.astype(np.float32) if array.dtype.kind == "V" else array
    members["answer"] = np.array(json.dumps([fields, error and failures.serialize_error(error)]))
    with open(path, "wb") as file:
        np.savez(file, **members)


def read_answer(path: str, process: int) -> tuple[ReplayResult | None, BaseException | None]:
    """Returns what a process has written with `write_answer`."""
    with np.load(path) as found:
        fields, failure = json.loads(str(found["answer"]))
        if not fields:
            return None, failure and failures.deserialize_error(failure, process)
        rows: dict[int, dict[str, Any]] = {}
        for key in found.files[:-1]:
            step, _, name = key.partition(" ")
            rows.setdefault(int(step), {})[name] = found[key][()]
    proof = [Comparison(*each) for each in fields.pop("proof")]
    return ReplayResult(**fields | {"steps": tuple(fields["steps"]), "rows": rows, "proof": proof}), None
