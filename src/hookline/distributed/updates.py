"""Updates that can leave the process that made them, and fingerprints to tell whether two processes made the same."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from hookline.distributed.wire import Structure
from hookline.errors import FailedPreconditionError
from hookline.graph import spec as specs
from hookline.graph.tensor import Tensor
from hookline.graph.variable import Update, Variable


@dataclasses.dataclass(frozen=True)
class Input:
    """Where an update finds one of its arguments, if its sender does not give it.

    Attributes:
        place: Its number among the update's inputs.
        kind: `"variable"`, `"update"` (the new values that another update of the run computes), or `"value"`.
        name: Of the variable or update.
        path: Of the view.
    """

    place: int
    kind: str
    name: str
    path: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class PortableUpdate:
    """An `Update` without its graph: what a server needs to apply it.

    Attributes:
        name: Of the operation.
        fn: `fn(values, *args) -> new_values`.
        args: The arguments, with an `Input` in the place of each tensor. Its containers travel as they are.
        inputs: Those inputs, in order.
        variables: Names of the variables it writes, in order.
        structure: The structure in which `fn` takes and returns them.
        overwrites: It does not look at the old values.
        initialises: It is a variable's initializer.
        increment: What it adds to an integer scalar, where that is known.
        fingerprint: Differs if it was made by other code, or for other types.
    """

    name: str
    fn: Any
    args: Any
    inputs: tuple[Input, ...]
    variables: tuple[str, ...]
    structure: Structure
    overwrites: bool
    initialises: bool
    increment: int | None
    fingerprint: str


def portable(update: Update) -> PortableUpdate:
    """Returns an update in a form that can be pickled, by Ray's cloudpickle, if its function can.

    Args:
        update: The node of the graph.

    Example:
        >>> import hookline as hl
        >>> total = hl.Variable(0.0, name="total")
        >>> bump = portable(total.assign_add(2.0).op)
        >>> bump.name, bump.variables, bump.fn(1.0, *bump.args)
        ('total/assign_add', ('total',), 3.0)
    """
    inputs = tuple(_input(place, tensor) for place, tensor in enumerate(update.inputs))
    slots = iter(inputs)
    args = update.bind(lambda _: next(slots))
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
        structure=Structure(update.structure),
        overwrites=update.overwrites,
        initialises=update.initialises,
        increment=update.increment,
        fingerprint=hashlib.sha256(repr(parts).encode()).hexdigest()[:16],
    )


def _input(place: int, tensor: Tensor) -> Input:
    if isinstance(tensor.op, Update):
        return Input(place, "update", tensor.op.name, tensor.path)
    if isinstance(tensor.op.output, Variable):
        return Input(place, "variable", tensor.op.name, tensor.path)
    return Input(place, "value", tensor.name, ())


def spec_text(spec: Any) -> str:
    """Returns a spec in words that are the same in every process."""
    return "unknown" if spec is specs.UNKNOWN else f"{jax.tree.structure(spec)}: {specs.describe(spec)}"


def check_same(chief: Mapping[str, str], worker: Mapping[str, str], what: str) -> None:
    """Compares fingerprints of a worker with those that the chief published.

    Args:
        chief: Fingerprints by name.
        worker: Those of the worker, in the order of its graph. What only the chief has is no difference.
        what: What the names are names of.

    Raises:
        FailedPreconditionError: It names the first difference.
    """
    for name, fingerprint in worker.items():
        if name not in chief:
            problem = f"which the chief's graph does not have; it has {', '.join(sorted(chief)) or 'none'}"
        elif chief[name] != fingerprint:
            problem = f"which is another one in the chief's graph ({chief[name]}, here {fingerprint})"
        else:
            continue
        raise FailedPreconditionError(
            None,
            None,
            f"This worker's graph is not the chief's. The first difference is the {what} {name!r}, {problem}. All "
            f"processes must run the same script with the same settings.",
        )


# What a function does, in words ------------------------------------------------------------------------------------


def code_text(value: Any) -> str:
    """Returns a description of a function, or of what it holds, that is the same in every process.

    Code, constants, defaults and what a closure holds are in it; of objects that say nothing about themselves only
    the type is. Two functions with the same text may still differ; with different ones they do.
    """
    return _describe(value, {})


def _describe(value: Any, seen: dict[int, int]) -> str:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if id(value) in seen:
        return f"<{seen[id(value)]}>"
    seen[id(value)] = len(seen)
    if isinstance(value, Tensor):
        return f"tensor {value.name}"
    if isinstance(value, types.FunctionType):
        return _function_text(value, seen)
    if isinstance(value, types.MethodType):
        return f"method {value.__func__.__qualname__} of {_describe(value.__self__, seen)}"
    if isinstance(value, functools.partial):
        return f"partial({_describe([value.func, value.args, value.keywords], seen)})"
    if isinstance(value, types.CodeType):
        constants = ", ".join(_describe(constant, seen) for constant in value.co_consts[_doc_count(value) :])
        return f"code {value.co_code.hex()} {value.co_names} {value.co_freevars} [{constants}]"
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array_text(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_describe(k, seen)}: {_describe(v, seen)}' for k, v in value.items())}}}"
    if isinstance(value, set | frozenset):
        return f"set({', '.join(sorted(_describe(item, seen) for item in value))})"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(_describe(item, seen) for item in value)})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        return f"{type(value).__qualname__}{_describe(fields, seen)}"
    if wrapped := getattr(value, "__wrapped__", None):
        return f"{type(value).__qualname__} around {_describe(wrapped, seen)}"
    name = getattr(value, "__qualname__", None)
    return f"{getattr(value, '__module__', '')}.{name}" if name else type(value).__qualname__


def _doc_count(code: types.CodeType) -> int:
    # The first constant of a function is its docstring, or None.
    return 1 if code.co_consts and (code.co_consts[0] is None or isinstance(code.co_consts[0], str)) else 0


def _function_text(function: types.FunctionType, seen: dict[int, int]) -> str:
    held: list[Any] = [function.__code__, function.__defaults__, function.__kwdefaults__]
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:
            held.append("not yet defined")
    return f"function({', '.join(_describe(item, seen) for item in held)})"


def _array_text(value: Any) -> str:
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"key {_array_text(jax.random.key_data(value))}"
    array = np.asarray(value)
    return f"{array.dtype}{array.shape} {hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]}"


def shared_variables(variables: Iterable[Variable]) -> dict[str, str]:
    """Returns the fingerprints of variables: what each of them holds."""
    return {variable.op.name: spec_text(variable.spec) for variable in variables}
