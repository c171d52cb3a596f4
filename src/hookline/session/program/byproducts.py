"""By-products: further results of a function, computed so that they cannot change the rounding of its main results.

XLA fuses a value with the operations that read it, and rounds a fused multiplication and addition once. If a run
fetches the gradients of a step, or its activations, these values have one more reader: XLA fuses the step differently,
and its last bits change. So main results and by-products share only results of costly operations, which XLA fuses with
no reader, and each of these is behind a barrier in every program. The operations between such a result and a by-product
are computed a second time for the by-product, and only in programs that fetch it. An example:

    a = x @ w1         a = barrier(x @ w1)
    d = a * 2 + w      d = a * 2 + w                        # fused into the line below in every program
    w = w - d          w = w - d
    return w, d        return w, barrier(a) * 2 + barrier(w)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn, Var, jaxpr_as_fun, jaxprs_in_params, new_jaxpr_eqn

from hookline import jax_internals
from hookline.graph.nodes.jaxpr_dependencies import called_jaxpr
from hookline.jax_internals import ClosedJaxpr

_BARRIER = jax.lax.optimization_barrier_p
# The operations that are not computed twice.
_COSTLY = re.compile(
    "dot_general|ragged_dot.*|conv_.*|reduce(?!_precision).*|arg(max|min)|cum.*|sort|.*top_k|scatter.*|select_and_.*|"
    "fft|cholesky|lu.*|qr|svd|eigh?|schur|tri.*solve|householder.*|hessenberg|linear_solve|p(sum|max|min|permute).*|"
    "all_.*|ragged_all.*|.*callback|ffi_call|optimization_barrier"
)


def isolate_byproducts(function: Callable[[], Any], are_main: Callable[[Any], Sequence[bool]]) -> Any:
    """Returns a function's result, with its by-products isolated from the main results.

    Args:
        function: A function without arguments, on traced values that it closes over.
        are_main: A function of the result's spec. It returns for each array whether it is a main result: one whose bits
            must not depend on the other arrays that a program fetches.
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)()
    jaxpr = _JaxprSplit(closed.jaxpr, are_main(shape)).isolate()
    return jax.tree.structure(shape).unflatten(jaxpr_as_fun(ClosedJaxpr(jaxpr, closed.consts))())


class _JaxprSplit:
    """A jaxpr, split into the equations that its main outputs need, and those of its by-products.

    Attributes:
        needed_inputs: For each input, whether the main outputs need it.
    """

    def __init__(self, jaxpr: Jaxpr, is_main: Sequence[bool]) -> None:
        self._jaxpr, self._is_main = jaxpr, is_main
        needed = {v for v, main in zip(jaxpr.outvars, is_main, strict=True) if main and _is_variable(v)}
        self._makers: dict[Any, JaxprEqn] = {}
        # By the equation's id: for each of its inputs, whether the main outputs need it.
        self._inputs_needed_by: dict[int, list[bool]] = {}
        for equation in reversed(jaxpr.eqns):
            wanted = [v in needed for v in equation.outvars]
            if any(wanted) or equation.effects:
                taken = self._inputs_needed_by[id(equation)] = _inputs_for(equation, wanted)
                self._makers |= dict.fromkeys(equation.outvars, equation)
                needed |= {v for v, takes in zip(equation.invars, taken, strict=True) if takes and _is_variable(v)}
        self._needed = needed
        self.needed_inputs = [v in needed for v in jaxpr.invars]
        self._repeated: set[int] = set()
        self._shared = self._found_shared()

    def _found_shared(self) -> set[Any]:
        """Returns the values that by-products are computed from; the operations in between are to be repeated."""
        shared, seen = set[Any](), set[Any]()
        pending = [v for v, main in zip(self._jaxpr.outvars, self._is_main, strict=True) if not main]
        for equation in self._jaxpr.eqns:
            taken = self._inputs_needed_by.get(id(equation), [False] * len(equation.invars))
            pending += [v for v, takes in zip(equation.invars, taken, strict=True) if not takes]
        while pending:
            value = pending.pop()
            if not _is_variable(value) or value in seen or value not in self._needed:
                continue
            seen.add(value)
            maker = self._makers.get(value)
            if maker is not None and maker.invars and not self._is_costly(maker):
                self._repeated.add(id(maker))
                pending += maker.invars
            else:
                shared.add(value)
        return shared

    def _is_costly(self, equation: JaxprEqn) -> bool:
        # XLA lets a matrix product write its result transposed, unless a barrier is between the two.
        is_transpose = equation.primitive is jax.lax.transpose_p
        before = self._makers.get(equation.invars[0]) if is_transpose and _is_variable(equation.invars[0]) else None
        return _is_costly(equation) or (before is not None and _is_costly(before))

    def isolate(self) -> Jaxpr:
        """Returns the jaxpr with its by-products isolated."""
        equations: list[JaxprEqn] = []
        # The variables that replace others, in equations for main results and in equations for by-products.
        main: dict[Any, Any] = {}
        beside: dict[Any, Any] = {}

        def behind_barrier(value: Any) -> Any:
            barred = Var(value.aval)
            equations.append(new_jaxpr_eqn([value], [barred], _BARRIER, {}, set()))
            return barred

        def replaced(values: Sequence[Any], are_main: Sequence[bool]) -> list[Any]:
            return [
                (main if is_main else beside).get(value, value) if _is_variable(value) else value
                for value, is_main in zip(values, are_main, strict=True)
            ]

        for value in (*self._jaxpr.constvars, *self._jaxpr.invars):
            if value in self._shared:
                beside[value] = behind_barrier(value)
        for equation in self._jaxpr.eqns:
            taken = self._inputs_needed_by.get(id(equation))
            others = [False] * len(equation.invars)
            if taken is None:
                equations.append(equation.replace(invars=replaced(equation.invars, others)))
                continue
            wanted = [v in self._needed for v in equation.outvars]
            params = equation.params if all(wanted) else _isolate_in_params(equation, wanted)
            equations.append(equation.replace(invars=replaced(equation.invars, taken), params=params))
            for value in equation.outvars:
                if value in self._shared:
                    if self._is_costly(equation) and equation.primitive is not _BARRIER:
                        main[value] = behind_barrier(value)
                    beside[value] = behind_barrier(main.get(value, value))
            if id(equation) in self._repeated:
                again = [Var(value.aval) for value in equation.outvars]
                equations.append(equation.replace(invars=replaced(equation.invars, others), outvars=again))
                beside |= dict(zip(equation.outvars, again, strict=True))
        return self._jaxpr.replace(eqns=equations, outvars=replaced(self._jaxpr.outvars, self._is_main))


def _is_variable(atom: Any) -> bool:
    return isinstance(atom, Var)


def _is_costly(equation: JaxprEqn) -> bool:
    if (body := called_jaxpr(equation)) is not None:
        return any(map(_is_costly, body.eqns))
    has_body = any(True for _ in jaxprs_in_params(equation.params))
    return has_body or bool(equation.effects) or _COSTLY.fullmatch(equation.primitive.name) is not None


# Equations with bodies ----------------------------------------------------------------------------------------------


def _inputs_for(equation: JaxprEqn, wanted: Sequence[bool]) -> list[bool]:
    """Returns for each input of an equation whether the wanted outputs need it."""
    return _body_of(equation, wanted)[1]


def _isolate_in_params(equation: JaxprEqn, wanted: Sequence[bool]) -> dict[str, Any]:
    """Returns the parameters of an equation, with the by-products in its bodies isolated."""
    are_main, _, names = _body_of(equation, wanted)
    return {**equation.params, **{name: _isolate_in_body(equation.params[name], are_main) for name in names}}


def _isolate_in_body(body: Any, are_main: Sequence[bool]) -> Any:
    if isinstance(body, tuple):  # of branches
        return tuple(_isolate_in_body(branch, are_main) for branch in body)
    split = _JaxprSplit(getattr(body, "jaxpr", body), are_main).isolate()
    return ClosedJaxpr(split, body.consts) if isinstance(body, ClosedJaxpr) else split


def _body_of(equation: JaxprEqn, wanted: Sequence[bool]) -> tuple[list[bool], list[bool], list[str]]:
    """Returns which outputs of an equation's bodies are main, which of its inputs these need, and the bodies' names."""
    params, name, are_main = equation.params, equation.primitive.name, list(wanted)
    every = [True] * len(equation.invars)
    if all(wanted):
        return are_main, every, []
    if name == "cond":
        taken = [_JaxprSplit(branch.jaxpr, are_main).needed_inputs for branch in params["branches"]]
        return are_main, [True, *map(any, zip(*taken, strict=True))], ["branches"]
    if name == "scan":
        consts, carried = jax_internals.scan_counts(params)
        rest = consts + carried
        are_main, taken = _of_loop(params["jaxpr"].jaxpr, are_main, consts, carried)
        return are_main, [*taken[:consts], *are_main[: rest - consts], *taken[rest:]], ["jaxpr"]
    if name == "while":
        tests, consts = params["cond_nconsts"], params["body_nconsts"]
        test = _JaxprSplit(params["cond_jaxpr"].jaxpr, [True]).needed_inputs
        are_main = [main or reads for main, reads in zip(are_main, test[tests:], strict=True)]
        are_main, taken = _of_loop(params["body_jaxpr"].jaxpr, are_main, consts, len(are_main))
        return are_main, [*test[:tests], *taken[:consts], *are_main], ["body_jaxpr"]
    if (body := called_jaxpr(equation)) is not None or name == "shard_map":
        body = params["jaxpr"] if body is None else body
        names = [key for key in ("jaxpr", "call_jaxpr") if key in params]
        return are_main, _JaxprSplit(body, are_main).needed_inputs, names
    return are_main, every, []


def _of_loop(body: Jaxpr, are_main: Sequence[bool], start: int, count: int) -> tuple[list[bool], list[bool]]:
    """Returns the main outputs of a loop's body, and the inputs that these need.

    Carried values that the main outputs of the next iteration need are main, too. `count` values are carried, from
    input `start` on.
    """
    while True:
        taken = _JaxprSplit(body, are_main).needed_inputs
        carried = [main or takes for main, takes in zip(are_main[:count], taken[start : start + count], strict=True)]
        if carried == list(are_main[:count]):
            return list(are_main), taken
        are_main = [*carried, *are_main[count:]]
