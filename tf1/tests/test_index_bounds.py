"""Indices out of bounds: the run continues, and the session raises before the result is used."""

from __future__ import annotations

import logging
import os

import numpy as np
import pytest

import hookline_tf1 as tf

TABLE = np.arange(10, dtype=np.float32).reshape(5, 2)


def pair(*numbers):
    return np.array(numbers, np.int32)


def rows(*numbers):
    return np.array(numbers, np.int32)[:, None]


def two_parts():
    return [tf.constant(TABLE[:3]), tf.constant(TABLE[:2])]


def row_of_zeros():
    return tf.get_variable("row", [5], initializer=tf.zeros_initializer())


GIVEN_PLACES = {
    "gather": lambda i: tf.gather(TABLE, i),
    "gather along an axis": lambda i: tf.gather(TABLE.T, i, axis=1),
    "gather in a batch": lambda i: tf.gather(TABLE.T, i, batch_dims=1, axis=1),
    "batch_gather": lambda i: tf.batch_gather(TABLE.T, i),
    "gather_nd": lambda i: tf.gather_nd(TABLE, i),
    "embedding_lookup": lambda i: tf.nn.embedding_lookup(TABLE, i),
    "embedding_lookup with a norm": lambda i: tf.nn.embedding_lookup(TABLE, i, max_norm=1.0),
    "embedding_lookup in parts": lambda i: tf.nn.embedding_lookup(two_parts(), i),
    "embedding_lookup in rows of parts": lambda i: tf.nn.embedding_lookup(two_parts(), i, "div"),
    "scatter_add": lambda i: tf.scatter_add(row_of_zeros(), i, np.ones(2, np.float32)),
    "scatter_sub": lambda i: tf.scatter_sub(row_of_zeros(), i, np.ones(2, np.float32)),
    "scatter_update": lambda i: tf.scatter_update(row_of_zeros(), i, np.ones(2, np.float32)),
    "scatter_nd": lambda i: tf.scatter_nd(i, np.ones(2, np.float32), [5]),
    "unsorted_segment_sum": lambda i: tf.unsorted_segment_sum(np.ones(2, np.float32), i, 5),
    "unsorted_segment_mean": lambda i: tf.unsorted_segment_mean(np.ones(2, np.float32), i, 5),
    "unsorted_segment_max": lambda i: tf.unsorted_segment_max(np.ones(2, np.float32), i, 5),
    "unsorted_segment_min": lambda i: tf.unsorted_segment_min(np.ones(2, np.float32), i, 5),
    "sparse_softmax_cross_entropy_with_logits": lambda i:
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=i, logits=TABLE.T),
    "losses.sparse_softmax_cross_entropy": lambda i: tf.losses.sparse_softmax_cross_entropy(i, TABLE.T),
    "nce_loss": lambda i: tf.nn.nce_loss(tf.constant(TABLE), tf.zeros([5]), i, TABLE[:2], 2, 5),
    "sampled_softmax_loss": lambda i:
        tf.nn.sampled_softmax_loss(tf.constant(TABLE), tf.zeros([5]), i, TABLE[:2], 2, 5),
    "sparse_to_dense": lambda i: tf.sparse_to_dense(i, [5], np.ones(2, np.float32)),
    "sparse_tensor_to_dense": lambda i:
        tf.sparse_tensor_to_dense(tf.SparseTensor(i, tf.constant([1.0, 2.0]), [5])),
    "mean_per_class_accuracy": lambda i: tf.metrics.mean_per_class_accuracy(i, tf.constant([0, 4]), 5)[1],
    "mean_iou": lambda i: tf.metrics.mean_iou(tf.constant([0, 4]), i, 5)[1],
    "gather of text": lambda i: tf.gather(list("abcde"), i),
    "sparse_to_dense of text": lambda i: tf.sparse_to_dense(i, [5], tf.constant(["a", "b"]), default_value=""),
}  # fmt: skip


@pytest.mark.parametrize("case", GIVEN_PLACES)
def test_index_out_of_bounds_is_an_error_of_the_run_that_names_the_operation(case, graph, sess):
    in_columns = ("batch", "nd", "nce", "sampled", "sparse_tensor")
    form = rows if any(word in case for word in in_columns) else pair
    places = tf.placeholder(tf.int32, form(0, 0).shape)
    found = GIVEN_PLACES[case](places)
    sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    sess.run(found, {places: form(0, 4)})
    for wrong in (5, -1):
        if wrong < 0 and case.startswith("unsorted"):  # There a negative segment means none.
            assert sess.run(found, {places: form(0, wrong)})[4] != 1
            continue
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"\] = {wrong} is not in \[0, 5\)\.") as raised:
            sess.run(found, {places: form(0, wrong)})
        if "text" not in case:
            assert repr(raised.value.op.name) in str(raised.value)
            assert raised.value.op is graph.get_operation_by_name(raised.value.op.name)
    sess.run(found, {places: form(4, 0)})


@pytest.mark.parametrize(
    ("part", "axis"),
    [
        (lambda x, p: x[p], 0),
        (lambda x, p: x[p + 0, 0], 0),
        (lambda x, p: x[:, p], 1),
        (lambda x, p: x[tf.newaxis, 0, p], 1),
        (lambda x, p: x[..., p], -1),
        (lambda x, p: tf.constant(TABLE[:2, :2].tolist())[p], 0),
        (lambda x, p: tf.constant([["a", "b"], ["c", "d"]])[p], 0),
    ],
)
def test_bracketed_index_out_of_bounds_is_an_error(part, axis, sess):
    place, x = tf.placeholder(tf.int32, []), tf.placeholder(tf.float32, [None, 2])
    found = part(x, place)
    for there in (0, 1, -1, -2):
        sess.run(found, {x: TABLE[:2], place: there})
    for wrong in (2, -3):
        text = rf"slice index {wrong} of dimension {axis} out of bounds: that has 2\."
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            sess.run(found, {x: TABLE[:2], place: wrong})


def test_other_numbers_out_of_range_are_errors(sess):
    number = tf.placeholder(tf.int32, [2])
    reversed_rows = tf.reverse_sequence(TABLE.T, number, seq_axis=1, batch_axis=0)
    assert sess.run(reversed_rows, {number: [5, 0]})[0].tolist() == [8.0, 6.0, 4.0, 2.0, 0.0]
    for wrong in (6, -1):
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"seq_lengths\[1\] = {wrong} is not in"):
            sess.run(reversed_rows, {number: [5, wrong]})
    assert sess.run(tf.invert_permutation(number), {number: [1, 0]}).tolist() == [1, 0]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"x\[0\] = 2 is not in \[0, 2\)"):
        sess.run(tf.invert_permutation(number), {number: [2, 0]})
    # A class that is not there is among no best ones, and is no error.
    assert sess.run(tf.nn.in_top_k(TABLE.T, number, 5), {number: [4, -1]}).tolist() == [True, False]


@pytest.mark.parametrize(("value", "empty"), [(1.0, 0.0), (b"a", b"")])
def test_sparse_index_may_be_a_scalar(value, empty, sess):
    place = tf.placeholder(tf.int32, [])
    known, fed = (tf.sparse_to_dense(where, [3], value, default_value=empty) for where in (2, place))
    assert sess.run(known).tolist() == [empty, empty, value]
    assert sess.run(fed, {place: 2}).tolist() == [empty, empty, value]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"sparse_indices = 3 is not in \[0, 3\)"):
        sess.run(fed, {place: 3})
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"sparse_indices = 3 is not in \[0, 3\)"):
        tf.sparse_to_dense(3, [3], 1.0)


def test_partitions_of_unusual_lengths_have_their_own_bounds(sess):
    ids = tf.placeholder(tf.int32, [1])
    found = tf.nn.embedding_lookup([tf.constant(TABLE), tf.constant(TABLE[:1])], ids)
    assert sess.run(found, {ids: [8]}).tolist() == [[8.0, 9.0]]
    for wrong in (10, -1):
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"ids\[0\] = {wrong} is not in \[0, 9\)"):
            sess.run(found, {ids: [wrong]})
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids\[0\] = 3 names a row that its part does not"):
        sess.run(found, {ids: [3]})


def test_constant_index_out_of_bounds_is_refused_at_graph_construction():
    x = tf.placeholder(tf.float32, [None, 5])
    for build in (
        lambda: tf.gather(TABLE, [0, 5]),
        lambda: tf.gather(TABLE, tf.constant([0, 5])),
        lambda: tf.gather(x, [0, 5], axis=1),
        lambda: tf.losses.sparse_softmax_cross_entropy([0, 5], x),
        lambda: tf.scatter_add(row_of_zeros(), [0, 5], [1.0, 1.0]),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[1\] = 5 is not in \[0, 5\)"):
            build()
    # How many rows there are is known in the run.
    tf.gather(x, [0, 5])


def test_untaken_branch_may_have_indices_out_of_bounds(sess):
    size, place = tf.placeholder(tf.int32), tf.placeholder(tf.int32, [])
    row, constant = row_of_zeros(), tf.constant(TABLE)
    found = tf.cond(place < 5, lambda: tf.gather(constant, place), lambda: tf.gather(constant, [5])[0])
    written = tf.cond(
        tf.equal(size, 5), lambda: tf.scatter_add(row, [place], [1.0]), lambda: tf.scatter_add(row, [5], [1.0])
    )
    assert found.shape.as_list() == [2]
    sess.run(tf.global_variables_initializer())
    assert sess.run([found, written], {place: 3, size: 5})[0].tolist() == [6.0, 7.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[0\] = 5"):
        sess.run(found, {place: 9})
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[0\] = 5"):
        sess.run(written, {place: 3, size: 4})


@pytest.mark.parametrize("metric", [tf.metrics.mean_iou, tf.metrics.mean_per_class_accuracy])
def test_metric_in_an_untaken_branch_may_have_classes_out_of_range(metric, sess):
    is_taken, classes = tf.placeholder(tf.bool, []), tf.placeholder(tf.int32, [2])
    of_fed = tf.cond(
        is_taken, lambda: tf.reduce_sum(tf.to_float(metric(classes, [0, 1], 2)[1])), lambda: tf.constant(-1.0)
    )
    of_known = tf.cond(
        is_taken, lambda: tf.constant(-1.0), lambda: tf.reduce_sum(tf.to_float(metric([0, 5], [0, 1], 2)[1]))
    )
    sess.run(tf.local_variables_initializer())
    assert sess.run(of_fed, {is_taken: False, classes: [0, 5]}) == -1.0
    assert sess.run(of_known, {is_taken: True}) == -1.0
    assert sess.run(of_fed, {is_taken: True, classes: [0, 1]}) > 0
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[1\] = 5 is not in \[0, 2\)"):
        sess.run(of_fed, {is_taken: True, classes: [0, 5]})
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[1\] = 5 is not in \[0, 2\)"):
        sess.run(of_known, {is_taken: False})


def test_scatter_to_a_row_out_of_bounds_is_dropped(sess):
    row, places = row_of_zeros(), tf.placeholder(tf.int32, [2])
    sess.run(tf.global_variables_initializer())
    for wrong in (-1, 5):
        with pytest.raises(tf.errors.InvalidArgumentError):
            sess.run(tf.scatter_add(row, places, [1.0, 1.0]), {places: [0, wrong]})
    assert sess.run(row).tolist() == [2.0, 0.0, 0.0, 0.0, 0.0]


def training(places):
    """A table that is trained through a lookup."""
    table = tf.get_variable("table", initializer=TABLE)
    loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(table, places, name="lookup")))
    step = tf.train.get_or_create_global_step()
    return tf.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=step), loss


def looking_up(sess, train_op, places, lasts):
    for last in lasts:
        sess.run(train_op, {places: [0, last]})


def test_deferred_error_is_raised_when_the_session_is_saved_or_closed(tmp_path):
    places = tf.placeholder(tf.int32, [2])
    train_op, _ = training(places)
    saver = tf.train.Saver()

    def trained():
        sess = tf.Session()
        sess.run(tf.global_variables_initializer())
        looking_up(sess, train_op, places, [1, 2, 7, 3, 8])
        return sess

    text = r"'lookup' \(made at .*\): ids\[1\] = 7 is not in \[0, 5\), in the run that led to global step 3\."
    with pytest.raises(tf.errors.InvalidArgumentError, match=text), trained():
        pass
    sess = trained()
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        sess.close()
    assert sess.closed
    with trained() as sess:
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            saver.save(sess, str(tmp_path / "model.ckpt"))
        assert not list(tmp_path.iterdir())
        saver.save(sess, str(tmp_path / "model.ckpt"))


@pytest.mark.parametrize("leaving", [KeyError("mine"), tf.errors.OutOfRangeError(None, None, "the end")])
def test_error_of_the_block_replaces_a_deferred_error_except_at_the_end_of_data(leaving):
    places = tf.placeholder(tf.int32, [2])
    train_op, _ = training(places)

    def train():
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            looking_up(sess, train_op, places, [7])
            raise leaving

    is_end = isinstance(leaving, tf.errors.OutOfRangeError)
    with pytest.raises(tf.errors.InvalidArgumentError if is_end else KeyError) as raised:
        train()
    assert "ids[1] = 7" in (str(raised.value) if is_end else raised.value.__notes__[0])


def test_training_loop_gets_a_deferred_error_once_while_it_runs(sess):
    places = tf.placeholder(tf.int32, [2])
    train_op, _ = training(places)
    sess.run(tf.global_variables_initializer())
    with pytest.raises(tf.errors.InvalidArgumentError, match="led to global step 4"):
        looking_up(sess, train_op, places, [1, 1, 1, 7, *[1] * 200])
    assert 4 <= sess.run(tf.train.get_global_step()) < 40
    looking_up(sess, train_op, places, [1] * 40)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids\[1\] = -1"):
        looking_up(sess, train_op, places, [-1] * 40)


def test_error_names_the_right_step_after_the_device_counter_restarts(monkeypatch, sess):
    monkeypatch.setattr("hookline.session.running.latches._REBASE_RUNS", 30)  # For 2**30 runs, which take hours.
    places = tf.placeholder(tf.int32, [2])
    train_op, _ = training(places)
    sess.run(tf.global_variables_initializer())
    looking_up(sess, train_op, places, [1] * 150)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids\[1\] = 7 .* global step 152\."):
        looking_up(sess, train_op, places, [1, 7, 8, *[1] * 40])


class Ends(tf.train.SessionRunHook):
    ended = False

    def end(self, session):
        self.ended = True


@pytest.mark.parametrize("runs", [6, 9, 200])
def test_bad_run_is_never_saved_and_no_end_is_called(tmp_path, runs):
    places, hook = tf.placeholder(tf.int32, [2]), Ends()
    train_op, _ = training(places)

    def train():
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), hooks=[hook], save_checkpoint_steps=4, save_summaries_steps=None
        ) as sess:
            looking_up(sess, train_op, places, [7 if i == 5 else 1 for i in range(runs)])

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids\[1\] = 7 .* global step 6\."):
        train()
    assert os.path.basename(tf.train.latest_checkpoint(tmp_path)) == "model.ckpt-4"
    assert not hook.ended


def test_monitored_run_that_returns_values_raises_itself(tmp_path):
    places = tf.placeholder(tf.int32, [2])
    train_op, loss = training(places)
    with tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_summaries_steps=None) as sess:
        looking_up(sess, [train_op, loss], places, [1, 2, 3])
        with pytest.raises(tf.errors.InvalidArgumentError, match="led to global step 4"):
            sess.run([train_op, loss], {places: [0, 7]})
        # A script that continues has decided so.
        sess.run([train_op, loss], {places: [0, 1]})
    assert os.path.basename(tf.train.latest_checkpoint(tmp_path)) == "model.ckpt-5"


def test_failure_after_a_bad_run_saves_no_last_checkpoint(tmp_path):
    places = tf.placeholder(tf.int32, [2])
    train_op, loss = training(places)

    def train():
        with tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_summaries_steps=None) as sess:
            with pytest.raises(tf.errors.InvalidArgumentError):
                sess.run([train_op, loss], {places: [0, 7]})
            sess.run([train_op, loss], {places: [0, 1]})
            raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        train()
    assert os.path.basename(tf.train.latest_checkpoint(tmp_path)) == "model.ckpt-0"


def test_recreated_session_has_no_error_of_undone_runs(tmp_path, caplog):
    places = tf.placeholder(tf.int32, [2])
    train_op, _ = training(places)
    lost = [tf.errors.AbortedError(None, None, "preempted")]

    class Loses(tf.train.SessionRunHook):
        def before_run(self, run_context):
            if run_context.session.global_step == 3 and lost:
                raise lost.pop()

    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=str(tmp_path), hooks=[Loses()], save_checkpoint_steps=2, save_summaries_steps=None
    ) as sess:
        looking_up(sess, train_op, places, [0, 1])
        sess.raw_session().run(train_op, {places: [0, 7]})
        looking_up(sess, train_op, places, [2, 3])
    assert "Closing the lost session: InvalidArgumentError: " in caplog.text
    assert os.path.basename(tf.train.latest_checkpoint(tmp_path)) == "model.ckpt-4"


def test_restored_model_starts_without_a_pending_error_but_loses_none(tmp_path, sess):
    places = tf.placeholder(tf.int32, [2])
    train_op, _ = training(places)
    saver = tf.train.Saver()
    sess.run(tf.global_variables_initializer())
    path = saver.save(sess, str(tmp_path / "model.ckpt"))
    sess.run(train_op, {places: [0, 7]})
    with pytest.raises(tf.errors.InvalidArgumentError, match="ids"):
        saver.restore(sess, path)
    saver.restore(sess, path)
    sess.run(train_op, {places: [0, 1]})


def test_check_changes_no_bits_adds_no_program_and_needs_its_operation(caplog, graph):
    caplog.set_level(logging.INFO, logger="hookline")
    rng = np.random.default_rng(0)
    ids, labels = tf.placeholder(tf.int32, [64]), tf.placeholder(tf.int32, [64])
    table = tf.get_variable("table", initializer=rng.normal(size=(50, 32)).astype("float32"))
    dense = tf.get_variable("dense", initializer=rng.normal(size=(32, 10)).astype("float32") / 6)
    logits = tf.matmul(tf.tanh(tf.nn.embedding_lookup(table, ids)), dense)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    train_op = tf.train.AdamOptimizer(0.01).minimize(loss)
    batches = [{ids: rng.integers(0, 50, 64), labels: rng.integers(0, 10, 64)} for _ in range(40)]

    def trained():
        caplog.clear()
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            for batch in batches:
                sess.run(train_op, batch)
            programs = [record.message for record in caplog.records if "program" in record.message]
            return sess.run([table, dense]), len(programs)

    checked, programs = trained()
    for operation in graph.get_operations():
        operation.fault = None
    plain, as_many = trained()
    assert all(np.array_equal(a, b) for a, b in zip(checked, plain, strict=True))
    assert programs == as_many


def test_index_that_the_run_does_not_look_up_is_no_error(sess):
    places = tf.placeholder(tf.int32, [2])
    found, other = tf.gather(TABLE, places), tf.reduce_sum(places)
    assert sess.run(other, {places: [3, 4]}) == 7
    assert sess.run(other, {places: [3, 9]}) == 12
    assert sess.run(found * 2, {places: [0, 9], found: TABLE[:2]}).tolist() == (TABLE[:2] * 2).tolist()


def test_random_numbers_do_not_depend_on_index_checks(graph):
    before = graph.version
    tf.gather(TABLE, tf.placeholder(tf.int32, [2]))
    assert graph.version == before + 2
