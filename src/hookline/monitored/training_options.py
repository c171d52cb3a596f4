"""Options of a training, in groups, for `Loop.run` and `MonitoredTrainingSession`."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any

from hookline import arguments
from hookline.checkpoint import Saver
from hookline.checkpoint.directory.lease import DEFAULT_WAIT_SECS
from hookline.hooks.epochs import EPOCH, Epoch
from hookline.hooks.reporting.sink_hook import checked
from hookline.hooks.reporting.step_counter import checked_per_step
from hookline.monitored.recoverable import DEFAULT_RECOVERY, RecoveryPolicy
from hookline.monitored.starting.restoring import LATEST, check_restore
from hookline.signals import preemption
from hookline.sinks import Sink


class UseDefault(enum.Enum):
    """Marks an argument that was not given, because None has another meaning."""

    USE_DEFAULT = "USE_DEFAULT"

    def __repr__(self) -> str:
        return self.name


USE_DEFAULT = UseDefault.USE_DEFAULT

Cadence = tuple[float | None, int | Epoch | None]
"""The seconds and the steps from one event to the next; None for a part that is off."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Configures how a training saves and restores, for `Loop.run` and `MonitoredTrainingSession`.

    A training without a directory saves nothing, and warns if options for saving are given.

    Args:
        save_secs: Seconds from one checkpoint to the next; 600 if neither `save_secs` nor `save_steps` is given. None
            turns it off.
        save_steps: Global steps from one checkpoint to the next, or "epoch" for one at the end of each epoch of a
            `Loop`. With both, whichever comes first.
        saver: The saver, which decides how many checkpoints are kept: `Saver(max_to_keep=3)`. Each training uses a
            clone of it, so several trainings may share the options.
        restore: The reaction to a broken newest checkpoint. "latest": raise an error. "latest-valid": move it
            aside, to `<path>.hookline-broken`, and restore the one before it.
        restore_hyperparams: Whether a `Loop` resumes with the hyperparameters of its checkpoint (the values of
            `optax.inject_hyperparams`), or else with those of the script. The log shows the differences.
        recovery: The policy for a lost session, which continues from its last checkpoint; None raises the error.
        lock_timeout_secs: The maximum wait while another process holds the lease on the directory; with 0 it is an
            error at once.

    Attributes:
        cadence: The seconds and the steps from one checkpoint to the next.

    Raises:
        TypeError, ValueError: An option has the wrong type, or is out of range.

    Example:
        >>> import hookline as hl, numpy as np, tempfile
        >>> batches = hl.data.from_arrays(np.ones(9), batch_size=1)
        >>> loop = hl.train.Loop(lambda w, batch: (w + batch.sum(), {}), np.float32(0), batches)
        >>> options = hl.train.CheckpointOptions(save_steps=4, saver=hl.train.Saver(max_to_keep=2))
        >>> with tempfile.TemporaryDirectory() as logdir:
        ...     _ = loop.run(logdir, checkpoints=options, progress=False)
        ...     paths = hl.train.get_checkpoint_state(logdir).all_model_checkpoint_paths
        ...     print([path.rpartition("-")[2] for path in paths])
        ['8', '9']

    References:
        `orbax.checkpoint.CheckpointManagerOptions`, and the arguments `save_secs` and `save_steps` of
        `tf.train.CheckpointSaverHook`.
    """

    save_secs: float | UseDefault | None = USE_DEFAULT
    save_steps: int | Epoch | UseDefault | None = USE_DEFAULT
    saver: Saver | None = None
    restore: str = LATEST
    restore_hyperparams: bool = True
    recovery: RecoveryPolicy | None = DEFAULT_RECOVERY
    lock_timeout_secs: float = DEFAULT_WAIT_SECS
    cadence: Cadence = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_cadence("CheckpointOptions", save_secs=self.save_secs, save_steps=self.save_steps)
        object.__setattr__(self, "cadence", _cadence(self.save_secs, self.save_steps, (600, None)))
        arguments.check_optional("CheckpointOptions", "saver", self.saver, Saver)
        check_restore("CheckpointOptions", self.restore)
        _check_bool("CheckpointOptions", "restore_hyperparams", self.restore_hyperparams)
        arguments.check_optional("CheckpointOptions", "recovery", self.recovery, RecoveryPolicy)
        arguments.check_number("CheckpointOptions", "lock_timeout_secs", self.lock_timeout_secs, at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoggingOptions:
    """Configures which numbers a training writes, and where, for `Loop.run` and `MonitoredTrainingSession`.

    Args:
        summary_steps: Global steps from one summary to the next, or "epoch" for one at the end of each epoch of a
            `Loop`; 100 if neither `summary_steps` nor `summary_secs` is given. None turns it off.
        summary_secs: Seconds from one summary to the next. With both, whichever comes first.
        summary_dir: The directory of summaries; by default the directory of the checkpoints.
        rate_steps: Global steps from one measurement of the speed to the next; None measures nothing.
        per_step: Counts per step, for rates: `{"tokens": 16384}`. By default a `Loop` counts examples: the common
            length of the arrays in the first batch.
        peak_flops: The peak floating point operations per second of all devices together, for the model FLOPs
            utilization (MFU). For a `Loop` XLA counts the operations of a step, the body of a loop (`jax.lax.scan`)
            once; or give them as `per_step["flops"]`.
        sinks: Destinations of the numbers beside TensorBoard's files; without a directory, instead of them:
            `hookline.sinks.Csv()`, ...
        hparams: Hyperparameters for sinks and for TensorBoard, as in `SinkHook`.
        raise_on_write_errors: Whether the training ends if summaries or other events cannot be written (a full disk).
            By default they are lost, with a warning.
        account: Whether the folder of the run gets `account-<process>.jsonl`: where the time of the run went, for
            `hookline account`.

    Attributes:
        cadence: The seconds and the steps from one summary to the next.

    Raises:
        TypeError, ValueError: An option has the wrong type, or is out of range.

    Example:
        >>> import hookline as hl, numpy as np
        >>> class Show(hl.sinks.Sink):
        ...     def write(self, points):
        ...         for point in points:
        ...             print(point.step, point.tag, point.value)
        >>> step = lambda w, batch: (w + batch.sum(), {"loss": w})
        >>> loop = hl.train.Loop(step, np.float32(0), hl.data.from_arrays(np.ones(4), 1))
        >>> _ = loop.run(logging=hl.train.LoggingOptions(sinks=[Show()], summary_steps=2), progress=False)
        1 loss 0.0
        3 loss 2.0
    """

    summary_steps: int | Epoch | UseDefault | None = USE_DEFAULT
    summary_secs: float | UseDefault | None = USE_DEFAULT
    summary_dir: str | None = None
    rate_steps: int | None = 100
    per_step: Mapping[str, float] | None = None
    peak_flops: float | None = None
    sinks: Iterable[Sink] = ()
    hparams: Any = None
    raise_on_write_errors: bool = False
    account: bool = True
    cadence: Cadence = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_cadence("LoggingOptions", summary_secs=self.summary_secs, summary_steps=self.summary_steps)
        _check_cadence("LoggingOptions", rate_steps=self.rate_steps)
        object.__setattr__(self, "cadence", _cadence(self.summary_secs, self.summary_steps, (None, 100)))
        summary_dir = arguments.check_path("LoggingOptions", "summary_dir", self.summary_dir, optional=True)
        checked_per_step("LoggingOptions", self.per_step)
        if self.peak_flops is not None and arguments.check_number("LoggingOptions", "peak_flops", self.peak_flops) <= 0:
            raise ValueError(f"LoggingOptions requires peak_flops > 0, got {self.peak_flops}.")
        sinks, _ = checked("LoggingOptions", self.sinks, self.hparams)
        object.__setattr__(self, "summary_dir", summary_dir)
        object.__setattr__(self, "sinks", tuple(sinks))  # The first training would exhaust an iterator.
        _check_bool("LoggingOptions", "raise_on_write_errors", self.raise_on_write_errors)
        _check_bool("LoggingOptions", "account", self.account)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreemptionOptions:
    """Configures the reaction to SIGTERM and Ctrl-C, for `Loop.run` and `MonitoredTrainingSession`.

    Args:
        on_signal: The effect of SIGTERM and of a first Ctrl-C on a chief that saves, and on workers. "exit": the
            current run is completed, every `end` is called, so the state is saved, and the block raises `Preempted`.
            "ignore": the signals have their usual effect.
        timeout_secs: The maximum time for closing gracefully; then the process is ended.

    Raises:
        TypeError, ValueError: An option has the wrong type, or is out of range.

    Example:
        >>> options = PreemptionOptions(timeout_secs=25)  # Of the 30 seconds that a pod of Kubernetes has.
        >>> PreemptionOptions(on_signal="stop")
        Traceback (most recent call last):
        ...
        ValueError: PreemptionOptions requires on_signal='exit' or 'ignore', got 'stop'.
    """

    on_signal: str = preemption.EXIT
    timeout_secs: float = preemption.DEFAULT_GRACE_SECS

    def __post_init__(self) -> None:
        if self.on_signal not in (preemption.EXIT, preemption.IGNORE):
            raise ValueError(
                f"PreemptionOptions requires on_signal={preemption.EXIT!r} or {preemption.IGNORE!r}, "
                f"got {self.on_signal!r}."
            )
        if arguments.check_number("PreemptionOptions", "timeout_secs", self.timeout_secs) <= 0:
            raise ValueError(f"PreemptionOptions requires timeout_secs > 0, got {self.timeout_secs}.")


def _check_bool(who: str, name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{who} requires True or False as {name}, got {value!r}.")


def _check_cadence(who: str, **given: float | Epoch | UseDefault | None) -> None:
    for name, every in given.items():
        if (
            every is None
            or isinstance(every, UseDefault)
            or (every == EPOCH and name in ("save_steps", "summary_steps"))
        ):
            continue
        check = arguments.check_int if name.endswith("_steps") else arguments.check_number
        if check(who, name, every) <= 0:
            raise ValueError(f"{who} requires {name} > 0, or None for none, got {every}.")


def _cadence(secs: float | UseDefault | None, steps: int | Epoch | UseDefault | None, default: Cadence) -> Cadence:
    """Returns the given cadence; the default one if neither part is given."""
    if isinstance(secs, UseDefault) and isinstance(steps, UseDefault):
        return default
    return (None if isinstance(secs, UseDefault) else secs, None if isinstance(steps, UseDefault) else steps)
