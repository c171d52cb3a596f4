"""`tf.data.Iterator`: returns a dataset's elements as tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from collections.abc import Iterator as Elements
from typing import Any, Protocol

import jax

from hookline import Operation, Session, Tensor
from hookline.errors import FailedPreconditionError
from hookline.extend import Constant, SessionCall, Source, Stream, specs
from hookline_tf1._machinery.graphs import get_default_graph
from hookline_tf1._machinery.ignored_arguments import ignored
from hookline_tf1._machinery.nodes import constant, convert_to_tensor
from hookline_tf1._rules.host_strings import OnHost, as_word, mark
from hookline_tf1.data import _elements
from hookline_tf1.data._mapping import Pass

_PREFETCH = 2


class Dataset(Protocol):
    """The protocol of datasets that iterators use."""

    @property
    def element_spec(self) -> Any:
        """The dtypes and partial shapes of the elements."""
        ...

    @property
    def output_types(self) -> Any:
        """The dtypes of an element's arrays."""
        ...

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that the dataset depends on."""
        ...

    def make(self, run: Pass, /) -> Elements[Any]:
        """Returns the elements."""
        ...


class Iterator:
    """Returns the next element of a dataset in each run that needs it.

    Args:
        spec: The dtypes and partial shapes of the elements.
        begin: Returns the elements for sessions that have not initialised the iterator.

    References:
        `tf.data.Iterator`. A thread prefetches elements. The tensors of several calls of `get_next` share the elements,
        in the order of the calls. As there, checkpoints do not hold the position.
    """

    def __init__(self, spec: Any, begin: Callable[[], Elements[Any]]) -> None:
        self.element_spec, self._begin = spec, begin
        self._sources: list[Source] = []
        # The stream for sessions that have not initialised the iterator, and the sources that one of them has opened.
        self._latest: tuple[Stream, set[Source]] | None = None
        self._begun: weakref.WeakKeyDictionary[Session, Stream] = weakref.WeakKeyDictionary()
        self.initializer: Operation | None = None

    @property
    def output_types(self) -> Any:
        """The dtypes of an element's arrays."""
        return _elements.types_of(self.element_spec)

    @property
    def output_shapes(self) -> Any:
        """The shapes of an element's arrays."""
        return _elements.shapes_of(self.element_spec)

    def get_next(self, name: str | None = None) -> Any:
        """Returns tensors of the next element, one element in each run that needs any of them."""
        node, is_mixed = self._source(name or "IteratorGetNext")
        return views(node.output, self.element_spec, is_mixed=is_mixed)

    def string_handle(self, name: str | None = None) -> Tensor:
        """Returns the iterator's handle, a string to feed to the placeholder of `from_string_handle`."""
        node, _ = self._source(name or "IteratorToStringHandle")
        return constant(node.name, name="handle")

    def _source(self, name: str) -> tuple[Source, bool]:
        """Returns a new operation that reads the next element, and whether an element mixes strings and other parts."""
        get_default_graph()
        parts = jax.tree.leaves(self.element_spec, is_leaf=_elements.is_component)
        on_host = [part.dtype in (None, _elements.STRING) for part in parts]
        spec: Any = specs.UNKNOWN
        if all(part.is_array() for part in parts):
            spec = _elements.mapped(lambda part: specs.array_spec(part.dtype, part.shape), self.element_spec)
        node = Source(name, self._open, spec, host_only=all(on_host), resumes=False)
        if len(parts) == 1 and parts[0].dtype not in (None, _elements.STRING):
            node.dtype = parts[0].dtype  # pyright: ignore[reportAttributeAccessIssue] - where the rank is unknown
        self._sources.append(node)
        for session, stream in list(self._begun.items()):
            if not session.closed:
                _turn(session, node, stream)
        return node, any(on_host) and len(parts) > 1

    def make_initializer(self, dataset: Dataset, name: str | None = None) -> Operation:
        """Returns an operation that restarts the iterator at the beginning of a dataset."""
        if jax.tree.structure(self.output_types) != jax.tree.structure(dataset.output_types):
            raise TypeError(
                f"make_initializer requires a dataset of elements like {self.output_types}, got {dataset.output_types}."
            )
        inputs = dataset.inputs

        def initialise(session: Session, *values: Any) -> None:
            given = {tensor: jax.device_get(value) for tensor, value in zip(inputs, values, strict=True)}
            stream = Stream(dataset.make(Pass(given)))
            self._begun[session] = stream
            for source in self._sources:
                _turn(session, source, stream)

        return SessionCall(name or "MakeIterator", initialise, inputs)

    def _open(self, node: Source, shared: bool) -> Any:
        """Opens a session's reader for one of the iterator's operations."""
        if self._latest is None or node in self._latest[1]:
            self._latest = Stream(self._begin()), set()
        stream, read_by = self._latest
        read_by.add(node)
        # Several operations take turns; prefetching would break their order.
        return stream.reader(node, _PREFETCH if len(self._sources) == 1 else 0)

    @staticmethod
    def from_structure(
        output_types: Any, output_shapes: Any = None, shared_name: str | None = None, output_classes: Any = None
    ) -> Iterator:
        """Returns an iterator without a dataset, which `make_initializer` sets."""
        ignored("tf.data.Iterator.from_structure", shared_name=shared_name, output_classes=output_classes)
        return Iterator(_elements.declared(output_types, output_shapes), _uninitialised)

    @staticmethod
    def from_string_handle(
        string_handle: Any, output_types: Any, output_shapes: Any = None, output_classes: Any = None
    ) -> HandledIterator:
        """Returns an iterator that reads the iterator whose `string_handle` a run feeds."""
        ignored("tf.data.Iterator.from_string_handle", output_classes=output_classes)
        return HandledIterator(string_handle, _elements.declared(output_types, output_shapes))


class HandledIterator:
    """An iterator that reads another one, chosen in each run by its handle.

    Args:
        handle: A string tensor.
        spec: The dtypes and partial shapes of the elements.
    """

    def __init__(self, handle: Any, spec: Any) -> None:
        self._handle, self.element_spec = convert_to_tensor(handle), spec

    output_types, output_shapes = Iterator.output_types, Iterator.output_shapes

    def get_next(self, name: str | None = None) -> Any:
        """Returns tensors of the chosen iterator's next element in each run."""

        def read(session: Session, handle: Any) -> Any:
            source: Any = session.graph.get_operation_by_name(as_word(handle))
            reader = session.backend.source(source)
            reader.wait()
            reader.raise_error()
            item = reader.take()
            reader.mark_used(item)
            return item.value

        call = SessionCall(name or "IteratorGetNext", read, [self._handle])
        return views(call.output, self.element_spec, is_mixed=True)


def _turn(session: Session, source: Source, stream: Stream) -> None:
    """Lets an iterator's operation read a stream in a session."""
    reader: Any = session.backend.source(source)
    reader.switch_to(stream)


def make_one_shot_iterator(dataset: Dataset) -> Iterator:
    """Returns an iterator that begins with the first run.

    Raises:
        ValueError: The dataset depends on placeholders.
    """
    inputs, graph = dataset.inputs, get_default_graph()
    fed = [tensor for tensor in inputs if tensor.op.type == "Placeholder"]
    if fed:
        raise ValueError(
            f"make_one_shot_iterator cannot be fed, but the dataset depends on the placeholder {fed[0].name!r}: use "
            f"make_initializable_iterator, and feed it in the run of the initializer."
        )

    def begin() -> Elements[Any]:
        values = {tensor: tensor.op.value for tensor in inputs if isinstance(tensor.op, Constant) and not tensor.path}
        others = [tensor for tensor in inputs if tensor not in values]
        if others:
            with Session(graph=graph) as session:
                values |= dict(zip(others, jax.device_get(session.run(others)), strict=True))
        return iter(dataset.make(Pass(values)))

    return Iterator(dataset.element_spec, begin)


def make_initializable_iterator(dataset: Dataset, shared_name: str | None = None) -> Iterator:
    """Returns an iterator that begins each time its `initializer` is run."""
    ignored("make_initializable_iterator", shared_name=shared_name)
    iterator = Iterator(dataset.element_spec, _uninitialised)
    iterator.initializer = iterator.make_initializer(dataset)
    return iterator


def _uninitialised() -> Elements[Any]:
    raise FailedPreconditionError.from_message(
        "The iterator has not been initialised: run its initializer before get_next."
    )
    yield


def views(tensor: Tensor, spec: Any, *, is_mixed: bool) -> Any:
    """Returns the parts of a tensor in the structure of an element.

    Args:
        tensor: The tensor of an element.
        spec: The dtypes and partial shapes of its parts.
        is_mixed: Whether it mixes strings and other parts, so that it cannot be put on the device in one piece.
    """
    if _elements.is_component(spec):
        if is_mixed:
            known = spec.dtype if spec.dtype is not None else _elements.STRING
            return OnHost(lambda part: part, tensor.op.name, {"part": tensor}, known, spec.shape).output
        return mark(tensor, spec.shape) if spec.dtype == _elements.STRING else tensor
    if isinstance(spec, dict):
        return type(spec)((key, views(tensor[key], part, is_mixed=is_mixed)) for key, part in spec.items())
    if hasattr(spec, "_fields"):
        named = spec._asdict().items()
        return type(spec)(*(views(getattr(tensor, name), part, is_mixed=is_mixed) for name, part in named))
    return tuple(views(tensor[i], part, is_mixed=is_mixed) for i, part in enumerate(spec))
