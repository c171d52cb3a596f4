"""Has JAX lower the programs of tests in half the time.

JAX makes a new MLIR context for each program, which takes 5 of the 9 ms that a program of a few operations takes. Here
each thread makes one, for all its programs. It keeps their types and constants, until `forget` lets go of it.
"""

from __future__ import annotations

import threading

_of_thread = threading.local()


def share_contexts() -> None:
    """Has each thread use one context for all its programs. Nothing changes where JAX has another way to make them."""
    from jax._src.interpreters import mlir

    make = getattr(mlir, "make_ir_context", None)
    if make is None:
        return

    def shared() -> object:
        if not hasattr(_of_thread, "context"):
            _of_thread.context = make()
        return _of_thread.context

    mlir.make_ir_context = shared


def forget() -> None:
    """Lets go of the context of this thread, which would grow with each program."""
    vars(_of_thread).pop("context", None)
