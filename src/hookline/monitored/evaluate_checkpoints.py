"""Evaluates a checkpoint, or each new checkpoint of a training that runs in another process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hookline import arguments, clock, log
from hookline.checkpoint import checkpoint_exists, checkpoints_iterator
from hookline.checkpoint.restoring.reading import resolve_checkpoint
from hookline.errors import NotFoundError
from hookline.graph.global_step import get_or_create_eval_step
from hookline.hooks import FinalOpsHook, SessionRunArgs
from hookline.monitored.hooked.callbacks import checked_hooks
from hookline.monitored.monitored_session import MonitoredSession
from hookline.monitored.starting.creators import ChiefSessionCreator
from hookline.monitored.starting.scaffold import Scaffold
from hookline.session import Session, resolve_target
from hookline.session.plan.fetches import check_fetches

logger = log.get_logger(__name__)


def evaluate_once(
    checkpoint_path: str,
    master: str = "",
    scaffold: Scaffold | None = None,
    eval_ops: Any = None,
    feed_dict: Mapping[Any, Any] | None = None,
    final_ops: Any = None,
    final_ops_feed_dict: Mapping[Any, Any] | None = None,
    hooks: Iterable[Any] | None = None,
    config: Any = None,
) -> Any:
    """Restores a checkpoint, runs `eval_ops` until a hook requests a stop or the input ends, then `final_ops` once.

    The default graph must have the model, an input, and local variables (`collections=[GraphKeys.LOCAL_VARIABLES]`)
    that accumulate values over the runs; they are initialised for each evaluation. Each run increments the evaluation
    step.

    Args:
        checkpoint_path: A checkpoint; or a directory, for its newest checkpoint.
        master: Must be empty: an evaluation has its own variables.
        scaffold: The scaffold that restores and initialises; missing parts get defaults. A `local_init_op` must
            initialise the evaluation step as well, see `Scaffold.default_local_init_op`.
        eval_ops: The fetches of the repeated runs, in any structure; None makes no such runs.
        feed_dict: The feeds of these runs.
        final_ops: The fetches of the last run, in any structure.
        final_ops_feed_dict: The feeds of that run.
        hooks: Hooks, such as `StopAfterNEvalsHook`.
        config: The session's configuration.

    Returns:
        The values of `final_ops`, in their structure; None without them.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The path is empty or None, or `master` is not empty.
        NotFoundError: The checkpoint does not exist, or lacks variables of the model.
        OpError: The checkpoint cannot be read or does not fit, or a run raises.

    Example:
        >>> import hookline as hl, tempfile
        >>> from hookline import train
        >>> logdir = tempfile.TemporaryDirectory()
        >>> with hl.Graph().as_default(), hl.Session() as sess:
        ...     sess.run(hl.Variable(3.0, name="weight").initializer)
        ...     path = train.Saver().save(sess, logdir.name + "/model.ckpt")
        >>> with hl.Graph().as_default():
        ...     weight = hl.Variable(0.0, name="weight")
        ...     total = hl.Variable(0.0, name="total", collections=[hl.GraphKeys.LOCAL_VARIABLES])
        ...     hooks = [train.StopAfterNEvalsHook(4)]
        ...     print(evaluate_once(path, eval_ops=total.assign_add(weight), final_ops=total / 4, hooks=hooks))
        3.0
        >>> logdir.cleanup()

    References:
        `tf.contrib.training.evaluate_once`. Differences: hooks of the evaluation do not get the states that hooks of
        the training saved in the checkpoint; None as the path is an error.
    """
    if not checkpoint_path or not isinstance(checkpoint_path, str | os.PathLike):
        raise ValueError(
            f"evaluate_once requires the path of a checkpoint, got {checkpoint_path!r}. (latest_checkpoint returns "
            f"None where nothing has been saved yet.)"
        )
    runs, last = SessionRunArgs(eval_ops, feed_dict), SessionRunArgs(final_ops, final_ops_feed_dict)
    who = "evaluate_once"
    return _make_evaluate(who, master, scaffold, config, hooks, runs, last)(resolve_checkpoint(checkpoint_path, who))


def evaluate_repeatedly(
    checkpoint_dir: str,
    master: str = "",
    scaffold: Scaffold | None = None,
    eval_ops: Any = None,
    feed_dict: Mapping[Any, Any] | None = None,
    final_ops: Any = None,
    final_ops_feed_dict: Mapping[Any, Any] | None = None,
    eval_interval_secs: float = 60,
    hooks: Iterable[Any] | None = None,
    config: Any = None,
    max_number_of_evaluations: int | None = None,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Any:
    """Evaluates each new checkpoint of a directory, as `evaluate_once` does; of several new ones, only the newest.

    Run it beside the training, usually in its own process; it writes nothing to the directory. Each evaluation is a
    session of its own for the hooks, from `begin` to `end`.

    Args:
        checkpoint_dir: The directory in which the training saves; it need not exist yet.
        master: As in `evaluate_once`.
        scaffold: As in `evaluate_once`.
        eval_ops: As in `evaluate_once`.
        feed_dict: As in `evaluate_once`.
        final_ops: As in `evaluate_once`.
        final_ops_feed_dict: As in `evaluate_once`.
        eval_interval_secs: The minimum number of seconds between the starts of two evaluations.
        hooks: As in `evaluate_once`.
        config: As in `evaluate_once`.
        max_number_of_evaluations: The maximum number of evaluations; None for no limit.
        timeout: The maximum number of seconds to wait for a new checkpoint; None for no limit.
        timeout_fn: Called without arguments after the timeout; it returns True to end, or False to wait once more.
            None ends.

    Returns:
        The values of `final_ops` in the last evaluation; None without one.

    Raises:
        As in `evaluate_once`. If the training removes a checkpoint before it is read, it is skipped with a warning.

    Example:
        >>> import hookline as hl, tempfile
        >>> weight = hl.Variable(3.0, name="weight")
        >>> with hl.Session() as sess, tempfile.TemporaryDirectory() as logdir:
        ...     sess.run(weight.initializer)
        ...     path = hl.train.Saver().save(sess, logdir + "/model.ckpt")
        ...     print(evaluate_repeatedly(logdir, final_ops=weight * 2, max_number_of_evaluations=1))
        6.0

    References:
        `tf.contrib.training.evaluate_repeatedly`.
    """
    who = "evaluate_repeatedly"
    if not checkpoint_dir or not isinstance(checkpoint_dir, str | os.PathLike):
        raise ValueError(f"{who} requires a directory of checkpoints, got {checkpoint_dir!r}.")
    arguments.check_number(who, "eval_interval_secs", eval_interval_secs, at_least=0)
    if max_number_of_evaluations is not None:
        arguments.check_int(who, "max_number_of_evaluations", max_number_of_evaluations, at_least=1)
    if timeout is not None:
        arguments.check_number(who, "timeout", timeout, at_least=0)
    arguments.check_callable(who, "timeout_fn", timeout_fn, optional=True)
    runs, last = SessionRunArgs(eval_ops, feed_dict), SessionRunArgs(final_ops, final_ops_feed_dict)
    evaluate = _make_evaluate(who, master, scaffold, config, hooks, runs, last)
    values, evaluations = None, 0
    for path in checkpoints_iterator(checkpoint_dir, eval_interval_secs, timeout, timeout_fn):
        try:
            values = evaluate(path)
        except NotFoundError as error:
            if checkpoint_exists(path):
                raise
            logger.warning("'%s' is skipped, because it was removed before it could be evaluated: %s", path, error)
            continue
        evaluations += 1
        if evaluations == max_number_of_evaluations:
            break
    return values


def _make_evaluate(
    who: str,
    master: str,
    scaffold: Scaffold | None,
    config: Any,
    hooks: Iterable[Any] | None,
    runs: SessionRunArgs,
    last: SessionRunArgs,
) -> Callable[[str], Any]:
    """Returns a function that evaluates the checkpoint at a path; adds its operations to the graph once.

    `runs` has `eval_ops` with their feeds, and `last` has `final_ops` with theirs.
    """
    if resolve_target(master) is not None:
        raise ValueError(
            f"{who}: master must be '', got {master!r}: an evaluation restores its own variables, and must not touch "
            f"the training's."
        )
    arguments.check_optional(who, "scaffold", scaffold, Scaffold)
    check_fetches(who, eval_ops=runs.fetches, final_ops=last.fetches)
    arguments.check_optional(who, "feed_dict", runs.feed_dict, Mapping)
    arguments.check_optional(who, "final_ops_feed_dict", last.feed_dict, Mapping)
    checked = checked_hooks(hooks)
    fetches = [runs.fetches, get_or_create_eval_step().assign_add(1).op]

    def evaluate(path: str) -> Any:
        began = clock.monotonic()
        logger.info("Evaluating '%s'", path)
        final = FinalOpsHook(last.fetches, last.feed_dict)
        creator = _EvaluationSessionCreator(scaffold, config=config, checkpoint_filename_with_path=path)
        with MonitoredSession(creator, [*checked, final]) as session:
            while runs.fetches is not None and not session.should_stop():
                session.run(fetches, runs.feed_dict)
        logger.info("Evaluated '%s' in %.3f seconds", path, clock.monotonic() - began)
        return final.final_ops_values

    return evaluate


class _EvaluationSessionCreator(ChiefSessionCreator):
    """Restores a checkpoint, but not the states of the training's hooks."""

    def create_session(self) -> Session:
        """Returns a session with the restored model."""
        session = super().create_session()
        session.backend.restored_hook_states = {}
        return session
