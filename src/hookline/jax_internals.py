"""What is private in JAX, or differs between the versions that hookline supports: no other module knows of it.

`tests/test_jax_internals.py` fails with a sentence where a JAX has renamed any of it.
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

# A jaxpr with its constants. Since JAX 0.12 each is one, and this is another name of `Jaxpr`.
ClosedJaxpr: Any = core.ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage]
_MAKE_GLOO = "make_gloo_tcp_collectives"


def distributed_state() -> Any:
    """Returns what `jax.distributed.initialize` sets: the client, the place of this process, the address."""
    return distributed.global_state


def is_starting_backend() -> bool:
    """Returns whether this process is starting a backend now. JAX waits for all others in it."""
    lock = getattr(xla_bridge, "_backend_lock", None)
    return lock is not None and lock.locked()


def has_started_backend() -> bool:
    """Returns whether this process has started a backend: from then on it can join no others."""
    return xla_bridge.backends_are_initialized()


def bind_gloo_to(host: str) -> None:
    """Makes Gloo, which carries the collectives of CPUs, listen on this host; by default it takes the machine's name.

    It has an effect until this process starts a backend. Where this JAX knows no way, a warning says so.
    """
    library = getattr(xla_bridge, "_jax", None)
    made = getattr(library, _MAKE_GLOO, None)
    if made is None:
        _warn_of_gloo()
    elif not hasattr(made, "__wrapped__"):  # Not a second time.

        @functools.wraps(made)
        def make(*args: Any, **kwargs: Any) -> Any:
            try:
                return made(*args, **{"hostname": host, **kwargs})
            except TypeError:
                _warn_of_gloo()
                return made(*args, **kwargs)

        setattr(library, _MAKE_GLOO, make)


def _warn_of_gloo() -> None:
    _logger.warning("Gloo listens on the address of this machine's name: hookline knows no other way in this JAX.")


def kept_argument_indices(lowered: Any) -> frozenset[int] | None:
    """Returns the places of the arguments that a lowered program takes; None if this JAX does not say.

    `jax.jit` leaves out those that a program does not use, and the text of the program counts the others alone.
    """
    arguments = getattr(getattr(lowered, "_lowering", None), "compile_args", {})
    kept = arguments.get("kept_var_idx")
    return None if kept is None else frozenset(kept)


def is_pmapped(function: Any) -> bool:
    """Returns whether `jax.pmap` has made a function, or the one in a `functools.partial`."""
    function = getattr(function, "func", function)
    return getattr(getattr(function, "lower", None), "__module__", None) == "jax._src.pmap"


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Returns how many constants and how many carried values a `scan` has, from the parameters of its equation."""
    if jax.__version_info__ < (0, 11):
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = params["ft_in"].unpack()
    return len(constants), len(carried)
