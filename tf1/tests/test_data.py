"""Datasets and iterators, as TF 1.x scripts use them."""

from __future__ import annotations

import numpy as np
import pytest

import hookline as hl
import hookline.numpy
import hookline_tf1 as tf
from hookline import errors
from hookline_tf1 import data

Dataset = data.Dataset


def plain(value):
    return value.tolist() if hasattr(value, "tolist") else value


def read(dataset, limit=100):
    """Returns the elements of a dataset, as lists and numbers."""
    element = dataset.make_one_shot_iterator().get_next()
    found = []
    with hl.Session() as sess:
        try:
            while len(found) < limit:
                value = sess.run(element)
                if isinstance(value, tuple):
                    found.append(tuple(map(plain, value)))
                elif isinstance(value, dict):
                    found.append({key: plain(part) for key, part in value.items()})
                else:
                    found.append(plain(value))
        except errors.OutOfRangeError:
            pass
    return found


def test_slices_of_arrays_are_batched():
    pairs = Dataset.from_tensor_slices((np.arange(5.0), np.arange(5)))

    assert pairs.output_types == (np.float32, np.int32)
    assert pairs.output_shapes == ((), ())
    assert pairs.batch(2).output_shapes == ((None,), (None,))
    assert pairs.batch(2, drop_remainder=True).output_shapes == ((2,), (2,))
    assert read(pairs.batch(2)) == [([0.0, 1.0], [0, 1]), ([2.0, 3.0], [2, 3]), ([4.0], [4])]
    assert len(read(pairs.batch(2, drop_remainder=True))) == 2


def test_dict_is_an_element():
    features = Dataset.from_tensor_slices(({"x": [[1.0], [2.0]], "y": [3, 4]}, [5, 6]))
    element = features.make_one_shot_iterator().get_next()

    assert element[0]["x"].shape == (1,)
    with hl.Session() as sess:
        (found, label) = sess.run(element)
    assert plain(found["x"]) == [1.0]
    assert (plain(found["y"]), plain(label)) == (3, 5)


def test_map_filter_and_similar_methods_work():
    numbers = Dataset.range(10)

    assert read(numbers.map(lambda x: x * 2).filter(lambda x: hl.numpy.equal(x % 3, 0))) == [0, 6, 12, 18]
    assert read(numbers.skip(2).take(3)) == [2, 3, 4]
    assert read(numbers.shard(3, 1)) == [1, 4, 7]
    assert read(numbers.take(2).repeat(2)) == [0, 1, 0, 1]
    assert read(numbers.take(2).concatenate(Dataset.range(5, 7))) == [0, 1, 5, 6]
    assert read(Dataset.zip((numbers.take(2), numbers.map(lambda x: -x)))) == [(0, 0), (1, -1)]
    assert read(numbers.take(2).enumerate()) == [(0, 0), (1, 1)]
    assert read(numbers.take(2).cache().repeat(2)) == [0, 1, 0, 1]
    assert read(numbers.batch(5).unbatch()) == list(range(10))
    assert read(numbers.prefetch(1).apply(data.experimental.map_and_batch(lambda x: x + 1, 5))) == [
        [1, 2, 3, 4, 5], [6, 7, 8, 9, 10],
    ]  # fmt: skip


def test_map_unpacks_a_tuple_and_joins_a_list():
    pairs = Dataset.from_tensor_slices(([1.0, 2.0], [10.0, 20.0]))

    assert read(pairs.map(lambda a, b: (a + b, {"b": b, "one": 1})).map(lambda total, rest: total)) == [11.0, 22.0]
    assert read(pairs.map(lambda a, b: [a, b])) == [(1.0, 10.0), (2.0, 20.0)]
    assert read(pairs.map(lambda a, b: ([a, b], a))) == [([1.0, 10.0], 1.0), ([2.0, 20.0], 2.0)]


def test_datasets_of_datasets_are_flattened_and_interleaved():
    ranges = Dataset.range(1, 4)

    assert read(ranges.flat_map(lambda n: Dataset.range(n))) == [0, 0, 1, 0, 1, 2]
    assert read(ranges.flat_map(lambda n: Dataset.from_tensors(n * 2).repeat(2))) == [2, 2, 4, 4, 6, 6]
    interleaved = ranges.interleave(lambda n: Dataset.from_tensors(n).repeat(3), cycle_length=2, block_length=1)
    assert read(interleaved) == [1, 2, 1, 2, 1, 2, 3, 3, 3]


def test_shuffle_differs_by_epoch_and_is_the_same_in_each_job():
    shuffled = Dataset.range(20).shuffle(5, seed=3).repeat(2)
    once = read(shuffled)

    assert sorted(once[:20]) == sorted(once[20:]) == list(range(20))
    assert once[:20] != once[20:]
    assert once[:20] != list(range(20))
    assert read(Dataset.range(20).shuffle(5, seed=3).repeat(2)) == once
    kept = read(Dataset.range(20).shuffle(50, seed=3, reshuffle_each_iteration=False).repeat(2))
    assert kept[:20] == kept[20:]


def test_generator_has_declared_dtypes():
    def generate(stop):
        for number in range(stop):
            yield [number] * (number + 1), number

    lists = Dataset.from_generator(generate, (np.float32, np.int64), ([None], []), args=(3,))

    assert read(lists) == [([0.0], 0), ([1.0, 1.0], 1), ([2.0, 2.0, 2.0], 2)]
    padded = lists.padded_batch(2, ([None], []), padding_values=(-1.0, 0))
    assert read(padded) == [([[0.0, -1.0], [1.0, 1.0]], [0, 1]), ([[2.0, 2.0, 2.0]], [2])]
    assert read(lists.padded_batch(3, ([4], [])))[0][0][0] == [0.0] * 4
    with pytest.raises(ValueError, match="declared"):
        read(Dataset.from_generator(lambda: iter([[1.0]]), np.float32, [2]))


def test_lines_and_records_of_files_are_read(tmp_path):
    from hookline_tf1 import python_io

    text, records, fixed = tmp_path / "a.txt", tmp_path / "a.tfrecord", tmp_path / "a.bin"
    text.write_bytes(b"one\r\ntwo\n")
    fixed.write_bytes(b"HaabbF")
    with python_io.TFRecordWriter(records) as writer:
        writer.write(b"first")
        writer.write(b"second")

    assert read(data.TextLineDataset(str(text))) == [b"one", b"two"]
    assert read(data.TextLineDataset([str(text), str(text)]).skip(1).batch(2)) == [[b"two", b"one"], [b"two"]]
    assert read(Dataset.list_files(f"{tmp_path}/*.txt").flat_map(data.TextLineDataset)) == [b"one", b"two"]
    assert read(data.TFRecordDataset(str(records))) == [b"first", b"second"]
    assert list(python_io.tf_record_iterator(records)) == [b"first", b"second"]
    assert read(data.FixedLengthRecordDataset(str(fixed), 2, 1, 1)) == [b"aa", b"bb"]
    records.write_bytes(records.read_bytes()[:-1])
    with pytest.raises(errors.DataLossError, match="damaged"):
        read(data.TFRecordDataset(str(records)))
    with pytest.raises(errors.NotFoundError, match="none"):
        read(data.TextLineDataset(f"{tmp_path}/none"))


def test_initializable_iterator_is_fed_and_restarts():
    values = hl.placeholder("float32", [None])
    size = hl.placeholder("int32", [])
    iterator = Dataset.from_tensor_slices(values).batch(size).make_initializable_iterator()
    total = hl.op(lambda x: x.sum())(iterator.get_next())
    with hl.Session() as sess:
        with pytest.raises(errors.FailedPreconditionError, match="initializer"):
            sess.run(total)
        for _ in range(2):
            assert sess.run(iterator.initializer, {values: [1.0, 2.0, 4.0], size: 2}) is None
            assert [float(sess.run(total)) for _ in range(2)] == [3.0, 4.0]
            with pytest.raises(errors.OutOfRangeError):
                sess.run(total)
        sess.run(iterator.initializer, {values: [8.0], size: 1})
        assert float(sess.run(total)) == 8.0


def test_iterator_may_be_initialised_before_its_elements_are_read():
    values = hl.placeholder("float32", [None])
    iterator = Dataset.from_tensor_slices(values).make_initializable_iterator()
    with hl.Session() as one, hl.Session() as other, hl.Session() as third:
        one.run(iterator.initializer, {values: [1.0, 2.0, 3.0]})
        other.run(iterator.initializer, {values: [7.0, 8.0]})
        element = iterator.get_next()

        assert [float(one.run(element)), float(other.run(element)), float(one.run(element))] == [1.0, 7.0, 2.0]
        with pytest.raises(errors.FailedPreconditionError, match="initializer"):
            third.run(element)
        one.run(iterator.initializer, {values: [5.0]})
        assert float(one.run(element)) == 5.0


def test_one_iterator_serves_training_and_evaluation():
    training, evaluation = Dataset.range(3).repeat(), Dataset.range(100, 102)
    iterator = data.Iterator.from_structure(training.output_types, training.output_shapes)
    element = iterator.get_next()
    train_init, evaluate_init = iterator.make_initializer(training), iterator.make_initializer(evaluation)
    with hl.Session() as one, hl.Session() as other:
        one.run(train_init)
        other.run(evaluate_init)
        assert [int(one.run(element)) for _ in range(4)] == [0, 1, 2, 0]
        assert int(other.run(element)) == 100
        one.run(evaluate_init)
        assert int(one.run(element)) == 100
        one.run(train_init)
        assert int(one.run(element)) == 0
    with pytest.raises(TypeError, match="elements like"):
        iterator.make_initializer(Dataset.zip((training, training)))


def test_towers_get_elements_in_turn():
    iterator = Dataset.range(6).make_one_shot_iterator()
    first, second = iterator.get_next(), iterator.get_next()
    with hl.Session() as sess:
        assert [tuple(map(int, sess.run((first, second)))) for _ in range(2)] == [(0, 1), (2, 3)]
        assert int(sess.run(second)) == 4


def test_one_shot_iterator_may_read_tensors():
    assert read(Dataset.from_tensor_slices(hl.constant([1.0, 2.0]) * 2)) == [2.0, 4.0]
    with pytest.raises(ValueError, match="make_initializable_iterator"):
        Dataset.from_tensor_slices(hl.placeholder("float32", [None])).make_one_shot_iterator()


def test_end_of_the_data_ends_a_monitored_session():
    step = hl.train.get_or_create_global_step()
    element = Dataset.range(5).make_one_shot_iterator().get_next()
    train = hl.group(step.assign_add(1), element)
    runs = []
    with hl.train.MonitoredTrainingSession() as sess:
        while not sess.should_stop():
            sess.run(train)
            runs.append(len(runs))
    assert runs == list(range(5))


def test_random_functions_draw_a_new_value_for_each_element():
    import jax

    noisy = Dataset.range(3).map(lambda x: hl.op(jax.random.uniform)(hl.random_key()))
    found = read(noisy)

    assert len(set(found)) == 3


def test_lines_are_parsed_to_columns_and_text(tmp_path, sess):
    (tmp_path / "lines").write_text("x,n,label\n1.5,2,a\n3.5,4,b\n5,6,c\n")

    def parse(line):
        x, n, label = tf.decode_csv(line, [[0.0], [0], [""]])
        return {"x": x, "n": n}, label

    rows = data.TextLineDataset(str(tmp_path / "lines")).skip(1).map(parse)
    assert rows.output_types == ({"x": tf.float32, "n": tf.int32}, tf.string)
    assert rows.output_shapes == ({"x": [], "n": []}, [])

    columns, label = rows.batch(2).make_one_shot_iterator().get_next()
    assert (label.dtype, label.shape.as_list(), columns["x"].shape.as_list()) == (tf.string, [None], [None])
    on_device = tf.reduce_sum(columns["x"] * 2.0) + tf.cast(tf.equal(label, "b"), tf.float32)
    total, names = sess.run([on_device, label])
    assert plain(total) == [10.0, 11.0]
    assert plain(names) == [b"a", b"b"]


def test_words_of_lines_are_padded_to_one_length(tmp_path):
    (tmp_path / "words").write_text("a b\n# no\nc\n")
    words = (
        data.TextLineDataset(str(tmp_path / "words"))
        .filter(lambda line: tf.not_equal(tf.substr(line, 0, 1), "#"))
        .map(lambda line: (line, tf.string_split([line]).values))
    )

    assert words.output_shapes == ([], [None])
    assert read(words.padded_batch(2, ([], [None]))) == [([b"a b", b"c"], [[b"a", b"b"], [b"c", b""]])]


def test_handle_chooses_the_iterator(sess):
    training, held_out = Dataset.range(3).repeat(), Dataset.range(10, 12)
    handle = tf.placeholder(tf.string, [])
    doubled = data.Iterator.from_string_handle(handle, training.output_types, training.output_shapes).get_next() * 2
    first, second = training.make_one_shot_iterator(), held_out.make_initializable_iterator()

    assert doubled.shape.as_list() == []
    one, other = sess.run([first.string_handle(), second.string_handle()])
    assert isinstance(one, bytes)
    with pytest.raises(errors.FailedPreconditionError, match="run its initializer"):
        sess.run(doubled, {handle: other})
    sess.run(second.initializer)
    assert [int(sess.run(doubled, {handle: which})) for which in (one, other, one, other)] == [0, 20, 2, 22]
    with pytest.raises(errors.OutOfRangeError):
        sess.run(doubled, {handle: other})
    sess.run(second.initializer)
    assert [int(sess.run(doubled, {handle: which})) for which in (other, one)] == [20, 4]


def test_padded_batches_without_the_remainder_have_a_fixed_length_and_open_widths(sess):
    lengths = tf.data.Dataset.range(1, 6).map(lambda n: tf.fill([tf.shape(tf.zeros([2]))[0]], n))
    padded = lengths.padded_batch(2, [None], drop_remainder=True)
    batch = padded.make_one_shot_iterator().get_next()

    assert batch.get_shape().as_list() == [2, None]
    assert [sess.run(batch).tolist() for _ in range(2)] == [[[1, 1], [2, 2]], [[3, 3], [4, 4]]]


def test_list_of_columns_becomes_components():
    lines = tf.data.Dataset.from_tensor_slices(["1,2.5,a", "2,3.5,b"])

    rows = lines.map(lambda line: tf.decode_csv(line, [[0], [0.0], [""]])).map(lambda n, x, text: (n, x + 1, text))

    assert read(rows) == [(1, 3.5, b"a"), (2, 4.5, b"b")]
    together = lines.apply(tf.data.experimental.map_and_batch(lambda line: tf.decode_csv(line, [[0], [0.0], [""]]), 2))
    assert [len(row) for row in read(together)] == [3]
