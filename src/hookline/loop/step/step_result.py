"""Matches the values that a step returns to the parts of the new state and the metrics."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline.checkpoint.directory import leaves as paths
from hookline.loop.step.leaf_types import InvalidStep, describe_kind, dtype_of, is_value, is_weak

Labels = str | tuple[Any, ...] | None
"""The name of a returned variable, a tuple of labels for a tuple, or None for anything else."""

# loss, d_loss, loss_gen, losses
_LOSS = re.compile(r"(.+_)?loss(es)?(_.+)?")
# grads, g_grads, gradients
_GRADIENTS = re.compile(r"(.+_)?grad(ient)?s?(_.+)?")


def is_loss(name: str) -> bool:
    """Returns whether the name of a metric means a loss.

    Example:
        >>> is_loss("loss"), is_loss("d_loss"), is_loss("loss/gen"), is_loss("accuracy")
        (True, True, True, False)
    """
    return any(_LOSS.fullmatch(part) for part in name.split("/"))


def are_gradients(name: str) -> bool:
    """Returns whether the name of a value means gradients."""
    return _GRADIENTS.fullmatch(name) is not None


def returned_names(function: Any) -> Labels:
    """Returns the names of the variables in a function's `return`; None without source, or if its returns differ."""
    while not inspect.isroutine(function) or hasattr(function, "__wrapped__"):
        inner = function.func if isinstance(function, functools.partial) else getattr(function, "__wrapped__", None)
        if inner is None:
            return None
        function = inner
    try:
        (made,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, ValueError, SyntaxError):  # There is no source, or it is a lambda in an expression.
        return None
    if not isinstance(made, ast.FunctionDef):
        return None
    found = {_label(statement.value) for each in made.body for statement in _returns(each)}
    return found.pop() if len(found) == 1 else None


def _returns(node: ast.AST) -> Iterator[ast.Return]:
    if isinstance(node, ast.Return):
        yield node
    elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
        for inside in ast.iter_child_nodes(node):
            yield from _returns(inside)


def _label(value: ast.expr | None) -> Labels:
    if isinstance(value, ast.Tuple) and not any(isinstance(item, ast.Starred) for item in value.elts):
        return tuple(map(_label, value.elts))
    return value.id if isinstance(value, ast.Name) else None


def named_losses(values: Sequence[Any], labels: Sequence[Labels]) -> Any:
    """Returns metrics; two or more losses get the names of the returned variables.

    Example:
        >>> named_losses([0.5, 0.25, 3.0], ["d_loss", "g_loss", "logits"])
        ({'d_loss': 0.5, 'g_loss': 0.25}, 3.0)
        >>> named_losses([(0.5, 0.25)], [("d_loss", "g_loss")]), named_losses([0.5, 0.25], ["loss", "aux"])
        ({'d_loss': 0.5, 'g_loss': 0.25}, (0.5, 0.25))
    """
    if not values:
        return {}
    if len(values) == 1:
        (value,), (label,) = values, labels
        is_spread = type(value) is tuple and value and isinstance(label, tuple) and len(label) == len(value)
        return named_losses(value, label) if is_spread else value  # pyright: ignore[reportArgumentType]
    pairs = list(zip(labels, values, strict=True))
    losses = {label: value for label, value in pairs if isinstance(label, str) and is_loss(label)}
    if len(losses) < 2:
        return tuple(values)
    rest = [value for label, value in pairs if not (isinstance(label, str) and label in losses)]
    return (losses, *rest) if rest else losses


# With many parts, only so many ways to leave some out are tried.
_MOST_TRIED = 500
_NO_NAMES = {"", "new", "next", "old", "updated"}


def split_result(
    before: Sequence[Any], names: Sequence[str], returned: Any, labels: Labels = None
) -> tuple[dict[str, Any], Any]:
    """Splits the result of a step into the parts of the new state, by name, and the metrics.

    The parts are side by side, in the order of the parameters; the values before and after them are metrics. Or one
    value is a tuple of all parts, or a dict of some by name. A part may be missing if no returned value can be that
    part. A reading is one way to match the values to the parts; structures, shapes and dtypes must allow exactly one.

    Args:
        before: The parts of the state before the step.
        names: The parameters that got them.
        returned: The result of the step.
        labels: The names of the variables that it returned.

    Raises:
        InvalidStep: There is no reading, or more than one.

    Example:
        >>> split_result([{"w": 1.0}], ["state"], (0.5, {"w": 2.0}))
        ({'state': {'w': 2.0}}, 0.5)
        >>> split_result([{"w": 1.0}, [0]], ["model", "opt_state"], ({"w": 2.0}, [1], 0.5, 0.75))
        ({'model': {'w': 2.0}, 'opt_state': [1]}, (0.5, 0.75))
        >>> split_result([{"w": 1.0}, 0.5], ["params", "tau"], ({"w": 2.0}, {"loss": 0.1}))
        ({'params': {'w': 2.0}}, {'loss': 0.1})
    """
    is_one = not isinstance(returned, tuple | list) or hasattr(returned, "_fields")
    if is_one or (type(returned) is list and len(before) == 1 and _fits(before[0], returned)):
        returned, labels = (returned,), (labels,)
    if not isinstance(labels, tuple) or len(labels) != len(returned):
        labels = (None,) * len(returned)
    reading = _ResultReader(before, names, list(returned), labels).reading()
    rest = [index for index in range(len(returned)) if index not in reading.places]
    return reading.found, named_losses([returned[index] for index in rest], [labels[index] for index in rest])


class _Reading(NamedTuple):
    """One way to match the values that a step returned to the parts of the state.

    Attributes:
        found: The returned parts, by name.
        places: The indices of the returned values that contain them.
        shown: The returned values in words, for messages.
        of: If the parts were returned side by side, the parts of the state, and the indices of the returned ones.
    """

    found: dict[str, Any]
    places: range
    shown: list[str]
    of: tuple[Sequence[Any], Sequence[int]] | None = None

    def __str__(self) -> str:
        return f"`return {', '.join(self.shown)}`"


class _ResultReader:
    """Finds the readings of the values that a step returned."""

    def __init__(self, before: Sequence[Any], names: Sequence[str], items: list[Any], labels: Sequence[Labels]) -> None:
        self._before, self._names, self._items, self._labels = before, names, items, labels

    def reading(self) -> _Reading:
        """Returns the only reading; raises `InvalidStep` for none or several."""
        everything = range(len(self._before))
        readings = [
            *self._side_by_side(self._before, self._names, everything),
            *self._tuple_as_values(),
            *self._parts_as_tuple(),
        ]
        readings = readings or [*self._by_name()] or self._in_part()
        if not readings:
            self._refuse_order()
            return self._most_similar()
        likely = [reading for reading in readings if not any(self._is_no_part(reading, at) for at in reading.places)]
        readings = likely or readings
        if len(readings) > 1:
            self._refuse(readings[0], str(readings[1]))
        self._check_metrics(readings[0])
        return readings[0]

    def _side_by_side(self, before: Sequence[Any], names: Sequence[str], numbers: Sequence[int]) -> Iterator[_Reading]:
        """Yields the readings with these parts side by side, in the order of the parameters."""
        count = len(numbers)
        for start in range(len(self._items) - count + 1):
            items = self._items[start : start + count]
            if all(_fits(before[number], item) for number, item in zip(numbers, items, strict=True)):
                found = {names[number]: item for number, item in zip(numbers, items, strict=True)}
                yield _Reading(
                    found, range(start, start + count), self._describe_items(start, [*found]), (before, numbers)
                )

    def _tuple_as_values(self) -> Iterator[_Reading]:
        """Yields the readings in which a state that is one tuple was returned as several values."""
        if len(self._before) == 1 and type(self._before[0]) is tuple and self._before[0]:
            (before,), (name,) = self._before, self._names
            parts = [f"{name}[{number}]" for number in range(len(before))]
            for reading in self._side_by_side(before, parts, range(len(before))):
                yield reading._replace(found={name: tuple(reading.found.values())})

    def _parts_as_tuple(self) -> Iterator[_Reading]:
        """Yields the readings in which several parts were returned as one tuple."""
        count = len(self._before)
        for index, item in enumerate(self._items):
            is_tuple = count > 1 and isinstance(item, tuple | list) and len(item) == count
            if is_tuple and all(map(_fits, self._before, item)):
                shown = self._describe_items(index, [f"({', '.join(self._names)})"])
                yield _Reading(dict(zip(self._names, item, strict=True)), range(index, index + 1), shown)

    def _by_name(self) -> Iterator[_Reading]:
        """Yields the readings in which a value is a dict of parts by name."""
        for index in range(len(self._items)):
            found = self._named(index)
            reading = _Reading(found, range(index, index + 1), self._describe_items(index, [f"{{{', '.join(found)}}}"]))
            if found and not self._may_lack(reading, by_place=False):
                yield reading

    def _in_part(self) -> list[_Reading]:
        """Returns up to two readings with as many parts as possible, if not all parts were returned."""
        count = len(self._before)
        for size in range(min(count - 1, len(self._items)), 0, -1):
            readings = (
                reading
                for numbers in itertools.islice(itertools.combinations(range(count), size), _MOST_TRIED)
                for reading in self._side_by_side(self._before, self._names, numbers)
                if not self._may_lack(reading)
            )
            if found := list(itertools.islice(readings, 2)):
                return found
        return []

    def _named(self, index: int) -> dict[str, Any]:
        """Returns the value at an index if it is a dict of parts by name; else an empty dict."""
        item, known = self._items[index], dict(zip(self._names, self._before, strict=True))
        is_one = len(known) > 1 and type(item) is dict and item.keys() <= known.keys()
        return item if is_one and all(_fits(known[name], part) for name, part in item.items()) else {}

    def _may_lack(self, reading: _Reading, by_place: bool = True) -> bool:
        """Returns whether one of the metrics of a reading may be a part that seems to be missing.

        Beside a dict of parts by name, an array is a metric.
        """
        pairs = zip(self._names, self._before, strict=True)
        missing = {name: part for name, part in pairs if name not in reading.found}
        is_short = len(self._items) <= len(self._before)
        return any(
            name in self._named(index) or _resembles(part, self._items[index], is_short)
            for index in range(len(self._items))
            if index not in reading.places
            for name, part in missing.items()
            if by_place or not _is_leaf(part)
        )

    def _check_metrics(self, reading: _Reading) -> None:
        """Raises `InvalidStep` if a part of a reading may just as well be a metric.

        This holds for the first and the last part, if it is an array or has the type of another part, and there is no
        metric or another part is missing: `return params, loss` for a state of params and a weight. It also holds for a
        returned variable whose name means a loss or gradients. A returned variable with the name of the part is the
        part.
        """
        before, numbers = reading.of or ((), ())
        # A state that is one tuple was returned in full: none of its values can be missing.
        is_whole = len(numbers) == len(self._items) and before is not self._before
        is_sure = is_whole or (len(numbers) < len(self._items) and len(numbers) == len(before))
        for number, index in reversed([*zip(numbers, reading.places, strict=False)]):
            part, item = before[number], self._items[index]
            if _is_leaf(part):
                is_likely = _may_be_metric(item)
            else:  # Gradients have the type of the parameters.
                others = [other for at, other in enumerate(before) if at != number]
                is_likely = _is_inexact(part) and any(_fits(other, item) for other in others)
            name, is_at_end = reading.shown[index], index in (reading.places[0], reading.places[-1])
            label = self._labels[index]
            words = _stem_words(label) if isinstance(label, str) else set()
            if words and words == _stem_words(name):
                continue
            if others := [other for other in reading.found if words and words == _stem_words(other)]:
                self._refuse_names(name, others[0])
            # If the state has only one part, no other part can be missing.
            is_other = bool(words) and len(self._before) > 1 and words.isdisjoint(_stem_words(name))
            is_odd = not is_sure or (is_other and not self._are_named(reading))
            if is_likely and (self._is_no_part(reading, index) or (is_at_end and is_odd)):
                shown = [*reading.shown]
                shown[index] = "metric"
                self._refuse(reading, f"`return {', '.join(shown)}`, where {name} stays as it was")

    def _is_no_part(self, reading: _Reading, index: int) -> bool:
        """Returns whether the returned variable's name means a loss or gradients, and the part's name does not."""
        label, name = self._labels[index], reading.shown[index]
        return isinstance(label, str) and any(what(label) and not what(name) for what in (is_loss, are_gradients))

    def _are_named(self, reading: _Reading) -> bool:
        """Returns whether there are metrics and all of them are dicts, so that no array is a metric."""
        rest = [item for index, item in enumerate(self._items) if index not in reading.places]
        return bool(rest) and all(isinstance(item, Mapping) for item in rest)

    def _refuse_names(self, name: str, other: str) -> None:
        raise InvalidStep(
            f"it returned {other} in the place of {name}, by the name of the variable. The parts of the state come "
            f"back in the order of the parameters: write `return {', '.join(self._names)}, {{'loss': loss}}`"
        )

    def _refuse(self, reading: _Reading, other: str) -> None:
        written, some = ", ".join(self._names), next(iter(reading.found))
        by_name = f"; or some parts by name, `return {{{some!r}: {some}}}, {{'loss': loss}}`"
        raise InvalidStep(
            f"the types of the values that it returned can be read in two ways: {reading}, or {other}. Return all "
            f"parts, and the metrics as a dict: `return {written}, {{'loss': loss}}`, with an empty dict for none"
            f"{by_name if len(self._names) > 1 else ''}"
        )

    def _describe_items(self, start: int, names: list[str]) -> list[str]:
        return ["metric"] * start + names + ["metric"] * (len(self._items) - start - len(names))

    def _refuse_order(self) -> None:
        before, names, items = self._before, self._names, self._items
        if len(before) > 5 or len(items) > 8:
            return
        for order in itertools.permutations(range(len(items)), len(before)):
            if all(_fits(part, items[index]) for part, index in zip(before, order, strict=True)):
                found = {index: name for name, index in zip(names, order, strict=True)}
                shown = ", ".join(found.get(index, "...") for index in range(len(items)))
                raise InvalidStep(
                    f"it returned the parts of the state in another order than its parameters, or not side by side: "
                    f"{shown}. Write `return {', '.join(names)}, {{'loss': loss}}`"
                )

    def _most_similar(self) -> _Reading:
        """Returns the reading with the values most like the state; the caller compares them leaf by leaf."""
        before, names, items = self._before, self._names, self._items
        count, written = len(before), f"Write `return {', '.join(names)}, {{'loss': loss}}`"
        if len(items) < count:
            kinds = f"{count} parts of the state, {', '.join(names)}" if count > 1 else describe_kind(before[0])
            raise InvalidStep(f"it is given {kinds}, and returned {_kinds(items)}. {written}")
        start = max(
            range(len(items) - count + 1), key=lambda start: sum(map(_is_like, before, items[start : start + count]))
        )
        if not any(map(_could_be, before, items[start : start + count])):
            raise InvalidStep(
                f"it returned no new state, but {_kinds(items)}; it was given {_kinds(before)}. {written}", ValueError
            )
        found = dict(zip(names, items[start : start + count], strict=True))
        return _Reading(found, range(start, start + count), [])


def _could_be(before: Any, after: Any) -> bool:
    is_other = isinstance(after, Mapping) and not _resembles(before, after, True)
    return _is_leaf(before) or not (_is_leaf(after) or is_other)


def _is_leaf(part: Any) -> bool:
    return jax.tree_util.treedef_is_leaf(jax.tree.structure(part))


def _is_like(before: Any, after: Any) -> bool:
    return jax.tree.structure(before) == jax.tree.structure(after)


def _fits(before: Any, after: Any) -> bool:
    """Returns whether a value has the type of a part of the state; a part of weak type may become another dtype."""
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=False)
    return _is_like(before, after) and all(
        not is_value(one)
        or (is_value(other) and np.shape(one) == np.shape(other) and (is_weak(one) or dtype_of(one) == dtype_of(other)))
        for one, other in pairs
    )


def _resembles(part: Any, item: Any, is_short: bool) -> bool:
    """Returns whether a value may be intended as a part although it has another type.

    Args:
        part: The part.
        item: The value.
        is_short: Whether no more values than parts were returned.
    """
    if _is_leaf(part) or _is_leaf(item):
        both = _is_leaf(part) and is_value(part) and is_value(item)
        return both and (is_short or np.shape(part) == np.shape(item))
    has, other = ({path for path, _ in paths.flatten_with_paths(tree)[0]} for tree in (part, item))
    return _is_like(part, item) or not has.isdisjoint(other)


def _may_be_metric(item: Any) -> bool:
    return is_value(item) and not jnp.issubdtype(dtype_of(item), jax.dtypes.extended)


def _is_inexact(part: Any) -> bool:
    leaves = jax.tree.leaves(part)
    return bool(leaves) and all(is_value(leaf) and jnp.issubdtype(dtype_of(leaf), jnp.inexact) for leaf in leaves)


def _stem_words(name: str) -> set[str]:
    """Returns the stems of the words in a variable's name, without words like "new": "param" for `new_params2`."""
    return {word.rstrip("s") for word in re.split(r"[_\d\W]+", name.lower())} - _NO_NAMES


def _kinds(items: Sequence[Any]) -> str:
    return ", ".join(map(describe_kind, items)) or "an empty tuple"
