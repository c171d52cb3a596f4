"""The namespace: its names, their modules, and the messages for missing names."""

from __future__ import annotations

import importlib
import operator
import subprocess
import sys

import numpy as np
import pytest

import hookline_tf1 as tf


@pytest.mark.parametrize("name", ["nn", "train", "summary", "image", "flags", "app", "gfile", "logging", "losses"])
def test_namespaces_are_attributes_and_modules(name):
    assert importlib.import_module(f"hookline_tf1.{name}") is getattr(tf, name)


@pytest.mark.parametrize(
    "name",
    ["nn", "train", "summary", "image", "losses", "metrics", "layers", "math", "random", "linalg", "data", "gfile"],
)
def test_missing_name_in_every_namespace_names_the_nearest(name):
    with pytest.raises(AttributeError, match=rf"hookline_tf1 has no tf\.{name}\.no_such_thing\. The nearest thing"):
        operator.attrgetter("no_such_thing")(getattr(tf, name))


def test_tf_compat_v1_is_the_namespace_itself():
    assert tf.compat.v1 is tf
    assert tf.compat.as_bytes("é") == "é".encode()
    tf.disable_v2_behavior()
    tf.compat.v1.disable_eager_execution()
    assert not tf.executing_eagerly()


def test_hookline_does_not_import_hookline_tf1():
    code = "import sys, hookline; print(any(name.startswith('hookline_tf1') for name in sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_dir_lists_existing_names():
    assert [name for name in dir(tf) if name.startswith("_") or not hasattr(tf, name)] == []
    assert {"Variable", "nn", "reduce_mean", "float32", "ConfigProto"} <= set(dir(tf))
    assert all(hasattr(tf, name) for name in dir(tf))


@pytest.mark.parametrize(
    ("symbol", "nearest"),
    [
        ("reduce_meen", "tf.reduce_mean."),
        ("layers.densse", "tf.layers.dense"),
        ("train.AdammOptimizer", "tf.train.AdamOptimizer"),
        ("keras", "tf.layers"),
        ("compat.v2", ""),
        ("flags.DEFINE_intger", "tf.flags.DEFINE_integer"),
        ("flags.text_wrap", "absl.flags"),
        ("errors.OutOfRange", "tf.errors.OutOfRangeError"),
        ("errors.NoSuchThing", "tf.errors.OpError"),
        ("dtypes.variant", "tf.float32 and its like"),
        ("config.experimental", "JAX's environment variables"),
        ("data.experimental.CsvDataset", "tf.data.TextLineDataset with tf.decode_csv"),
        ("data.Dataset.window", "tf.data.Dataset.batch"),
        ("data.Dataset.from_tensor_slice", "tf.data.Dataset.from_tensor_slices"),
        ("GraphKeys.TRAINABLE_VARIABLE", "tf.GraphKeys.TRAINABLE_VARIABLES"),
        ("GraphKeys.NO_SUCH_THING", "any text"),
        ("io.decode_jpeg", "tf.py_func"),
        ("test.TestCase", "unittest.TestCase"),
        ("strings.to_hash_bucket_fast", "tf.py_func with zlib.crc32"),
        ("contrib.rnn", "hookline.op with jax.lax.scan"),
        ("contrib.lookup", "a dict, in tf.py_func"),
        ("contrib.factorization", "scikit-learn (KMeans, NMF)"),
        ("contrib.bayesflow", "hookline.op with jax.scipy.stats"),
        ("sets", "hookline.op"),
    ],
)
def test_advice_names_usable_symbols(symbol, nearest):
    with pytest.raises(AttributeError) as raised:
        operator.attrgetter(symbol)(tf)

    assert str(raised.value).startswith(f"hookline_tf1 has no tf.{symbol}. The nearest thing: {nearest}")


def test_missing_dataset_method_names_the_nearest():
    with pytest.raises(AttributeError, match=r"no tf\.data\.Dataset\.cardinality\. The near"):
        _ = tf.data.Dataset.range(3).cardinality


def test_hooklines_own_names_are_not_listed_with_tensorflows():
    assert not {"arrays", "nodes", "texts", "tensors", "rearranging", "before_1_0", "hooks"} & set(dir(tf))
    assert set(dir(tf.errors)) >= {"OutOfRangeError", "OpError"}
    for name in ("nn", "flags", "gfile", "data", "dtypes", "logging", "image", "train"):
        place = getattr(tf, name)
        assert all(hasattr(place, symbol) for symbol in dir(place))
        assert not {"jax", "jnp", "np", "annotations", "Any", "offered"} & set(dir(place))


def test_dtypes_have_their_functions():
    assert tf.dtypes.bool == tf.bool
    assert tf.dtypes.as_dtype("float32") is tf.dtypes.float32
    assert tf.dtypes.cast(tf.constant(1.5), tf.int32).dtype == tf.int32


def test_whole_files_are_read_and_written(tmp_path, sess):
    path = str(tmp_path / "deep" / "note")
    sess.run(tf.write_file(path, tf.constant("a note")))
    assert sess.run(tf.read_file(path)) == b"a note"
    assert sess.run(tf.io.matching_files(str(tmp_path / "*" / "n*"))).tolist() == [path.encode()]
    with pytest.raises(tf.errors.NotFoundError, match="tf.read_file could not read"):
        sess.run(tf.io.read_file(path + "s"))


def test_gpu_functions_describe_the_machine():
    assert tf.test.is_gpu_available() == bool(tf.test.gpu_device_name()) == tf.test.is_built_with_cuda()


def test_linspace_has_two_names(sess):
    one, other = tf.linspace(0.0, 1.0, 5), tf.lin_space(0.0, 1.0, 5)
    np.testing.assert_allclose(sess.run(one), sess.run(other))
    assert [one.op.name, other.op.name] == ["LinSpace", "LinSpace_1"]
