"""`tf.linalg`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import jax.scipy.linalg

from hookline_tf1 import math as tf_math
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1._machinery.op_definitions import Plain, computed_by, ops_in
from hookline_tf1._tf import array_ops, math_ops


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


@computed_by(jnp.linalg.cholesky)
def cholesky(input: Any, name: str | None = None) -> Any: ...


@computed_by(lambda x, adjoint: jnp.linalg.inv(_adjoint(x, adjoint)))
def matrix_inverse(input: Any, adjoint: Plain = False, name: str | None = None) -> Any: ...


@computed_by(jnp.linalg.det)
def matrix_determinant(input: Any, name: str | None = None) -> Any: ...


@computed_by(lambda a, b, adjoint: jnp.linalg.solve(_adjoint(a, adjoint), b))
def matrix_solve(matrix: Any, rhs: Any, adjoint: Plain = False, name: str | None = None) -> Any: ...


@computed_by(
    lambda a, b, lower, adjoint: jax.scipy.linalg.solve_triangular(a, b, trans=2 if adjoint else 0, lower=lower)
)
def matrix_triangular_solve(
    matrix: Any, rhs: Any, lower: Plain = True, adjoint: Plain = False, name: str | None = None
) -> Any: ...


@computed_by(lambda chol, rhs: jax.scipy.linalg.cho_solve((chol, True), rhs), "cholesky_solve")
def cholesky_solve(chol: Any, rhs: Any, name: str | None = None) -> Any: ...


@computed_by(_set_diagonal)
def matrix_set_diag(input: Any, diagonal: Any, name: str | None = None) -> Any: ...


@computed_by(lambda x, full: tuple(jnp.linalg.qr(x, mode="complete" if full else "reduced")), result=_two)
def qr(input: Any, full_matrices: Plain = False, name: str | None = None) -> Any: ...


@computed_by(lambda x: tuple(jnp.linalg.eigh(x)), "SelfAdjointEigV2", result=_two)
def self_adjoint_eig(tensor: Any, name: str | None = None) -> Any: ...


@computed_by(jnp.linalg.eigvalsh, "SelfAdjointEigV2")
def self_adjoint_eigvals(tensor: Any, name: str | None = None) -> Any: ...


@computed_by(_singular, result=_three)
def svd(tensor: Any, full_matrices: Plain = False, compute_uv: Plain = True, name: str | None = None) -> Any: ...


@computed_by(lambda x: jnp.diagonal(x, axis1=-2, axis2=-1))
def matrix_diag_part(input: Any, name: str | None = None) -> Any: ...


# Short names that only `tf.linalg` has.
cross = math_ops.cross
eigh = self_adjoint_eig
eigvalsh = self_adjoint_eigvals
set_diag = matrix_set_diag
band_part = array_ops.matrix_band_part
det = matrix_determinant
diag = array_ops.matrix_diag
diag_part = matrix_diag_part
einsum = array_ops.einsum
eye = array_ops.eye
inv = matrix_inverse
matmul = tf_math.matmul
norm = array_ops.norm
solve = matrix_solve
tensordot = tf_math.tensordot
trace = tf_math.trace
transpose = array_ops.matrix_transpose
triangular_solve = matrix_triangular_solve

PUBLIC = [*ops_in(globals()), "einsum"]
__getattr__, __dir__ = offered("tf.linalg", lambda: PUBLIC)
