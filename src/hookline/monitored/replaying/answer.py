"""The answer of the processes that replay to the process that has started them: a file with the result or an error."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, BinaryIO

import numpy as np

from hookline.monitored.replaying.proof import Comparison
from hookline.monitored.replaying.result import ReplayResult


def write_answer(file: BinaryIO, result: ReplayResult | None, error: Any) -> None:
    """Writes a result, or an error as JSON values."""
    arrays: dict[str, np.ndarray] = {}
    fields: dict[str, Any] = {}
    if result is not None:
        fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
        for step, row in fields.pop("rows").items():
            for name, value in row.items():
                array = np.asarray(value)
                # NumPy's files do not have the types of JAX, such as bfloat16.
                arrays[f"{step} {name}"] = array.astype(np.float32) if array.dtype.kind == "V" else array
    members: dict[str, Any] = {"answer": np.array(json.dumps([fields, error])), **arrays}
    np.savez(file, **members)


def read_answer(file: BinaryIO) -> tuple[ReplayResult | None, Any]:
    """Returns what `write_answer` has written."""
    with np.load(file) as found:
        fields, error = json.loads(str(found["answer"]))
        if not fields:
            return None, error
        rows: dict[int, dict[str, Any]] = {}
        for key in found.files[1:]:
            step, _, name = key.partition(" ")
            rows.setdefault(int(step), {})[name] = found[key][()]
    proof = [Comparison(*each) for each in fields.pop("proof")]
    return ReplayResult(**fields | {"steps": tuple(fields["steps"]), "rows": rows, "proof": proof}), error
