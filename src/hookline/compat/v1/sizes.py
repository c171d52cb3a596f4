"""Open dimensions with sizes: where symbols do not tell the shape of a result, examples do.

JAX infers shapes with a symbol for each open dimension. It cannot where a function asks for a number, or where an open
dimension meets a known one. TensorFlow would say "unknown", or take the known one. So the shape is inferred again, with
the known size that stands at the same place in another argument; or else with two sizes, and what differs is open.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax

from hookline.graph import spec as specs

# Numbers that most others divide.
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


def sized(spec: Any) -> Any:
    """Returns a spec with the sizes of its open dimensions, inside `by_examples`; outside of it, the spec."""
    values = _SIZES.get()
    if values is None or spec is specs.UNKNOWN:
        return spec

    def filled(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        return jax.ShapeDtypeStruct(tuple(_size(dim, values) for dim in leaf.shape), leaf.dtype)

    return jax.tree.map(filled, spec)


def _size(dim: Any, values: dict[str, int]) -> int:
    """Returns the number that a dimension is if its symbols are these; a symbol prints as it computes."""
    return dim if isinstance(dim, int) else max(0, int(eval(str(dim), _ARITHMETIC | values)))


@contextlib.contextmanager
def _as(values: dict[str, int]) -> Iterator[None]:
    token = _SIZES.set(values)
    try:
        yield
    finally:
        _SIZES.reset(token)


def by_examples(given: Sequence[Any], names: Sequence[str], infer: Callable[[], Any]) -> Any:
    """Returns the spec that `infer` finds when the open dimensions have sizes.

    Args:
        given: Specs, of which some may have open dimensions.
        names: The symbols of all open dimensions.
        infer: Returns a spec, of what `sized` gives.

    Raises:
        Exception: What `infer` raises.
    """
    choices: list[dict[str, int]] = [{}, *({name: size} for name in names for size in _known_beside(given, name))]
    failed: Exception | None = None
    for fixed in choices:
        found = []
        try:
            for example in _EXAMPLES:
                with _as(dict.fromkeys(names, example) | fixed):
                    found.append(infer())
        except Exception as error:
            failed = error
            continue
        return jax.tree.map(_common, *found)
    raise failed or ValueError("There is no open dimension.")


def _known_beside(given: Sequence[Any], name: str) -> list[int]:
    """Returns the sizes that stand, in other specs of the same rank, where the symbol stands alone."""
    leaves = [leaf for leaf in jax.tree.leaves(given) if hasattr(leaf, "shape")]
    places = {(len(leaf.shape), i) for leaf in leaves for i, dim in enumerate(leaf.shape) if str(dim) == name}
    sizes = [leaf.shape[i] for rank, i in sorted(places) for leaf in leaves if len(leaf.shape) == rank]
    return list(dict.fromkeys(size for size in sizes if isinstance(size, int) and size > 1))


def _common(one: Any, other: Any) -> Any:
    """Returns a spec of what is the same in two; the rest is open."""
    dims = [a if a == b else None for a, b in zip(one.shape, other.shape, strict=True)]
    return specs.declared(one.dtype, dims)
