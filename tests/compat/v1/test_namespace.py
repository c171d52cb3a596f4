"""The namespace: what is there, where, and what is said of what is not."""

from __future__ import annotations

import importlib
import operator
import subprocess
import sys

import pytest

import hookline.compat.v1 as tf


def test_a_missing_name_is_named_with_the_nearest_there_is():
    with pytest.raises(AttributeError, match=r"hookline has no tf\.reduce_meen\. The nearest thing: tf\.reduce_mean\."):
        _ = tf.reduce_meen
    with pytest.raises(AttributeError, match=r"no tf\.nn\.dynamic_rnn\. The nearest thing: .*jax\.lax\.scan"):
        _ = tf.nn.dynamic_rnn
    with pytest.raises(AttributeError, match=r"no tf\.keras\. The nearest thing: tf\.layers"):
        _ = tf.keras
    with pytest.raises(AttributeError, match=r"no tf\.compat\.v2\."):
        _ = tf.compat.v2


@pytest.mark.parametrize("name", ["nn", "train", "summary", "image", "flags", "app", "gfile", "logging", "losses"])
def test_namespaces_are_attributes_and_modules(name):
    assert importlib.import_module(f"hookline.compat.v1.{name}") is getattr(tf, name)


@pytest.mark.parametrize(
    "name",
    ["nn", "train", "summary", "image", "losses", "metrics", "layers", "math", "random", "linalg", "data", "gfile"],
)
def test_every_namespace_says_what_it_has_not(name):
    with pytest.raises(AttributeError, match=rf"hookline has no tf\.{name}\.no_such_thing\. The nearest thing"):
        operator.attrgetter("no_such_thing")(getattr(tf, name))


def test_tf_compat_v1_is_the_namespace_itself():
    assert tf.compat.v1 is tf
    assert tf.compat.as_bytes("é") == "é".encode()
    tf.disable_v2_behavior()
    tf.compat.v1.disable_eager_execution()
    assert not tf.executing_eagerly()


def test_hookline_does_not_import_it():
    code = "import sys, hookline; print(any(name.startswith('hookline.compat') for name in sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_dir_lists_what_there_is():
    assert {"Variable", "nn", "reduce_mean", "float32", "ConfigProto"} <= set(dir(tf))
    assert all(hasattr(tf, name) for name in dir(tf))
