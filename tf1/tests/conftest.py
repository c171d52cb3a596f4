from __future__ import annotations

import pytest

import hookline_tf1 as tf


@pytest.fixture(autouse=True)
def graph():
    """The default graph of a test, a graph of TensorFlow's kind from the start."""
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def sess(graph):
    """A session over that graph; it is the default one while the test builds the graph."""
    with tf.Session() as session:
        yield session
