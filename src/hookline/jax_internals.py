"""Private parts of JAX, and parts that differ between the versions that hookline supports; no other module uses them.

`tests/test_jax_internals.py` fails with a clear message if a version of JAX has renamed any of them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
from jax._src import distributed, xla_bridge
from jax.extend import core

from hookline import log

_logger = log.get_logger(__name__)

# A jaxpr with its constants. Since JAX 0.12 every jaxpr has them, and this is an alias of `Jaxpr`.
ClosedJaxpr: Any = core.ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage]
_MAKE_GLOO = "make_gloo_tcp_collectives"


def distributed_state() -> Any:
    """Returns the state that `jax.distributed.initialize` sets: the client, the index of this process, the address."""
    return distributed.global_state


def is_starting_backend() -> bool:
    """Returns whether this process is starting a backend now; JAX then waits for all other processes."""
    lock = getattr(xla_bridge, "_backend_lock", None)
    return lock is not None and lock.locked()


def has_started_backend() -> bool:
    """Returns whether this process has started a backend: from then on it cannot join other processes."""
    return xla_bridge.backends_are_initialized()


def bind_gloo_to(host: str) -> None:
    """Makes Gloo, which runs collectives on CPUs, listen on this host, not on the address of the machine's name.

    Call it before this process starts a backend. If this version of JAX does not allow it, a warning is logged.
    """
    library = getattr(xla_bridge, "_jax", None)
    made = getattr(library, _MAKE_GLOO, None)
    if made is None:
        _warn_of_gloo()
    elif not hasattr(made, "__wrapped__"):  # Not wrapped already.

        @functools.wraps(made)
        def make(*args: Any, **kwargs: Any) -> Any:
            try:
                return made(*args, **{"hostname": host, **kwargs})
            except TypeError:
                _warn_of_gloo()
                return made(*args, **kwargs)

        setattr(library, _MAKE_GLOO, make)


def _warn_of_gloo() -> None:
    _logger.warning("Gloo listens on the address of this machine's name: this version of JAX allows no other.")


def kept_argument_indices(lowered: Any) -> frozenset[int] | None:
    """Returns the indices of the arguments that a lowered program keeps; None if this version of JAX hides them.

    `jax.jit` drops arguments that a program does not use, and the text of the program numbers only the others.
    """
    arguments = getattr(getattr(lowered, "_lowering", None), "compile_args", {})
    kept = arguments.get("kept_var_idx")
    return None if kept is None else frozenset(kept)


def is_pmapped(function: Any) -> bool:
    """Returns whether `jax.pmap` made a function, or the function in a `functools.partial`."""
    function = getattr(function, "func", function)
    return getattr(getattr(function, "lower", None), "__module__", None) == "jax._src.pmap"


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the numbers of constants and of carried values of a `scan`, from the parameters of its equation."""
    if jax.__version_info__ < (0, 11):
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = params["ft_in"].unpack()
    return len(constants), len(carried)
