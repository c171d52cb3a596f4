"""Messages as bytes: each is decoded unchanged, or not sent."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from hookline import errors

# Messages as bytes: users see only that values arrive.
from hookline.distributed.codec import CodecError, decode, encode
from hookline.distributed.protocol import Committed, EncodedArray, Pulled, decode_leaves, encode_leaves, flatten
from hookline.distributed.server.server_state import Apply, Put

NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.booleans() | st.none()
PLAIN = st.recursive(
    NUMBERS | st.text() | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3),
    max_leaves=10,
)


def travelled(message):
    """Returns the decoded value of the bytes, with the arrays filled as a connection does."""
    body, sent = encode(message)
    arrived, arrays = decode(body)
    for array, original in zip(arrays, sent, strict=True):
        array[...] = original
    return arrived


@given(PLAIN)
def test_plain_values_are_decoded_unchanged(value):
    back = travelled(value)
    assert back == value
    assert type(back) is type(value)


@given(st_np.arrays(st.sampled_from(["<f4", "<i8", "|b1", "<c8", "|u1"]), st_np.array_shapes(min_dims=0)))
def test_arrays_keep_dtype_shape_and_values(array):
    first, second = travelled((array, {"again": array.T}))
    assert (first.dtype, first.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(first, array)
    np.testing.assert_array_equal(second["again"], array.T)


def test_protocol_records_keep_their_class():
    leaves = encode_leaves([jnp.ones(2, jnp.bfloat16), jax.random.key(3), np.zeros(10_000), 7])
    tree = {"w": (1.0, [None, 2.0]), "b": {}}
    for record in (
        Apply("v/assign_add", [(leaves, None), None, flatten(tree)]),
        Put("v", *flatten(tree)),
        Pulled(3, {"v": leaves}),
        Committed(True, 4, (4, 3), (0, 3), {"v": leaves}),
    ):
        back = travelled(record)
        assert type(back) is type(record)

    back = travelled(Pulled(3, {"v": leaves}))
    for new, old in zip(decode_leaves(back.values["v"]), decode_leaves(leaves), strict=True):
        assert new.dtype == old.dtype
        assert (new == old).all()
    put = travelled(Put("v", *flatten(tree)))
    assert jax.tree.unflatten(put.structure.treedef, decode_leaves(put.leaves)) == tree


class Pair(NamedTuple):
    left: float
    right: float


@pytest.mark.parametrize("value", [{1, 2}, 1 + 2j, np.int64(1), np.float32, len, object(), 2**64])
def test_other_objects_are_refused(value):
    with pytest.raises(CodecError, match="not plain data"):
        encode(("echo", {"deep": (value,)}))


def test_tree_of_classes_is_refused():
    with pytest.raises(CodecError, match="User-defined nodes"):
        encode(Put("v", *flatten(Pair(1.0, 2.0))))


class OwnError(KeyError):
    """A class that the receiver does not know."""


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("too large", 3), ValueError, r"\('too large', 3\)"),
        (errors.OutOfRangeError(None, None, "the end"), errors.OutOfRangeError, "the end"),
        (errors.NanLossDuringTrainingError("nan"), errors.NanLossDuringTrainingError, "nan"),
        (OwnError("v"), KeyError, "OwnError: 'v'"),
        (UnicodeDecodeError("ascii", b"\xff", 0, 1, "no"), (UnicodeDecodeError, RuntimeError), "no"),
        (ValueError(object()), ValueError, "object"),
    ],
)
def test_error_is_decoded_as_its_nearest_known_class(error, kind, text):
    error.add_note("said by the server")
    back = travelled(error)
    assert isinstance(back, kind)
    assert back.__notes__ == ["said by the server"]
    with pytest.raises(kind, match=text):
        raise back


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x80\x81", encode({})[0] + b"\x00", b"\x81\xc0\x92\xa4open\xa1x", b"\x81\xc0\x91\xa5error"]
)
def test_bytes_not_made_by_encode_are_refused(body):
    with pytest.raises(CodecError, match="cannot be read"):
        decode(body)


def test_only_exception_classes_are_decoded_as_errors():
    body = encode(ValueError("x"))[0].replace(b"\xaaValueError", b"\xa4exit")
    with pytest.raises(CodecError, match="cannot be read"):
        decode(body)


@pytest.mark.parametrize("dtype", ["|O", "|V8", "<U2", "<M8[s]", "O,i4", ("O", (1,)), "nonsense"])
def test_array_of_other_than_numbers_is_refused(dtype):
    # Bytes taken for pointers would end the process.
    small = (dtype, (1,), b"A" * 16)
    for wire in (small, EncodedArray("dtype", "bfloat16", small)):
        with pytest.raises(CodecError, match="dtype"):
            decode_leaves(travelled([wire]))
    body = encode(np.zeros(1))[0].replace(encode("<f8")[0], encode(dtype)[0])
    with pytest.raises(CodecError, match="dtype"):
        decode(body)


@pytest.mark.parametrize("name", ["object", "float64", "O,i4", "datetime64[s]"])
def test_raw_bits_are_refused_for_dtypes_with_another_encoding(name):
    with pytest.raises(CodecError, match="dtype"):
        decode_leaves([EncodedArray("dtype", name, ("<u8", (1,), b"A" * 8))])
