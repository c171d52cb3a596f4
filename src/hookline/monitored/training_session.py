"""MonitoredTrainingSession: a monitored session with the default hooks."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from typing import Any, TypeVar

from hookline import arguments, log
from hookline.coordination import process_group
from hookline.hooks import CheckpointSaverHook, ProgressHook, SinkHook, StepCounterHook, SummarySaverHook
from hookline.hooks.reporting.account import AccountHook
from hookline.hooks.reporting.console import ConsoleHook, has_progress_line
from hookline.hooks.reporting.step_counter import FLOPS
from hookline.hooks.timers import trigger_from_arguments
from hookline.hooks.trigger import Trigger
from hookline.monitored.hooked.callbacks import checked_hooks, chief_only, overridden_callback
from hookline.monitored.monitored_session import MonitoredSession
from hookline.monitored.replaying import claims
from hookline.monitored.replaying.advice import AdviceHook
from hookline.monitored.replaying.replay import without_sinks
from hookline.monitored.starting.creators import ChiefSessionCreator, WorkerSessionCreator
from hookline.monitored.starting.scaffold import Scaffold
from hookline.monitored.training_options import (
    USE_DEFAULT,
    Cadence,
    CheckpointOptions,
    LoggingOptions,
    PreemptionOptions,
    UseDefault,
)
from hookline.session import StoreTarget, resolve_target

_logger = log.get_logger(__name__)

Options = TypeVar("Options", CheckpointOptions, LoggingOptions)

_WHO = "MonitoredTrainingSession"
_NEED_A_DIRECTORY = ("save_secs", "save_steps", "saver", "restore", "lock_timeout_secs")
_CHECKPOINTS, _LOGGING, _PREEMPTION = CheckpointOptions(), LoggingOptions(), PreemptionOptions()


def MonitoredTrainingSession(
    master: str | StoreTarget = "",
    is_chief: bool = True,
    checkpoint_dir: str | None = None,
    scaffold: Scaffold | None = None,
    hooks: Iterable[Any] | None = None,
    chief_only_hooks: Iterable[Any] | None = None,
    save_checkpoint_secs: float | UseDefault | None = USE_DEFAULT,
    save_summaries_steps: int | UseDefault | None = USE_DEFAULT,
    save_summaries_secs: float | UseDefault | None = USE_DEFAULT,
    config: Any = None,
    stop_grace_period_secs: float = 120,
    log_step_count_steps: int | None = 100,
    max_wait_secs: float = 7200,
    save_checkpoint_steps: int | UseDefault | None = USE_DEFAULT,
    summary_dir: str | None = None,
    save_graph_def: bool = True,
    *,
    steps_per_run: int = 1,
    progress: bool = False,
    checkpoints: CheckpointOptions | None = None,
    logging: LoggingOptions | None = None,
    preemption: PreemptionOptions | None = None,
) -> MonitoredSession:
    """Returns a monitored session that counts steps, writes summaries, saves checkpoints, restores and recovers.

    The hooks of a chief, in this order: with sinks or hyperparameters a `SinkHook`; `chief_only_hooks`; with a
    directory for summaries or sinks a `StepCounterHook` and a `SummarySaverHook`; with a `checkpoint_dir` a
    `CheckpointSaverHook`; then `hooks`. A worker has only `hooks`, and waits until the chief has initialised or
    restored the model. With a `Cluster` (asynchronous, on parameter servers), each process has a `StalenessHook` before
    `hooks`.

    In multi-process SPMD (`hookline launch --spmd`) each process has all hooks of the chief, and `is_chief` has no
    effect: process 0 is the chief. hookline's hooks write and log on the chief alone. A hook in `chief_only_hooks`
    requests the same values in every process; its `on_trigger`, `after_run` and `end` are called on the chief alone.

    Checkpoints and summaries each have a cadence in seconds and one in steps. If neither is given, the defaults are 600
    seconds for checkpoints and 100 steps for summaries. If both are given, both apply; None or a number <= 0 turns one
    off. A `checkpoint_dir` in which no hook saves is logged as a warning. Cadences, `summary_dir` and the saver may be
    given by TensorFlow's names or in the groups of options, as for `Loop.run`.

    Args:
        master: Where variables are: in this process (""), or on a `hookline.distributed.Cluster` or its `target`.
        is_chief: Whether this process initialises, saves and writes.
        checkpoint_dir: The directory to save to and restore from.
        scaffold: The scaffold that initialises, restores and summarises.
        hooks: Hooks of every process.
        chief_only_hooks: Hooks of the chief, called before all others.
        save_checkpoint_secs: Seconds between checkpoints.
        save_summaries_steps: Global steps between summaries.
        save_summaries_secs: Seconds between summaries.
        config: The raw session's configuration.
        stop_grace_period_secs: The maximum wait for threads when the session closes.
        log_step_count_steps: Global steps between two measurements of the speed; None or <= 0 measures nothing. The
            default of 100 counts as not given if `logging` has `rate_steps`.
        max_wait_secs: The maximum wait of a worker for the chief.
        save_checkpoint_steps: Global steps between checkpoints.
        summary_dir: The directory for summaries; `checkpoint_dir` if None.
        save_graph_def: Whether to write a description of the graph beside the checkpoints.
        steps_per_run: The maximum number of steps of a run, in one compiled loop. A run ends sooner where a hook is
            due, at a stop, a save, and the end of the data. Only runs that advance the global step have several steps;
            they must take their batches from iterators, without feeds. Their results have a row for each step.
        progress: Whether to show the progress on `sys.stderr`, as `Loop.run` does.
        checkpoints: Options of saving, restoring and recovery.
        logging: Options of summaries, sinks and hyperparameters.
        preemption: The reaction to SIGTERM and Ctrl-C.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range; or it is given twice, by TensorFlow's name and as an option.

    Example:
        >>> import hookline as hl
        >>> from hookline import train
        >>> with hl.Graph().as_default():
        ...     train_op = train.get_or_create_global_step().assign_add(1)
        ...     with MonitoredTrainingSession(hooks=[train.StopAtStepHook(num_steps=2)]) as sess:
        ...         while not sess.should_stop():
        ...             print(sess.run(train_op))
        1
        2

    References:
        `tf.train.MonitoredTrainingSession`. Differences: both cadences of a kind may be given; `steps_per_run`,
        `progress`, `checkpoints`, `logging` and `preemption`; one process at a time saves in a directory.
    """
    given_arguments = locals()
    checkpoint_dir = arguments.check_path(_WHO, "checkpoint_dir", checkpoint_dir, optional=True)
    summary_dir = arguments.check_path(_WHO, "summary_dir", summary_dir, optional=True)
    if is_chief is None:  # The value of an unset flag: it would create a worker, which waits for a chief for hours.
        raise TypeError("MonitoredTrainingSession requires True or False as is_chief, got None.")
    arguments.check_number(_WHO, "max_wait_secs", max_wait_secs, at_least=0)
    arguments.check_int(_WHO, "steps_per_run", steps_per_run, at_least=1)
    arguments.check_optional(_WHO, "progress", progress, bool)
    checkpoints, logging, preemption = checked_options(_WHO, checkpoints, logging, preemption)
    given = checkpoints
    checkpoints = _merge_tf_arguments(
        given,
        save_secs=("save_checkpoint_secs", save_checkpoint_secs),
        save_steps=("save_checkpoint_steps", save_checkpoint_steps),
    )
    logging = _merge_tf_arguments(
        logging,
        summary_secs=("save_summaries_secs", save_summaries_secs),
        summary_steps=("save_summaries_steps", save_summaries_steps),
        rate_steps=("log_step_count_steps", log_step_count_steps),
        summary_dir=("summary_dir", summary_dir),
    )
    if not checkpoints.restore_hyperparams:
        raise ValueError(f"{_WHO} restores all variables; CheckpointOptions(restore_hyperparams=False) is for a Loop.")
    if logging.peak_flops is not None and FLOPS not in (logging.per_step or {}):
        raise ValueError(
            f"{_WHO} takes peak_flops with the operations of a step, LoggingOptions(per_step={{{FLOPS!r}: ...}}, "
            f"peak_flops=...): XLA counts them for a Loop alone."
        )
    if logging.per_step is not None and logging.rate_steps is None:
        raise ValueError(f"{_WHO} takes per_step with rate_steps, and these rates are off. Give both, or neither.")
    target, others = resolve_target(master), process_group.current()
    if others is not None and target is not None:
        raise ValueError(
            f"MonitoredTrainingSession: the {others.count} processes are one SPMD job, so each has all variables, and "
            f"{target!r} is for asynchronous workers. Leave out master, or start the script without --spmd."
        )
    if others is not None:  # All processes have the chief's hooks, which write on the chief alone.
        is_chief = True
    if target is not None and getattr(target, "is_chief", is_chief) != is_chief:
        raise ValueError(
            f"MonitoredTrainingSession: is_chief={is_chief} contradicts the task of {target!r}. Pass "
            f"is_chief=cluster.is_chief."
        )
    if target is not None and steps_per_run > 1:
        raise ValueError(
            f"MonitoredTrainingSession: steps_per_run={steps_per_run} is for variables in this process, and the "
            f"variables of {target!r} are on parameter servers. Leave it out."
        )
    if (wanted := claims.claim(_WHO, checkpoint_dir)) is not None:
        return _replayed(wanted, given_arguments, is_local=bool(is_chief) and target is None)
    summary_dir = logging.summary_dir or checkpoint_dir
    own = [*(target.hooks(summary_dir) if target else ()), *checked_hooks(hooks)]
    if is_chief:
        scaffold = scaffold or Scaffold()
        if checkpoints.saver is not None:
            if scaffold.saver is not None and not scaffold.saver.is_clone:  # A clone is from an earlier session.
                raise _given_twice_error("scaffold.saver", checkpoints, "saver")
            scaffold.saver = checkpoints.saver.clone()  # Not in a copy: the user's hooks may have this scaffold.
        feeds, writers = default_hooks(_WHO, checkpoint_dir, checkpoints, logging, scaffold, save_graph_def)
        of_chief = checked_hooks(chief_only_hooks, "chief_only_hooks")
        if (summary_dir or logging.sinks) and logging.rate_steps:
            rates = {"per_step": logging.per_step, "peak_flops": logging.peak_flops}
            writers.insert(0, StepCounterHook(every_n_steps=logging.rate_steps, output_dir=summary_dir, **rates))
        all_hooks = [*feeds, *(of_chief if process_group.is_primary() else map(chief_only, of_chief)), *writers, *own]
        warn_if_nothing_saves(_WHO, "checkpoint_dir", checkpoint_dir, given, all_hooks)
        creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir, restore=checkpoints.restore)
    else:  # The chief saves and writes.
        all_hooks, summary_dir = own, None
        creator = WorkerSessionCreator(scaffold, master, config, max_wait_secs)
    if is_chief and checkpoint_dir and target is None:
        all_hooks = [
            *all_hooks,
            AdviceHook(lambda folder, steps: f"train.replay(FUNCTION, {folder!r}, {steps}, ['norms'])"),
        ]
    if is_chief and summary_dir and logging.account:
        all_hooks = [*all_hooks, AccountHook(summary_dir)]
    if progress and is_chief:
        console = ConsoleHook(summary_dir)
        line = [] if has_progress_line(all_hooks) else [ProgressHook(file=sys.stderr)]
        all_hooks = [console.first, *line, *all_hooks, console]
    return MonitoredSession(
        creator,
        all_hooks,
        stop_grace_period_secs,
        recovery=checkpoints.recovery,
        summary_dir=summary_dir,
        raise_on_write_errors=logging.raise_on_write_errors,
        preemption=preemption,
        steps_per_run=steps_per_run,
    )


def _replayed(wanted: claims.Request, given: dict[str, Any], *, is_local: bool) -> MonitoredSession:
    """Returns the session with which a replay begins, from the arguments of the session of the run."""
    if not is_local:
        wanted.refuse(f"{_WHO} has its variables on parameter servers, and a replay needs them in the process.")
    hooks, of_chief = (checked_hooks(given[name], name) for name in ("hooks", "chief_only_hooks"))

    def make(replay: Any) -> MonitoredSession:
        (first, last), logging = replay.hooks, given["logging"] or LoggingOptions()
        logging = dataclasses.replace(logging, sinks=(), summary_dir=None)
        changed = {"checkpoint_dir": replay.checkpoint_dir, "summary_dir": None, "logging": logging}
        changed |= {"hooks": [*first, *without_sinks(hooks), *last], "chief_only_hooks": without_sinks(of_chief)}
        return MonitoredTrainingSession(**given | changed)

    return wanted.fulfil_in_session([*of_chief, *hooks], make)


def checked_options(
    who: str, checkpoints: Any, logging: Any, preemption: Any
) -> tuple[CheckpointOptions, LoggingOptions, PreemptionOptions]:
    """Returns the options of a training, with defaults for None; raises `TypeError` for other types."""
    return (
        arguments.check_optional(who, "checkpoints", checkpoints, CheckpointOptions) or _CHECKPOINTS,
        arguments.check_optional(who, "logging", logging, LoggingOptions) or _LOGGING,
        arguments.check_optional(who, "preemption", preemption, PreemptionOptions) or _PREEMPTION,
    )


def default_hooks(
    who: str,
    checkpoint_dir: str | None,
    checkpoints: CheckpointOptions,
    logging: LoggingOptions,
    scaffold: Scaffold,
    save_graph_def: bool = True,
) -> tuple[list[Any], list[Any]]:
    """Returns the hook for sinks, and the hooks that write summaries and checkpoints, as far as the options need them.

    Raises:
        ValueError: There are hyperparameters, but neither a directory nor sinks for them.
    """
    summary_dir = logging.summary_dir or checkpoint_dir
    has_any = logging.sinks or logging.hparams
    feeds = [SinkHook(logging.sinks, summary_dir, logging.hparams)] if has_any else []
    if logging.hparams and not (summary_dir or logging.sinks):
        raise ValueError(f"{who} has nowhere to write hparams: give it a directory, for TensorBoard, or sinks.")
    writers: list[Any] = []
    if (summary_dir or logging.sinks) and any(logging.cadence):
        trigger = _trigger("SummarySaverHook", logging.cadence)
        writers.append(SummarySaverHook(output_dir=summary_dir, scaffold=scaffold, trigger=trigger))
    if checkpoint_dir and any(checkpoints.cadence):
        writers.append(
            CheckpointSaverHook(
                checkpoint_dir,
                trigger=_trigger("CheckpointSaverHook", checkpoints.cadence),
                scaffold=scaffold,
                save_graph_def=save_graph_def,
                lock_timeout_secs=checkpoints.lock_timeout_secs,
            )
        )
    return feeds, writers


def _trigger(who: str, cadence: Cadence) -> Trigger:
    secs, steps = cadence
    return trigger_from_arguments(who, None, ("save_steps", steps), ("save_secs", secs), both=True)


def warn_if_nothing_saves(
    who: str, name: str, checkpoint_dir: str | None, checkpoints: CheckpointOptions, hooks: Iterable[Any]
) -> None:
    """Warns if no hook saves in a checkpoint directory, or if options for checkpoints lack a directory.

    Args:
        who: The caller, for messages.
        name: The name of its argument for the directory.
        checkpoint_dir: The directory.
        checkpoints: The options.
        hooks: All hooks.
    """
    if not process_group.is_primary() or any(overridden_callback(hook, "save_on_failure") for hook in hooks):
        return
    values = {each: getattr(checkpoints, each) for each in _NEED_A_DIRECTORY}
    in_vain = [each for each, value in values.items() if value not in (None, getattr(_CHECKPOINTS, each))]
    if checkpoint_dir:
        _logger.warning(
            "%s saves no checkpoints in '%s', because both cadences are off (one that is given, also as None, replaces "
            "the default of 600 seconds): the training cannot be resumed. Give CheckpointOptions(save_steps=) or "
            "save_secs=; for summaries alone, LoggingOptions(summary_dir=) in place of this directory.",
            who,
            checkpoint_dir,
        )
    elif in_vain:
        _logger.warning(
            "%s saves no checkpoints, because it has no directory, and CheckpointOptions(%s) needs one: give it %s.",
            who,
            ", ".join(f"{each}=..." for each in in_vain),
            name,
        )


def _merge_tf_arguments(options: Options, **of_tensorflow: tuple[str, Any]) -> Options:
    """Returns options with the values given by TensorFlow's names, as `option=(name, value)`."""
    default, found = type(options)(), {}
    for field, (name, value) in of_tensorflow.items():
        if value == getattr(default, field):
            continue
        if getattr(options, field) != getattr(default, field):
            raise _given_twice_error(name, options, field)
        found[field] = value if field == "summary_dir" else _checked_cadence(name, value)
    return dataclasses.replace(options, **found) if found else options


def _given_twice_error(name: str, options: object, field: str) -> ValueError:
    return ValueError(f"{_WHO} takes {name} or {type(options).__name__}({field}=...), and got both.")


def _checked_cadence(name: str, value: Any) -> float | None:
    """Returns a checked cadence; None if it is off."""
    if value is not None:
        (arguments.check_int if name.endswith("_steps") else arguments.check_number)(_WHO, name, value)
        if value < 0:
            _logger.warning(
                "MonitoredTrainingSession: %s=%s turns this cadence off. Give None or 0 for that, or a number above 0.",
                name,
                value,
            )
    return value if value is not None and value > 0 else None
