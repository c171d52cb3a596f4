"""Data dependencies in a jaxpr: a value depends on all inputs of its equation.

The bodies of called functions are analysed, too. Whether JAX inlines a call depends on its version; the variables that
hold an optimizer's state, and so the contents of checkpoints, must not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Sources = frozenset[int]

_CALLS = ("jit", "pjit", "closed_call", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call")


def called_jaxpr(equation: Any) -> Any:
    """Returns the jaxpr of the function that an equation calls; `None` if it is no call."""
    if equation.primitive.name not in _CALLS:
        return None
    body = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    return getattr(body, "jaxpr", body)


def _propagate_sources(jaxpr: Any, known: Mapping[Any, Sources]) -> list[Sources]:
    """Returns the sources that each output depends on, given the sources of each input."""
    sources = dict(known)

    def of(variables: Sequence[Any]) -> list[Sources]:
        return [frozenset() if hasattr(v, "val") else sources.get(v, frozenset()) for v in variables]

    for equation in jaxpr.eqns:
        given, body = of(equation.invars), called_jaxpr(equation)
        if body is None:
            found = [frozenset[int]().union(*given)] * len(equation.outvars)
        else:
            found = _propagate_sources(body, dict(zip(body.invars, given, strict=True)))
        sources.update(zip(equation.outvars, found, strict=True))
    return of(jaxpr.outvars)


def depends_on_first(jaxpr: Any) -> bool:
    """Returns whether an output depends on the first input."""
    return any(_propagate_sources(jaxpr, {jaxpr.invars[0]: frozenset([0])}))


def are_independent(jaxpr: Any, owners: Sequence[int], n_state: int) -> bool:
    """Returns whether no output of an update rule depends on the gradients or values of two variables.

    Args:
        jaxpr: `update(grads, state, params) -> (changes, state)`, leaves in order.
        owners: For each gradient leaf, and each parameter leaf, the index of its variable.
        n_state: The number of leaves of the state.
    """
    # An example with two variables, a and b. The change of a depends on:
    #
    #     sgd, adam        {a}: the moments in the state depend on {a}, too, and the count of steps on none
    #     a global norm    {a, b} in the first round
    #     a global norm of the last step's gradients, kept in the state: {a}, and in the second round {a, b}
    state: list[Sources] = [frozenset()] * n_state
    grads = [frozenset([owner]) for owner in owners]
    while True:
        outputs = _propagate_sources(jaxpr, dict(zip(jaxpr.invars, [*grads, *state, *grads], strict=True)))
        if any(len(output) > 1 for output in outputs):
            return False
        # The state that a step returns is the next step's input: its dependencies carry over.
        after = [old | new for old, new in zip(state, outputs[len(owners) :], strict=True)]
        if after == state:
            return True
        state = after
