"""TF 1.x's shapes: `x.get_shape().as_list()`, `x.shape[1].value`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class Dimension:
    """One dimension: an integer, or `None` if it is unknown. It computes like its integer.

    Example:
        >>> Dimension(3) * 2, int(Dimension(3)), Dimension(None).value
        (Dimension(6), 3, None)

    References:
        `tf.Dimension`.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        value = value.value if isinstance(value, Dimension) else value
        self.value = None if value is None else operator.index(value)
        if self.value is not None and self.value < 0:
            raise ValueError(f"Dimension {self.value} must be >= 0")

    def is_compatible_with(self, other: Any) -> bool:
        """Whether both may be the same number."""
        other = Dimension(other)
        return self.value is None or other.value is None or self.value == other.value

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raises `ValueError` unless both may be the same number."""
        if not self.is_compatible_with(other):
            raise ValueError(f"Dimensions {self.value} and {Dimension(other).value} are not compatible")

    def merge_with(self, other: Any) -> Dimension:
        """Merges two partial shapes: a dimension known in one of them is known."""
        self.assert_is_compatible_with(other)
        return Dimension(other) if self.value is None else self

    def __int__(self) -> int:
        if self.value is None:
            raise TypeError("__int__ returned non-int: the dimension is not known before the run. Use tf.shape(x)[i].")
        return self.value

    __index__ = __int__

    def __eq__(self, other: object) -> Any:
        return self._compare(other, operator.eq)

    def __ne__(self, other: object) -> Any:
        return self._compare(other, operator.ne)

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._compare(other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, operator.ge)

    def _compare(self, other: Any, fn: Callable[[Any, Any], Any]) -> Any:
        other = other.value if isinstance(other, Dimension) else other
        if other is None and fn in (operator.eq, operator.ne):
            return fn(self.value is None, True)
        if other is not None and not hasattr(other, "__index__"):
            return NotImplemented
        return None if self.value is None or other is None else fn(self.value, other)

    def __hash__(self) -> int:
        return hash(self.value)

    def _compute(self, fn: Callable[[Any, Any], Any], *operands: Any) -> Any:
        values = [operand.value if isinstance(operand, Dimension) else operand for operand in operands]
        if any(isinstance(value, float) for value in values):
            return fn(*[float("nan") if value is None else value for value in values])
        if not all(value is None or hasattr(value, "__index__") for value in values):
            return NotImplemented
        return Dimension(None if None in values else fn(*values))

    def __add__(self, other: Any) -> Any:
        return self._compute(operator.add, self, other)

    def __sub__(self, other: Any) -> Any:
        return self._compute(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._compute(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return self._compute(operator.mul, self, other)

    def __floordiv__(self, other: Any) -> Any:
        return self._compute(operator.floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._compute(operator.floordiv, other, self)

    def __mod__(self, other: Any) -> Any:
        return self._compute(operator.mod, self, other)

    def __truediv__(self, other: Any) -> Any:
        return int(self) / (int(other) if isinstance(other, Dimension) else other)

    def __rtruediv__(self, other: Any) -> Any:
        return other / int(self)

    def __pow__(self, other: Any) -> Any:
        return int(self) ** int(other)

    __radd__, __rmul__ = __add__, __mul__

    def __repr__(self) -> str:
        return f"Dimension({self.value})"

    def __str__(self) -> str:
        return "?" if self.value is None else str(self.value)


class TensorShape(tuple[Any, ...]):
    """A shape: a tuple of dimensions, or unknown.

    Args:
        dims: Integers, dimensions and `None`; `None` alone for a shape of unknown rank.

    Example:
        >>> shape = TensorShape([None, 3])
        >>> shape[1].value, shape.as_list(), shape == [None, 3], shape.num_elements()
        (3, [None, 3], True, None)

    References:
        `tf.TensorShape`, with `Dimension`s as in TF 1.x.
    """

    is_known: bool

    def __new__(cls, dims: Any) -> TensorShape:
        """See the class."""
        if isinstance(dims, TensorShape):
            return dims
        known = dims is not None
        dims = (dims,) if known and not isinstance(dims, Iterable) else dims or ()
        made = super().__new__(cls, [Dimension(dim).value for dim in dims])
        made.is_known = known
        return made

    @property
    def dims(self) -> list[Dimension] | None:
        """The dimensions; `None` if not even the rank is known."""
        return [Dimension(dim) for dim in super().__iter__()] if self.is_known else None

    @property
    def ndims(self) -> int | None:
        """The number of dimensions; None if it is unknown."""
        return tuple.__len__(self) if self.is_known else None

    rank = ndims

    def as_list(self) -> list[int | None]:
        """Returns the dimensions as integers and `None`.

        Raises:
            ValueError: Not even the rank is known.
        """
        if not self.is_known:
            raise ValueError("as_list() is not defined on an unknown TensorShape.")
        return list(super().__iter__())

    def num_elements(self) -> int | None:
        """Returns the number of elements; None if it is unknown."""
        if not self.is_fully_defined():
            return None
        product = 1
        for dim in super().__iter__():
            product *= dim
        return product

    def is_fully_defined(self) -> bool:
        """Whether each dimension is known."""
        return self.is_known and None not in tuple(super().__iter__())

    def is_compatible_with(self, other: Any) -> bool:
        """Whether both may be the same shape."""
        other = TensorShape(other)
        if not self.is_known or not other.is_known:
            return True
        pairs = zip(self.as_list(), other.as_list(), strict=False)
        return self.ndims == other.ndims and all(a is None or b is None or a == b for a, b in pairs)

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raises `ValueError` unless both may be the same shape."""
        if not self.is_compatible_with(other):
            raise ValueError(f"Shapes {self} and {TensorShape(other)} are incompatible")

    def assert_is_fully_defined(self) -> None:
        """Raises `ValueError` unless each dimension is known."""
        if not self.is_fully_defined():
            raise ValueError(f"Shape {self} is not fully defined")

    def assert_has_rank(self, rank: int) -> None:
        """Raises `ValueError` unless it may have this rank."""
        if self.ndims not in (None, rank):
            raise ValueError(f"Shape {self} must have rank {rank}")

    def with_rank(self, rank: int) -> TensorShape:
        """Merges the shape with an unknown shape of this rank."""
        self.assert_has_rank(rank)
        return self if self.is_known else TensorShape([None] * rank)

    def with_rank_at_least(self, rank: int) -> TensorShape:
        """Returns the shape if its rank may be this or more."""
        if self.ndims is not None and self.ndims < rank:
            raise ValueError(f"Shape {self} must have rank at least {rank}")
        return self

    def merge_with(self, other: Any) -> TensorShape:
        """Merges two partial shapes: a dimension known in one of them is known."""
        other = TensorShape(other)
        self.assert_is_compatible_with(other)
        if not self.is_known or not other.is_known:
            return other if not self.is_known else self
        pairs = zip(self.as_list(), other.as_list(), strict=True)
        return TensorShape([b if a is None else a for a, b in pairs])

    def concatenate(self, other: Any) -> TensorShape:
        """Concatenates the dimensions of both."""
        other = TensorShape(other)
        known = self.is_known and other.is_known
        return TensorShape([*self.as_list(), *other.as_list()] if known else None)

    def __iter__(self) -> Iterator[Any]:
        if not self.is_known:
            raise ValueError("Cannot iterate over a shape with unknown rank.")
        return iter(self.dims or ())

    def __getitem__(self, key: Any) -> Any:
        if not self.is_known:
            return TensorShape(None) if isinstance(key, slice) else Dimension(None)
        found = super().__getitem__(key)
        return TensorShape(found) if isinstance(key, slice) else Dimension(found)

    def __len__(self) -> int:
        if not self.is_known:
            raise ValueError("Cannot take the length of shape with unknown rank.")
        return super().__len__()

    def __bool__(self) -> bool:
        return self.is_known

    def __add__(self, other: Any) -> Any:
        return self.concatenate(other)

    def __eq__(self, other: object) -> bool:
        if not self.is_known or other is None:
            return other is None or (isinstance(other, TensorShape) and self.is_known == other.is_known)
        try:
            shape = TensorShape(other)
        except (TypeError, ValueError):
            return False
        return shape.is_known and self.as_list() == shape.as_list()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(tuple(super().__iter__()))

    def __repr__(self) -> str:
        return f"TensorShape({[Dimension(dim) for dim in super().__iter__()] if self.is_known else None})"

    def __str__(self) -> str:
        if not self.is_known:
            return "<unknown>"
        dims = [str(dim) for dim in self]
        return f"({dims[0]},)" if len(dims) == 1 else f"({', '.join(dims)})"


def as_ints(shape: Any) -> Any:
    """Converts a shape, or a list with dimensions, to integers and `None`; returns other values unchanged."""
    if isinstance(shape, TensorShape):
        return shape.as_list() if shape.is_known else None
    if isinstance(shape, Dimension):
        return shape.value
    if isinstance(shape, list | tuple):
        made = [as_ints(dim) for dim in shape]
        return made if isinstance(shape, list) else tuple(made)
    return shape
