"""Tensors and operations with the methods that scripts call: `get_shape`, `set_shape`, `eval`, `run`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hookline as core
from hookline.errors import InvalidArgumentError
from hookline.extend import Constant as ConstantOperation
from hookline.extend import contains_tensor, specs
from hookline_tf1._machinery import default_session
from hookline_tf1._machinery.dtypes import DType, as_dtype, canonical, narrowed, string
from hookline_tf1._machinery.nodes import TAKEN
from hookline_tf1._rules import constant_folding, host_strings
from hookline_tf1._rules.index_bounds import Divides, indexes
from hookline_tf1._rules.static_arguments import in_order, known, made
from hookline_tf1._rules.tensor_shape import TensorShape, as_ints

_FEW = 64
_MOST_FORMS = 64
_SHORT = 4096

# TensorFlow's names for Python's operators.
_NAMES = {
    "neg": "Neg",
    "abs": "Abs",
    "lt": "Less",
    "le": "LessEqual",
    "gt": "Greater",
    "ge": "GreaterEqual",
    "invert": "LogicalNot",
    "getitem": "strided_slice",
}


_DIVISOR = (Divides("operand_1", lambda operand_0, operand_1: operand_0),)


class Operation(core.Operation):
    """An operation.

    References:
        `tf.Operation`.
    """

    def run(self, feed_dict: Any = None, session: Any = None) -> None:
        """Runs the operation in a session, by default the default one."""
        default_session.session_for(repr(self.name), session).run(self, feed_dict)

    def values(self) -> tuple[Any, ...]:
        """Returns the operation's tensors."""
        return tuple(self.outputs)

    @property
    def device(self) -> str:
        """Empty: XLA chooses the device."""
        return ""


class Constant(Operation, ConstantOperation):
    """A constant. Small integer arrays stay NumPy's, because XLA may have to know them, as shapes."""

    def device_value(self) -> Any:
        """See `hookline.graph.nodes.nodes.Constant`."""
        is_known = isinstance(self.value, np.ndarray) and self.value.dtype.kind in "iu" and self.value.size <= _FEW
        return self.value.copy() if is_known else super().device_value()


class Tensor(core.Tensor):
    """A tensor.

    References:
        `tf.Tensor`. Equality is identity, as in TF 1.x.
    """

    def eval(self, feed_dict: Any = None, session: Any = None) -> Any:
        """Returns the tensor's value in a session, by default the default one."""
        return default_session.session_for(repr(self.name), session).run(self, feed_dict)

    def run(self, feed_dict: Any = None, session: Any = None) -> None:
        """Runs the tensor's operation in a session, such as the result of `minimize` or `assign`."""
        default_session.session_for(repr(self.name), session).run(self.op, feed_dict)

    @property
    def shape(self) -> TensorShape:  # type: ignore[override]
        """The shape."""
        return TensorShape(host_strings.known_shape(self))

    def get_shape(self) -> TensorShape:
        """Returns the shape."""
        return self.shape

    def set_shape(self, shape: Any) -> None:
        """Merges a shape into the tensor's known shape.

        Raises:
            ValueError: It contradicts the known shape.
        """
        merged = self.shape.merge_with(shape)
        if merged.is_known and merged.as_list() != (self.shape.as_list() if self.shape.is_known else None):
            dtype = self.dtype
            if host_strings.is_text(self):
                host_strings.mark(self, merged.as_list())
                return
            self.spec = specs.array_spec(np.float32 if dtype is None else canonical(dtype), merged.as_list())

    @property
    def dtype(self) -> DType | None:  # type: ignore[override]
        """The type of the elements."""
        if host_strings.is_text(self):
            return string
        found = self.spec.dtype if specs.is_array(self.spec) else None
        if found is None and not self.path:
            found = getattr(self.op, "dtype", None)
        if found is None:
            return None
        return None if jnp.issubdtype(found, jax.dtypes.extended) else as_dtype(found)

    @property
    def device(self) -> str:
        """Empty: XLA chooses the device."""
        return ""

    @property
    def value_index(self) -> int:
        """The tensor's index among the outputs of its operation."""
        return 0

    def consumers(self) -> list[Any]:
        """Returns the operations with this tensor as input."""
        return [op for op in self.graph.get_operations() if any(tensor.op is self.op for tensor in op.inputs)]

    def convert_feed(self, value: Any) -> Any:
        """Converts a fed value to an array of the tensor's dtype; truncates floats to integers, like TensorFlow.

        Raises:
            ValueError: The shapes differ, or the graph was built with the tensor's value.
        """
        constant_folding.check_feed(self)
        spec, wanted, forms = getattr(self.op, "fed_forms", (None, None, ()))
        if spec is self.spec and type(value) is np.ndarray and (value.dtype, value.shape) in forms:
            return self._held(value, wanted)
        given, dtype = value, self.dtype
        if dtype is None or isinstance(value, core.Tensor):
            return value
        if dtype == string:
            return host_strings.encoded(value) if host_strings.is_plain_text(value) else value
        if not isinstance(value, jax.Array):
            with contextlib.suppress(TypeError):
                value = self._held(value, dtype.dtype)
        elif value.dtype != dtype.dtype:
            value = value.astype(dtype.dtype)
        if not self.shape.is_compatible_with(np.shape(value)):
            raise ValueError(
                f"Cannot feed value of shape {np.shape(value)} for Tensor {self.name!r}, which has shape {self.shape}"
            )
        if type(given) is type(value) is np.ndarray:
            # Later feeds of this dtype and shape skip the checks.
            known = set(forms) if spec is self.spec and len(forms) < _MOST_FORMS else set()
            op: Any = self.op
            op.fed_forms = self.spec, value.dtype, known | {(given.dtype, given.shape)}
        return value

    def _held(self, value: Any, dtype: Any) -> np.ndarray:
        """Casts a fed value to a dtype; refuses integers that do not fit 32 bits, as in a constant.

        Raises:
            InvalidArgumentError: As above.
        """
        given = np.asarray(value)
        found = given.astype(dtype, copy=False)
        if given.dtype == dtype or given.dtype.kind not in "iu" or dtype.kind not in "iu":
            return found
        if type(value) is np.ndarray and dtype.itemsize != 4:
            return found
        # For a few numbers, a cast back is faster than their minimum and maximum.
        is_short = given.size <= _SHORT and given.dtype.kind == dtype.kind
        if is_short and found.astype(given.dtype).tobytes() == given.tobytes():
            return found
        problem = specs.describe_overflow(given, dtype)
        if problem:
            raise InvalidArgumentError(self.op.node_def, self.op, f"feed_dict: the value for {self.name!r} {problem}.")
        return found

    def operate(self, name: str, fn: Callable[..., Any], *operands: Any) -> Any:
        given = {f"operand_{i}": self._beside(operand) for i, operand in enumerate(operands)}
        called = _NAMES.get(name, name)
        compute = _taken if name == "getitem" else _computed(fn)
        within = _DIVISOR if name in ("floordiv", "mod") else ()
        if name == "getitem":
            within = indexes(operands[1] if isinstance(operands[1], tuple) else operands[1:])
        return made(in_order(compute), called, given, kind=called, twin=in_order(fn), within=within, taken=TAKEN.get())

    def __getitem__(self, item: Any) -> Any:
        parts = item if isinstance(item, tuple) else (item,)
        if any(isinstance(part, slice) and contains_tensor((part.start, part.stop, part.step)) for part in parts):
            return self._window(parts)
        self._check_indices(parts)
        return super().__getitem__(tuple(map(as_ints, item)) if isinstance(item, tuple) else as_ints(item))

    def __iter__(self) -> Iterator[Any]:
        count = host_strings.parts_of(self) if host_strings.is_text(self) else None
        return super().__iter__() if count is None else iter([self[i] for i in range(count)])

    def _check_indices(self, parts: tuple[Any, ...]) -> None:
        """Raises `ValueError` for an index past the end of a known dimension, which JAX would clamp."""
        if not self.shape.is_known or any(part is Ellipsis or hasattr(part, "shape") for part in parts):
            return
        dims = iter(self.shape.as_list())
        for axis, part in enumerate(part for part in parts if part is not None):
            dim = next(dims, None)
            whole = getattr(part, "__index__", None) if not isinstance(part, bool) else None
            if whole is not None and dim is not None and not -dim <= whole() < dim:
                raise ValueError(f"slice index {whole()} of dimension {axis} out of bounds: {self.name} has {dim}.")

    def _window(self, parts: tuple[Any, ...]) -> Any:
        """Returns a slice with tensors as bounds, which may depend on constants and on shapes of tensors."""
        bounds = [[part.start, part.stop, part.step] if isinstance(part, slice) else None for part in parts]
        others = [None if isinstance(part, slice) else part for part in parts]

        def window(x: Any, others: Any, bounds: Any) -> Any:
            pairs = zip(bounds, others, strict=True)
            return x[tuple(other if bound is None else slice(*bound) for bound, other in pairs)]

        given = {"x": self, "others": others, "bounds": known(bounds)}
        return made(window, "strided_slice", given, static=("bounds",), twin=window)

    def _beside(self, operand: Any) -> Any:
        """Casts the other operand, an array or a list, to the tensor's dtype."""
        if isinstance(operand, core.Tensor | bool | int | float | complex) or contains_tensor(operand):
            return operand
        operand = as_ints(operand)
        dtype = self.dtype
        if dtype is None or operand is None or isinstance(operand, int | jax.Array):
            return operand
        given = np.asarray(operand)
        if given.dtype.kind not in "iufb" or not specs.same_kind(given.dtype, dtype.dtype):
            return operand
        # Integers narrower than 32 bits wrap, like TensorFlow's; TensorFlow might have 64 bits for the others.
        return narrowed(given, dtype.dtype) if dtype.size >= 4 else given.astype(dtype.dtype)

    def __getattr__(self, name: str) -> Any:
        if isinstance(self.__dict__.get("spec", specs.UNKNOWN), tuple):
            return super().__getattr__(name)
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")


def _computed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a Python operator that also takes constants: NumPy refuses numbers that their dtype cannot hold."""

    def compute(*operands: Any) -> Any:
        return fn(*[jnp.asarray(item) if isinstance(item, np.ndarray | np.generic) else item for item in operands])

    return compute


def _taken(x: Any, indices: Any) -> Any:
    """Indexes an array; converts a constant, which NumPy could not index with traced values."""
    is_traced = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(indices))
    return (jnp.asarray(x) if is_traced else x)[indices]


def is_tensor(x: Any) -> bool:
    """Whether it is a tensor, variables included.

    References:
        `tf.is_tensor`, `tf.contrib.framework.is_tensor`.
    """
    return isinstance(x, core.Tensor)
