"""Functions of TensorFlow's as rows of a table: their names, arguments and defaults, and what computes them.

A row is `row("reduce_sum", "input_tensor, @axis=None, -keepdims=None, name=None", sum, "Sum")`: TensorFlow's name, its
arguments, a function of arrays that takes them in that order without `name`, and the name of its operations. Of the
arguments:

- `x` is a tensor, or what can be made one;
- `@axis` is a number or a list of them that XLA has to know when it compiles; it may depend on shapes;
- `?begin` is like that, but XLA need not know it: what a run computes will do;
- `*values` is a list of tensors;
- `-transpose_a` is no tensor: a flag, a string, a dtype;
- `~use_cudnn_on_gpu` has no effect: it is taken, said once, and not handed on.

Behind a semicolon stand the names that an argument had earlier: `; keep_dims=keepdims`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from hookline.compat.v1._machinery import dtypes
from hookline.compat.v1._machinery.ignored_arguments import ignored
from hookline.compat.v1._machinery.nodes import argument, node
from hookline.compat.v1._rules.index_bounds import Within
from hookline.compat.v1._rules.static_arguments import in_order

_DTYPES = ("dtype", "out_type", "output_type")


class Row(NamedTuple):
    """One function.

    Attributes:
        name: TensorFlow's name, in its namespace.
        arguments: Its arguments; see the module.
        fn: Computes it.
        op: The name of its operations.
        twin: The same for NumPy's integers, if shapes are computed with it.
        spec: Tells the spec of the result from the arguments, where tracing does not.
        result: Makes what the caller gets of the tensor and the arguments, where that is no tensor.
        within: Which of the arguments are places that must be there.
        before: Returns the first argument for all of them, before it is made a tensor.
    """

    name: str
    arguments: str
    fn: Callable[..., Any]
    op: str
    twin: Callable[..., Any] | None = None
    spec: Callable[..., Any] | None = None
    result: Callable[..., Any] | None = None
    within: tuple[Within, ...] = ()
    before: Callable[..., Any] | None = None


def row(name: str, arguments: str, fn: Callable[..., Any], op: str = "", **how: Any) -> Row:
    """Returns a row; the operations have the function's name in capitals where no other is given."""
    return Row(name, arguments, fn, op or "".join(part[:1].upper() + part[1:] for part in name.split("_")), **how)


class Argument(NamedTuple):
    """One argument of a row."""

    name: str
    kind: str
    default: Any


def parsed(arguments: str) -> tuple[list[Argument], dict[str, str]]:
    """Returns a row's arguments, and by their earlier names what those are called now.

    Example:
        >>> parsed("x, @axis=-1; dim=axis")
        ([Argument(name='x', kind='', default=<class 'inspect._empty'>), Argument(name='axis', kind='@', default=-1)], \
{'dim': 'axis'})
    """
    now, _, earlier = arguments.partition(";")
    found = []
    for part in re.split(r", (?![^\[]*\])", now):
        name, equals, default = part.strip().partition("=")
        kind = name[0] if name[0] in "@?*-~" else ""
        found.append(Argument(name.lstrip("@?*-~"), kind, _value(default) if equals else inspect.Parameter.empty))
    pairs = [part.strip().partition("=") for part in earlier.split(",") if part.strip()]
    return found, {old: new for old, _, new in pairs}


def _value(text: str) -> Any:
    return dtypes.PUBLIC[text] if text in dtypes.PUBLIC else ast.literal_eval(text)


def function(row: Row) -> Callable[..., Any]:
    """Returns the function that a row describes."""
    arguments, earlier = parsed(row.arguments)
    kinds = {argument.name: argument.kind for argument in arguments}
    static, computed = (tuple(name for name, kind in kinds.items() if kind in of) for of in (("@", "?"), ("?",)))
    hints = {argument.name: argument.default for argument in arguments if argument.kind == "~"}
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature(
        [inspect.Parameter(name, positional, default=default) for name, _, default in arguments]
    )

    fn, twin = in_order(row.fn), row.twin and in_order(row.twin)

    def call(*args: Any, **kwargs: Any) -> Any:
        for old in kwargs.keys() & earlier.keys():
            value = kwargs.pop(old)
            if value is not None or kwargs.get(earlier[old]) is None:
                kwargs[earlier[old]] = value
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"tf.{row.name}{signature}: {error}.") from None
        bound.apply_defaults()
        given = dict(bound.arguments)
        name = given.pop("name", None)
        if row.before is not None:
            first, *others = given.values()
            given[next(iter(given))] = row.before(first, *others)
        unused = {hint: given.pop(hint) for hint in hints}
        ignored(f"tf.{row.name}", **{hint: value for hint, value in unused.items() if value is not hints[hint]})
        values = {key: _given(key, kinds[key], value) for key, value in given.items()}
        how: dict[str, Any] = {"static": static, "twin": twin, "spec": row.spec, "computed": computed}
        made = node(fn, name or row.op, values, kind=row.op, within=row.within, **how)
        made.op.kind = row.op
        return made if row.result is None else row.result(made, given)

    call.__name__ = call.__qualname__ = row.name.rpartition(".")[2]
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__doc__ = f"`tf.{row.name}`."
    return call


def _given(name: str, kind: str, value: Any) -> Any:
    if name in _DTYPES:
        return None if value is None else dtypes.canonical(value)
    if kind == "*":
        return [argument(item) for item in value] if isinstance(value, list | tuple) else argument(value)
    return value if kind else argument(value)


def functions(rows: Iterable[Row]) -> dict[str, Callable[..., Any]]:
    """Returns the functions of a table by name."""
    return {row.name: function(row) for row in rows}
