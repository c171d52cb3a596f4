from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl
from hookline import errors
from hookline.summary import Summary


def written_by(make: Any, tag: str, value: Any) -> Any:
    with hl.Session() as session:
        (written,) = Summary.FromString(session.run(make(tag, hl.host_op(lambda: value).node()))).value
    return written


def read_scalar(tag: str, value: Any) -> tuple[str, float]:
    written = written_by(hl.summary.scalar, tag, value)
    return written.tag, written.simple_value


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1, 1.0),
        (0.5, 0.5),
        (True, 1.0),
        (np.float64(-2.5), -2.5),
        (np.int8(-3), -3.0),
        (np.array(7, np.uint64), 7.0),
        (np.array(False), 0.0),
        (jnp.bfloat16(1.5), 1.5),
        (np.asarray(jnp.asarray(0.25, jnp.bfloat16)), 0.25),
        (np.float16(0.125), 0.125),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
        (1e300, math.inf),
    ],
)
def test_a_scalar_of_any_real_type_is_written(value: Any, written: float):
    assert read_scalar("train/loss", value) == ("train/loss", written)


def test_nan_is_written_unchanged():
    assert math.isnan(read_scalar("loss", np.float32("nan"))[1])


@pytest.mark.parametrize(
    ("value", "described"),
    [
        (np.zeros((2, 3)), r"a float64 array of shape \(2, 3\)"),
        (np.zeros(1), r"shape \(1,\)"),
        ({"a": 1}, r"\{'a': 1\}"),
        (None, "None"),
        ("text", "<U4 array"),
        (np.complex64(1j), "complex64"),
    ],
)
def test_value_that_is_no_real_scalar_is_refused_with_tag_and_shape(value: Any, described: str):
    with pytest.raises(errors.InvalidArgumentError, match=f"'loss' requires one number, got .*{described}"):
        read_scalar("loss", value)


def test_long_tag_is_encoded_like_by_protocol_buffers():
    tag = "scope/" * 60 + "loss"
    assert read_scalar(tag, 1.0) == (tag, 1.0)


def test_text_keeps_the_shape_of_a_table():
    value = written_by(hl.summary.text, "table", [["a", b"b"], ["c", "ü"]])
    assert [dim.size for dim in value.tensor.tensor_shape.dim] == [2, 2]
    assert list(value.tensor.string_val) == [b"a", b"b", b"c", "ü".encode()]
    with pytest.raises(errors.InvalidArgumentError, match="'table_1' requires strings"):
        written_by(hl.summary.text, "table", 3)
