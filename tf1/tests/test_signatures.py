"""Each argument stands where TensorFlow 2.21 has it, for scripts that give it by its place or by its name.

`signatures.txt` has TensorFlow's, made by `tf1/conformance/signatures.py`.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import hookline_tf1 as tf

# As in TF 1.15, where TF 2 has inserted other arguments; or nobody makes one.
OTHERWISE = {
    *("DType", "ReaderBase", "VariableScope", "data.Iterator", "distributions.Distribution"),
    *("linalg.matmul", "matmul", "nn.moments", "nn.swish", "nn.top_k", "scatter_nd", "searchsorted", "string_split"),
    *("nn.conv2d_backprop_input", "nn.sigmoid_cross_entropy_with_logits"),
    *("nn.softmax_cross_entropy_with_logits", "nn.sparse_softmax_cross_entropy_with_logits"),
}
THEIRS = dict(
    line[:-1].split("(") for line in Path(__file__).with_name("signatures.txt").read_text(encoding="utf-8").splitlines()
)


def ours(name: str) -> list[str]:
    """Returns the parameters of a symbol that may be given by position."""
    value = tf
    for part in name.split("."):
        value = getattr(value, part)
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:  # Of a class that is written in C.
        return []
    return [each.name for each in parameters if each.kind == each.POSITIONAL_OR_KEYWORD]


def test_arguments_have_tensorflows_positions():
    moved = {}
    for name, listed in THEIRS.items():
        pairs = list(zip(ours(name), listed.split(", ") if listed else [], strict=False))
        if any(mine != other for mine, other in pairs):
            moved[name] = pairs
    assert moved.keys() == OTHERWISE, {name: moved[name] for name in moved.keys() - OTHERWISE}
    assert len(THEIRS) > 600


def test_arguments_of_renamed_functions_work_by_name_and_position(sess):
    x = tf.constant([[3.0, 1.0], [2.0, 5.0]])
    by_place, by_name = tf.atan2(1.0, 2.0), tf.math.atan2(x=2.0, y=1.0)

    assert sess.run([by_place, by_name]) == pytest.approx([0.4636476] * 2)
    assert sess.run(tf.arg_max(x, 1, tf.int32)).tolist() == sess.run(tf.argmax(x, 1)).tolist() == [0, 1]
    assert sess.run(tf.arg_min(x, dimension=0, name="low")).tolist() == [1, 0]
