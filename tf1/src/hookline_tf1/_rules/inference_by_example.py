"""Infers shapes from example sizes, where inference with symbols fails.

JAX infers shapes with a symbol for each open dimension. That fails if a function needs a number, or if an open
dimension must equal a known one. TensorFlow would infer "unknown", or the known one. So the shape is inferred again
with the known size of the same dimension of another argument; or else with two sizes, and the dimensions that differ
are open.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax

from hookline.extend import specs

# Divisible by most small numbers.
_EXAMPLES = (5040, 2520)

_SIZES: ContextVar[dict[str, int] | None] = ContextVar("sizes of open dimensions", default=None)

_ARITHMETIC = {"floordiv": operator.floordiv, "mod": operator.mod, "max": max, "min": min, "__builtins__": {}}


def symbols(value: Any) -> set[str]:
    """Returns the names of the symbols in specs, in dimensions and in arrays of dimensions."""
    found: set[str] = set()
    for leaf in jax.tree.leaves(value):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            found |= symbols(list(leaf.shape))
        elif getattr(getattr(leaf, "dtype", None), "kind", "") == "O":
            found |= symbols(leaf.ravel().tolist())
        elif hasattr(leaf, "get_vars"):
            found |= {str(name) for name in leaf.get_vars()}
    return found


def sized(spec: Any, index: int | None = None) -> Any:
    """Fills in the example sizes of a spec's open dimensions inside `by_examples`; outside, returns the spec.

    Args:
        spec: The spec.
        index: The index of the spec in `given` of `by_examples`.
    """
    values = _SIZES.get()
    if values is None or spec is specs.UNKNOWN:
        return spec

    def filled(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        dims = [values.get(f"{index}:{axis}", dim) for axis, dim in enumerate(leaf.shape)]
        return jax.ShapeDtypeStruct(tuple(_size(dim, values) for dim in dims), leaf.dtype)

    return jax.tree.map(filled, spec)


def _size(dim: Any, values: dict[str, int]) -> int:
    """Evaluates a dimension for sizes of its symbols; the text of a symbol is a Python expression."""
    return dim if isinstance(dim, int) else max(0, int(eval(str(dim), _ARITHMETIC | values)))


@contextlib.contextmanager
def _as(values: dict[str, int]) -> Iterator[None]:
    token = _SIZES.set(values)
    try:
        yield
    finally:
        _SIZES.reset(token)


def by_examples(given: Sequence[Any], names: Sequence[str], infer: Callable[[], Any], *, apart: bool = False) -> Any:
    """Infers a spec from example sizes of the open dimensions.

    Args:
        given: Specs; some may have open dimensions.
        names: The symbols of all open dimensions.
        infer: Infers a spec from the specs that `sized` returns.
        apart: Whether each open dimension may have its own size, because the first dimensions of all placeholders
            share one symbol.

    Raises:
        Exception: The error of `infer`.
    """
    beside = [{name: size} for name in names for size in _known_beside(given, name)]
    failed: Exception | None = None
    for fixed in [{}, *beside, *(_fixed(given) if apart else ())]:
        found = []
        try:
            for example in _EXAMPLES:
                sizes = {name: example if size is None else size for name, size in fixed.items()}
                with _as(dict.fromkeys(names, example) | sizes | {"example": example}):
                    found.append(infer())
        except Exception as error:
            failed = error
            continue
        return jax.tree.map(_common, *found)
    raise failed or ValueError("There is no open dimension.")


@contextlib.contextmanager
def example(names: Sequence[str]) -> Iterator[None]:
    """Gives all open dimensions the size of the first example, inside the block."""
    with _as(dict.fromkeys(names, _EXAMPLES[0]) | {"example": _EXAMPLES[0]}):
        yield


def in_examples(names: Sequence[str], find: Callable[[], Any]) -> list[Any]:
    """Returns the result for each example."""
    found = []
    for size in _EXAMPLES:
        with _as(dict.fromkeys(names, size)):
            found.append(find())
    return found


def is_example() -> bool:
    """Whether open dimensions have example sizes, which a run need not have."""
    return _SIZES.get() is not None


def is_first() -> bool:
    """Whether this is the first example."""
    return (_SIZES.get() or {}).get("example") == _EXAMPLES[0]


def where_alike(one: Any, other: Any) -> Any:
    """Opens the dimensions of a spec whose sizes differ in another spec."""
    pairs = list(zip(one.shape, other.shape, strict=True))
    if all(not isinstance(a, int) or a == b for a, b in pairs):
        return one
    return specs.array_spec(one.dtype, [a if isinstance(a, int) and a == b else None for a, b in pairs])


# The most combinations of sizes to try for an operation, which mostly has one or two open dimensions.
_TRIES = 130


def _open(given: Sequence[Any]) -> tuple[list[str], list[int]]:
    """Returns the keys (spec and axis) of all open dimensions, and the sizes to try beside the examples."""
    shapes = [getattr(spec, "shape", ()) for spec in given]
    known = {dim for shape in shapes for dim in shape if isinstance(dim, int)}
    dims = [
        f"{index}:{axis}"
        for index, shape in enumerate(shapes)
        for axis, dim in enumerate(shape)
        if not isinstance(dim, int)
    ]
    return dims, [*sorted(known - {1}, reverse=True), 1]


def _fixed(given: Sequence[Any]) -> Iterator[dict[str, int | None]]:
    """Yields sizes to try for some of the open dimensions: known sizes of other dimensions, and 1.

    The first item fixes no size; then come combinations that fix few dimensions, then more.
    """
    dims, sizes = _open(given)
    chosen: Iterator[dict[str, int | None]] = (
        dict(zip(some, found, strict=True))
        for count in range(1, len(dims) + 1)
        for some in itertools.combinations(dims, count)
        for found in itertools.product(sizes, repeat=count)
    )
    # Dimensions without a size get the same example, because one may be computed from another.
    yield dict.fromkeys(dims)
    yield from itertools.islice(chosen, _TRIES)


def are_all_tried(given: Sequence[Any]) -> bool:
    """Whether `by_examples` with `apart` tries all combinations of sizes."""
    dims, sizes = _open(given)
    return (len(sizes) + 1) ** len(dims) - 1 <= _TRIES


def shown(specs_: Sequence[Any]) -> str:
    """Formats shapes like TensorFlow's messages: `[?,3], [4]`."""
    shapes = [specs.open_shape(spec) for spec in specs_]
    return ", ".join(
        "<unknown>" if shape is None else f"[{','.join('?' if dim is None else str(dim) for dim in shape)}]"
        for shape in shapes
    )


_ALIKE = ("Conv", "conv", "concat", "stack", "depthwise", "separable", "logistic", "softmax", "Sparse", "value")


def clash(kind: str, given: Sequence[Any], error: Exception) -> str:
    """Describes the known dimensions of two arrays that differ; otherwise repeats the error."""
    shapes = [specs.open_shape(spec) for spec in given]
    if len(shapes) == 2 and None not in shapes and not kind.startswith(_ALIKE):
        one, other = (list(shape or ()) for shape in shapes)
        if kind == "MatMul" and len(one) > 1 and len(other) > 1:
            one, other = one[-1:], other[-2:-1]
        for a, b in zip(reversed(one), reversed(other), strict=False):
            if None not in (a, b) and a != b and (kind == "MatMul" or 1 not in (a, b)):
                return f"Dimensions must be equal, but are {a} and {b}"
    text = str(error).partition("\n")[0].rstrip(".")
    for example in _EXAMPLES:
        text = text.replace(str(example), "?")
    return text


def _known_beside(given: Sequence[Any], name: str) -> list[int]:
    """Returns the known sizes, in specs of the same rank, of the dimensions that are just this symbol elsewhere."""
    leaves = [leaf for leaf in jax.tree.leaves(given) if hasattr(leaf, "shape")]
    axes = {(len(leaf.shape), i) for leaf in leaves for i, dim in enumerate(leaf.shape) if str(dim) == name}
    sizes = [leaf.shape[i] for rank, i in sorted(axes) for leaf in leaves if len(leaf.shape) == rank]
    return list(dict.fromkeys(size for size in sizes if isinstance(size, int) and size > 1))


def _common(one: Any, other: Any) -> Any:
    """Merges two specs; dimensions that differ are open."""
    dims = [a if a == b else None for a, b in zip(one.shape, other.shape, strict=True)]
    return specs.array_spec(one.dtype, dims)
