"""MonitoredTrainingSession: a monitored session with the usual hooks."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from hookline import arguments, log, preemption
from hookline.checkpoint.lease import DEFAULT_WAIT_SECS
from hookline.coordination import peers
from hookline.hooks import CheckpointSaverHook, SinkHook, StepCounterHook, SummarySaverHook
from hookline.hooks.cadence import chosen_trigger
from hookline.monitored.callbacks import checked_hooks, override
from hookline.monitored.chief_only import silenced
from hookline.monitored.creators import ChiefSessionCreator, WorkerSessionCreator
from hookline.monitored.monitored_session import MonitoredSession
from hookline.monitored.recovery import DEFAULT_RECOVERY, RecoveryPolicy
from hookline.monitored.restoring import LATEST
from hookline.monitored.scaffold import Scaffold
from hookline.session import StoreTarget, resolve_target
from hookline.sinks import Sink

_logger = log.of(__name__)

N = TypeVar("N", int, float)


class UseDefault(enum.Enum):
    """Marks an argument that was not given, because None has another meaning."""

    USE_DEFAULT = "USE_DEFAULT"


USE_DEFAULT = UseDefault.USE_DEFAULT


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
    recovery: RecoveryPolicy | None = DEFAULT_RECOVERY,
    restore: str = LATEST,
    lease_wait_secs: float = DEFAULT_WAIT_SECS,
    strict_events: bool = False,
    on_preemption: str = preemption.EXIT,
    grace_secs: float = preemption.DEFAULT_GRACE_SECS,
    steps_per_run: int = 1,
    sinks: Iterable[Sink] = (),
    hparams: Any = None,
) -> MonitoredSession:
    """Returns a monitored session that counts steps, writes summaries, saves checkpoints, restores and recovers.

    A chief has its hooks in this order: with sinks or hyperparameters a `SinkHook`; `chief_only_hooks`; with a
    directory for summaries a `StepCounterHook` and a `SummarySaverHook`; with a `checkpoint_dir` a
    `CheckpointSaverHook`; then `hooks`. A worker has only `hooks`, and waits until the chief has made the model ready.
    With a `Cluster` (asynchronous, on parameter servers), each has a `StalenessHook` before `hooks`.

    In processes that run in step (synchronous, `hookline launch --in-step`) each has all hooks of the chief, and
    `is_chief` has no effect: process 0 is the chief. Only the chief's hooks of the library write and log. A hook in
    `chief_only_hooks` requests the same values in every process; its `on_trigger`, `after_run` and `end` are called on
    the chief alone.

    The defaults (checkpoints every 600 seconds, summaries every 100 steps) apply if neither of the two cadences was
    given. Giving both means both; None or a number <= 0 turns a cadence off. A `checkpoint_dir` in which nothing
    saves is logged as a warning.

    Args:
        master: Where variables live: this process (""), or a `hookline.distributed.Cluster` or its `target`.
        is_chief: Whether this process initialises, saves and writes.
        checkpoint_dir: The directory to save to and restore from.
        scaffold: The scaffold that initialises, restores and summarises.
        hooks: Hooks of every process.
        chief_only_hooks: Hooks of the chief, called before all others.
        save_checkpoint_secs: Seconds between checkpoints.
        save_summaries_steps: Global steps between summaries.
        save_summaries_secs: Seconds between summaries.
        config: The raw session's configuration.
        stop_grace_period_secs: The longest wait of closing for the threads.
        log_step_count_steps: Global steps between two measurements of the speed; None or <= 0 for none.
        max_wait_secs: The longest wait of a worker for the chief.
        save_checkpoint_steps: Global steps between checkpoints.
        summary_dir: The directory for summaries; `checkpoint_dir` if None.
        save_graph_def: Whether to write a description of the graph beside the checkpoints.
        recovery: The policy for a lost session; None lets the error pass.
        restore: The reaction to a broken newest checkpoint. "latest": raise an error. "latest-readable": move it
            aside, to `<path>.hookline-broken`, and restore the one before it.
        lease_wait_secs: The longest wait while another process saves its checkpoints in `checkpoint_dir`.
        strict_events: Whether the training ends if summaries or other events cannot be written (a full disk). By
            default they are lost, with a warning.
        on_preemption: What SIGTERM and a first Ctrl-C do to a chief that saves, and to workers. "exit": the current run
            is finished, every `end` is called, including its save, and the block is left with `Preempted`. "ignore":
            the signals have their usual effect.
        grace_secs: The longest time for leaving in order; then the process is ended.
        steps_per_run: The largest number of steps of a run, in one compiled loop. It ends where a hook is due, at a
            stop, a save, and with the data. Only runs that advance the global step hold several: a program that takes
            its batches from iterators, and nothing else. Their results have a row for each step.
        sinks: Destinations of the chief's summaries beside TensorBoard's files; without a directory, instead of them:
            `hookline.sinks.Csv()`, ...
        hparams: Hyperparameters, for sinks and for TensorBoard, as of `SinkHook`.

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
        `tf.train.MonitoredTrainingSession`. Differences: both cadences of a kind may be given; `recovery`,
        `restore`, `strict_events`, `on_preemption`, `steps_per_run`, `sinks` and `hparams`; one process at a
        time saves in a directory.
    """
    for name, folder in (("checkpoint_dir", checkpoint_dir), ("summary_dir", summary_dir)):
        arguments.path("MonitoredTrainingSession", name, folder, optional=True)
    if is_chief is None:  # The None of an unset flag would make a worker, which waits for a chief for hours.
        raise TypeError("MonitoredTrainingSession requires True or False as is_chief, got None.")
    for name, secs in (("max_wait_secs", max_wait_secs), ("lease_wait_secs", lease_wait_secs)):
        arguments.number("MonitoredTrainingSession", name, secs, at_least=0)
    cadences = Cadences.of(
        save_checkpoint_secs=save_checkpoint_secs,
        save_summaries_steps=save_summaries_steps,
        save_summaries_secs=save_summaries_secs,
        log_step_count_steps=log_step_count_steps,
        save_checkpoint_steps=save_checkpoint_steps,
    )
    summary_dir = summary_dir or checkpoint_dir
    arguments.whole("MonitoredTrainingSession", "steps_per_run", steps_per_run, at_least=1)
    target, others = resolve_target(master), peers.current()
    if others is not None and target is not None:
        raise ValueError(
            f"MonitoredTrainingSession: the {others.count} processes of this job run in step, so each has all "
            f"variables, and {target!r} is for workers that do not. Leave out master, or start the script without "
            f"--in-step."
        )
    if others is not None:  # All have the chief's hooks, which write on the chief alone.
        is_chief = True
    if target is not None and getattr(target, "is_chief", is_chief) != is_chief:
        raise ValueError(
            f"MonitoredTrainingSession: is_chief={is_chief}, but the task of {target!r} says otherwise. Pass "
            f"is_chief=cluster.is_chief."
        )
    if target is not None and steps_per_run > 1:
        raise ValueError(
            f"MonitoredTrainingSession: steps_per_run={steps_per_run} is for variables in this process, and those of "
            f"{target!r} live on parameter servers. Leave it out."
        )
    hooks = [*(target.hooks(summary_dir) if target else ()), *checked_hooks(hooks)]
    all_hooks: list[Any] = []
    feeds = SinkHook(sinks, summary_dir, hparams)
    if hparams and not (summary_dir or feeds.sinks):
        raise ValueError(
            "MonitoredTrainingSession has nowhere to write hparams: give it summary_dir or checkpoint_dir, for "
            "TensorBoard, or sinks."
        )
    if is_chief:
        if feeds.sinks or hparams:
            all_hooks.append(feeds)
        scaffold = scaffold or Scaffold()
        creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir, restore=restore)
        of_chief = checked_hooks(chief_only_hooks, "chief_only_hooks")
        all_hooks += of_chief if peers.speaks() else map(silenced, of_chief)
    else:
        creator = WorkerSessionCreator(scaffold, master, config, max_wait_secs)
        checkpoint_dir = summary_dir = None  # The chief saves and writes.
    all_hooks += usual_hooks(
        cadences,
        checkpoint_dir,
        summary_dir,
        scaffold,
        has_sinks=is_chief and bool(feeds.sinks),
        save_graph_def=save_graph_def,
        lease_wait_secs=lease_wait_secs,
    )
    all_hooks += hooks
    if checkpoint_dir and peers.speaks() and not any(override(hook, "save_last") for hook in all_hooks):
        _logger.warning(
            "MonitoredTrainingSession saves no checkpoints in '%s', because %s: the training cannot be resumed. Give a "
            "number of save_checkpoint_steps or save_checkpoint_secs; leave out both for a checkpoint each 600 "
            "seconds. For summaries alone, give the directory as summary_dir.",
            checkpoint_dir,
            _why_no_saves(save_checkpoint_secs, save_checkpoint_steps),
        )
    return MonitoredSession(
        creator,
        all_hooks,
        stop_grace_period_secs,
        recovery=recovery,
        summary_dir=summary_dir,
        strict_events=strict_events,
        on_preemption=on_preemption,
        grace_secs=grace_secs,
        steps_per_run=steps_per_run,
    )


class Cadences(NamedTuple):
    """The cadences of a `MonitoredTrainingSession`; None or 0 turns one off.

    Args:
        saving: Seconds and steps from checkpoint to checkpoint.
        summarising: Seconds and steps from summary to summary.
        counting: Steps from one rate of steps to the next.
    """

    saving: tuple[float | None, int | None]
    summarising: tuple[float | None, int | None]
    counting: int | None

    @classmethod
    def of(
        cls,
        *,
        save_checkpoint_secs: float | UseDefault | None = USE_DEFAULT,
        save_summaries_steps: int | UseDefault | None = USE_DEFAULT,
        save_summaries_secs: float | UseDefault | None = USE_DEFAULT,
        log_step_count_steps: int | None = 100,
        save_checkpoint_steps: int | UseDefault | None = USE_DEFAULT,
    ) -> Cadences:
        """Returns the cadences that arguments of `MonitoredTrainingSession` ask for; warns of negative ones."""
        if log_step_count_steps is not None:
            arguments.whole("MonitoredTrainingSession", "log_step_count_steps", log_step_count_steps)
        return cls(
            _cadences(
                save_checkpoint_secs,
                save_checkpoint_steps,
                (600, None),
                ("save_checkpoint_secs", "save_checkpoint_steps"),
            ),
            _cadences(
                save_summaries_secs, save_summaries_steps, (None, 100), ("save_summaries_secs", "save_summaries_steps")
            ),
            log_step_count_steps,
        )


def usual_hooks(
    cadences: Cadences,
    checkpoint_dir: str | None,
    summary_dir: str | None,
    scaffold: Scaffold | None = None,
    *,
    has_sinks: bool = False,
    save_graph_def: bool = True,
    lease_wait_secs: float = DEFAULT_WAIT_SECS,
) -> list[Any]:
    """Returns the hooks that a `MonitoredTrainingSession` adds for these directories and sinks."""
    found: list[Any] = []
    if summary_dir or has_sinks:
        every_n_steps = _on("log_step_count_steps", cadences.counting)
        if every_n_steps:
            found.append(StepCounterHook(every_n_steps=every_n_steps, output_dir=summary_dir))
        if any(cadences.summarising):
            secs, steps = cadences.summarising
            trigger = chosen_trigger("SummarySaverHook", None, ("save_steps", steps), ("save_secs", secs), both=True)
            found.append(SummarySaverHook(output_dir=summary_dir, scaffold=scaffold or Scaffold(), trigger=trigger))
    if checkpoint_dir and any(cadences.saving):
        secs, steps = cadences.saving
        found.append(
            CheckpointSaverHook(
                checkpoint_dir,
                save_secs=secs,
                save_steps=steps,
                scaffold=scaffold,
                save_graph_def=save_graph_def,
                lease_wait_secs=lease_wait_secs,
            )
        )
    return found


def _cadences(
    secs: float | UseDefault | None,
    steps: int | UseDefault | None,
    default: tuple[float | None, int | None],
    names: tuple[str, str],
) -> tuple[float | None, int | None]:
    """Returns the two cadences that apply; None for one that is off."""
    if isinstance(secs, UseDefault) and isinstance(steps, UseDefault):
        return default
    secs_name, steps_name = names
    secs = None if isinstance(secs, UseDefault) else secs
    steps = None if isinstance(steps, UseDefault) else steps
    if secs is not None:
        arguments.number("MonitoredTrainingSession", secs_name, secs)
    if steps is not None:
        steps = arguments.whole("MonitoredTrainingSession", steps_name, steps)
    return _on(secs_name, secs), _on(steps_name, steps)


def _on(name: str, every: N | None) -> N | None:
    if every is not None and every < 0:
        _logger.warning(
            "MonitoredTrainingSession: %s=%s turns this cadence off. Give None or 0 for that, or a number above 0.",
            name,
            every,
        )
    return every if every is not None and every > 0 else None


def _why_no_saves(secs: float | UseDefault | None, steps: float | UseDefault | None) -> str:
    """Returns the reason why no checkpoints are saved, in words."""
    if isinstance(secs, UseDefault):
        return f"save_checkpoint_steps={steps} replaces the default, save_checkpoint_secs=600"
    return f"save_checkpoint_secs={secs}" + (
        "" if isinstance(steps, UseDefault) else f" and save_checkpoint_steps={steps}"
    )
