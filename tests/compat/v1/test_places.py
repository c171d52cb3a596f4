"""The modules of TensorFlow's that scripts import from, by their paths."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import hookline.compat.v1 as tf

LINES = """
import hookline.compat.v1.contrib.slim as slim
import hookline.compat.v1.examples.tutorials.mnist.input_data as by_name
from hookline.compat.v1.examples.tutorials.mnist import input_data
from hookline.compat.v1.compat import v1 as tf
from hookline.compat.v1.contrib.learn.python.learn.datasets.mnist import read_data_sets
from hookline.compat.v1.python.framework import ops
from hookline.compat.v1.python.ops import array_ops, math_ops, nn_ops
from hookline.compat.v1.python.platform import flags, gfile

assert by_name is input_data and input_data.read_data_sets is read_data_sets
assert tf.contrib.slim is slim and tf.contrib.learn.datasets.mnist is input_data
assert ops.reset_default_graph is tf.reset_default_graph and nn_ops is tf.nn
assert array_ops.concat is tf.concat and math_ops.reduce_mean is tf.reduce_mean
assert flags is tf.flags and gfile is tf.gfile
"""


def test_import_lines_find_what_they_name_before_anything_else_was_imported():
    subprocess.run([sys.executable, "-c", LINES], check=True)


def test_what_is_not_there_says_so():
    with pytest.raises(AttributeError, match=r"hookline has no tf\.contrib\.learn\.Estimator\. The nearest thing"):
        _ = tf.contrib.learn.Estimator
    with pytest.raises(ImportError, match="rnn"):
        importlib.import_module("hookline.compat.v1.python.ops.rnn")
