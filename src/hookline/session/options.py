"""The configuration of a session, options of a run, and metadata about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from hookline import arguments


@dataclasses.dataclass(frozen=True)
class SessionConfig:
    """Limits how far the host dispatches ahead of the device, and how many plans a session caches.

    Attributes:
        max_runs_ahead: The number of runs that the host may be ahead of the device; at least 2. Each of them holds its
            feeds and results. A signal, a NaN and a stop of the coordinator take effect at most this many runs late. If
            the device is slower than the host, the host sleeps until half of them are computed, and then starts as many
            in a row. With `steps_per_run` each step counts, but the steps of one run count for at most a quarter of the
            bound: four runs may be under way, however many steps they have. JAX itself lets 32 computations wait for a
            device and then wakes the host for each, which takes more processor time. A run is one computation;
            conversions of feeds and copies of latches add some.
        max_plans: The number of requests (of fetches and fed tensors) that are cached with their programs. The least
            recently used are dropped first, and compiled again when they are next requested.

    Raises:
        TypeError, ValueError: A bound is not a whole number, or is too small.

    Example:
        >>> import hookline as hl
        >>> config = SessionConfig(max_runs_ahead=8)
        >>> with hl.Session(config=config) as sess:
        ...     sess.run(hl.constant(1) + 1)
        Array(2, dtype=int32, weak_type=True)

    References:
        Replaces `tf.ConfigProto`. Devices and precision are configured in JAX itself, with `jax.config`.
    """

    max_runs_ahead: int = 28
    max_plans: int = 256

    def __post_init__(self) -> None:
        arguments.check_int("SessionConfig", "max_runs_ahead", self.max_runs_ahead, at_least=2)
        arguments.check_int("SessionConfig", "max_plans", self.max_plans, at_least=1)


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Options of a run.

    Attributes:
        trace_level: From 1 on, the run records the times of its stages in `RunMetadata.stage_secs`, and waits for the
            device to measure them.
        output_partition_graphs: Whether to put the text of the compiled step into `RunMetadata.partition_graphs`.
        debug_tensor_watches: Names of tensors whose values are put into `RunMetadata.watched`.
        last_step: A limit: the updates of a run are not applied if the global step is this or more when the run begins.
            A run that begins below it is applied, even if it advances the step by several and passes the limit. A run
            that is not applied still succeeds and returns its fetches, with `RunMetadata.applied` false. Runs that do
            not change the global step have no limit.

    Raises:
        TypeError: A field is not a whole number, or the watches are not a list.

    Example:
        >>> import hookline as hl
        >>> step, options = hl.train.create_global_step(), hl.RunOptions(last_step=2)
        >>> bump = step.assign_add(1)
        >>> with hl.Session() as sess:
        ...     sess.run(step.initializer)
        ...     values = [sess.run(bump, options=options) for _ in range(3)]
        ...     print(sess.run(step))
        2

    References:
        `tf.RunOptions`. `last_step` is our addition.
    """

    trace_level: int = 0
    output_partition_graphs: bool = False
    debug_tensor_watches: tuple[str, ...] = ()
    last_step: int | None = None

    def __post_init__(self) -> None:
        """Checks the numbers."""
        arguments.check_int("RunOptions", "trace_level", self.trace_level)
        if self.last_step is not None:
            arguments.check_int("RunOptions", "last_step", self.last_step)
        if self.debug_tensor_watches:
            arguments.check_list("RunOptions", "debug_tensor_watches", self.debug_tensor_watches)


@dataclasses.dataclass
class RunMetadata:
    """Facts about a run, filled in for a caller that passes this object.

    Attributes:
        applied: Whether the run's updates were applied: `False` only because of `RunOptions.last_step`.
        global_step: The global step after the run; `None` if the graph has none.
        stage_secs: Seconds spent `before` the device program, in it (`device`) and `after` it; only with tracing.
        partition_graphs: Texts of the compiled programs.
        watched: Values of the watched tensors, by name.

    Example:
        >>> import hookline as hl
        >>> bump, metadata = hl.train.create_global_step().assign_add(1), hl.RunMetadata()
        >>> with hl.Session() as sess:
        ...     sess.run(hl.global_variables_initializer())
        ...     _ = sess.run(bump, run_metadata=metadata)
        >>> metadata.applied, metadata.global_step
        (True, 1)

    References:
        `tf.RunMetadata`.
    """

    applied: bool = True
    global_step: int | None = None
    stage_secs: dict[str, float] = dataclasses.field(default_factory=dict)
    partition_graphs: list[str] = dataclasses.field(default_factory=list)
    watched: dict[str, Any] = dataclasses.field(default_factory=dict)


def merge_options(options: Iterable[RunOptions | None]) -> RunOptions | None:
    """Merges options: the largest level, any flag, all watches, the smallest limit; `None` if there are none.

    Example:
        >>> merge_options([RunOptions(last_step=9), None, RunOptions(trace_level=1, last_step=7)]).last_step
        7
    """
    given = [option for option in options if option is not None]
    if len(given) < 2:
        return given[0] if given else None
    limits = [option.last_step for option in given if option.last_step is not None]
    return RunOptions(
        trace_level=max(option.trace_level for option in given),
        output_partition_graphs=any(option.output_partition_graphs for option in given),
        debug_tensor_watches=tuple(name for option in given for name in option.debug_tensor_watches),
        last_step=min(limits) if limits else None,
    )
