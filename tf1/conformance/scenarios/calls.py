"""Each function of `hookline_tf1` that computes something, called as scripts call it.

The calls stand in `tf1/conformance/calls`, one a line. Of each the value, the static shape, the dtype, the gradient
with respect to the arrays that it takes, and the kind of error are compared. 64 bits count as 32, which is what JAX
has, and a gradient of zeros as none, which is what TensorFlow has for functions such as `floor`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from tf1.conformance.calls import calls

from conformance.scenario import Record, scenario
from conformance.system import System

_rng = np.random.RandomState(7)

ARRAYS = {
    "x": _rng.normal(size=(2, 3)),
    "y": _rng.uniform(0.5, 2.0, (2, 3)),
    "u": _rng.uniform(-0.9, 0.9, (2, 3)),
    "v": _rng.normal(size=3),
    "m": _rng.normal(size=(3, 2)),
    "t": _rng.normal(size=(2, 3, 4)),
    "scalar": np.asarray(0.7),
    "image": _rng.normal(size=(2, 6, 5, 3)),
    "kernel": _rng.normal(size=(3, 3, 3, 4)),
    "deep": _rng.normal(size=(3, 3, 3, 2)),
    "video": _rng.normal(size=(1, 4, 5, 4, 2)),
    "logits": _rng.normal(size=(4, 5)) * 3,
    "share": _rng.dirichlet(np.ones(5), 4),
    "picture": _rng.uniform(0, 1, (2, 5, 6, 3)),
}
OTHERS = {
    "i": np.asarray([[3, -7, 2], [5, 0, -4]], "int32"),
    "j": np.asarray([[2, 2, 3], [3, 1, 3]], "int32"),
    "k": np.asarray([2, 0], "int32"),
    "labels": np.asarray([1, 4, 0, 2], "int32"),
    "b": np.asarray([[True, False, True], [False, False, True]]),
    "c": np.asarray([True, False]),
    "bytes": (_rng.uniform(0, 255, (2, 5, 6, 3))).astype("uint8"),
}
CORNERS = {name: np.clip(np.round(value), -1, 1) + 0.0 for name, value in ARRAYS.items()}
"""The same arrays with zeros and ties: where functions have corners, and TensorFlow chooses one of many gradients."""

OPEN = ("x", "image", "logits", "t")
"""Of these there are placeholders with an open first dimension, called `open_x` and so on."""


def _inputs(tf: Any, arrays: dict[str, np.ndarray]) -> tuple[dict[str, Any], dict[Any, Any]]:
    """Returns the arrays as placeholders, by name, and what is fed for them."""
    fixed = {name: tf.placeholder("float32", value.shape, name) for name, value in arrays.items()}
    opened = {f"open_{name}": tf.placeholder("float32", [None, *arrays[name].shape[1:]]) for name in OPEN}
    others = {name: tf.placeholder(value.dtype, value.shape, name) for name, value in OTHERS.items()}
    feeds = {fixed[name]: value for name, value in arrays.items()} | {others[n]: value for n, value in OTHERS.items()}
    feeds |= {tensor: arrays[name.removeprefix("open_")] for name, tensor in opened.items()}
    return fixed | opened | others, feeds


def _made(tf: Any, call: str, inputs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Returns the tensors of a call, and their gradients by the name of the array."""
    made = eval(call, {"tf": tf, "np": np, **inputs})
    results = list(made) if isinstance(made, list | tuple) else [made]
    moving = {name: inputs[name] for name in inputs if name not in OTHERS and re.search(rf"\b{name}\b", call)}
    total = _total(tf, results)
    grads = [] if total is None else tf.gradients(total, list(moving.values()))
    found = zip(moving, grads, strict=False)
    return results, {name: tf.convert_to_tensor(grad) for name, grad in found if grad is not None}


def _played(s: System, lines: list[str], arrays: dict[str, np.ndarray]) -> Record:
    """Makes the calls in one graph, and runs them all at once: each run of its own would be compiled."""
    tf, found = s.tf, {}
    with tf.Graph().as_default():
        inputs, feeds = _inputs(tf, arrays)
        made = {}
        for line in lines:
            try:
                made[line] = _made(tf, line, inputs)
            except Exception as error:
                found[f"{line} error"] = type(error).__name__
        with tf.Session() as sess:
            values = sess.run(list(made.values()), feeds)
        for (line, (results, _)), (got, grads) in zip(made.items(), values, strict=True):
            found[f"{line} value"] = [_rounded(value) for value in got]
            found[f"{line} shape"] = [_shape(result) for result in results]
            found[f"{line} dtype"] = [_dtype(np.asarray(value).dtype.name) for value in got]
            found[f"{line} gradients"] = {name: _rounded(grad) for name, grad in grads.items() if np.any(grad)}
    return found


def _total(tf: Any, results: list[Any]) -> Any:
    """Returns a number that depends on each element of the results in its own way."""
    total = None
    for result in results:
        if result.dtype is not None and result.dtype.is_floating:
            weights = tf.reshape(tf.cast(tf.range(tf.size(result)), "float32"), tf.shape(result))
            part = tf.reduce_mean(tf.cast(result, "float32") * (0.3 + weights / tf.cast(tf.size(result), "float32")))
            total = part if total is None else total + part
    return total


def _rounded(value: Any) -> Any:
    value = np.asarray(value)
    if value.dtype.kind in "OS":
        return np.vectorize(lambda text: text.decode(), otypes=[object])(value).tolist()
    return np.round(value.astype("float64"), 6).tolist() if value.dtype.kind == "f" else value.tolist()


def _shape(result: Any) -> Any:
    shape = result.get_shape()
    return shape.as_list() if shape.ndims is not None else None


def _dtype(name: str) -> str:
    return name.replace("64", "32")


def _register(group: str, function: str, lines: list[str], arrays: dict[str, np.ndarray], what: str) -> None:
    def play(s: System) -> Record:
        return _played(s, lines, arrays)

    play.__doc__ = f"`tf.{function}` computes what TensorFlow's does{what}."
    scenario(f"v1.{group}.{function}")(play)


# TensorFlow itself fails there, as it inverts a matrix that has no inverse; or vectors of equal values are anyone's.
_WITHOUT_CORNERS = {"matrix_determinant", "self_adjoint_eig", "svd"}

for _function, _lines in calls().items():
    _register("calls", _function, _lines, ARRAYS, "")
    if _function not in _WITHOUT_CORNERS and any(re.search(rf"\b({'|'.join(ARRAYS)})\b", line) for line in _lines):
        _register("corners", _function, _lines, CORNERS, " at zeros and ties")
