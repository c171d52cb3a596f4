"""`tf.linalg`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import jax.scipy.linalg

from hookline.compat.v1 import arrays
from hookline.compat.v1 import math as tf_math
from hookline.compat.v1.namespace import offered
from hookline.compat.v1.table import functions, row


def _adjoint(matrix: Any, adjoint: Any) -> Any:
    return jnp.conj(jnp.swapaxes(matrix, -1, -2)) if adjoint else matrix


TABLE = [
    row("cholesky", "input, name=None", jnp.linalg.cholesky),
    row("matrix_inverse", "input, -adjoint=False, name=None", lambda x, adjoint: jnp.linalg.inv(_adjoint(x, adjoint))),
    row("matrix_determinant", "input, name=None", jnp.linalg.det),
    row("matrix_solve", "matrix, rhs, -adjoint=False, name=None",
        lambda a, b, adjoint: jnp.linalg.solve(_adjoint(a, adjoint), b)),
    row("matrix_triangular_solve", "matrix, rhs, -lower=True, -adjoint=False, name=None",
        lambda a, b, lower, adjoint: jax.scipy.linalg.solve_triangular(a, b, trans=2 if adjoint else 0, lower=lower)),
    row("diag_part", "input, name=None", lambda x: jnp.diagonal(x)),
    row("matrix_diag_part", "input, name=None", lambda x: jnp.diagonal(x, axis1=-2, axis2=-1)),
]  # fmt: skip

FUNCTIONS = functions(TABLE)
globals().update(FUNCTIONS)
PUBLIC = [*FUNCTIONS]

_SHORT = {
    "band_part": arrays.FUNCTIONS["matrix_band_part"],
    "det": FUNCTIONS["matrix_determinant"],
    "diag": arrays.FUNCTIONS["matrix_diag"],
    "diag_part": FUNCTIONS["matrix_diag_part"],
    "einsum": arrays.einsum,
    "eye": arrays.FUNCTIONS["eye"],
    "inv": FUNCTIONS["matrix_inverse"],
    "matmul": tf_math.FUNCTIONS["matmul"],
    "norm": arrays.FUNCTIONS["norm"],
    "solve": FUNCTIONS["matrix_solve"],
    "tensordot": tf_math.FUNCTIONS["tensordot"],
    "trace": tf_math.FUNCTIONS["trace"],
    "transpose": arrays.FUNCTIONS["matrix_transpose"],
    "triangular_solve": FUNCTIONS["matrix_triangular_solve"],
}
globals().update(_SHORT)
__getattr__, __dir__ = offered("tf.linalg", lambda: [*PUBLIC, *_SHORT])
