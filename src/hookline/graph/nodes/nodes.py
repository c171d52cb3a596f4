"""The kinds of node, except functions, variables, updates and gradients, which have their own files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.errors import InvalidArgumentError
from hookline.graph import placement
from hookline.graph.graph import Operation, Tensor, get_default_graph
from hookline.graph.nodes import spec as specs
from hookline.signals.interrupts import calls_user_code

_LARGE_BYTES = 1024


class Placeholder(Operation):
    """A node whose value is fed.

    Its `dtype` is `None` if it takes text or any object, for host operations.
    """

    type = "Placeholder"

    def __init__(self, name: str, dtype: Any, shape: Sequence[int | None] | None) -> None:
        if dtype is None:
            raise TypeError("A placeholder requires a dtype, got None.")
        kind = "U" if dtype == "string" else getattr(_numpy_dtype(dtype), "kind", "")
        self.shape, self.is_text, on_host = shape, kind in ("S", "U"), kind in ("O", "S", "U")
        # For values that stay on the host, only the shape is checked.
        declared = specs.array_spec("float32" if on_host else dtype, () if shape is None else shape)
        array = None if on_host else declared
        self.dtype = None if array is None else array.dtype
        self.host_only = array is None
        super().__init__(name, spec=specs.UNKNOWN if array is None or shape is None else array)


class Constant(Operation):
    """A node with a fixed value: a pytree of arrays, copied, or any object for host operations.

    Example:
        >>> import hookline as hl
        >>> from hookline.extend import Constant
        >>> sizes = Constant("sizes", {"rows": 2, "columns": 3}).output
        >>> with hl.Session() as sess:
        ...     print(sess.run(sizes["columns"]))
        3
    """

    type = "Constant"
    shardings: Sequence[Any] = ()
    """The shardings of its arrays, leaf by leaf; empty leaves them to JAX."""

    def __init__(self, name: str, value: Any) -> None:
        self.value = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, value)
        try:
            spec = specs.of_value(self.value)
        except (TypeError, OverflowError):
            spec = specs.UNKNOWN
        self.host_only = any(isinstance(leaf, str | bytes) for leaf in jax.tree.leaves(self.value))
        for leaf in jax.tree.leaves(self.value):
            if isinstance(leaf, bool | int | float | np.ndarray | np.generic):
                check_range(name, leaf, None)
        super().__init__(name, spec=spec)
        shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(self.value)]
        self.graph.record_shardings(
            self.node_def, [sharding for sharding in shardings if isinstance(sharding, jax.NamedSharding)]
        )

    def copy_with_inputs(self, name: str, resolve: Callable[[Tensor], Tensor]) -> Operation:  # noqa: D102
        return Constant(name, self.value)

    def device_value(self) -> Any:
        """Returns the value for device operations: every number is an array."""
        leaves, structure = jax.tree.flatten(self.value)
        if self.shardings:
            return structure.unflatten(map(placement.device_put, leaves, self.shardings))
        return structure.unflatten(jnp.asarray(leaf) if _is_numeric(leaf) else leaf for leaf in leaves)

    def offload_to_host(self) -> None:
        """Moves its large arrays to the host: a session has its own copies on the device."""
        self.value = jax.tree.map(_to_host, self.value)


def _to_host(leaf: Any) -> Any:
    is_plain = isinstance(leaf, jax.Array) and not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    # A copy: on the CPU, NumPy would share the device's memory, and so keep it.
    return np.array(leaf) if is_plain and leaf.nbytes > _LARGE_BYTES and leaf.is_fully_addressable else leaf


def _is_numeric(leaf: Any) -> bool:
    return isinstance(leaf, bool | int | float | complex | np.number | np.bool_) or (
        isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "OSU"
    )


class HostCall(Operation):
    """A node whose value is `fn(*args, **kwargs)`, called in Python with concrete values, once in each run.

    Example:
        >>> import hookline as hl
        >>> from hookline.extend import HostCall, specs
        >>> lower = HostCall(str.lower, "lower", (hl.constant("Text"),), {}, specs.UNKNOWN)
        >>> with hl.Session() as sess:
        ...     sess.run(lower.output)
        'text'
    """

    type = "HostOp"

    def __init__(
        self, fn: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any], spec: Any
    ) -> None:
        self.fn = fn
        super().__init__(name, (args, kwargs), spec)
        self._has_only_tensor_arguments = not kwargs and all(isinstance(argument, Tensor) for argument in args)

    @calls_user_code
    def call_with_values(self, values: Sequence[Any]) -> Any:
        """Returns the function's result for the values of its inputs."""
        if self._has_only_tensor_arguments:
            value = self.fn(*values)
        else:
            left = iter(values)
            args, kwargs = self.bind(lambda _: next(left))
            value = self.fn(*args, **kwargs)
        return value if self.output.spec is specs.UNKNOWN else self._cast_to_spec(value)

    def copy_with_inputs(self, name: str, resolve: Callable[[Tensor], Tensor]) -> Operation:  # noqa: D102
        args, kwargs = self.bind(resolve)
        return HostCall(self.fn, name, args, kwargs, self.output.spec)

    def _cast_to_spec(self, value: Any) -> Any:
        """Returns the value with the dtypes of the spec.

        Raises:
            InvalidArgumentError: It does not fit the spec.
        """
        wanted, structure = jax.tree.flatten_with_path(self.output.spec)
        if specs.is_array(self.output.spec) and isinstance(value, list | tuple):
            value = np.asarray(value)
        if jax.tree.structure(value) != structure:
            raise self._spec_error(f"the structure {jax.tree.structure(value)}", f"{structure}")
        leaves = []
        for (path, spec), leaf in zip(wanted, jax.tree.leaves(value), strict=True):
            dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
            if specs.describe_mismatch(spec, np.shape(leaf), dtype):
                where = f" at {jax.tree_util.keystr(path)}" if path else ""
                given = f"{dtype}[{','.join(map(str, np.shape(leaf)))}]{where}"
                raise self._spec_error(given, specs.describe(spec))
            if not isinstance(leaf, jax.Array) and (problem := specs.describe_overflow(np.asarray(leaf), spec.dtype)):
                raise InvalidArgumentError(self.node_def, self, f"{self.node_def} returned a value that {problem}.")
            is_exact = not hasattr(leaf, "dtype") or specs.canonical_dtype(dtype) == spec.dtype
            leaves.append(leaf if is_exact else leaf.astype(spec.dtype))
        return jax.tree.unflatten(structure, leaves)

    def _spec_error(self, given: str, wanted: str) -> InvalidArgumentError:
        text = f"{self.node_def} returned {given}, but its spec promises {wanted}: correct the function or the spec."
        return InvalidArgumentError(self.node_def, self, text)


class SessionCall(Operation):
    """A node whose value is `fn(session, *args)`, for the session that runs it.

    Example:
        >>> import hookline as hl
        >>> from hookline.extend import SessionCall
        >>> weight = hl.Variable(1.0, name="weight")
        >>> read = SessionCall("read", lambda session, scale: scale * session.snapshot()["weight"], [hl.constant(2.0)])
        >>> with hl.Session() as sess:
        ...     sess.run(weight.initializer)
        ...     print(sess.run(read.output))
        2.0
    """

    type = "SessionOp"

    def __init__(self, name: str, fn: Callable[..., Any], args: Sequence[Tensor] = ()) -> None:
        self.fn = fn
        super().__init__(name, tuple(args))


class Source(Operation):
    """A node whose value, in each run that needs it, is the next value of a sequence.

    Each session opens the source for itself and has its own position in the sequence. The node ignores
    `control_dependencies` blocks around it.

    Args:
        open_for: `open_for(node, shared)` returns the source that a session reads, a `hookline.session.OpenSource`;
            `shared` means that the session's variables outlive it, so the sequence continues at the position of this
            process.
        spec: The spec of each value, as far as it is known.
        resumes: Whether a restored session continues at the position in the checkpoint, instead of at the beginning.
        example: The spec of the first value, with sizes for the open dimensions of `spec`; `UNKNOWN` if no value is
            known.

    Example:
        >>> import hookline as hl
        >>> from hookline.extend import Source, Stream, specs
        >>> words = Stream(iter(["one", "two"]))
        >>> node = Source("word", lambda node, shared: words.reader(node), specs.UNKNOWN, host_only=True, resumes=False)
        >>> with hl.Session() as sess:
        ...     print(sess.run(node.output), sess.run(node.output))
        one two
    """

    type = "Iterator"

    def __init__(
        self,
        name: str,
        open_for: Callable[[Source, bool], Any],
        spec: Any,
        *,
        host_only: bool,
        resumes: bool,
        example: Any = specs.UNKNOWN,
    ) -> None:
        self.open_for = open_for
        self.example = example
        self.resumes = resumes
        self.host_only = host_only
        with get_default_graph().control_dependencies(None):
            super().__init__(name, spec=spec)

    @property
    def block_error(self) -> str | None:
        """The reason why several of its values cannot be stacked for one run; `None` if they can."""
        return "is not of hookline.data.iterator"


class Group(Operation):
    """A node without a value, which waits for its control inputs."""

    type = "Group"

    def __init__(self, name: str) -> None:
        super().__init__(name, spec=None)


def check_range(name: str, value: Any, dtype: Any) -> None:
    """Raises `ValueError` for numbers that `dtype` cannot hold; the default is the dtype that JAX gives them."""
    array, name = np.asarray(value), f"{get_default_graph().current_scope}{name}"
    if isinstance(value, int) and array.dtype.kind == "O":
        raise ValueError(f"Constant {name!r}: {value} is larger than any integer of a device.")
    if array.dtype.kind not in "iufc":
        return
    problem = specs.describe_overflow(array, specs.canonical_dtype(array.dtype if dtype is None else dtype))
    if problem:
        raise ValueError(f"Constant {name!r} {problem}. Set jax_enable_x64 before anything else for 64-bit numbers.")


def _numpy_dtype(dtype: Any) -> np.dtype | None:
    try:
        return np.dtype(dtype)
    except TypeError:
        return None
