from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hookline import errors

# Values of any kind, without a session.
from hookline.checkpoint import orbax_io
from hookline.checkpoint.directory import leaves
from hookline.checkpoint.directory.manifest import Lineage, Manifest
from hookline.checkpoint.restoring import reading
from hookline.checkpoint.saving import host_copy, moves


def through_a_checkpoint(values, path):
    entries, stored = leaves.pack(values)
    writing = moves.prepare(path)
    orbax_io.prepare_directories(writing, [0])
    orbax_io.start_writing(writing, host_copy.copy_to_host(stored))()
    orbax_io.merge_parts(writing, [0])
    moves.commit(writing, Manifest(entries, Lineage("run", 1, (("session", 1),))))
    return {name: reading.load_variable(path, name) for name in values}


def test_leaves_of_every_kind_are_restored_unchanged(tmp_path):
    values = {
        "python": {"s": "né\n", "i": 2**70, "f": 0.1, "inf": math.inf, "b": True, "raw": b"\x00\xff", "none": b""},
        "numpy": (np.float32(0.1), np.arange(3), np.array(2**40), np.zeros((0, 2)), np.ones(2, jnp.bfloat16)),
        "jax": [jnp.ones(2, jnp.float8_e4m3fn), jnp.zeros((3, 0)), jax.random.key(7), None],
    }
    read = through_a_checkpoint(values, str(tmp_path / "c"))
    assert jax.tree.structure(read) == jax.tree.structure(values)
    for saved, found in zip(jax.tree.leaves(values), jax.tree.leaves(read), strict=True):
        assert type(found) is type(saved)
        assert str(getattr(found, "dtype", "")) == str(getattr(saved, "dtype", ""))
        if isinstance(saved, jax.Array) and jnp.issubdtype(saved.dtype, jax.dtypes.prng_key):
            saved, found = jax.random.key_data(saved), jax.random.key_data(found)
        assert np.array_equal(saved, found)


def test_ambiguous_names_are_kept_apart(tmp_path):
    values = {
        "a": {"b": jnp.array(1), "b/c": jnp.array(2), "b%2Fc": jnp.array(3), "d.e": jnp.array(4), "d": {"e": 5}},
        "a/b": jnp.array(6),
        "a.d": {"e": jnp.array(7)},
    }
    read = through_a_checkpoint(values, str(tmp_path / "c"))
    assert jax.tree.map(np.sum, read["a"]) == jax.tree.map(np.sum, values["a"])
    assert int(read["a.d"]["e"]) == 7
    assert sorted(name for name, _ in reading.list_variables(str(tmp_path / "c")))[:2] == ["a.d/e", "a/b"]


def test_checkpoint_without_arrays_is_restored(tmp_path):
    assert through_a_checkpoint({"note": "only text"}, str(tmp_path / "c")) == {"note": "only text"}


def test_leaf_that_cannot_be_stored_is_named():
    with pytest.raises(errors.InvalidArgumentError, match="cannot store 'v/thing', which is a object"):
        leaves.pack({"v": {"thing": object()}})
