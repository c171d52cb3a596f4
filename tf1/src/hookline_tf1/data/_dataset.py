"""`tf.data.Dataset`: describes elements that an iterator reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, count, islice
from typing import Any

import jax
import numpy as np

from hookline import Tensor
from hookline_tf1._machinery.graphs import get_default_graph
from hookline_tf1._machinery.ignored_arguments import ignored, unknown
from hookline_tf1._machinery.namespaces import Offers
from hookline_tf1.data import _elements, _iterators
from hookline_tf1.data._batching import Batched
from hookline_tf1.data._elements import Component
from hookline_tf1.data._mapping import Make, Mapped, Pass


class Dataset(Batched, metaclass=Offers):
    """A sequence of elements: arrays, or tuples and dicts of arrays.

    Args:
        make: Returns an iterator of the elements, from the first one on.
        spec: The dtypes and partial shapes of the elements.
        inputs: The tensors that it depends on; their values are read when an iterator is initialised.

    Example:
        >>> import hookline
        >>> pairs = Dataset.range(4).map(lambda x: x * 10).batch(2)
        >>> batch = pairs.make_one_shot_iterator().get_next()
        >>> with hookline.Session() as sess:
        ...     print(sess.run(batch), sess.run(batch))
        [ 0 10] [20 30]

    References:
        `tf.data.Dataset`. Elements are NumPy arrays until an iterator puts them on the device. Without
        a seed, elements are shuffled by the graph's seed, so their order is the same in each process.
    """

    called = "tf.data.Dataset"

    def __init__(self, make: Make, spec: Any, inputs: tuple[Tensor, ...] = ()) -> None:
        self.make, self.element_spec, self.inputs = make, spec, inputs
        self._graph_seed = get_default_graph().seed

    def __getattr__(self, name: str) -> Any:
        return getattr(type(self), name)

    @property
    def output_types(self) -> Any:
        """The dtypes of an element's arrays."""
        return _elements.types_of(self.element_spec)

    @property
    def output_shapes(self) -> Any:
        """The shapes of an element's arrays."""
        return _elements.shapes_of(self.element_spec)

    # Sources of elements ----------------------------------------------------------------------------------------

    @staticmethod
    def from_tensors(tensors: Any) -> Dataset:
        """Returns a dataset of one element."""
        given = _elements.arranged(tensors)
        spec = jax.tree.map(_elements.component_of, given)
        return Dataset(lambda run: iter([run.arrays(given)]), spec, _elements.tensors_in(given))

    @staticmethod
    def from_tensor_slices(tensors: Any) -> Dataset:
        """Returns a dataset of the slices of arrays along their first dimension."""
        given = _elements.arranged(tensors)
        whole = jax.tree.map(_elements.component_of, given)
        spec = _elements.mapped(lambda part: _elements.without_first(part, "from_tensor_slices"), whole)
        lengths = {c.shape[0] for c in jax.tree.leaves(whole, is_leaf=_elements.is_component) if c.shape} - {None}
        if len(lengths) > 1:
            raise ValueError(f"from_tensor_slices requires arrays of one length, got {sorted(lengths)}.")

        def make(run: Pass) -> Iterator[Any]:
            arrays = run.arrays(given)
            size = min((len(array) for array in jax.tree.leaves(arrays)), default=0)
            return (jax.tree.map(lambda array, i=i: array[i], arrays) for i in range(size))

        return Dataset(make, spec, _elements.tensors_in(given))

    @staticmethod
    def from_generator(
        generator: Callable[..., Any], output_types: Any, output_shapes: Any = None, args: tuple[Any, ...] = ()
    ) -> Dataset:
        """Returns a dataset of the elements that a generator yields, cast to the given dtypes."""
        spec = _elements.declared(output_types, output_shapes)

        def make(run: Pass) -> Iterator[Any]:
            for element in generator(*(run.value(args))):
                parts = tuple(element) if isinstance(spec, tuple) and isinstance(element, list) else element
                yield _elements.mapped(_elements.as_declared, spec, parts)

        return Dataset(make, spec, _elements.tensors_in(args))

    @staticmethod
    def range(*args: Any) -> Dataset:
        """Returns a dataset of integers, like `range`."""
        spec = Component(_elements.dtype_of(np.int64), ())
        tensors = _elements.tensors_in(args)
        return Dataset(lambda run: map(np.int64, range(*(run.whole(arg) for arg in args))), spec, tensors)

    @staticmethod
    def zip(datasets: Any) -> Dataset:
        """Zips datasets: an element has one of each dataset, nested like `datasets`. Ends with the shortest."""
        parts = jax.tree.leaves(datasets)
        structure = jax.tree.structure(datasets)
        spec = structure.unflatten([part.element_spec for part in parts])
        return Dataset(
            lambda run: (
                structure.unflatten(items) for items in zip(*(part.make(run) for part in parts), strict=False)
            ),
            spec,
            tuple(tensor for part in parts for tensor in part.inputs),
        )

    @staticmethod
    def list_files(file_pattern: Any, shuffle: bool | None = None, seed: int | None = None) -> Dataset:
        """Returns a dataset of the paths that match a pattern, shuffled unless `shuffle` is false."""
        from hookline_tf1 import gfile

        found = Dataset.from_tensor_slices(np.array(gfile.Glob(file_pattern), dtype=object))
        return found if shuffle is False else found.shuffle(1 << 30, seed)

    # Element by element ------------------------------------------------------------------------------------------

    def map(self, map_func: Callable[..., Any], num_parallel_calls: Any = None) -> Dataset:
        """Maps each element with a function of tensors."""
        ignored("tf.data.Dataset.map", num_parallel_calls=num_parallel_calls)
        function = Mapped(map_func, self.element_spec)
        returned = function.returned()
        spec = jax.tree.map(_elements.component_of, returned)
        return self._then(lambda run, given: (function.run(returned, element) for element in given), spec)

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """Returns a dataset of the elements for which a function of tensors is true."""
        function = Mapped(predicate, self.element_spec)
        returned = function.returned()
        return self._then(lambda run, given: (element for element in given if function.run(returned, element)))

    def flat_map(self, map_func: Callable[..., Dataset]) -> Dataset:
        """Returns the elements of the datasets that a function makes of the elements, one dataset after the other."""
        return self.interleave(map_func, 1)

    def interleave(
        self, map_func: Callable[..., Dataset], cycle_length: int = 1, block_length: int = 1, **further: Any
    ) -> Dataset:
        """Returns the elements of the datasets that a function makes, in turn from `cycle_length` of them."""
        unknown("tf.data.Dataset.interleave", further, "num_parallel_calls")
        function = Mapped(map_func, self.element_spec)
        inner = function.result
        if not isinstance(inner, Dataset):
            raise TypeError(f"flat_map and interleave require a function that returns a Dataset, got {inner!r}.")

        def opened(run: Pass, element: Any) -> Iterator[Any]:
            values = dict(zip(inner.inputs, function.run(list(inner.inputs), element), strict=True))
            return inner.make(run.with_values(values))

        def make(run: Pass, given: Iterator[Any]) -> Iterator[Any]:
            waiting = (opened(run, element) for element in given)
            cycle = list(islice(waiting, cycle_length))
            while cycle:
                left = []
                for items in cycle:
                    block = list(islice(items, block_length))
                    yield from block
                    left.extend([items] if len(block) == block_length else islice(waiting, 1))
                cycle = left

        return self._then(make, inner.element_spec)

    # Number and order of elements -------------------------------------------------------------------------------

    def shuffle(self, buffer_size: Any, seed: Any = None, reshuffle_each_iteration: bool | None = None) -> Dataset:
        """Returns the elements in random order, drawn from a buffer of the next ones."""
        graph_seed, stage = self._graph_seed, object()

        def make(run: Pass, given: Iterator[Any]) -> Iterator[Any]:
            epoch = 0 if reshuffle_each_iteration is False else run.times_begun(stage)
            rng = np.random.default_rng([graph_seed, 0 if seed is None else run.whole(seed), epoch])
            buffer = list(islice(given, run.whole(buffer_size)))
            for element in given:
                index = rng.integers(len(buffer))
                yield buffer[index]
                buffer[index] = element
            yield from (buffer[index] for index in rng.permutation(len(buffer)))

        return self._then(make, inputs=_elements.tensors_in(buffer_size, seed))

    def repeat(self, count: Any = None) -> Dataset:
        """Returns the elements `count` times; forever if it is None or -1."""

        def make(run: Pass) -> Iterator[Any]:
            times = -1 if count is None else run.whole(count)
            while times:
                times -= 1
                empty = True
                for element in self.make(run):
                    empty = False
                    yield element
                if empty:
                    return

        return Dataset(make, self.element_spec, (*self.inputs, *_elements.tensors_in(count)))

    def take(self, count: Any) -> Dataset:
        """Returns the first elements; all for -1."""

        def make(run: Pass, given: Iterator[Any]) -> Iterator[Any]:
            wanted = run.whole(count)
            return given if wanted < 0 else islice(given, wanted)

        return self._then(make, inputs=_elements.tensors_in(count))

    def skip(self, count: Any) -> Dataset:
        """Returns the elements after the first ones; none for -1."""

        def make(run: Pass, given: Iterator[Any]) -> Iterator[Any]:
            unwanted = run.whole(count)
            return iter(()) if unwanted < 0 else islice(given, unwanted, None)

        return self._then(make, inputs=_elements.tensors_in(count))

    def shard(self, num_shards: Any, index: Any) -> Dataset:
        """Returns every `num_shards`-th element, from `index` on."""
        inputs = _elements.tensors_in(num_shards, index)
        return self._then(
            lambda run, given: islice(given, run.whole(index), None, run.whole(num_shards)), inputs=inputs
        )

    def concatenate(self, dataset: Dataset) -> Dataset:
        """Returns the elements, then those of another dataset."""
        spec = _elements.mapped(_elements.common, self.element_spec, dataset.element_spec)
        inputs = (*self.inputs, *dataset.inputs)
        return Dataset(lambda run: chain(self.make(run), dataset.make(run)), spec, inputs)

    def enumerate(self, start: int = 0) -> Dataset:
        """Returns pairs of index and element."""
        spec = (Component(_elements.dtype_of(np.int64), ()), self.element_spec)
        return self._then(lambda run, given: zip(map(np.int64, count(start)), given, strict=False), spec)

    def cache(self, filename: Any = "") -> Dataset:
        """Returns the elements, computed once and kept in memory; never in a file."""
        ignored("tf.data.Dataset.cache", filename=filename)
        kept: dict[str, list[Any]] = {}

        def make(run: Pass) -> Iterator[Any]:
            if "all" in kept:
                yield from kept["all"]
                return
            seen = []
            for element in self.make(run):
                seen.append(element)
                yield element
            kept["all"] = seen

        return Dataset(make, self.element_spec, self.inputs)

    def prefetch(self, buffer_size: Any) -> Dataset:
        """Returns the same elements: iterators always prefetch, a fixed number of elements."""
        ignored("tf.data.Dataset.prefetch", buffer_size=buffer_size)
        return self

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """Applies a transformation to the dataset."""
        return transformation_func(self)

    def with_options(self, options: Any) -> Dataset:
        """Returns the same elements."""
        ignored("tf.data.Dataset.with_options", options=options)
        return self

    # Iterators --------------------------------------------------------------------------------------------------

    def make_one_shot_iterator(self) -> _iterators.Iterator:
        """Returns an iterator that begins with the first run."""
        return _iterators.make_one_shot_iterator(self)

    def make_initializable_iterator(self, shared_name: str | None = None) -> _iterators.Iterator:
        """Returns an iterator that begins each time its `initializer` is run."""
        return _iterators.make_initializable_iterator(self, shared_name)

    def _then(
        self,
        make: Callable[[Pass, Iterator[Any]], Iterator[Any]],
        spec: Any = None,
        inputs: tuple[Tensor, ...] = (),
    ) -> Dataset:
        """Returns a dataset that reads this one."""
        known = self.element_spec if spec is None else spec
        return Dataset(lambda run: make(run, iter(self.make(run))), known, (*self.inputs, *inputs))
