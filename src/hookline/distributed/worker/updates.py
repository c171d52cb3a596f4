"""Updates that can be sent to other processes, and fingerprints with which processes compare their graphs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from hookline.distributed.protocol import Structure
from hookline.errors import FailedPreconditionError
from hookline.graph.graph import Tensor
from hookline.graph.nodes import spec as specs
from hookline.graph.variable import Update, Variable

_LONGEST_TEXT = 200


@dataclasses.dataclass(frozen=True)
class Input:
    """A placeholder for a tensor among the arguments of an update.

    Attributes:
        index: The index of the tensor among the update's inputs.
        kind: `"variable"`, `"update"` (the new values that another update of the run computes), or `"value"`.
        name: The name of the variable, of the update, or of the tensor.
        path: The path of the leaf that the tensor reads; empty for all of it, and for a value.
    """

    index: int
    kind: str
    name: str
    path: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class PortableUpdate:
    """An `Update` without its graph: everything that a server needs to apply it.

    Attributes:
        args: The arguments of `fn`, with an `Input` in place of each tensor. Containers are sent as they are.
        inputs: These placeholders, in order.
        specs: The spec of each variable; `None` if it is unknown or has open dimensions.
        fingerprint: A hash of the update's code, constants and types.
    """

    name: str
    fn: Any
    args: Any
    inputs: tuple[Input, ...]
    variables: tuple[str, ...]
    specs: tuple[Any, ...]
    structure: Structure
    overwrites: bool
    initialises: bool
    increment: int | None
    fingerprint: str


def portable(update: Update) -> PortableUpdate:
    """Converts an update to a form that Ray's cloudpickle can pickle, if it can pickle the update's function.

    Example:
        >>> import hookline as hl
        >>> total = hl.Variable(0.0, name="total")
        >>> bump = portable(total.assign_add(2.0).op)
        >>> bump.name, bump.variables, bump.fn(1.0, *bump.args)
        ('total/assign_add', ('total',), 3.0)
    """
    inputs = tuple(_input(index, tensor) for index, tensor in enumerate(update.inputs))
    placeholders = iter(inputs)
    args = update.bind(lambda _: next(placeholders))
    parts = [
        update.name,
        [variable.op.name for variable in update.variables],
        str(update.structure),
        [spec_text(variable.spec) for variable in update.variables],
        [spec_text(tensor.spec) for tensor in update.inputs],
        [(source.kind, source.name, source.path) for source in inputs if source.kind != "value"],
        update.increment,
        code_text(update.fn),
        code_text(args),
    ]
    return PortableUpdate(
        name=update.name,
        fn=update.fn,
        args=args,
        inputs=inputs,
        variables=tuple(variable.op.name for variable in update.variables),
        specs=tuple(_abstract_spec(variable.spec) for variable in update.variables),
        structure=Structure(update.structure),
        overwrites=update.overwrites,
        initialises=update.is_initializer,
        increment=update.increment,
        fingerprint=hashlib.sha256(repr(parts).encode()).hexdigest()[:16],
    )


def _input(index: int, tensor: Tensor) -> Input:
    if isinstance(tensor.op, Update):
        return Input(index, "update", tensor.op.name, tensor.path)
    if isinstance(tensor.op.output, Variable):
        return Input(index, "variable", tensor.op.name, tensor.path)
    return Input(index, "value", tensor.name, ())


def _abstract_spec(spec: Any) -> Any:
    if spec is specs.UNKNOWN or any(not isinstance(d, int) for leaf in jax.tree.leaves(spec) for d in leaf.shape):
        return None
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), spec)


def spec_text(spec: Any) -> str:
    """Describes a spec as a string that is the same in every process."""
    return "unknown" if spec is specs.UNKNOWN else f"{jax.tree.structure(spec)}: {specs.describe(spec)}"


def check_fingerprints(chief: Mapping[str, str], worker: Mapping[str, str], what: str) -> None:
    """Compares a worker's fingerprints with the chief's, by name; ignores names that only the chief has.

    `what` is what they are of, for the message: "update" or "variable".

    Raises:
        FailedPreconditionError: A fingerprint differs; the message names the first one.
    """
    for name, fingerprint in worker.items():
        if name not in chief:
            problem = f"which the chief's graph does not have; it has {', '.join(sorted(chief)) or 'none'}"
        elif chief[name] != fingerprint:
            problem = f"which is another one in the chief's graph ({chief[name]}, here {fingerprint})"
        else:
            continue
        raise FailedPreconditionError.from_message(
            f"This worker's graph is not the chief's. The first difference is the {what} {name!r}, {problem}. All "
            f"processes must run the same script with the same settings.",
        )


# Descriptions of functions -----------------------------------------------------------------------------------------


def code_text(value: Any) -> str:
    """Describes a function, or a value that it holds, as a string that is the same in every process.

    It contains code, constants, defaults and closed-over values; of objects without a stable description, only the
    type. So two functions with the same string may still differ, but functions with different strings do differ.

    Example:
        >>> code_text(lambda x: x + 1) == code_text(lambda y: y + 1)
        True
        >>> code_text(lambda x: x + 1) == code_text(lambda x: x + 2)
        False
    """
    return _describe(value, {})


def _describe(value: Any, seen: dict[int, tuple[Any, str]]) -> str:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if id(value) not in seen:
        # Keep the value with its text, because the id of a deleted object may be reused.
        seen[id(value)] = (value, f"<cycle to {type(value).__qualname__}>")
        text = _object_text(value, seen)
        if len(text) > _LONGEST_TEXT:
            text = hashlib.sha256(text.encode()).hexdigest()
        seen[id(value)] = (value, text)
    return seen[id(value)][1]


def _object_text(value: Any, seen: dict[int, tuple[Any, str]]) -> str:
    def texts(items: Iterable[Any]) -> list[str]:
        return [_describe(item, seen) for item in items]

    if isinstance(value, Tensor):
        return f"tensor {value.name}"
    if isinstance(value, types.CodeType):
        # The first constant is the docstring, or insignificant.
        constants = texts(value.co_consts[1:] if _has_docstring(value) else value.co_consts)
        return f"code {value.co_code.hex()} {value.co_names} {constants}"
    if isinstance(value, types.FunctionType):
        held = [value.__code__, value.__defaults__, value.__kwdefaults__]
        return f"function {texts([*held, *map(_content, value.__closure__ or ())])}"
    if isinstance(value, types.MethodType):
        return f"method {texts([value.__func__, value.__self__])}"
    if isinstance(value, functools.partial):
        return f"partial {texts([value.func, value.args, value.keywords])}"
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array_text(value)
    if isinstance(value, Mapping):
        return f"mapping {texts([part for item in value.items() for part in item])}"
    if isinstance(value, set | frozenset):
        return f"set {sorted(texts(value))}"
    if isinstance(value, list | tuple):
        return f"{type(value).__qualname__} {texts(value)}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__qualname__} {texts(getattr(value, f.name, None) for f in dataclasses.fields(value))}"
    if (wrapped := getattr(value, "__wrapped__", None)) is not None:
        return f"{type(value).__qualname__} around {texts([wrapped])}"
    name = getattr(value, "__qualname__", None)
    return f"{getattr(value, '__module__', '')}.{name}" if name else type(value).__qualname__


def _has_docstring(code: types.CodeType) -> bool:
    return bool(code.co_consts) and (code.co_consts[0] is None or isinstance(code.co_consts[0], str))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "not yet defined"


def _array_text(value: Any) -> str:
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"key {_array_text(jax.random.key_data(value))}"
    array = np.asarray(value)
    return f"{array.dtype}{array.shape} {hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]}"


def variable_fingerprints(variables: Iterable[Variable]) -> dict[str, str]:
    """Returns the fingerprints of variables, by name: their specs."""
    return {variable.op.name: spec_text(variable.spec) for variable in variables}
