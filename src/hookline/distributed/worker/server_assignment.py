"""The assignment of variables to servers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

import jax

from hookline.graph.graph import Operation
from hookline.graph.nodes import spec as specs
from hookline.graph.variable import Update, Variable


def assign_servers(
    variables: Sequence[Variable],
    updates: Iterable[Update],
    servers: int,
    *,
    global_step: Variable | None = None,
    hints: Mapping[str, int] | None = None,
    placed: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Assigns each variable to a server; returns the servers by name.

    All variables of a group go to one server: those that one update writes, and those that an update reads after
    another update. Groups are assigned, largest first, to the server with the fewest bytes. The global step is on
    server 0.

    Args:
        variables: The variables to assign.
        updates: All updates of the graph.
        servers: The number of servers.
        global_step: The graph's global step.
        hints: Servers by prefixes of variables' names (`"net"` covers `net/w`, but not `network`); the longest prefix
            counts. `Variable.device` (a number, or `"ps:1"`) takes precedence.
        placed: The servers of variables that are already assigned.

    Raises:
        ValueError: Hints for a group contradict each other (the message names both variables), or a hint is not the
            index of a server.

    Example:
        >>> import hookline as hl, jax.numpy as jnp
        >>> large, small, tiny = (hl.Variable(jnp.zeros(n), name=f"v{n}") for n in (9, 5, 3))
        >>> assign_servers([tiny, small, large], [], servers=2)
        {'v3': 1, 'v5': 1, 'v9': 0}
    """
    groups = {variable: [variable] for variable in variables}

    def join(*together: Variable) -> None:
        known = [variable for variable in together if variable in groups]
        for variable in known[1:]:
            large, small = sorted([groups[known[0]], groups[variable]], key=len, reverse=True)
            if large is not small:
                large += small
                groups.update(dict.fromkeys(small, large))

    for update in updates:
        join(*update.variables)
        for tensor in update.inputs:
            if isinstance(tensor.op, Update):
                join(update.variables[0], tensor.op.variables[0])
            elif isinstance(tensor.op.output, Variable) and _reads_after_update(update, tensor.op.output):
                join(update.variables[0], tensor.op.output)
    fixed = dict(placed or {})
    for variable in variables:
        wanted = 0 if variable is global_step else _hint(variable, hints or {}, servers)
        if wanted is not None:
            fixed.setdefault(variable.op.name, wanted)
    assigned: dict[str, int] = {}
    load = [0] * servers
    apart = {id(group): group for group in groups.values()}.values()
    for group in sorted(apart, key=lambda group: (_required_server(group, fixed) is None, -sum(map(_nbytes, group)))):
        server = _required_server(group, fixed)
        if server is None:
            server = load.index(min(load))
        load[server] += sum(map(_nbytes, group))
        assigned.update((variable.op.name, server) for variable in group)
    return {variable.op.name: assigned[variable.op.name] for variable in variables}


def _reads_after_update(update: Update, variable: Variable) -> bool:
    """Returns whether `update` depends on another update of `variable`, and so reads the variable after it."""
    seen: set[Operation] = set()
    pending = [*update.control_inputs, *(tensor.op for tensor in update.inputs)]
    while pending:
        operation = pending.pop()
        if operation in seen:
            continue
        seen.add(operation)
        if isinstance(operation, Update) and variable in operation.variables:
            return True
        pending += [*operation.control_inputs, *(tensor.op for tensor in operation.inputs)]
    return False


def _required_server(group: Sequence[Variable], fixed: Mapping[str, int]) -> int | None:
    """Returns the server that hints or earlier assignments require for a group; None for any."""
    wanted = [(variable, fixed[variable.op.name]) for variable in group if variable.op.name in fixed]
    for variable, server in wanted[1:]:
        first, first_server = wanted[0]
        if server != first_server:
            raise ValueError(
                f"Variables {first.op.name!r} (server {first_server}) and {variable.op.name!r} (server {server}) must "
                f"be on one server, because one update writes both, or reads one after an update of the other. Give "
                f"them the same hint, or none."
            )
    return wanted[0][1] if wanted else None


def _hint(variable: Variable, hints: Mapping[str, int], servers: int) -> int | None:
    name, device = variable.op.name, getattr(variable, "device", None)
    matching = [prefix for prefix in hints if _covers(prefix, name)]
    wanted = hints[max(matching, key=len)] if matching else None
    if isinstance(device, str):
        match = re.search(r"(?:ps|task):(\d+)$", device)
        wanted = int(match[1]) if match else wanted
    elif isinstance(device, int):
        wanted = device
    if wanted is not None and not 0 <= wanted < servers:
        raise ValueError(
            f"The hint for variable {name!r} is server {wanted}, but there are {servers}: 0 to {servers - 1}."
        )
    return wanted


def _covers(prefix: str, name: str) -> bool:
    return name == prefix or name.startswith(prefix.rstrip("/") + "/")


def unused_hints(hints: Iterable[str], variables: Sequence[Variable]) -> list[str]:
    """Returns the hints that match no variable, for example because of a typo.

    Example:
        >>> import hookline as hl
        >>> unused_hints(["net", "nett"], [hl.Variable(0.0, name="net/w")])
        ['nett']
    """
    return [prefix for prefix in hints if not any(_covers(prefix, variable.op.name) for variable in variables)]


def _nbytes(variable: Variable) -> int:
    """Returns the size of a variable in bytes; unknown dimensions count as 1, an unknown spec as 0."""
    if variable.spec is specs.UNKNOWN:
        return 0
    return sum(
        math.prod(dim for dim in leaf.shape if isinstance(dim, int)) * getattr(leaf.dtype, "itemsize", 1)
        for leaf in jax.tree.leaves(variable.spec)
    )
