"""Dependences inside a function that JAX has traced: a value depends on all inputs of its equation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Sources = frozenset[int]


def _followed(jaxpr: Any, known: Mapping[Any, Sources]) -> list[Sources]:
    """Returns the sources that each output depends on, given the sources of each input."""
    sources = dict(known)

    def of(variables: Sequence[Any]) -> list[Sources]:
        return [frozenset() if hasattr(v, "val") else sources.get(v, frozenset()) for v in variables]

    for equation in jaxpr.eqns:
        sources.update(dict.fromkeys(equation.outvars, frozenset[int]().union(*of(equation.invars))))
    return of(jaxpr.outvars)


def depends_on_first(jaxpr: Any) -> bool:
    """Returns whether an output depends on the first input."""
    return any(_followed(jaxpr, {jaxpr.invars[0]: frozenset([0])}))


def independent(jaxpr: Any, owners: Sequence[int], n_state: int) -> bool:
    """Checks that no output of an update rule depends on the gradients or values of two variables.

    Args:
        jaxpr: `update(grads, state, params) -> (changes, state)`, leaves in order.
        owners: For each gradient leaf, and each parameter leaf, the index of its variable.
        n_state: The number of leaves of the state.
    """
    state: list[Sources] = [frozenset()] * n_state
    grads = [frozenset([owner]) for owner in owners]
    while True:
        outputs = _followed(jaxpr, dict(zip(jaxpr.invars, [*grads, *state, *grads], strict=True)))
        if any(len(output) > 1 for output in outputs):
            return False
        # A step's result in the state is the next step's input: its dependences carry over.
        after = [old | new for old, new in zip(state, outputs[len(owners) :], strict=True)]
        if after == state:
            return True
        state = after
