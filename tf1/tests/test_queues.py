"""Input producers, readers and batches: TF 1.x's queues."""

from __future__ import annotations

import numpy as np
import pytest

import hookline_tf1 as tf


@pytest.fixture(autouse=True)
def graph():
    """None, for a script whose graph is the default one may reset it."""


@pytest.fixture
def folder(tmp_path):
    """Files of lines, of records of three bytes, and of TFRecords."""
    (tmp_path / "lines.txt").write_bytes(b"one\r\ntwo\n\nfour")
    (tmp_path / "bytes.bin").write_bytes(bytes(range(12)))
    with tf.python_io.TFRecordWriter(str(tmp_path / "records")) as writer:
        writer.write(b"xx")
        writer.write(b"yy\0")
    return tmp_path


def queue_of(path, num_epochs=1):
    return tf.train.string_input_producer([str(path)], num_epochs, shuffle=False)


def all_of(fetches):
    """Returns the results of a session, run by run, until the data have ended."""
    found = []
    with tf.Session() as sess:
        sess.run(tf.local_variables_initializer())
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess, coord)
        try:
            while not coord.should_stop():
                found.append(sess.run(fetches))
        except tf.errors.OutOfRangeError:
            coord.request_stop()
        coord.join(threads)
    return found


# The keys and records are those of TensorFlow 1.15 for the same files.
READERS = {
    "lines": (
        tf.TextLineReader,
        {},
        "lines.txt",
        [(":1", b"one"), (":2", b"two"), (":3", b""), (":4", b"four")],
    ),
    "header": (tf.TextLineReader, {"skip_header_lines": 2}, "lines.txt", [(":3", b""), (":4", b"four")]),
    "fixed": (
        tf.FixedLengthRecordReader,
        {"record_bytes": 3, "header_bytes": 2, "footer_bytes": 1},
        "bytes.bin",
        [(":0", b"\2\3\4"), (":1", b"\5\6\7"), (":2", b"\x08\x09\x0a")],
    ),
    "records": (tf.TFRecordReader, {}, "records", [(":0", b"xx"), (":18", b"yy\0")]),
    "whole": (tf.WholeFileReader, {}, "bytes.bin", [("", bytes(range(12)))]),
}


@pytest.mark.parametrize("name", READERS)
def test_reader_gives_the_records_of_each_file_with_their_keys(folder, name):
    kind, how, file, expected = READERS[name]
    found = all_of(kind(**how).read(queue_of(folder / file, num_epochs=2)))

    path = str(folder / file).encode()
    assert found == [(path + end.encode(), record) for end, record in expected] * 2


def test_readers_of_one_kind_share_a_queue(folder):
    queue = queue_of(folder / "lines.txt")
    (_, one), (_, other) = (tf.TextLineReader().read(queue) for _ in range(2))

    assert all_of([one, other]) == [[b"one", b"two"], [b"", b"four"]]


def test_reader_requires_a_producers_queue(folder):
    with pytest.raises(TypeError, match=r"TextLineReader\.read requires what tf\.train\.string_input_producer"):
        tf.TextLineReader().read(str(folder / "lines.txt"))


def test_records_become_batches_of_images_and_labels(folder):
    _, record = tf.FixedLengthRecordReader(3).read(queue_of(folder / "bytes.bin"))
    numbers = tf.decode_raw(record, tf.uint8)
    label = tf.cast(tf.strided_slice(numbers, [0], [1]), tf.int32)
    image = tf.cast(tf.reshape(tf.strided_slice(numbers, [1], [3]), [2, 1]), tf.float32)
    label.set_shape([1])
    images, labels = tf.train.batch([image, label], batch_size=3)

    assert images.get_shape().as_list() == [3, 2, 1]
    assert labels.shape.as_list() == [3, 1]
    ((first, numbers),) = all_of([images, labels])
    assert first[:, :, 0].tolist() == [[1, 2], [4, 5], [7, 8]]
    assert numbers.ravel().tolist() == [0, 3, 6]


def test_last_batch_is_dropped_unless_a_smaller_one_is_allowed():
    def batches(**how):
        (number,) = tf.train.slice_input_producer([np.arange(5)], num_epochs=1, shuffle=False)
        return [batch.tolist() for batch in all_of(tf.train.batch([number], 2, **how))]

    assert batches() == [[0, 1], [2, 3]]
    assert batches(allow_smaller_final_batch=True) == [[0, 1], [2, 3], [4]]


def test_batches_have_the_structure_of_their_tensors():
    number = tf.train.range_input_producer(8, num_epochs=1, shuffle=False).dequeue()
    (found,) = all_of(tf.train.batch({"x": number, "y": number * 2}, 8))

    assert found["x"].tolist() == list(range(8))
    assert found["y"].tolist() == list(range(0, 16, 2))


def test_run_may_give_several_examples_of_a_batch():
    (rows,) = tf.train.slice_input_producer([np.arange(6).reshape(2, 3)], num_epochs=1, shuffle=False)

    assert [batch.tolist() for batch in all_of(tf.train.batch([rows], 2, enqueue_many=True))] == [
        [0, 1],
        [2, 3],
        [4, 5],
    ]


def test_examples_of_several_lengths_are_padded(folder):
    _, line = tf.TextLineReader().read(queue_of(folder / "lines.txt"))
    (found,) = all_of(tf.train.batch([tf.decode_raw(line, tf.uint8)], 4, dynamic_pad=True))

    assert [row.tobytes() for row in found] == [b"one\0", b"two\0", b"\0\0\0\0", b"four"]


def test_shuffled_batch_draws_each_example_once_per_epoch_in_another_order():
    number = tf.train.range_input_producer(40, num_epochs=2, shuffle=False).dequeue()
    found = all_of(tf.train.shuffle_batch([number], 10, capacity=40, min_after_dequeue=20))

    numbers = np.concatenate(found).tolist()
    assert sorted(numbers) == sorted([*range(40)] * 2)
    assert numbers[:40] != list(range(40))


def test_producer_shuffles_each_epoch_by_the_seed_of_the_graph():
    def order():
        tf.reset_default_graph()
        tf.set_random_seed(3)
        queue = tf.train.string_input_producer([f"file {n}" for n in range(12)], num_epochs=2)
        return [name for name, _ in all_of(tf.IdentityReader().read(queue))]

    found = order()
    assert found == order()
    assert found[:12] != found[12:]
    assert sorted(found[:12]) == sorted(found[12:])


def test_joined_lists_alternate():
    lists = [[tf.train.range_input_producer(n, num_epochs=1, shuffle=False).dequeue() + 10 * n] for n in (3, 1)]
    found = all_of(tf.train.batch_join(lists, 1))

    assert [int(batch[0]) for batch in found] == [30, 10, 31, 32]


def test_random_operations_before_a_batch_draw_for_each_example():
    number = tf.train.range_input_producer(50, num_epochs=1, shuffle=False).dequeue()
    (found,) = all_of(tf.train.batch([tf.random_uniform([]) + tf.cast(number, tf.float32)], 50))

    assert len(set((found - np.arange(50)).round(3))) > 40


def test_no_files_are_an_error():
    with pytest.raises(ValueError, match="non-null input tensor"):
        tf.train.string_input_producer([])
