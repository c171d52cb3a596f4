"""Rules for the shardings of a state: each makes a tree of shardings from an abstract state.

A rule is a function, and `Loop(..., sharding=rule)` takes it as it is. Elsewhere call it::

    abstract = jax.eval_shape(init)
    state = jax.jit(init, out_shardings=rule(abstract))()
"""

from hookline.signals.interrupts import defer_sigint

with defer_sigint():
    from hookline.sharding.leaf_shardings import resolve_shardings as resolve_shardings
    from hookline.sharding.rules import by_metadata, by_path, fsdp

__all__ = ["by_metadata", "by_path", "fsdp"]
