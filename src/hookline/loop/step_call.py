"""StepCall: calls a step function with the state, a batch and a random key; and errors for `jax.pmap`."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from hookline import jax_internals
from hookline.graph.nodes import spec as specs
from hookline.loop.step.leaf_types import are_nnx, describe_kind
from hookline.signals.interrupts import calls_user_code

# JAX's NameError for an unbound axis is recognised only by its text.
_UNBOUND = re.compile(r"unbound axis name: (\w+)")
_AXIS = "batch"  # The usual name, if the error does not contain the name.


def refuse_pmap(who: str, name: str, function: Any) -> None:
    """Raises `TypeError` for a function made by `jax.pmap`, with the remedy."""
    if jax_internals.is_pmapped(function):
        raise TypeError(f"{who}: {name} is made by jax.pmap, but {_pmap_advice(_AXIS)}")


def pmap_axis_error(who: str, name: str, error: Exception) -> TypeError | None:
    """Returns a `TypeError` for JAX's error about an axis that only `jax.pmap` would bind; None for other errors."""
    found = _UNBOUND.search(str(error)) if isinstance(error, NameError) else None
    if found is None:
        return None
    return TypeError(f"{who}: {name} uses the axis {found[1]!r} of a jax.pmap, but {_pmap_advice(found[1])}")


def pmap_hint(function: Any, *values: Any) -> str | None:
    """Returns a note for an error of a step that `jax.pmap` may explain; None if nothing suggests `jax.pmap`.

    Args:
        function: The step.
        *values: The specs of the state and of a batch.
    """
    count = jax.local_device_count()
    shapes = [[leaf.shape for leaf in jax.tree.leaves(value)] for value in values]
    if all(shapes) and all(shape[:1] == (count,) for some in shapes for shape in some):
        what = f"all arrays of the state and the batch have a leading axis of {count}, the number of devices, as for"
        return f"hookline: {what} jax.pmap. If so: {_pmap_advice(_AXIS)}"
    names = [name for name, value in _referenced_variables(function).items() if jax_internals.is_pmapped(value)]
    return (
        f"hookline: the step uses {names[0]}, which is made by jax.pmap, but {_pmap_advice(_AXIS)}" if names else None
    )


def _referenced_variables(function: Any) -> dict[str, Any]:
    """Returns the global and nonlocal variables that a function uses."""
    try:
        found = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):
        return {}
    return {**found.globals, **found.nonlocals}


def _pmap_advice(axis: str) -> str:
    return (
        f"a step is one program over all devices. Give it without jax.pmap, a state that is not replicated, and "
        f"batches without a leading axis of devices: mesh = jax.make_mesh(({jax.device_count()},), ('data',), "
        f"axis_types=(jax.sharding.AxisType.Auto,)); Loop(..., sharding=jax.NamedSharding(mesh, jax.P())), which also "
        f"splits the batches. And leave out jax.lax.pmean(..., {axis!r}): a mean in the step is over the whole batch."
    )


# rng, key, dropout_rng, prng_key, ...
_KEY = re.compile(r"(.+_)?(key|subkey|rngs?|prng)")
_STEP = re.compile(r"(global_)?step")
# Names of an unused parameter, as in the body of a `jax.lax.scan` without inputs.
_UNUSED = re.compile(r"_\w*|unused\w*")


def required_parameters(who: str, function: Any) -> list[str] | None:
    """Returns the names of a function's required positional parameters; `None` if they are not known.

    Raises:
        TypeError: It is not a function, is made by `jax.pmap`, or has required keyword-only parameters.
    """
    if not callable(function):
        raise TypeError(f"{who} requires a function, got {function!r}.")
    refuse_pmap(who, function_name(function), function)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    found = [parameter for parameter in parameters if parameter.default is parameter.empty]
    bound = _after_partial(function)
    by_name = [p.name for p in found if p.kind is p.KEYWORD_ONLY and p.name not in bound]
    if by_name:
        raise TypeError(
            f"{who}: {function_name(function)} has required keyword-only parameters, {', '.join(by_name)}. Bind them: "
            f"functools.partial({function_name(function)}, {by_name[0]}=...)."
        )
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in found):
        return None
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) or p.name in bound]


def _after_partial(function: Any) -> set[str]:
    """Returns the parameters after one that a `functools.partial` binds: they must be passed as keyword arguments."""
    function = inspect.unwrap(function)
    if not isinstance(function, functools.partial):
        return set()
    before, after = (inspect.signature(each).parameters.values() for each in (function.func, function))
    by_place = {parameter.name for parameter in before if parameter.kind is parameter.POSITIONAL_OR_KEYWORD}
    return by_place & {parameter.name for parameter in after if parameter.kind is parameter.KEYWORD_ONLY}


def function_name(function: Any) -> str:
    """Returns the name of a function for messages."""
    inner = getattr(function, "func", function)  # of functools.partial
    return getattr(inner, "__name__", type(inner).__name__)


def split_state(names: Sequence[str] | None, state: Any, *, has_batch: bool = True) -> dict[str, Any]:
    """Maps parameters to the keys of their parts of the state; None is the key of the whole state.

    A dict is passed by name, if each of its keys is the name of a parameter. The parts of a tuple are passed as the
    first arguments: NNX objects always, other tuples if the step has enough parameters for them, and for a batch if it
    has one. Otherwise the first parameter gets the whole state.

    Raises:
        TypeError: Only some keys of a dict are names of parameters.

    Example:
        >>> split_state(["model", "x", "y", "opt_state"], {"opt_state": 1, "model": 2})
        {'model': 'model', 'opt_state': 'opt_state'}
        >>> split_state(["model", "opt_state", "batch"], (2, 1))
        {'model': 0, 'opt_state': 1}
        >>> split_state(["state", "batch", "key"], (2, 1))
        {'state': None}
        >>> split_state(["params", "opt_state"], (2, 1), has_batch=False)
        {'params': 0, 'opt_state': 1}
        >>> split_state(["state", "batch", "step"], (2, 1)), split_state(["params", "step", "batch"], (2, 1))
        ({'state': None}, {'params': 0, 'step': 1})
        >>> split_state(["state", "step"], (2, {"mu": 1, "nu": 1}), has_batch=False)
        {'state': None}
    """
    if type(state) is tuple and are_nnx(state):
        known = list(names or ())[: len(state)]
        known += [f"the state's {number}" for number in range(len(known), len(state))]
        return dict(zip(known, range(len(state)), strict=True))
    names = names or ["the state"]
    if type(state) is dict and (len(state) > 1 or are_nnx(state)) and state.keys() <= set(names):
        return {name: name for name in names if name in state}
    _refuse_partial_match(names, state)
    keys = [bool(_KEY.fullmatch(name)) for name in names]
    parts = len(state) if type(state) is tuple else 0
    rest = [not _STEP.fullmatch(name) and not _KEY.fullmatch(name) for name in names[parts:]]
    is_enough = any(rest) if has_batch else len(names) >= parts
    # With (state, rng, batch) a pair is one state: rng is a random key rather than a part of the state.
    gets_all = parts == 2 and keys[:2] == [False, True]
    # The second parameter may be a step counter in the state rather than the global step.
    is_step = parts == 2 and bool(_STEP.fullmatch(names[-1])) and [*map(np.shape, jax.tree.leaves(state[1]))] != [()]
    gets_all |= parts == len(names) == 2 and (is_step or bool(_UNUSED.fullmatch(names[1])))
    is_spread = parts > 1 and is_enough and not gets_all
    return dict(zip(names, range(parts), strict=False)) if is_spread else {names[0]: None}


def _refuse_partial_match(names: Sequence[str], state: Any) -> None:
    known = [name for name in names if name in state] if type(state) is dict else []
    if known and len([name for name in names if not _KEY.fullmatch(name)]) > 2:
        others = [str(name) for name in state if name not in names]
        raise TypeError(
            f"Loop passes the parts of a dict by name if each of its keys is the name of a parameter: this state has "
            f"{', '.join(known)}, but no parameter is called {' or '.join(others)}. There are: {', '.join(names)}."
        )


class StepCall:
    """Calls a function with a state and a batch.

    Args:
        who: The caller, for messages.
        function: The function.
        parts: For each parameter for the state or a part of it, the key of that part; None for the whole state.
        allow_key: Whether one more parameter gets a random key: a required one; else a parameter called `key`, `rng` or
            the like, whose default is None, as a keyword argument.

    Attributes:
        called_as: The last call with its arguments in words, for notes of errors; empty before.
        key: The name of the parameter for the random key; `None` for none.
        step: The name of the parameter for the global step; `None` for none.
    """

    def __init__(self, who: str, function: Any, parts: Mapping[str, Any], *, allow_key: bool = True) -> None:
        self.name = function_name(function)
        self._who, self._function, self._allow_key = who, function, allow_key
        self._names = required_parameters(who, function)
        self._after_bound = _after_partial(function)
        self._parts, self._state_parameters = parts, list(parts)
        self.called_as = ""
        self._other_parameters = [name for name in self._names or () if name not in self._state_parameters]
        self.key: str | None = None
        self.step: str | None = None
        self._is_key_optional = False
        self._batch_arguments: list[tuple[str, Any]] = []
        self._has_batch = True

    def bind_batch(self, batch: Any) -> None:
        """Maps the other parameters to the parts of batches like this one; None for a step without batches.

        A step without batches may still have a parameter for them, which gets None, as in a `jax.lax.scan` without
        inputs.

        Raises:
            TypeError: The parameters do not fit the batch.
        """
        if self._names is None:
            return
        rest = self._other_parameters
        has_more = self._allow_key and len(rest) > (batch is not None)
        keys = [name for name in rest if _KEY.fullmatch(name)] if has_more else []
        steps = [name for name in rest if _STEP.fullmatch(name)] if has_more else []
        by_name = isinstance(batch, Mapping) and len(rest) > 1 and set(rest) <= {*batch, *keys[-1:], *steps[-1:]}
        self._is_key_optional = False
        self.key = keys[-1] if keys and not (by_name and keys[-1] in batch) else None
        rest = [name for name in rest if name != self.key]
        parts = batch if type(batch) is list else list(batch) if isinstance(batch, tuple) else []
        self.step = steps[-1] if steps and not (steps[-1] in batch if by_name else len(rest) == len(parts)) else None
        rest = [name for name in rest if name != self.step]
        if self._allow_key and self.key is None and len(rest) == 2 != len(parts) and not by_name:
            self.key = rest.pop()  # Whatever its name is.
        if self._allow_key and self.key is None and (optional := _optional_key(self._function)):
            self.key, self._is_key_optional = optional, True
        self._has_batch = batch is not None
        if len(rest) == 1 or (not rest and batch is None):
            self._batch_arguments = [(name, None) for name in rest]
        elif by_name:
            self._batch_arguments = [(name, name) for name in rest]
        elif rest and len(rest) == len(parts):
            self._batch_arguments = list(zip(rest, range(len(rest)), strict=True))
        else:
            raise TypeError(self._refusal(batch))

    def _refusal(self, batch: Any) -> str:
        key = ", the global step as `step`, and a random key if it requires one more" if self._allow_key else ""
        if batch is None:
            return (
                f"{self._who}: with batches=None {self.name} is called with the state "
                f"({', '.join(self._state_parameters)}){key}; it requires {', '.join(self._names or ()) or 'nothing'}. "
                "Bind other arguments: functools.partial."
            )
        return (
            f"{self._who}: {self.name} is called with the state ({', '.join(self._state_parameters)}), a batch{key}; "
            f"it requires {', '.join(self._names or ()) or 'nothing'}. A batch is one argument; or one for each of its "
            f"parts, if it is a tuple of as many parts or a dict with these names; here it is {specs.describe(batch)}. "
            f"The parts of a dict are passed by name if its keys are parameters, those of a tuple as first arguments."
        )

    @calls_user_code
    def __call__(self, state: Sequence[Any], batch: Any, *key: Any, step: Any = None) -> Any:
        """Calls the function with the parts of a state, a batch, a key if it takes one, and the global step."""
        if self._names is None:
            return self._function(*state, *([batch] if self._has_batch else []), *key)
        given = dict(zip(self._state_parameters, state, strict=True))
        given |= {name: batch if part is None else batch[part] for name, part in self._batch_arguments}
        self.called_as = self._describe_call(given)
        if self.step is not None:
            given[self.step] = step
        if self.key is not None:
            (given[self.key],) = key
        by_name = [self.key] if self.key is not None and self._is_key_optional else []
        by_name += [name for name in self._names if name in self._after_bound]
        in_order = [given[name] for name in self._names if name not in self._after_bound]
        return self._function(*in_order, **{name: given[name] for name in by_name})

    def _describe_call(self, given: Mapping[str, Any]) -> str:
        """Returns a call, with the origin and kind of each argument: `step(w=<the state: float32[2]>)`."""

        def argument(name: str, key: Any, whole: str) -> str:
            part = f"the {whole}" if key is None else f"part {key} of the {whole}"
            return f"{name}=None" if given[name] is None else f"{name}=<{part}: {describe_kind(given[name])}>"

        shown = {name: argument(name, key, "state") for name, key in self._parts.items()}
        shown |= {name: argument(name, key, "batch") for name, key in self._batch_arguments}
        if not self._has_batch:
            shown |= {name: f"{name}=<None, because there are no batches>" for name, _ in self._batch_arguments}
        shown |= {self.step: f"{self.step}=<the global step>"} if self.step else {}
        shown |= {self.key: f"{self.key}=<a random key>"} if self.key else {}
        order = [*dict.fromkeys([*(self._names or ()), *shown])]
        return f"{self.name}({', '.join(shown[name] for name in order)})"

    @property
    def is_plain(self) -> bool:
        """Whether one parameter gets the whole batch, none the global step, and no optional parameter a key."""
        return self._names is None or (
            len(self._batch_arguments) < 2 and self.step is None and not self._is_key_optional
        )

    def __str__(self) -> str:
        parts = ", ".join(name for name, _ in self._batch_arguments)
        what = "a batch" if len(self._batch_arguments) < 2 else "the parts of a batch"
        what = what if self._has_batch else "None, because there are no batches,"
        key = f", and the global step as {self.step}" if self.step else ""
        key += f", and a random key as {self.key}" if self.key else ""
        if self.key == "rngs":  # In Flax this is often a dict of keys.
            key += f" (if that is a dict of keys, give a function that calls {self.name} with rngs={{'dropout': key}})"
        state = (
            f"the parts of the state as {', '.join(self._state_parameters)}"
            if len(self._state_parameters) > 1
            else (f"the state as {', '.join(self._state_parameters)}")
        )
        return f"{self.name} is given {state}" + (f", {what} as {parts}" if parts else "") + key


def _optional_key(function: Any) -> str | None:
    """Returns the last unbound parameter with the name of a random key and the default None."""
    bound = getattr(inspect.unwrap(function), "keywords", {})  # of functools.partial
    found = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is None
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and _KEY.fullmatch(parameter.name)
        and parameter.name not in bound
    ]
    return found[-1] if found else None
