"""The modules of TensorFlow's that scripts import from, by their paths."""

from __future__ import annotations

import importlib
import subprocess
import sys

import numpy as np
import pytest

import hookline_tf1 as tf

IMPORTS = """
import hookline_tf1.contrib.rnn as cells
import hookline_tf1.contrib.slim as slim
import hookline_tf1.examples.tutorials.mnist.input_data as by_name
from hookline_tf1.examples.tutorials.mnist import input_data
from hookline_tf1.compat import v1 as tf
from hookline_tf1.contrib import layers, rnn, seq2seq
from hookline_tf1.contrib.framework.python.ops import arg_scope
from hookline_tf1.contrib.framework.python.ops import variables as framework_variables
from hookline_tf1.contrib.framework.python.ops.variables import get_or_create_global_step
from hookline_tf1.contrib.layers.python.layers import batch_norm, initializers, regularizers, utils
from hookline_tf1.contrib.layers.python.layers.initializers import xavier_initializer
from hookline_tf1.contrib.layers.python.layers.layers import batch_norm as batch_norm_of_layers
from hookline_tf1.contrib.learn.python.learn.datasets.mnist import read_data_sets
from hookline_tf1.contrib.data import Dataset
from hookline_tf1.contrib.framework.python.framework.checkpoint_utils import list_variables
from hookline_tf1.contrib.framework.python.ops.arg_scope import add_arg_scope
from hookline_tf1.contrib.rnn.python.ops import core_rnn_cell
from hookline_tf1.contrib.slim.nets import inception
from hookline_tf1.contrib.slim.python.slim import learning, model_analyzer
from hookline_tf1.contrib.slim.python.slim.nets import resnet_v2, vgg
from hookline_tf1.contrib.util import constant_value
from hookline_tf1.core.example import example_pb2
from hookline_tf1.core.framework import summary_pb2
from hookline_tf1.core.framework import graph_pb2
from hookline_tf1.core.protobuf import config_pb2, saver_pb2
from hookline_tf1.python.client import device_lib, timeline
from hookline_tf1.python.framework import constant_op, dtypes, errors, graph_util, ops
from hookline_tf1.python.layers import base
from hookline_tf1.python.layers.utils import smart_cond
from hookline_tf1.python.lib.io import tf_record
from hookline_tf1.python.ops import array_ops, control_flow_ops, init_ops, math_ops, nn_ops, rnn_cell
from hookline_tf1.keras import layers as keras_layers
from hookline_tf1.python import pywrap_tensorflow
from hookline_tf1.python.framework import tensor_util
from hookline_tf1.python.keras import backend
from hookline_tf1.python.ops import metrics_impl, tensor_array_ops
from hookline_tf1.python.ops.control_flow_ops import with_dependencies
from hookline_tf1.python.ops import variable_scope as vs
from hookline_tf1.python.summary.summary_iterator import summary_iterator
from hookline_tf1.python.summary.writer.writer_cache import FileWriterCache
from hookline_tf1.python.util import compat
from hookline_tf1.python.ops.distributions import categorical, normal
from hookline_tf1.python.saved_model import tag_constants
from hookline_tf1.python.summary.writer.writer import FileWriter
from hookline_tf1.python.util import deprecation
from hookline_tf1.python.platform import flags, gfile, tf_logging as logging
from hookline_tf1.python.training import moving_averages, optimizer, session_run_hook
from hookline_tf1.python.util import nest

same = [
    (by_name, input_data), (input_data.read_data_sets, read_data_sets), (tf.contrib.slim, slim),
    (tf.contrib.learn.datasets.mnist, input_data), (tf.contrib.layers.batch_norm, batch_norm),
    (tf.contrib.framework.arg_scope, arg_scope), (ops.reset_default_graph, tf.reset_default_graph),
    (nn_ops, tf.nn), (array_ops.concat, tf.concat), (math_ops.reduce_mean, tf.reduce_mean),
    (control_flow_ops.cond, tf.cond), (init_ops.zeros_initializer, tf.zeros_initializer),
    (vs.get_variable, tf.get_variable), (vs.variable_scope, tf.variable_scope), (ops.Tensor, tf.Tensor),
    (flags, tf.flags), (gfile, tf.gfile), (logging.info, tf.logging.info), (dtypes.float32, tf.float32),
    (constant_op.constant, tf.constant), (errors.OutOfRangeError, tf.errors.OutOfRangeError),
    (summary_pb2.Summary, tf.Summary), (config_pb2.ConfigProto, tf.ConfigProto), (base, tf.layers),
    (config_pb2.RunOptions, tf.RunOptions), (optimizer.Optimizer, tf.train.Optimizer),
    (session_run_hook.SessionRunHook, tf.train.SessionRunHook), (tf_record, tf.python_io), (cells, rnn),
    (nest.flatten, tf.contrib.framework.nest.flatten), (batch_norm_of_layers, batch_norm),
    (xavier_initializer, tf.contrib.layers.xavier_initializer), (initializers.xavier_initializer, xavier_initializer),
    (regularizers.l2_regularizer, tf.contrib.layers.l2_regularizer), (normal.Normal, tf.distributions.Normal),
    (get_or_create_global_step, tf.train.get_or_create_global_step), (FileWriter, tf.summary.FileWriter),
    (framework_variables.get_or_create_global_step, get_or_create_global_step),
    (categorical.Categorical, tf.distributions.Categorical), (Dataset, tf.data.Dataset), (utils, tf.contrib.slim.utils),
    (list_variables, tf.train.list_variables), (add_arg_scope, tf.contrib.framework.add_arg_scope),
    (smart_cond, utils.smart_cond), (learning, slim.learning),
    (model_analyzer, slim.model_analyzer), (tensor_util.constant_value, constant_value),
    (pywrap_tensorflow.NewCheckpointReader, tf.train.NewCheckpointReader), (metrics_impl.auc, tf.metrics.auc),
    (summary_iterator, tf.train.summary_iterator), (FileWriterCache, tf.summary.FileWriterCache), (compat, tf.compat),
]
wrong = [place for place, (one, other) in enumerate(same) if one is not other]
assert not wrong, wrong
import urllib
urllib.request.urlretrieve  # TensorFlow loads it, and scripts rely on that.
"""


def test_import_lines_work_before_any_other_import():
    ran = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True)

    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("path", "name", "text"),
    [
        ("contrib.learn", "Estimator", r"tf\.contrib\.learn\.Estimator\. The nearest thing: tf\.train"),
        ("contrib.rnn", "BasicLSTMCell", r"tf\.contrib\.rnn\.BasicLSTMCell\. The nearest thing: .*jax\.lax\.scan"),
        (
            "contrib.slim",
            "nets",
            r"tf\.contrib\.slim\.nets\. The nearest thing: .*'Models' in hookline's documentation",
        ),
        (
            "contrib.slim.nets.vgg",
            "vgg_16",
            r"tf\.contrib\.slim\.nets\.vgg_16\. The nearest thing: .*'Models' in hookline's documentation",
        ),
        ("python.saved_model.tag_constants", "SERVING", r"tf\.saved_model\.SERVING\. .* tf\.train\.Saver"),
        ("python.ops.rnn_cell", "GRUCell", r"tf\.nn\.rnn_cell\.GRUCell\. The nearest thing: .*jax\.lax\.scan"),
        ("python.ops.rnn", "dynamic_rnn", r"tf\.nn\.dynamic_rnn\. The nearest thing: .*jax\.lax\.scan"),
        ("python.ops.array_ops", "exand_dims", r"tf\.python\.ops\.array_ops\.exand_dims.*array_ops\.expand_dims"),
        ("python.client.timeline", "Timeline", r"tf.*timeline\.Timeline\. The nearest thing: tf\.train\.ProfilerHook"),
        ("python.framework.graph_util", "extract", r"tf\.graph_util\.extract\. The nearest thing: tf\.train\.Saver"),
    ],
)
def test_missing_name_of_a_module_names_the_nearest(path, name, text):
    module = importlib.import_module(f"hookline_tf1.{path}")

    with pytest.raises(AttributeError, match=f"hookline_tf1 has no {text}"):
        getattr(module, name)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("from hookline_tf1 import while_loop", r"tf\.while_loop\. The nearest thing: .*jax\.lax\.while_loop"),
        ("import hookline_tf1.while_loop", r"tf\.while_loop\. The nearest thing: .*jax\.lax\.while_loop"),
        ("from hookline_tf1.strings import to_hash_bucket_fast", r"tf\.strings\.to_hash.* with zlib\.crc32"),
        ("from hookline_tf1.nn import dynamic_rnn", r"tf\.nn\.dynamic_rnn\. The nearest thing: .*jax\.lax\.scan"),
        (
            "from hookline_tf1.python.ops.rnn_cell import GRUCell",
            r"tf\.nn\.rnn_cell\.GRUCell\. The nearest thing",
        ),
        (
            "from hookline_tf1.contrib.slim.nets.vgg import vgg_16",
            r"tf\.contrib\.slim\.nets\.vgg_16\. The nearest",
        ),
        (
            "from hookline_tf1.contrib.slim.python.slim.nets.vgg import vgg_16",
            r"tf\.contrib\.slim\.nets\.vgg_16\.",
        ),
        ("from hookline_tf1.keras.layers import Dense", r"tf\.keras\.Dense\. The nearest thing: tf\.layers"),
        (
            "from hookline_tf1.python.ops.array_ops import exand_dims",
            r"tf\..*exand_dims\. The .*ops\.expand_dims",
        ),
        ("from hookline_tf1.core.example.example_pb2 import Example", r"tf\.train\.Example\. .*hookline\.data"),
    ],
)
def test_failed_import_line_names_the_nearest(line, text):
    with pytest.raises(ImportError, match=f"hookline_tf1 has no {text}"):
        exec(line)


def test_only_import_lines_get_import_errors():
    assert not hasattr(tf, "keras")
    assert getattr(tf.contrib, "rnn", None) is None
    with pytest.raises(AttributeError, match=r"no tf\.keras\."):
        _ = tf.keras


def test_unknown_path_is_an_import_error():
    with pytest.raises(ImportError, match="no_such_ops"):
        importlib.import_module("hookline_tf1.python.ops.no_such_ops")


def test_devices_are_those_of_jax():
    devices = importlib.import_module("hookline_tf1.python.client.device_lib").list_local_devices()

    assert (devices[0].name, devices[0].device_type) == ("/device:CPU:0", "CPU")
    assert [device.name for device in devices if device.device_type == "GPU"][:1] == (
        [tf.test.gpu_device_name()] if tf.test.is_gpu_available() else []
    )


def test_moving_average_of_a_users_variable_is_assigned():
    averages = importlib.import_module("hookline_tf1.python.training.moving_averages")
    value = tf.placeholder(tf.float32, [])
    plain = tf.get_variable("plain", [], initializer=tf.ones_initializer(), trainable=False)
    mean = tf.get_variable("mean", [], initializer=tf.zeros_initializer(), trainable=False)
    updates = [
        averages.assign_moving_average(plain, value, 0.75, zero_debias=False),
        averages.assign_moving_average(mean, value, 0.75),
    ]

    # As TensorFlow 1.15 names and computes it.
    assert [v.op.name for v in tf.global_variables()] == ["plain", "mean", "mean/biased", "mean/local_step"]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = [session.run(updates, {value: number}) for number in (2.0, 6.0)]
    np.testing.assert_allclose(found, [[1.25, 2.0], [2.4375, (0.375 + 1.5) / (1 - 0.75**2)]], rtol=1e-6)
