"""The configuration of a session."""

from __future__ import annotations

import dataclasses

from hookline import arguments


@dataclasses.dataclass(frozen=True)
class SessionConfig:
    """Bounds on the work and the plans of a session, for all its runs.

    Attributes:
        max_runs_ahead: The number of runs that the host may be ahead of the device; at least 2. Each of them holds its
            feeds and results. A signal, a NaN and a stop of the coordinator take effect at most this many runs late. If
            the device is slower than the host, the host sleeps until half of them are computed, and then starts as many
            in a row. With `steps_per_run` each step counts, but the steps of one run count for at most a quarter of the
            bound: four runs may be under way, however many steps they have. JAX itself lets 32 computations wait for a
            device and then wakes the host for each, which takes more processor time. A run is one computation;
            conversions of feeds and copies of latches add some.
        max_plans: The number of requests (of fetches and fed tensors) that are remembered with their programs. The
            least recently used are forgotten first, and compiled anew when they come again.

    Raises:
        TypeError, ValueError: A bound is not a whole number, or is too small.

    Example:
        >>> import hookline as hl
        >>> config = SessionConfig(max_runs_ahead=8)
        >>> with hl.Session(config=config) as sess:
        ...     sess.run(hl.constant(1) + 1)
        Array(2, dtype=int32, weak_type=True)

    References:
        Takes the place of `tf.ConfigProto`. Devices and precision are configured in JAX itself, with `jax.config`.
    """

    max_runs_ahead: int = 28
    max_plans: int = 256

    def __post_init__(self) -> None:
        arguments.whole("SessionConfig", "max_runs_ahead", self.max_runs_ahead, at_least=2)
        arguments.whole("SessionConfig", "max_plans", self.max_plans, at_least=1)
