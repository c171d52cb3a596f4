"""Static arguments: values that XLA has to know when it compiles, such as shapes, axes and sizes.

TensorFlow takes tensors for them. Here they may depend on constants and on the shapes of tensors, by any integer
arithmetic: `tf.reshape(x, [tf.shape(x)[0], -1])`. When a program is traced these are plain integers. While the graph is
built, an open dimension is a symbol, and shapes are inferred with it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from hookline import Tensor
from hookline.errors import InvalidArgumentError
from hookline.extend import Function, specs
from hookline_tf1._rules import constant_folding, host_strings, index_bounds, inference_by_example, partial_shapes
from hookline_tf1._rules.constant_folding import Sizes, Unknown, symbolic
from hookline_tf1._rules.tensor_shape import as_ints

Names = tuple[str, ...]


class Node(Function):
    """A TensorFlow function as an operation.

    Args:
        fn: The function, of arrays.
        name: Its name.
        args: Its arguments, by parameter.
        static: Parameters that XLA has to know; their values may hold tensors.
        twin: The same function on NumPy integers, symbols included.
        spec: Returns the spec of the result for the arguments, where tracing cannot infer it.
        kind: TensorFlow's name of the operation.
        computed: The names in `static` that a run may compute, so XLA need not know them.
        within: Which of `args` are indices, with their bounds.
        taken: In a branch, whether it is taken; for `within`.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        args: dict[str, Any],
        static: tuple[str, ...] = (),
        twin: Callable[..., Any] | None = None,
        spec: Callable[..., Any] | None = None,
        kind: str = "",
        computed: tuple[str, ...] = (),
        within: tuple[index_bounds.Within, ...] = (),
        taken: Tensor | None = None,
    ) -> None:
        self.kind = kind or name.rpartition("/")[2]
        self.twin, self.static, self._spec_of, self._plain = twin, static, spec, fn
        # As a tuple, because JAX would sort a dict.
        self._names, self._computed = tuple(args), computed
        must = tuple(key for key in static if key not in computed)
        self._taken = taken if within else None
        waits = {} if self._taken is None else {"taken": taken}
        super().__init__(self._called(fn, name, self._names, static, must, twin), name, tuple(args.values()), waits)
        self.type = name.rpartition("/")[2]
        self._within = within
        if within:
            if not all(each.is_settled(args) for each in within):
                self.check = index_bounds.check(within, args, self._given)
            if not waits:
                index_bounds.refuse_constants(self, within, args)
        for key in must:
            for tensor in _tensors(args.get(key)):
                constant_folding.mark_static(tensor, self)

    @staticmethod
    def _called(fn: Any, name: str, names: Names, static: Names, must: Names, twin: Any) -> Callable[..., Any]:
        def call(*values: Any, taken: Any = None) -> Any:
            args = dict(zip(names, values, strict=True))
            leaves = jax.tree.leaves(args)
            if twin is not None and _are_dims(leaves):
                return np.errstate(all="ignore")(twin)(**args)
            known = {key: concrete(value, name, key, key in must) for key, value in args.items() if key in static}
            args |= known
            try:
                return fn(**_as_floats(args, static))
            except OverflowError as error:
                raise _of_too_large(error, leaves) from None

        call.__name__ = name.rpartition("/")[2].replace(".", "_").replace("-", "_")
        return call

    def call(self, resolve: Callable[[Tensor], Any]) -> Any:
        """See `Function.call`; adds the operation's name to an error of its function."""
        try:
            return super().call(resolve)
        except InvalidArgumentError as error:
            if error.op is not None:
                raise
            raise InvalidArgumentError(self.node_def, self, f"{self.node_def}: {error.message}") from None

    def copy_with_inputs(self, name: str, resolve: Callable[[Tensor], Tensor]) -> Node:
        """See `Operation.copy_with_inputs`."""
        return type(self)(
            self._plain, name, self._bound(resolve), self.static, self.twin, self._spec_of, self.kind, self._computed,
            self._within, self.bind(resolve)[1].get("taken"),
        )  # fmt: skip

    def _given(self, bound: Any) -> tuple[dict[str, Any], Any]:
        """Returns the arguments in a run, by name, and whether the operation is active there."""
        values, waits = bound
        args = dict(zip(self._names, values, strict=True))
        args |= {key: concrete(args[key], self.name, key, key not in self._computed) for key in self.static}
        return args, waits.get("taken")

    def _bound(self, resolve: Callable[[Tensor], Any]) -> dict[str, Any]:
        values, _ = self.bind(resolve)
        return dict(zip(self._names, values, strict=True))

    def infer_spec(self) -> Any:
        args = self._bound(lambda tensor: tensor)
        if self._spec_of is not None:
            return self._spec_of(**args)
        held = {tensor.key: tensor for key in self.static for tensor in _tensors(args.get(key))}
        others = [tensor for tensor in dict.fromkeys(self.inputs) if tensor.key not in held]
        given = [tensor.spec for tensor in others if tensor.spec is not specs.UNKNOWN]
        # The sizes of plain arrays are known sizes, too.
        given += [jax.ShapeDtypeStruct(leaf.shape, np.float32) for leaf in jax.tree.leaves(args) if _is_plain(leaf)]
        loose = {key: tensor for key, tensor in held.items() if not constant_folding.is_settled(tensor)}
        values: dict[Any, Any] = {}
        try:
            values.update({key: symbolic(tensor) for key, tensor in held.items()})
            if loose and self.kind == "Reshape":
                return self._of_settled(args["tensor"], args["shape"])
            if not any(constant_folding.is_cancelled(tensor) for tensor in loose.values()):
                return self._doubted(self._inferred_with(values), held, loose)
        except Unknown:
            return partial_shapes.of(self.kind, args)
        except OverflowError as error:
            raise self._refused(error) from None
        except Exception as error:
            names = sorted(inference_by_example.symbols([given, list(values.values())]))
            if not names:
                raise self._refused(error) from error
        names = sorted(
            inference_by_example.symbols([given, list(values.values()), *constant_folding.open_specs(loose)])
        )
        try:
            found = inference_by_example.by_examples(
                given, names, lambda: self._inferred_of_sizes(held, loose), apart=not held and self.kind != "Reshape"
            )
            return self._doubted(found, held, loose)
        except Exception as error:
            if self.kind == "Reshape":
                return self._reshaped(args["tensor"], args["shape"])
            is_plain = isinstance(error, TypeError | ValueError | IndexError)
            if held:
                return partial_shapes.of(self.kind, args)
            if self._must_fit(args) or not is_plain or not inference_by_example.are_all_tried(given):
                return specs.UNKNOWN
            raise self._misfit(inference_by_example.clash(self.kind, given, error), given) from error

    def _must_fit(self, args: dict[str, Any]) -> bool:
        """Whether an argument determines the size of an open dimension, so that examples would fail."""
        if self.kind != "split":
            return False
        shape = specs.open_shape(args["value"].spec)
        return shape is None or not isinstance(args["axis"], int) or shape[args["axis"]] is None

    def _reshaped(self, tensor: Any, shape: Any) -> Any:
        """Infers the spec of a reshaped tensor whose open dimensions must match the shape in the run."""
        if not isinstance(shape, list | tuple | np.ndarray) or _tensors(shape) or not specs.is_array(tensor.spec):
            return specs.UNKNOWN
        wanted = np.ravel(shape).tolist()
        known = math.prod(dim for dim in specs.open_shape(tensor.spec) or () if dim is not None)
        whole = math.prod(wanted)
        if whole > 0 and whole % known:
            raise self._misfit(f"Dimension size must be evenly divisible by {known} but is {whole}", [tensor.spec])
        return specs.array_spec(tensor.spec.dtype, [None if dim < 0 else dim for dim in wanted])

    def _misfit(self, what: str, given: Any) -> ValueError:
        shapes = inference_by_example.shown(given)
        return ValueError(
            f"{what} for {self.name!r} (op: {self.kind!r}) with input shapes: {shapes}. Made at {self.location}."
        )

    def _inferred_of_sizes(self, held: dict[Any, Tensor], loose: dict[Any, Tensor], less: Any = None) -> Any:
        values = {key: constant_folding.example(tensor, (less or {}).get(key, 0)) for key, tensor in loose.items()}
        return self._inferred_with({key: symbolic(tensor) for key, tensor in held.items()} | values)

    def _of_settled(self, tensor: Any, shape: Any) -> Any:
        """Infers the spec of a reshaped tensor; dimensions of the shape that depend on open dimensions are open."""
        if not specs.is_array(tensor.spec):
            return specs.UNKNOWN
        with constant_folding.own_symbols():
            found = [(symbolic(part) if isinstance(part, Tensor) else part) for part in constant_folding.parts(shape)]
            dims = [dim for part in found for dim in constant_folding.elements(part).ravel().tolist()]
            dims = [
                constant_folding.remaining(constant_folding.of_dims(tensor).tolist(), dims)
                if constant_folding.is_rest(dim)
                else dim
                for dim in dims
            ]
        return specs.array_spec(tensor.spec.dtype, [dim if isinstance(dim, int) else None for dim in dims])

    def _doubted(self, found: Any, held: dict[Any, Tensor], loose: dict[Any, Tensor]) -> Any:
        """Opens the dimensions of a spec that are known only because open dimensions were assumed equal."""
        names = sorted(
            inference_by_example.symbols([[tensor.spec for tensor in self.inputs], *constant_folding.open_specs(loose)])
        )
        for keys in [list(loose), list(loose)[::-1]] if loose else []:
            with contextlib.suppress(Exception), inference_by_example.example(names):
                less = {key: i for i, key in enumerate(keys, 1)}
                found = jax.tree.map(
                    inference_by_example.where_alike, found, self._inferred_of_sizes(held, loose, less)
                )
        return found

    def _refused(self, error: Exception) -> ValueError:
        if isinstance(error, InvalidArgumentError):
            return ValueError(error.message)  # The message names the operation already.
        text = str(error).partition("\n")[0] if isinstance(error, TypeError | ValueError) else str(error)
        return ValueError(f"{self.node_def}: {text}")

    def _inferred_with(self, values: dict[Any, Any]) -> Any:
        if self._taken is not None:
            values = {self._taken.key: None} | values
        others = [tensor for tensor in dict.fromkeys(self.inputs) if tensor.key not in values]
        if any(tensor.spec is specs.UNKNOWN for tensor in others):
            raise Unknown

        def call(*given: Any) -> Any:
            at = {tensor.key: value for tensor, value in zip(others, given, strict=True)} | values
            return self.call(lambda tensor: at[tensor.key])

        return jax.eval_shape(call, *[inference_by_example.sized(tensor.spec, i) for i, tensor in enumerate(others)])


def made(
    fn: Callable[..., Any],
    name: str,
    args: dict[str, Any],
    *,
    kind: str = "",
    within: tuple[index_bounds.Within, ...] = (),
    **how: Any,
) -> Tensor:
    """Adds a function to the graph and returns its tensor; it runs on the host if an argument is a string.

    Args:
        fn: See `Node`, as for `name`, `args`, `within` and `how`.
        name: As above.
        args: As above.
        kind: The kind of operation: the key in `host_strings.TWINS`, the functions of strings.
        within: As above.
        **how: As above.
    """
    if any(map(host_strings.is_text, jax.tree.leaves(args))):
        twin = host_strings.TWINS.get(kind, how.get("twin"))
        return host_strings.of_text(index_bounds.on_host(twin, name, within) if twin and within else twin, name, args)
    return Node(fn, name, args, kind=kind, within=within, **how).output


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind != "O"


def _as_floats(args: dict[str, Any], static: tuple[str, ...]) -> dict[str, Any]:
    """Casts integers that int32 cannot hold to the dtype of the floating point arrays beside them."""
    large = {key: value for key, value in args.items() if type(value) is int and not -(2**31) <= value < 2**31}
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(args) if jax.numpy.issubdtype(_dtype(leaf), np.floating)]
    if not large or not dtypes:
        return args
    return args | {key: np.asarray(value, dtypes[0]) for key, value in large.items() if key not in static}


def _of_too_large(error: OverflowError, leaves: list[Any]) -> OverflowError:
    """Returns the error for an argument that JAX's integers cannot hold."""
    held = np.iinfo(specs.canonical_dtype(np.dtype(np.int64)))
    large = [leaf for leaf in leaves if type(leaf) is int and not held.min <= leaf <= held.max]
    if not large:
        return error
    return OverflowError(
        f"{large[0]} does not fit into {held.dtype}. Set jax_enable_x64 before anything else for 64 bits."
    )


def _dtype(leaf: Any) -> Any:
    return getattr(leaf, "dtype", np.dtype(bool))


def in_order(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function of positional arguments to take them by name, in order."""
    return lambda **args: fn(*args.values())


def _are_dims(leaves: list[Any]) -> bool:
    """Whether the leaves are all dimensions: plain, NumPy or symbolic integers, at least one an array or a symbol."""
    arrays = [leaf for leaf in leaves if hasattr(leaf, "dtype")]
    are_whole = all(isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "iO" for leaf in arrays)
    are_whole = are_whole and all(leaf.dtype.itemsize > 2 for leaf in arrays)  # Dimensions have at least 32 bits.
    return are_whole and (bool(arrays) or any(hasattr(leaf, "scope") for leaf in leaves))


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, Tensor)]


class Shape(Node, Sizes):
    """The shape of a tensor."""


class Rank(Shape):
    """The number of a tensor's dimensions."""

    def of(self, dims: np.ndarray) -> np.ndarray:
        """See `Sizes`."""
        return np.asarray(len(dims), np.int32)


def _is_symbolic(value: Any) -> bool:
    return any(
        getattr(getattr(leaf, "dtype", None), "kind", "") == "O" or hasattr(leaf, "scope")
        for leaf in jax.tree.leaves(value)
    )


def known(value: Any) -> Any:
    """Replaces tensors in an argument that XLA has to know, where their values are known while the graph is built."""

    def replaced(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        try:
            found = constant_folding.apart(leaf)
        except Unknown:
            return leaf
        if _is_symbolic(found):
            return leaf
        constant_folding.build_in(leaf)
        return np.asarray(found)

    value = as_ints(value)
    return jax.tree.map(replaced, value, is_leaf=lambda leaf: leaf is None)


def concrete(value: Any, who: str, argument: str, must: bool = True) -> Any:
    """Converts an argument that XLA has to know (if `must`) to Python numbers, nested as given.

    Raises:
        TypeError: It depends on a value computed in the run.
    """

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, Tracer):
            if not must:
                return leaf
            raise TypeError(
                f"{who}: {argument} depends on a value that is computed in the run, but XLA has to know it when it "
                f"compiles. Use constants, shapes of tensors, or fed integers."
            )
        if isinstance(leaf, jax.Array):
            leaf = np.asarray(leaf)
        return leaf.tolist() if isinstance(leaf, np.ndarray | np.generic) else leaf

    return jax.tree.map(plain, value)
