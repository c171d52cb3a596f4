"""MNIST's reader: the contents and order of batches, and the messages for missing files."""

from __future__ import annotations

import gzip
import importlib
import struct

import numpy as np
import pytest
from hookline_tf1.examples.tutorials.mnist import input_data

import hookline_tf1 as tf

TRAIN, TEST = 20, 5


@pytest.fixture
def folder(tmp_path):
    """Four files whose images are filled with their number."""
    for kind, size in (("train", TRAIN), ("t10k", TEST)):
        images = np.repeat(np.arange(size, dtype=np.uint8), 28 * 28)
        write(tmp_path / f"{kind}-images-idx3-ubyte.gz", struct.pack(">4i", 2051, size, 28, 28), images)
        labels = np.arange(size, dtype=np.uint8) % 10
        write(tmp_path / f"{kind}-labels-idx1-ubyte.gz", struct.pack(">2i", 2049, size), labels)
    return tmp_path


def write(path, header, content):
    with gzip.open(path, "wb") as file:
        file.write(header + content.tobytes())


def numbers(images):
    return np.rint(images[:, 0] * 255).astype(int).tolist()


def test_first_images_are_for_validation_with_pixels_from_0_to_1(folder):
    data = input_data.read_data_sets(str(folder), one_hot=True, validation_size=4)

    assert [part.num_examples for part in data] == [16, 4, 5]
    assert numbers(data.validation.images) == [0, 1, 2, 3]
    assert data.train.images.shape == (16, 784)
    assert data.train.images.dtype == np.float32
    assert data.test.images[4, 0] == np.float32(4) * np.float32(1 / 255)
    assert data.test.labels.tolist() == np.eye(10)[:5].tolist()


def test_images_may_keep_their_shape_and_dtype(folder):
    data = input_data.read_data_sets(folder, dtype=tf.uint8, reshape=False, validation_size=0)

    assert data.train.images.shape == (20, 28, 28, 1)
    assert data.train.images.dtype == np.uint8
    assert data.train.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_each_epoch_gives_every_image_once_with_its_label(folder):
    train = input_data.read_data_sets(folder, validation_size=0, seed=1).train
    batches = [train.next_batch(8) for _ in range(5)]

    seen = [number for images, _ in batches for number in numbers(images)]
    assert sorted(seen[:TRAIN]) == sorted(seen[TRAIN:]) == list(range(TRAIN))
    assert seen[:TRAIN] != seen[TRAIN:]
    assert train.epochs_completed == 1
    assert all(
        number % 10 == label
        for images, labels in batches
        for number, label in zip(numbers(images), labels, strict=True)
    )


def test_order_is_tensorflows_for_the_seed_of_the_graph(folder):
    tf.set_random_seed(5)
    train = input_data.read_data_sets(folder, validation_size=0).train

    # The result of TensorFlow 1.15's reader for these files and this seed.
    assert [numbers(train.next_batch(6)[0]) for _ in range(2)] == [[2, 5, 17, 19, 12, 1], [11, 10, 13, 18, 7, 4]]
    assert numbers(train.next_batch(3, shuffle=False)[0]) == [8, 9, 0]
    assert numbers(train.next_batch(9)[0]) == [16, 6, 15, 14, 3, 19, 8, 13, 15]


def test_without_a_seed_the_state_of_numpy_is_used_as_set(folder):
    np.random.seed(3)
    expected = np.random.RandomState(3).permutation(TRAIN)
    train = input_data.read_data_sets(folder, validation_size=0).train

    assert numbers(train.next_batch(TRAIN)[0]) == expected.tolist()


def test_a_missing_file_is_named_and_nothing_is_downloaded(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"requires train-images-idx3-ubyte\.gz .* does not download"):
        input_data.read_data_sets(tmp_path / "MNIST_data")


def test_unreadable_file_gives_the_reason(folder):
    write(folder / "t10k-labels-idx1-ubyte.gz", struct.pack(">2i", 7, 1), np.zeros(1, np.uint8))
    with pytest.raises(ValueError, match="begins with 7 instead of 2049"):
        input_data.read_data_sets(folder)
    with pytest.raises(NotImplementedError, match="fake_data is not available"):
        input_data.read_data_sets(folder, fake_data=True)


def test_validation_set_larger_than_the_data_is_refused(folder):
    with pytest.raises(ValueError, match="validation_size must be from 0 to 20, got 5000"):
        input_data.read_data_sets(folder)


def test_network_of_the_first_tutorial_learns():
    network = importlib.import_module("hookline_tf1.examples.tutorials.mnist.mnist")
    random = np.random.RandomState(0)
    pixels, labels = random.uniform(size=(20, network.IMAGE_PIXELS)), random.randint(10, size=20)
    images, wanted = tf.placeholder(tf.float32, (20, 784)), tf.placeholder(tf.int32, (20,))
    logits = network.inference(images, 16, 8)
    loss = network.loss(logits, wanted)
    train_op, right = network.training(loss, 0.1), network.evaluation(logits, wanted)
    assert [variable.op.name for variable in tf.trainable_variables()] == [
        f"{layer}/{part}" for layer in ("hidden1", "hidden2", "softmax_linear") for part in ("weights", "biases")
    ]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        feed = {images: pixels, wanted: labels}
        losses = [sess.run([loss, train_op], feed)[0] for _ in range(200)]
        assert losses[-1] < losses[0] / 2
        assert sess.run(right, feed) == np.sum(np.argmax(sess.run(logits, feed), 1) == labels)
