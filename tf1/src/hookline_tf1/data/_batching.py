"""The methods of a dataset that batch elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import jax
import numpy as np

from hookline import Tensor
from hookline_tf1.data import _elements
from hookline_tf1.data._mapping import Pass
from hookline_tf1.data._padding import padded_spec, padder


class Batched:
    """The methods of a dataset for batches."""

    element_spec: Any
    _then: Callable[..., Any]

    def batch(self, batch_size: Any, drop_remainder: bool = False) -> Any:
        """Returns batches of elements; the last one may be shorter, or is dropped."""
        return self._batched(batch_size, drop_remainder, lambda run: _elements.stacked)

    def padded_batch(
        self, batch_size: Any, padded_shapes: Any = None, padding_values: Any = None, drop_remainder: bool = False
    ) -> Any:
        """Returns batches of elements, padded to the given shape, or to the largest size in each dimension."""
        spec = padded_spec(self.element_spec, padded_shapes)
        pad = padder(spec, padding_values)
        return self._batched(batch_size, drop_remainder, lambda run: pad, spec)

    def _batched(self, batch_size: Any, drop_remainder: bool, join: Callable[[Pass], Any], spec: Any = None) -> Any:
        fixed = int(np.asarray(batch_size)) if drop_remainder and not isinstance(batch_size, Tensor) else None

        def make(run: Pass, given: Iterator[Any]) -> Iterator[Any]:
            size, joined = run.whole(batch_size), join(run)
            while batch := list(islice(given, size)):
                if len(batch) == size or not drop_remainder:
                    yield joined(batch)

        known = self.element_spec if spec is None else spec
        inputs = _elements.tensors_in(batch_size)
        return self._then(make, _elements.mapped(lambda part: _elements.with_first(part, fixed), known), inputs)

    def unbatch(self) -> Any:
        """Returns the elements of batches."""
        spec = _elements.mapped(lambda part: _elements.without_first(part, "unbatch"), self.element_spec)

        def make(run: Pass, given: Iterator[Any]) -> Iterator[Any]:
            for batch in given:
                for i in range(len(jax.tree.leaves(batch)[0])):
                    yield jax.tree.map(lambda leaf, i=i: leaf[i], batch)

        return self._then(make, spec)
