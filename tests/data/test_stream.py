"""Streams: elements that sources share, and that a reader leaves for others."""

from __future__ import annotations

import numpy as np
import pytest

import hookline as hl
from hookline import errors
from hookline.extend import Source, Stream, specs


def source(stream, prefetch=0, spec=specs.UNKNOWN, host_only=False):
    return Source("s", lambda node, shared: stream.reader(node, prefetch), spec, host_only=host_only, resumes=False)


def test_each_reader_gets_the_next_element():
    stream = Stream(iter(range(4)))
    one, other = source(stream), source(stream)
    with hl.Session() as sess:
        assert [int(sess.run(node.output)) for node in (one, other, other, one)] == [0, 1, 2, 3]
        with pytest.raises(errors.OutOfRangeError, match=r"the data have ended after 2 batches"):
            sess.run(one.output)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_reader_continues_with_another_stream(prefetch):
    node = source(Stream(iter([1.0])), prefetch)
    with hl.Session() as sess:
        assert float(sess.run(node.output)) == 1.0
        with pytest.raises(errors.OutOfRangeError):
            sess.run(node.output)
        for _ in range(2):
            sess.backend.source(node).switch_to(Stream(iter([7.0, 8.0])))
            assert [float(sess.run(node.output)) for _ in range(2)] == [7.0, 8.0]


def test_an_iterator_may_fill_the_same_array_again():
    array = np.zeros(2, np.float32)

    def filled():
        for number in range(3):
            array[:] = number
            yield array

    node = source(Stream(filled()), 2, specs.array_spec("float32", (2,)))
    with hl.Session() as sess:
        assert [sess.run(node.output).tolist() for _ in range(3)] == [[0, 0], [1, 1], [2, 2]]


def test_element_that_does_not_fit_the_spec_is_an_error():
    node = source(Stream(iter([[1.0, 2.0]])), 0, specs.array_spec("float32", ()))
    with hl.Session() as sess, pytest.raises(errors.InvalidArgumentError, match="a batch has the structure"):
        sess.run(node.output)
