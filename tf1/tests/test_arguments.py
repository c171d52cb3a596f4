"""Nothing is silent: each argument of a function of `tf` has its effect, or is logged as having none."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import numpy as np
import pytest

import hookline_tf1 as tf
from hookline_tf1._machinery import ignored_arguments  # To clear the record of logged lines.
from hookline_tf1.contrib import layers as contrib

FOLDER = Path(tf.__file__).parent

# Parameters that no body reads, and why that is right.
UNREAD = {
    "of another's interface, which has them": {
        "__call__: partition_info", "__exit__: exc", "_create_non_slot_variable: colocate_with",
        "_create_slots: var_list", "_interpolated: method, roc, tn", "_open: shared", "_packed_ints: dtype",
        "find_spec: path, target",
        "build: input_shape", "call: args, kwargs", "make: run", "no_regularizer: _", "parts: _", "as_asked: _",
        "_along_axis: indices", "_count_of_rows: ids, max_norm", "_lengths: _", "wrong: place",
        "_up_to_all: _", "call: taken",
        "last_starts: begin", "is_settled: args",
        "said: at, place, shape, size", "said: at, shape",
        "_cast_dims: _", "_three: _", "_two: _", "_unstacked: num", "unstacked: num",
        "_look: run_values",
    },
    "of a method that a subclass overrides": {
        "add_weight: how", "_look: run_context", "_take_over: run_context",
    },
    "TensorFlow allows any order": {"top_k: sorted"},
    "there is only one way": {
        "shape: optimize",  # a shape is known where it can be
        "name_scope: values", "variable_scope: values",  # they name the graph; it is the default one
        "nce_loss: partition_strategy", "sampled_softmax_loss: partition_strategy",  # several parts are refused
        "log_uniform_candidate_sampler: num_true", "uniform_candidate_sampler: num_true",  # the shape gives it
        "add_loss: inputs", "add_update: inputs",  # there are no losses and updates for some inputs only
        "sparse_to_dense: validate_indices",  # the docstring gives the positions that count
        "__init__: renorm_momentum",  # renorm is refused
        "batch_norm: renorm_clipping, renorm_decay",
        "save: write_meta_graph",  # there is none
    },
    "a queue here is a dataset: it has no capacity, no threads of its own, and one reader": {
        "input_producer: cancel_op, capacity, element_shape, shared_name, summary_name",
        "string_input_producer: cancel_op, capacity, shared_name",
        "range_input_producer: capacity, shared_name", "slice_input_producer: capacity, shared_name",
        "batch: capacity, num_threads, shared_name", "batch_join: capacity, shared_name",
        "shuffle_batch: capacity, num_threads, shared_name", "shuffle_batch_join: capacity, shared_name",
        "__init__: name",  # of a reader, which has no node of its own
    },
    "nothing is downloaded": {"read_data_sets: source_url"},
    "only the labels that are read heed it": {"__init__: one_hot"},
    "said as a whole": {
        "add_meta_graph: global_step, meta_graph_def", "colocate_with: ignore_existing, op",
        "replica_device_setter: merge_devices, ps_device, ps_ops, ps_strategy, worker_device",
    },
    "refused, or nothing to be done": {
        "gradient_override_map: op_type_map", "is_feedable: tensor", "prevent_feeding: tensor",
        "start_queue_runners: collection, coord, daemon, sess, start", "start_queue_runners: queue_runners, sess",
    },
}  # fmt: skip


def unread(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef) or "computed_by" in "".join(map(ast.unparse, node.decorator_list)):
            continue  # The arguments of a signature go to the function that computes it.
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        names = {argument.arg for argument in arguments if argument is not None} - {"self", "cls"}
        read = {name.id for statement in node.body for name in ast.walk(statement) if isinstance(name, ast.Name)}
        statements = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        refuses = len(statements) == 1 and isinstance(statements[0], ast.Raise)
        if names - read and not refuses:
            found.append(f"{node.name}: {', '.join(sorted(names - read))}")
    return found


def test_each_parameter_is_used_or_listed_with_a_reason():
    listed = set.union(*UNREAD.values())
    found = {line for path in sorted(FOLDER.rglob("*.py")) for line in unread(path)}

    assert found - listed == set(), "honour it, say it with ignored(), or list it above with the reason"
    assert listed - found == set(), "these are read by now: take them off the list"


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]


@pytest.fixture
def log(caplog):
    ignored_arguments._say.cache_clear()
    ignored_arguments.say_once.cache_clear()
    caplog.set_level(logging.INFO)
    return caplog


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: tf.matmul([[1.0]], [[1.0]], b_is_sparse=True), "tf.matmul: b_is_sparse"),
        (lambda: tf.nn.conv1d(np.ones([1, 3, 1], "f"), np.ones([1, 1, 1], "f"), 1, "SAME", True),
         "tf.conv1d: use_cudnn_on_gpu"),
        (lambda: tf.get_variable("v", [2], partitioner=lambda **_: [1]), "tf.get_variable: partitioner"),
        (lambda: tf.variable_scope("s", partitioner=lambda **_: [1]).__enter__(), "tf.variable_scope: partitioner"),
        (lambda: tf.Variable(1.0, validate_shape=False), "tf.Variable: validate_shape"),
        (lambda: tf.assign(tf.Variable(1.0), 2.0, use_locking=True), "tf.Variable.assign: use_locking"),
        (lambda: tf.data.Dataset.range(2).cache("/a/file"), "tf.data.Dataset.cache: filename"),
        (lambda: tf.data.Dataset.range(2).map(lambda x: x, num_parallel_calls=4), "Dataset.map: num_parallel_calls"),
        (lambda: tf.gradients(tf.Variable(1.0) * 2.0, tf.trainable_variables(), gate_gradients=True),
         "tf.gradients: gate_gradients"),
        (lambda: tf.py_func(lambda: 1.0, [], tf.float32, stateful=False), "tf.py_func: stateful"),
        (lambda: tf.image_summary("t", np.zeros([1, 2, 2, 1], "f"), name="n"), "tf.image_summary: name"),
    ],
)  # fmt: skip
def test_argument_without_effect_is_logged_once(call, what, log):
    call()
    call_again = [line for line in said(log) if what in line]

    assert call_again == [f"{call_again[0].partition(':')[0]}: {what.rpartition(' ')[2]} is taken, without effect."]


def test_devices_are_logged_once(log):
    with tf.device("/gpu:0"), tf.get_default_graph().device("/gpu:1"), tf.device("/gpu:0"):
        tf.train.replica_device_setter(cluster={"ps": ["a:1"], "worker": ["b:1"]})
    for _ in range(2):
        tf.Session(config=tf.ConfigProto(allow_soft_placement=True)).close()

    lines = " ".join(said(log))
    for what in ("tf.device is taken", "tf.Graph.device is", "tf.train.replica_device_setter is", "tf.ConfigProto is"):
        assert lines.count(what) == 1


def test_unknown_argument_is_refused():
    with pytest.raises(TypeError, match=r"tf\.Variable got an unexpected keyword argument 'trainble'"):
        tf.Variable(1.0, trainble=False)
    with pytest.raises(TypeError, match=r"interleave got an unexpected keyword argument 'cycle'"):
        tf.data.Dataset.range(2).interleave(lambda x: tf.data.Dataset.range(2), cycle=2)


def test_looked_up_rows_are_clipped(sess):
    table = tf.constant([[3.0, 4.0], [0.3, 0.4]])

    np.testing.assert_allclose(sess.run(tf.nn.embedding_lookup(table, [0, 1], max_norm=1.0)), [[0.6, 0.8], [0.3, 0.4]])
    assert sess.run(tf.nn.embedding_lookup(table, [[0], [1]], max_norm=1.0)).shape == (2, 1, 2)


def test_images_keep_their_aspect_ratio():
    wide = np.ones([1, 4, 8, 3], "f")

    assert tf.image.resize_images(wide, [4, 4], preserve_aspect_ratio=True).shape.as_list() == [1, 2, 4, 3]
    assert tf.image.resize_images(wide, [4, 4]).shape.as_list() == [1, 4, 4, 3]


def test_channels_first_is_supported(sess):
    image = np.arange(32.0).reshape(1, 4, 2, 4).astype("f")
    last = np.moveaxis(image, 1, -1)

    deep, wide = sess.run([tf.space_to_depth(image, 2, data_format="NCHW"), tf.depth_to_space(image, 2, None, "NCHW")])
    np.testing.assert_array_equal(np.moveaxis(deep, 1, -1), sess.run(tf.space_to_depth(last, 2)))
    np.testing.assert_array_equal(np.moveaxis(wide, 1, -1), sess.run(tf.depth_to_space(last, 2)))
    with pytest.raises(ValueError, match="data_format is 'NHWC' or 'NCHW', got 'NCHW_VECT_C'"):
        tf.space_to_depth(image, 2, data_format="NCHW_VECT_C")


def test_matmul_takes_adjoints(sess):
    x, y = np.random.RandomState(0).normal(size=(2, 2, 3, 4)).astype("f")

    np.testing.assert_allclose(sess.run(tf.batch_matmul(x, y, adj_x=True)), np.swapaxes(x, 1, 2) @ y, rtol=1e-5)
    np.testing.assert_allclose(sess.run(tf.batch_matmul(x, y, adj_y=True)), x @ np.swapaxes(y, 1, 2), rtol=1e-5)


@pytest.mark.parametrize("given", [{"keep_prob": 0.0}, {"keep_prob": 2.0}, {"rate": 1.0}, {"rate": -0.1}])
def test_invalid_dropout_rate_is_refused(given):
    with pytest.raises(ValueError, match=r"rate must be in the range \[0, 1\)"):
        tf.nn.dropout(tf.ones([2]), **given)


def test_exactly_one_dropout_rate_is_required():
    with pytest.raises(ValueError, match="Cannot specify both 'rate' and 'keep_prob'"):
        tf.nn.dropout(tf.ones([2]), 0.5, rate=0.5)
    with pytest.raises(ValueError, match="You must provide a rate"):
        tf.nn.dropout(tf.ones([2]))


def test_noise_has_its_shape_and_seed(sess):
    tf.set_random_seed(3)
    rows = sess.run(tf.nn.dropout(tf.ones([40, 3]), 0.5, noise_shape=[40, 1], seed=1))

    assert set(rows.sum(1)) == {0.0, 6.0}
    one, other = sess.run([tf.nn.dropout(tf.ones([40]), 0.5, seed=2), tf.nn.dropout(tf.ones([40]), 0.5, seed=2)])
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("given", "dtype"), [(2.5, tf.int32), ([1, 2.5], tf.int64), (1, tf.bool), (1j, tf.float32), (2.5, tf.uint8)]
)
def test_plain_values_must_have_the_dtype(given, dtype):
    with pytest.raises(TypeError, match=f"Expected {dtype.name}, got "):
        tf.constant(given, dtype)


def test_arrays_are_cast_and_integers_become_floats(sess):
    assert sess.run(tf.constant(np.array([2.5]), tf.int32)).tolist() == [2]
    assert sess.run(tf.constant([1, 2], tf.float32)).dtype == np.float32
    assert sess.run(tf.constant(True, tf.int32)) == 1
    assert sess.run(tf.constant([], tf.int32)).shape == (0,)
    assert tf.convert_to_tensor(1, preferred_dtype=tf.float32).dtype == tf.float32
    assert tf.convert_to_tensor(1.5, preferred_dtype=tf.int32).dtype == tf.float32


def test_a_shape_may_be_verified():
    with pytest.raises(TypeError, match=r"Expected Tensor's shape: \(2,\), got \(\)"):
        tf.constant(1, shape=[2], verify_shape=True)
    with pytest.raises(TypeError, match="Expected Tensor's shape"):
        tf.get_variable("w", [2], initializer=tf.constant_initializer([1.0], verify_shape=True))


def test_updates_may_be_named():
    v = tf.get_variable("w", [])

    made = [tf.assign(v, 1.0, name="set"), v.assign_add(1.0, name="more"), tf.assign_sub(v, 1.0, name="less")]
    assert [tensor.op.name for tensor in made] == ["set", "more", "less"]
    assert v.assign(1.0, read_value=False).name == "w/assign"


def test_unconnected_gradients_are_none_or_zero(sess):
    x, y = tf.Variable(1.0), tf.Variable([1.0, 2.0])

    assert tf.gradients(x * 2.0, [x, y])[1] is None
    assert tf.gradients(x * 2.0, y, unconnected_gradients="none") == [None]
    sess.run(tf.global_variables_initializer())
    assert sess.run(tf.gradients(x * 2.0, [y], unconnected_gradients="zero"))[0].tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="'none' or 'zero'"):
        tf.gradients(x * 2.0, y, unconnected_gradients="nothing")


def test_single_item_of_a_branch_is_unpacked_unless_strict(sess):
    yes, no = (lambda: [tf.constant(1.0)]), (lambda: [tf.constant(2.0)])

    assert sess.run(tf.cond(tf.constant(True), yes, no)) == 1.0
    assert sess.run(tf.cond(tf.constant(True), yes, no, strict=True)) == [1.0]
    assert sess.run(tf.case([(tf.constant(False), yes)], no, strict=True)) == [2.0]


def test_contrib_layers_fill_collections_and_name_their_operations():
    x = tf.placeholder(tf.float32, [None, 4, 4, 1])
    made = contrib.conv2d(x, 2, 3, variables_collections={"weights": ["w"]}, outputs_collections="out", scope="c")
    pooled = contrib.max_pool2d(made, 2, outputs_collections=["out"], scope="p")
    flat = contrib.flatten(pooled, outputs_collections="flat")

    assert [v.op.name for v in tf.get_collection("w")] == ["c/weights"]
    assert tf.get_collection("out") == [made, pooled]
    assert tf.get_collection("flat") == [flat]
    assert pooled.op.name.startswith("p/")
    contrib.batch_norm(made, variables_collections=["bn"], scope="b")
    assert {v.op.name for v in tf.get_collection("bn")} == {"b/beta", "b/moving_mean", "b/moving_variance"}


def test_initializer_dtype_is_used():
    w = tf.get_variable("w", [2, 3], tf.bfloat16, contrib.xavier_initializer())
    assert w.dtype == tf.bfloat16
    assert contrib.xavier_initializer(dtype=tf.float16)([2, 3]).dtype == tf.float16
