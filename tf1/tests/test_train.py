"""Savers, readers of checkpoints, and `tf.summary`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hookline_tf1 as tf
from hookline.testing import read_events


def tags(folder):
    return [v.tag for event in read_events(str(folder)) for v in event.summary.value]


def test_saver_saves_the_variables_at_its_creation(tmp_path):
    weight = tf.Variable(2.0, name="weight")
    saver = tf.train.Saver(max_to_keep=1)
    train_op = tf.train.AdamOptimizer(0.1).minimize(weight * weight)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        saver.save(sess, str(tmp_path / "model"), 0)
        sess.run(train_op)
        path = saver.save(sess, str(tmp_path / "model"), global_step=1, write_meta_graph=False)
        trained = sess.run(weight)
    assert [name for name, _ in tf.train.list_variables(path)] == ["weight"]
    assert saver.last_checkpoints == [path]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        saver.restore(sess, tf.train.get_checkpoint_state(str(tmp_path)).model_checkpoint_path)
        assert sess.run(weight) == trained


def test_checkpoints_of_a_monitored_session_list_only_variables(tmp_path):
    weight = tf.Variable([2.0, 1.0], name="weight")
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(weight), step)
    with tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as sess:
        sess.run(train_op)
    reader = tf.train.NewCheckpointReader(tf.train.latest_checkpoint(str(tmp_path)))

    # As TensorFlow lists it; the states of hooks are in the checkpoint, too.
    assert tf.train.list_variables(str(tmp_path)) == [("global_step", []), ("weight", [2])]
    assert tf.contrib.framework.list_variables(str(tmp_path)) == tf.train.list_variables(str(tmp_path))
    assert reader.get_variable_to_shape_map() == {"global_step": [], "weight": [2]}
    assert set(reader.get_variable_to_dtype_map()) == {"global_step", "weight"}
    assert reader.has_tensor("weight")


def test_events_are_read_back(tmp_path):
    writer = tf.summary.FileWriter(str(tmp_path))
    writer.add_summary(tf.Summary(value=[tf.Summary.Value(tag="loss", simple_value=0.5)]), 7)
    writer.close()
    (path,) = map(str, tmp_path.iterdir())

    found = [(event.step, value.tag) for event in tf.train.summary_iterator(path) for value in event.summary.value]
    assert found == [(7, "loss")]


def test_saver_requires_variables():
    with pytest.raises(ValueError, match="there are no variables to save"):
        tf.train.Saver()


def test_script_may_catch_a_missing_checkpoint(tmp_path, sess):
    tf.Variable(1.0)
    saver = tf.train.Saver()
    with pytest.raises(ValueError, match="Can't load save_path when it is None"):
        saver.restore(sess, tf.train.latest_checkpoint(str(tmp_path)))
    with pytest.raises(ValueError, match="is not a valid checkpoint"):
        saver.restore(sess, str(tmp_path / "model-1"))


def test_unknown_saver_argument_is_refused(tmp_path):
    tf.Variable(1.0)
    with pytest.raises(TypeError, match="has no argument 'no_such'"):
        tf.train.Saver().save(None, str(tmp_path / "m"), no_such=1)


def test_checkpoint_reader_reads_variables(tmp_path, sess):
    tf.Variable([[1.0, 2.0]], name="weight")
    sess.run(tf.global_variables_initializer())
    tf.train.Saver().save(sess, str(tmp_path / "model"), 7)
    reader = tf.train.NewCheckpointReader(tf.train.latest_checkpoint(str(tmp_path)))

    assert reader.get_variable_to_shape_map() == {"weight": [1, 2]}
    assert reader.get_variable_to_dtype_map() == {"weight": np.dtype("float32")}
    assert [reader.has_tensor(name) for name in ("weight", "other")] == [True, False]
    np.testing.assert_array_equal(tf.train.load_checkpoint(str(tmp_path)).get_tensor("weight"), [[1.0, 2.0]])


def test_graph_listing_is_written(tmp_path):
    tf.constant(1.0, name="here")
    path = tf.train.write_graph(tf.get_default_graph().as_graph_def(), str(tmp_path / "new"), "graph.pbtxt")

    assert "here" in Path(path).read_text(encoding="utf-8")


def test_tags_are_operation_names(tmp_path):
    loss = tf.square(tf.constant(2.0), name="loss")
    tf.summary.scalar("loss", loss)
    tf.summary.scalar("total loss", loss)
    with tf.name_scope("train"):
        tf.summary.scalar("loss", loss)
        tf.summary.scalar("part", loss, family="parts")
    with tf.Session() as sess, tf.summary.FileWriter(str(tmp_path), sess.graph) as writer:
        writer.add_summary(sess.run(tf.summary.merge_all()), np.int64(3))
        writer.add_summary(tf.Summary(value=[tf.Summary.Value(tag="own", simple_value=1.0)]), 4)

    assert tags(tmp_path) == ["loss_1", "total_loss", "train/loss", "parts/train/parts/part", "own"]


def test_writer_takes_a_graph_listing(tmp_path, sess):
    tf.constant(1.0, name="here")
    writer = tf.train.SummaryWriter(str(tmp_path), graph_def=sess.graph_def)
    writer.add_graph(sess.graph_def)
    writer.close()

    assert sum(event.HasField("graph_def") for event in read_events(str(tmp_path))) == 2


def test_run_with_a_full_trace_is_written(tmp_path):
    loss = tf.square(tf.constant(2.0), name="loss")
    options, metadata = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunMetadata()
    with tf.Session() as sess, tf.summary.FileWriter(str(tmp_path)) as writer:
        assert sess.run(loss, options=options, run_metadata=metadata) == 4.0
        writer.add_run_metadata(metadata, "step003")

    assert set(metadata.stage_secs) == {"before", "device", "after"}
    assert tags(tmp_path) == ["step003"]


def test_options_of_hook_and_caller_are_merged():
    step = tf.train.get_or_create_global_step().assign_add(1)
    metadata = tf.RunMetadata()
    with tf.train.MonitoredSession(hooks=[tf.train.StopAtStepHook(last_step=2)]) as sess:
        sess.run(step, options=tf.RunOptions(tf.RunOptions.FULL_TRACE), run_metadata=metadata)
    assert metadata.stage_secs


def test_tensorflow_checkpoints_are_named_and_unchanged(tmp_path, sess):
    state = 'model_checkpoint_path: "net.ckpt-7"\nall_model_checkpoint_paths: "net.ckpt-7"\n'
    (tmp_path / "checkpoint").write_text(state)
    (tmp_path / "net.ckpt-7.index").write_bytes(b"")
    tf.Variable(1.0)
    saver = tf.train.Saver()
    sess.run(tf.global_variables_initializer())

    for use in (tf.train.latest_checkpoint, lambda path: saver.save(sess, f"{path}/net.ckpt")):
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"is TensorFlow's: .*'net.ckpt-7'.*Use another"):
            use(str(tmp_path))
    with pytest.raises(ValueError, match=r"not a valid checkpoint.*of TensorFlow, .*Variable\.load"):
        saver.restore(sess, str(tmp_path / "net.ckpt-7"))
    assert (tmp_path / "checkpoint").read_text() == state
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "net.ckpt-7.index"]
