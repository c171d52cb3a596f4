"""`tf.linalg`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import jax.scipy.linalg

from hookline.compat.v1 import math as tf_math
from hookline.compat.v1._machinery.namespaces import offered
from hookline.compat.v1._machinery.op_table import functions, row
from hookline.compat.v1._tf import array_ops, math_ops


def _adjoint(matrix: Any, adjoint: Any) -> Any:
    return jnp.conj(jnp.swapaxes(matrix, -1, -2)) if adjoint else matrix


def _set_diagonal(x: Any, diagonal: Any) -> Any:
    on = jnp.eye(x.shape[-2], x.shape[-1], dtype=bool)
    rows = jnp.zeros_like(x).at[..., jnp.arange(diagonal.shape[-1]), jnp.arange(diagonal.shape[-1])].set(diagonal)
    return jnp.where(on, rows, x)


def _singular(x: Any, full: Any, vectors: Any) -> Any:
    if not vectors:
        return jnp.linalg.svd(x, compute_uv=False)
    left, values, right = jnp.linalg.svd(x, full_matrices=full)
    return values, left, jnp.conj(jnp.swapaxes(right, -1, -2))


def _two(found: Any, _: Any) -> Any:
    return found[0], found[1]


def _three(found: Any, given: Any) -> Any:
    return (found[0], found[1], found[2]) if given["compute_uv"] else found


TABLE = [
    row("cholesky", "input, name=None", jnp.linalg.cholesky),
    row("matrix_inverse", "input, -adjoint=False, name=None", lambda x, adjoint: jnp.linalg.inv(_adjoint(x, adjoint))),
    row("matrix_determinant", "input, name=None", jnp.linalg.det),
    row("matrix_solve", "matrix, rhs, -adjoint=False, name=None",
        lambda a, b, adjoint: jnp.linalg.solve(_adjoint(a, adjoint), b)),
    row("matrix_triangular_solve", "matrix, rhs, -lower=True, -adjoint=False, name=None",
        lambda a, b, lower, adjoint: jax.scipy.linalg.solve_triangular(a, b, trans=2 if adjoint else 0, lower=lower)),
    row("cholesky_solve", "chol, rhs, name=None",
        lambda chol, rhs: jax.scipy.linalg.cho_solve((chol, True), rhs), "cholesky_solve"),
    row("matrix_set_diag", "input, diagonal, name=None", _set_diagonal),
    row("qr", "input, -full_matrices=False, name=None",
        lambda x, full: tuple(jnp.linalg.qr(x, mode="complete" if full else "reduced")), result=_two),
    row("self_adjoint_eig", "tensor, name=None", lambda x: tuple(jnp.linalg.eigh(x)), "SelfAdjointEigV2", result=_two),
    row("self_adjoint_eigvals", "tensor, name=None", jnp.linalg.eigvalsh, "SelfAdjointEigV2"),
    row("svd", "tensor, -full_matrices=False, -compute_uv=True, name=None", _singular, result=_three),
    row("diag_part", "input, name=None", lambda x: jnp.diagonal(x)),
    row("matrix_diag_part", "input, name=None", lambda x: jnp.diagonal(x, axis1=-2, axis2=-1)),
]  # fmt: skip

FUNCTIONS = functions(TABLE)
globals().update(FUNCTIONS)
PUBLIC = [*FUNCTIONS]

_SHORT = {
    "cholesky_solve": FUNCTIONS["cholesky_solve"],
    "cross": math_ops.FUNCTIONS["cross"],
    "eigh": FUNCTIONS["self_adjoint_eig"],
    "eigvalsh": FUNCTIONS["self_adjoint_eigvals"],
    "qr": FUNCTIONS["qr"],
    "set_diag": FUNCTIONS["matrix_set_diag"],
    "svd": FUNCTIONS["svd"],
    "band_part": array_ops.FUNCTIONS["matrix_band_part"],
    "det": FUNCTIONS["matrix_determinant"],
    "diag": array_ops.FUNCTIONS["matrix_diag"],
    "diag_part": FUNCTIONS["matrix_diag_part"],
    "einsum": array_ops.einsum,
    "eye": array_ops.FUNCTIONS["eye"],
    "inv": FUNCTIONS["matrix_inverse"],
    "matmul": tf_math.FUNCTIONS["matmul"],
    "norm": array_ops.FUNCTIONS["norm"],
    "solve": FUNCTIONS["matrix_solve"],
    "tensordot": tf_math.FUNCTIONS["tensordot"],
    "trace": tf_math.FUNCTIONS["trace"],
    "transpose": array_ops.FUNCTIONS["matrix_transpose"],
    "triangular_solve": FUNCTIONS["matrix_triangular_solve"],
}
globals().update(_SHORT)
__getattr__, __dir__ = offered("tf.linalg", lambda: [*PUBLIC, *_SHORT])
