from __future__ import annotations

import pickle
import textwrap

import cloudpickle
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from tests import python

import hookline as hl

# Functions as bytes: users see only that they run on a server.
from hookline.distributed.protocol import SMALL_BYTES, Structure, decode_leaf, decode_leaves, encode_leaf, flatten
from hookline.distributed.worker.updates import check_fingerprints, code_text, portable
from hookline.errors import FailedPreconditionError
from hookline.extend import Update

TREES = {
    "nested": lambda: {"a": (jnp.ones(2), None), "b": [jnp.zeros(())]},
    "optax": lambda: optax.adam(1e-3).init({"w": jnp.ones(3)}),
    "nnx": lambda: nnx.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))[1],
    "equinox": lambda: eqx.filter(eqx.nn.Linear(2, 3, key=jax.random.key(0)), eqx.is_array),
    "keys": lambda: {"key": jax.random.key(3), "keys": jax.random.split(jax.random.key(4, impl="rbg"), 2)},
    "scalars": lambda: (jnp.bfloat16(3), jnp.float32(3), np.int8(3)),
    "narrow": lambda: (jnp.ones((2, 3), jnp.bfloat16), jnp.ones(4, jnp.float8_e4m3fn), jnp.ones(2, bool)),
}


@pytest.mark.parametrize("name", TREES)
def test_value_is_decoded_unchanged(name):
    value = TREES[name]()
    leaves, structure = pickle.loads(cloudpickle.dumps(flatten(value), protocol=5))

    back = jax.tree.unflatten(structure.treedef, decode_leaves(leaves))

    assert jax.tree.structure(back) == jax.tree.structure(value)
    for old, new in zip(jax.tree.leaves(value), jax.tree.leaves(back), strict=True):
        assert (old.dtype, old.shape) == (new.dtype, new.shape)
        if jnp.issubdtype(old.dtype, jax.dtypes.prng_key):
            old, new = jax.random.key_data(old), jax.random.key_data(new)
        assert np.array_equal(np.asarray(old), np.asarray(new))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_large_array_is_sent_without_a_copy(dtype):
    buffers = []
    array = jnp.ones(SMALL_BYTES, dtype)
    text = pickle.dumps(encode_leaf(array), protocol=5, buffer_callback=buffers.append)

    assert [buffer.raw().nbytes for buffer in buffers] == [array.nbytes]
    assert decode_leaf(pickle.loads(text, buffers=buffers)).dtype == dtype


@pytest.mark.parametrize("count", [0, SMALL_BYTES // 8, SMALL_BYTES // 8 + 1])
def test_received_arrays_are_read_only(count):
    buffers = []
    text = pickle.dumps(encode_leaf(np.arange(count, dtype=">f8")), protocol=5, buffer_callback=buffers.append)

    # Ray returns arrays in shared memory.
    array = decode_leaf(pickle.loads(text, buffers=[bytes(buffer) for buffer in buffers]))

    assert np.array_equal(array, np.arange(count, dtype=">f8"))
    assert array.dtype == ">f8"
    assert not array.flags.writeable


class Home:
    """A container that only this module knows."""


def test_container_unknown_to_the_receiver_is_named():
    structure = Structure(jax.tree.structure((1, 2)))
    with pytest.raises(TypeError, match="register them with JAX in a module"):
        structure.__setstate__((Home(), 2))


def updates_of(build):
    with hl.Graph().as_default() as graph:
        build()
        return {o.name: portable(o) for o in graph.get_operations() if isinstance(o, Update)}


def trained(rate=0.1, size=3, rule=lambda old, by: old - by):
    def build():
        w = hl.Variable(jnp.ones(size), name="w")
        hl.update(w, lambda old, by: rule(old, rate * by), hl.placeholder(jnp.float32, (size,), name="by"), name="step")

    return build


@pytest.mark.parametrize("other", [trained(rate=0.2), trained(size=4), trained(rule=lambda old, by: old + by)])
def test_another_rate_size_or_rule_has_another_fingerprint(other):
    assert updates_of(trained())["step"].fingerprint != updates_of(other)["step"].fingerprint


def test_fingerprints_are_the_same_in_every_process():
    code = textwrap.dedent(
        """
        import jax, optax, jax.numpy as jnp, hookline as hl
        from hookline.distributed.worker.updates import portable
        from hookline.graph.variable import Update
        SETTING = frozenset({"a", "b", "c"})
        def rule(old, by):
            return old - by if "x" not in {"p", "q", "r", "s"} else old
        w = hl.Variable(jnp.ones(3), name="w")
        def clipped(old, by, settings=SETTING, rule=rule):
            return rule(old, by)
        hl.update(w, clipped, w * 2)
        hl.train.Optimizer(optax.chain(optax.clip(1.0), optax.adam(0.1))).minimize(hl.op(jnp.sum)(w))
        for o in hl.get_default_graph().get_operations():
            if isinstance(o, Update):
                print(portable(o).fingerprint)
        """
    )
    runs = [python.run("-c", code, server=server, check=True).stdout for server in (0, 1)]
    assert runs[0] == runs[1] != ""


def test_code_text_includes_closures_defaults_and_partials_and_ends_on_cycles():
    def make(value):
        def outer(x, default=value):
            return inner(x) + default

        def inner(x):
            return x + value if x else outer(x)

        return outer

    assert code_text(make(1)) == code_text(make(1))
    assert code_text(make(1)) != code_text(make(2))


def test_the_first_difference_is_named():
    with pytest.raises(FailedPreconditionError, match=r"update 'b', which is another one in the chief's graph"):
        check_fingerprints({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "9", "c": "8"}, "update")
    with pytest.raises(FailedPreconditionError, match=r"update 'd', which the chief's graph does not have"):
        check_fingerprints({"a": "1"}, {"d": "1"}, "update")
    check_fingerprints({"a": "1", "only the chief's": "2"}, {"a": "1"}, "update")


def test_an_update_survives_pickling_with_its_function():
    update = updates_of(trained())["step"]

    back = pickle.loads(cloudpickle.dumps(update))

    assert back.fingerprint == update.fingerprint
    assert np.allclose(back.fn(np.float32(1), np.float32(1)), 0.9)
