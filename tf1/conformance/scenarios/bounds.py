"""Indices that are not there, in `hookline_tf1`."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.parts import raised
from conformance.scenario import Record, scenario
from conformance.system import System

ROWS = np.arange(10, dtype=np.float32).reshape(5, 2)
ONES = np.ones(2, np.float32)


def _of_pairs(tf: Any, row: Any) -> dict[str, Any]:
    parts = [tf.constant(ROWS[:3]), tf.constant(ROWS[3:])]
    return {
        "gather": lambda i: tf.gather(ROWS, i),
        "gather along an axis": lambda i: tf.gather(ROWS.T, i, axis=1),
        "embedding_lookup": lambda i: tf.nn.embedding_lookup(ROWS, i),
        "embedding_lookup in parts": lambda i: tf.nn.embedding_lookup(parts, i),
        "scatter_add": lambda i: tf.scatter_add(row, i, ONES),
        "scatter_sub": lambda i: tf.scatter_sub(row, i, ONES),
        "scatter_update": lambda i: tf.scatter_update(row, i, ONES),
        "unsorted_segment_sum": lambda i: tf.unsorted_segment_sum(ONES, i, 5),
        "unsorted_segment_mean": lambda i: tf.unsorted_segment_mean(ONES, i, 5),
        "sparse_to_dense": lambda i: tf.sparse_to_dense(i, [5], ONES),
        "reverse_sequence": lambda i: tf.reverse_sequence(ROWS.T[:, :4], i, seq_axis=1, batch_axis=0),
        "in_top_k": lambda i: tf.nn.in_top_k(ROWS.T, i, 5),
        "one_hot": lambda i: tf.one_hot(i, 5),
        "cross_entropy": lambda i: tf.nn.sparse_softmax_cross_entropy_with_logits(labels=i, logits=ROWS.T),
        "losses": lambda i: tf.losses.sparse_softmax_cross_entropy(i, ROWS.T),
        "mean_iou": lambda i: tf.metrics.mean_iou(tf.constant([0, 4]), i, 5)[1],
        "text": lambda i: tf.gather(["a", "b", "c", "d", "e"], i),
    }


def _of_columns(tf: Any) -> dict[str, Any]:
    return {
        "gather in a batch": lambda i: tf.gather(ROWS.T, i, batch_dims=1, axis=1),
        "gather_nd": lambda i: tf.gather_nd(ROWS, i),
        "scatter_nd": lambda i: tf.scatter_nd(i, ONES, [5]),
    }


@scenario("v1.bounds.what_is_refused")
def _(s: System) -> Record:
    """What a run says to a place that is the last, past the end, or below 0."""
    tf = s.tf
    row = tf.get_variable("row", [5], initializer=tf.zeros_initializer())
    pair, column = tf.placeholder(tf.int32, [2]), tf.placeholder(tf.int32, [2, 1])
    found = {name: (fn(pair), pair) for name, fn in _of_pairs(tf, row).items()}
    found |= {name: (fn(column), column) for name, fn in _of_columns(tf).items()}
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        return {
            name: [
                raised(sess.run, value, {places: np.reshape([0, place], places.shape.as_list())})
                for place in (4, 5, -1)
            ]
            for name, (value, places) in found.items()
        }


@scenario("v1.bounds.run_of_an_operation")
def _(s: System) -> Record:
    """Which run says it where no run returns a value: the third of five is given such a place."""
    tf = s.tf
    place = tf.placeholder(tf.int32, [1])
    row = tf.get_variable("row", [5], initializer=tf.zeros_initializer())
    write = tf.scatter_add(row, place, [1.0]).op
    sess = tf.Session()
    sess.run(tf.global_variables_initializer())
    runs = [raised(sess.run, write, {place: [i]}) for i in (0, 1, 5, 2, 3)]
    return {"runs": runs, "close": raised(sess.close)}
