"""MonitoredSession and SingularMonitoredSession: the sessions that a training loop runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hookline.monitored.lifecycle import MonitoredLifecycle
from hookline.monitored.recovery import DEFAULT_RECOVERY, RecoveryPolicy
from hookline.monitored.starting.creators import ChiefSessionCreator, SessionCreator
from hookline.monitored.starting.scaffold import Scaffold
from hookline.monitored.training_options import PreemptionOptions
from hookline.session import StoreTarget


class MonitoredSession(MonitoredLifecycle):
    """A session with hooks that initialises or restores itself, recovers, and stops its threads at the end.

    The constructor calls every hook's `begin`, finalizes the scaffold, creates the session, initialises or restores it,
    and calls every hook's `after_create_session`, in this order. Closing calls every hook's `end`. Use it as a context
    manager: the end of the input (`OutOfRangeError`, `StopIteration`) leaves the `with` block without an error.

    Args:
        session_creator: Creates the session; by default a `ChiefSessionCreator`.
        hooks: Hooks, called in this order. A hook serves one session at a time.
        stop_grace_period_secs: The longest wait of closing for the threads.
        recovery: The policy for a lost session; None lets the error pass.
        summary_dir: The directory of the shared writer `summary_writer`.
        strict_events: Whether the training ends if summaries or other events cannot be written (a full disk). By
            default they are lost, with a warning.
        preemption: The options of the reaction to SIGTERM and Ctrl-C; the default ones if None.
        steps_per_run: The largest number of steps of a run, in one compiled loop; see `MonitoredTrainingSession`.

    Raises:
        TypeError: An item of `hooks` is not a hook.
        RuntimeError: A hook serves another live session.

    Example:
        >>> import hookline as hl
        >>> from hookline import train
        >>> with hl.Graph().as_default():
        ...     step = train.get_or_create_global_step()
        ...     train_op = step.assign_add(1)
        ...     with train.MonitoredSession(hooks=[train.StopAtStepHook(last_step=3)]) as sess:
        ...         while not sess.should_stop():
        ...             print(sess.run(train_op))
        1
        2
        3

    References:
        `tf.train.MonitoredSession`. Differences: `recovery`, `summary_dir`, `strict_events`, `preemption`,
        `steps_per_run`, `request_stop`; every hook gets `end`, even if others raise; a
        failed construction leaves no thread and no session behind; closing also closes the writers that it and its
        hooks took from `FileWriterCache`; hooks declare `trigger`, `fetches` and `late`, and may define `on_exception`.
    """

    def __init__(
        self,
        session_creator: SessionCreator | None = None,
        hooks: Iterable[Any] | None = None,
        stop_grace_period_secs: float = 120,
        *,
        recovery: RecoveryPolicy | None = DEFAULT_RECOVERY,
        summary_dir: str | None = None,
        strict_events: bool = False,
        preemption: PreemptionOptions | None = None,
        steps_per_run: int = 1,
    ) -> None:
        creator = ChiefSessionCreator() if session_creator is None else session_creator
        super().__init__(
            creator,
            hooks,
            stop_grace_period_secs,
            recovery,
            summary_dir,
            strict_events,
            preemption,
            steps_per_run,
        )


class SingularMonitoredSession(MonitoredLifecycle):
    """A monitored session of a single process: always a chief, never recovers, and gives access to the raw session.

    Args:
        hooks: Hooks, called in this order.
        scaffold: The scaffold that initialises, restores and summarises; defaults fill missing parts.
        master: Where variables live: this process (""), or a `hookline.distributed.Cluster` or its `target`.
        config: The raw session's configuration.
        checkpoint_dir: A directory, whose newest checkpoint is restored, if there is one.
        stop_grace_period_secs: The longest wait of closing for the threads.
        checkpoint_filename_with_path: A checkpoint to restore.
        preemption: As in `MonitoredSession`.

    Raises:
        ValueError: Both a directory and a checkpoint are given.

    Example:
        >>> import hookline as hl
        >>> from hookline import train
        >>> with hl.Graph().as_default():
        ...     weight = hl.Variable(2.0, name="weight")
        ...     with train.SingularMonitoredSession() as sess:
        ...         print(sess.raw_session().run(weight))
        2.0

    References:
        `tf.train.SingularMonitoredSession`.
    """

    def __init__(
        self,
        hooks: Iterable[Any] | None = None,
        scaffold: Scaffold | None = None,
        master: str | StoreTarget = "",
        config: Any = None,
        checkpoint_dir: str | None = None,
        stop_grace_period_secs: float = 120,
        checkpoint_filename_with_path: str | None = None,
        *,
        preemption: PreemptionOptions | None = None,
    ) -> None:
        creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir, checkpoint_filename_with_path)
        super().__init__(
            creator,
            hooks,
            stop_grace_period_secs,
            None,
            None,
            options=preemption,
        )

    def should_stop(self) -> bool:
        """Returns whether to leave the training loop; raises the error that a thread has reported."""
        if self._stop.asked and not self._stop.closed and self._in_step is None:
            error = self._session.reported_error()
            if error is not None:
                raise error
        return super().should_stop()
