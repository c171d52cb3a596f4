"""The assignment of values in a checkpoint to variables: maps of names and prefixes, lists, patterns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from hookline import arguments
from hookline.graph import GraphKeys, Variable, get_default_graph, global_variables

Assignment = dict[Variable, str]
"""The name in the checkpoint of each variable."""


def by_map(who: str, assignment_map: Any) -> Assignment:
    """Returns the assignment for an `assignment_map` of `init_from_checkpoint` in the default graph."""
    pairs = assignment_map.items() if isinstance(assignment_map, Mapping) else assignment_map
    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        raise TypeError(f"{who} requires a dict from names to variables, or a list of pairs, got {assignment_map!r}.")
    prefixes: Assignment = {}
    names: Assignment = {}
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"{who} requires pairs of a name in the checkpoint and a variable, got {pair!r}.")
        name, target = pair
        if name.endswith("/") or (isinstance(target, str) and target.endswith("/")):
            prefixes |= _below(who, name, target)
        else:
            names[_variable(who, target)] = name.removesuffix(":0")
    return prefixes | names


def by_name(who: str, var_list: Any) -> Assignment:
    """Returns the assignment for a list of variables, or a dict from names to variables."""
    if isinstance(var_list, Mapping):
        return {_checked(who, variable): name.removesuffix(":0") for name, variable in var_list.items()}
    variables = arguments.several(who, "var_list", var_list)
    return {_checked(who, variable): variable.op.name for variable in variables}


def by_pattern(
    who: str, chosen: str | Sequence[str] | Sequence[Variable] | None, earlier_names: Mapping[str, str]
) -> Assignment:
    """Returns the assignment for the arguments of `warm_start` in the default graph."""
    graph = get_default_graph()
    if chosen is None:
        found = []
    elif isinstance(chosen, str):
        found = graph.get_collection(GraphKeys.TRAINABLE_VARIABLES, chosen)
    elif all(isinstance(item, str) for item in arguments.several(who, "vars_to_warm_start", chosen)):
        patterns = cast("Sequence[str]", chosen)
        found = [v for pattern in patterns for v in graph.get_collection(GraphKeys.GLOBAL_VARIABLES, pattern)]
    else:
        found = [_checked(who, item) for item in chosen]
    names = {variable.op.name for variable in found}
    earlier = {name.removesuffix(":0"): before.removesuffix(":0") for name, before in earlier_names.items()}
    if unused := sorted(earlier.keys() - names):
        raise ValueError(
            f"{who}: var_name_to_prev_var_name names variables that are not chosen: {', '.join(unused)}. Chosen "
            f"are: {', '.join(sorted(names)) or 'none'}."
        )
    return {variable: earlier.get(variable.op.name, variable.op.name) for variable in found}


def _below(who: str, prefix: str, target: Any) -> Assignment:
    if not (prefix.endswith("/") and isinstance(target, str) and target.endswith("/")):
        raise ValueError(
            f"{who}: a prefix, which ends in a slash, goes with a prefix, and a name with a variable or its name; got "
            f"{prefix!r} for {getattr(target, 'name', target)!r}."
        )
    theirs, ours = (text.removeprefix("/") if text == "/" else text for text in (prefix, target))
    found = [v for v in global_variables() if v.op.name.startswith(ours) and not v.per_worker]
    if not found:
        raise ValueError(f"{who}: the graph has no global variable whose name begins with {target!r}.")
    return {variable: theirs + variable.op.name[len(ours) :] for variable in found}


def _variable(who: str, target: Any) -> Variable:
    if isinstance(target, str):
        try:
            target = get_default_graph().get_operation_by_name(target.removesuffix(":0")).output
        except KeyError as error:
            raise ValueError(f"{who}: {error.args[0]}") from None
    return _checked(who, target)


def _checked(who: str, variable: Any) -> Variable:
    if not isinstance(variable, Variable):
        hint = " There are no partitioned variables: give the variable itself." if isinstance(variable, list) else ""
        raise TypeError(f"{who} requires variables, got {variable!r}.{hint}")
    if variable.graph is not get_default_graph():
        raise ValueError(f"{who}: variable {variable.op.name!r} belongs to another graph than the default graph.")
    return variable
