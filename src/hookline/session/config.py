"""How a session works, beside what it runs."""

from __future__ import annotations

import dataclasses

from hookline import arguments


@dataclasses.dataclass(frozen=True)
class SessionConfig:
    """Bounds of what a session keeps; the same for all its runs.

    Attributes:
        max_runs_ahead: How many runs the host may be ahead of the device; from 2 on. Each of them holds its feeds and
            results. A signal, a NaN and a stop of the coordinator are acted on at most so many runs late. Where the
            device is slower than the host, the host sleeps until half of them are computed, and then starts as many in
            a row. With `steps_per_run` each step counts, but those of one run count for a quarter of the bound at most:
            four runs may be on their way, however many steps they have. JAX itself lets 32 computations wait for a
            device, and then wakes the host for each, which takes more of the processor. A run is one of them;
            conversions of feeds and copies of latches add some.
        max_plans: How many different requests (of fetches and fed tensors) are remembered with their programs; those
            used least lately are forgotten first, and compiled anew when they come again.

    Raises:
        TypeError, ValueError: A bound that is no whole number, or too small.

    Example:
        >>> import hookline as hl
        >>> config = SessionConfig(max_runs_ahead=8)
        >>> with hl.Session(config=config) as sess:
        ...     sess.run(hl.constant(1) + 1)
        Array(2, dtype=int32, weak_type=True)

    References:
        `tf.ConfigProto`, in its place. Devices and precision are configured in JAX itself, with `jax.config`.
    """

    max_runs_ahead: int = 28
    max_plans: int = 256

    def __post_init__(self) -> None:
        arguments.whole("SessionConfig", "max_runs_ahead", self.max_runs_ahead, at_least=2)
        arguments.whole("SessionConfig", "max_plans", self.max_plans, at_least=1)
