"""Defines TensorFlow's functions by a Python signature and a function of arrays.

Example::

    @computed_by(jnp.sum, "Sum", earlier={"keep_dims": "keepdims"})
    def reduce_sum(input_tensor: Any, axis: Static = None, keepdims: Plain = None, name: str | None = None) -> Any: ...

The signature is TensorFlow's. The function of arrays takes the same arguments in the same order, without `name`. The
annotations define how each argument is passed:

- `Any` is a tensor, or is converted to one;
- `Listed` is a list of tensors;
- `Static` is a number or a list of numbers that XLA has to know when it compiles; it may depend on shapes;
- `Computed` is like `Static`, but may also be computed in a run;
- `Plain` is no tensor: a flag, a string, a dtype;
- `Unused` has no effect: it is accepted, logged once, and not passed on.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hookline_tf1._machinery import dtypes
from hookline_tf1._machinery.ignored_arguments import ignored
from hookline_tf1._machinery.nodes import argument, node
from hookline_tf1._rules.index_bounds import Within
from hookline_tf1._rules.static_arguments import in_order

Listed = Static = Computed = Plain = Unused = Any

Declared = TypeVar("Declared", bound=Callable[..., Any])

_DTYPES = ("dtype", "out_type", "output_type")


def computed_by(
    fn: Callable[..., Any],
    op: str = "",
    *,
    earlier: Mapping[str, str] | None = None,
    twin: Callable[..., Any] | None = None,
    spec: Callable[..., Any] | None = None,
    result: Callable[..., Any] | None = None,
    within: tuple[Within, ...] = (),
    before: Callable[..., Any] | None = None,
) -> Callable[[Declared], Declared]:
    """Makes a function from its signature; a call adds an operation to the graph.

    Args:
        fn: Computes the operation, on arrays.
        op: The name of the operations; by default the function's name in CamelCase.
        earlier: The former names of arguments, and their present names.
        twin: The same function for NumPy integers, if it computes shapes.
        spec: Infers the spec of the result from the arguments, where tracing cannot.
        result: Makes the result of the call from the tensor and the arguments; by default the tensor.
        within: The arguments that are indices, with their bounds.
        before: Gets all arguments, and converts the first one before it becomes a tensor.
    """
    in_place, its_twin, was = in_order(fn), twin and in_order(twin), earlier or {}

    def decorate(declared: Any) -> Any:
        called = declared.__name__.lstrip("_")
        kind = op or "".join(part[:1].upper() + part[1:] for part in called.split("_"))
        signature, kinds = _signature(declared), declared.__annotations__
        static = tuple(name for name in signature.parameters if kinds[name] in ("Static", "Computed"))
        computed = tuple(name for name in static if kinds[name] == "Computed")
        unused = {name: of.default for name, of in signature.parameters.items() if kinds[name] == "Unused"}
        how: dict[str, Any] = {"static": static, "twin": its_twin, "spec": spec, "computed": computed}

        def call(*args: Any, **kwargs: Any) -> Any:
            for old in kwargs.keys() & was.keys():
                value = kwargs.pop(old)
                if value is not None or kwargs.get(was[old]) is None:
                    kwargs[was[old]] = value
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"tf.{called}{signature}: {error}.") from None
            bound.apply_defaults()
            given = dict(bound.arguments)
            name = given.pop("name", None)
            if before is not None:
                first, *others = given.values()
                given[next(iter(given))] = before(first, *others)
            hints = {hint: given.pop(hint) for hint in unused}
            ignored(f"tf.{called}", **{hint: value for hint, value in hints.items() if value is not unused[hint]})
            values = {key: _given(key, kinds[key], value) for key, value in given.items()}
            made = node(in_place, name or kind, values, kind=kind, within=within, **how)
            made.op.kind = kind
            return made if result is None else result(made, given)

        call.__name__ = call.__qualname__ = called
        call.__module__ = declared.__module__
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = declared.__doc__ or f"`tf.{called}`."
        call.computed_by = fn  # type: ignore[attr-defined]
        return call

    return decorate


def _signature(declared: Any) -> inspect.Signature:
    """Returns the signature without annotations, as errors show it."""
    names = declared.__code__.co_varnames[: declared.__code__.co_argcount]
    defaults = declared.__defaults__ or ()
    missing = [inspect.Parameter.empty] * (len(names) - len(defaults))
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    pairs = zip(names, [*missing, *defaults], strict=True)
    return inspect.Signature([inspect.Parameter(name, kind, default=default) for name, default in pairs])


def _given(name: str, kind: str, value: Any) -> Any:
    if name in _DTYPES:
        return None if value is None else dtypes.canonical(value)
    if kind == "Listed":
        return [argument(item) for item in value] if isinstance(value, list | tuple) else argument(value)
    return value if kind in ("Static", "Computed", "Plain") else argument(value)


def ops_in(names: Mapping[str, Any]) -> list[str]:
    """Returns the public names of the functions made by `computed_by`."""
    return [name for name, value in names.items() if name[0] != "_" and is_op(value)]


def is_op(value: Any) -> bool:
    """Whether a function was made by `computed_by`."""
    return isinstance(value, types.FunctionType) and hasattr(value, "computed_by")
