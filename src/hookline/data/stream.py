"""Streams: the elements of a Python iterator, which the sources of a front end read."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

from hookline.data.batches import Form, owned
from hookline.data.places import Places
from hookline.data.reader import Reader
from hookline.data.sequences import Demand, Read, Sequence
from hookline.graph import spec as specs
from hookline.graph.nodes import Source


class Stream(Sequence):
    """The elements of a Python iterator, for the sources of a front end.

    There is no way back in it, so checkpoints do not hold a position. Several readers share the elements: each gets the
    next one. `Reader.turn_to` has a reader go on with another stream.

    Args:
        elements: Pytrees of arrays and numbers, or text and objects.

    Example:
        >>> import hookline as hl, numpy as np
        >>> from hookline.extend import Source, Stream, specs
        >>> first = Stream(iter(np.arange(3.0)))
        >>> numbers = Source(
        ...     "numbers", lambda node, shared: first.reader(node), specs.declared("float32", ()),
        ...     host_only=False, resumes=False,
        ... )
        >>> with hl.Session() as sess:
        ...     before = sess.run(numbers.output)
        ...     sess.lowlevel.source(numbers).turn_to(Stream(iter([7.0])))
        ...     print(before, sess.run(numbers.output))
        0.0 7.0
    """

    def __init__(self, elements: Iterator[Any]) -> None:
        self._elements, self._lock = elements, threading.Lock()

    def reader(self, node: Source, prefetch: int = 2) -> Reader:
        """Opens the stream for a session, as `open_for` of a `Source` does.

        Args:
            node: The source.
            prefetch: The number of elements that a thread keeps ready; with 0 the run reads.
        """
        example = None if node.output.spec is specs.UNKNOWN else node.output.spec
        return Reader(node, self, Form(node.node_def, example, "keep"), prefetch, Places(node.node_def))

    def read(self, position: dict[str, Any], demand: Demand) -> Iterator[Read]:
        """Yields the elements that nobody has read so far, whatever the position."""
        for number in itertools.count(1):
            with self._lock:
                try:
                    element = next(self._elements)
                except StopIteration:
                    return
            yield Read(owned(element), lambda _, number=number: {"count": number})
