"""SessionManager: creates a session with a ready model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from hookline import arguments, clock, log
from hookline.checkpoint import Saver, latest_checkpoint
from hookline.coordination import progress
from hookline.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
)
from hookline.graph import Graph, GraphKeys, Operation, Tensor, get_default_graph
from hookline.graph.global_step import find_global_step
from hookline.monitored.starting.restoring import (
    LATEST,
    adopt_checkpoints,
    check_restore_arguments,
    continue_lineage,
    restore_newest,
)
from hookline.session import RunOptions, Session, StoreTarget
from hookline.session.origin import INITIALISED, SHARED
from hookline.session.plan.fetches import check_fetches
from hookline.signals import interrupts, preemption

logger = log.get_logger(__name__)

_POLL_SECS = 0.1
# A wait for the chief ends as soon as the chief is ready; it is repeated after this interval.
_WAIT_SECS = 1.0


class SessionManager:
    """Initialises a model, restores it from a checkpoint, or waits until another process has done so.

    Args:
        local_init_op: Initialises everything that is not in checkpoints; also runs after a restore.
        ready_op: A tensor of the names of uninitialised variables; None checks nothing.
        ready_for_local_init_op: Likewise, for the variables that `local_init_op` needs.
        graph: The graph; if None, the default graph when the manager is created.
        recovery_wait_secs: The interval between log lines of a wait, in seconds. It polls more often.
        local_init_run_options: The options of the run of `local_init_op`.
        local_init_feed_dict: The feeds of the run of `local_init_op`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument requires `local_init_op`, which is None.

    Example:
        >>> import hookline as hl
        >>> with hl.Graph().as_default() as graph:
        ...     weight = hl.Variable(2.0, name="weight")
        ...     init_op = hl.global_variables_initializer()
        >>> session = SessionManager(graph=graph).prepare_session("", init_op=init_op)
        >>> print(session.run(weight))
        2.0

    References:
        `tf.train.SessionManager`. Differences: a checkpoint that does not fit is an error, and never ignored; waits
        poll every tenth of a second, and a wait for a checkpoint, too, ends with `DeadlineExceededError`.
    """

    def __init__(
        self,
        local_init_op: Operation | Tensor | None = None,
        ready_op: Tensor | None = None,
        ready_for_local_init_op: Tensor | None = None,
        graph: Graph | None = None,
        recovery_wait_secs: float = 30,
        local_init_run_options: RunOptions | None = None,
        local_init_feed_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        check_fetches("SessionManager", local_init_op=local_init_op, ready_op=ready_op)
        check_fetches("SessionManager", ready_for_local_init_op=ready_for_local_init_op)
        arguments.check_optional("SessionManager", "graph", graph, Graph)
        arguments.check_number("SessionManager", "recovery_wait_secs", recovery_wait_secs, at_least=0)
        arguments.check_optional("SessionManager", "local_init_run_options", local_init_run_options, RunOptions)
        arguments.check_optional("SessionManager", "local_init_feed_dict", local_init_feed_dict, Mapping)
        serving = {
            "ready_for_local_init_op": ready_for_local_init_op,
            "local_init_run_options": local_init_run_options,
            "local_init_feed_dict": local_init_feed_dict,
        }
        for name, value in serving.items():
            if value is not None and local_init_op is None:
                raise ValueError(f"SessionManager: {name} does nothing without local_init_op: pass that too.")
        self._local_init_op = local_init_op
        self._ready_op = ready_op
        self._ready_for_local_init_op = ready_for_local_init_op
        self._graph = graph or get_default_graph()
        self._recovery_wait_secs = recovery_wait_secs
        self._local_init_run_options = local_init_run_options
        self._local_init_feed_dict = local_init_feed_dict

    def prepare_session(
        self,
        master: str | StoreTarget,
        init_op: Operation | Tensor | None = None,
        saver: Saver | None = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: Any = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Session], Any] | None = None,
        *,
        restore: str = LATEST,
    ) -> Session:
        """Returns a session whose model is ready: restored if there is a checkpoint, else initialised.

        After a restore neither `init_op` nor `init_fn` runs; `local_init_op` always does.

        Args:
            master: Where variables are: in this process (""), or on a `hookline.distributed.Cluster` or its `target`.
            init_op: Initialises the model.
            saver: The saver that restores.
            checkpoint_dir: A directory; its newest checkpoint is restored, if it has one.
            checkpoint_filename_with_path: A checkpoint to restore.
            wait_for_checkpoint: Whether to wait until the directory has a checkpoint.
            max_wait_secs: The maximum wait in seconds.
            config: The session's configuration.
            init_feed_dict: The feeds of `init_op`.
            init_fn: Called with the session after `init_op`.
            restore: The reaction to a broken newest checkpoint. "latest": raise an error. "latest-valid": move it
                aside, to `<path>.hookline-broken`, and restore the one before it.

        Raises:
            ValueError: Both `checkpoint_dir` and `checkpoint_filename_with_path` are given.
            RuntimeError: There is neither a checkpoint nor an `init_op`, `init_fn` or `local_init_op`; or the model is
                not ready afterwards.
            OpError: The checkpoint cannot be read or does not fit.
        """
        check_restore_arguments(checkpoint_dir, checkpoint_filename_with_path, restore)
        with self._open_session(master, config) as session:
            _init_per_worker_variables(session)
            # Local variables do not show whether the servers are ready, because they are new in each process.
            shared = session.graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
            if session.backend.shared and session.backend.wait_until_ready() and not session.uninitialized(shared):
                logger.info("The model is ready on the parameter servers%s.", _at_step(session))
                session.origin = SHARED
                self._run_local_init_op(session)
                if saver is not None and checkpoint_dir:
                    adopt_checkpoints(saver, checkpoint_dir)
                    continue_lineage(session, checkpoint_dir)
                session.backend.publish()
                return session
            wait = partial(self._wait_for_checkpoint, max_wait_secs=max_wait_secs) if wait_for_checkpoint else None
            with session.activity.during("restore"):
                source = restore_newest(session, saver, checkpoint_dir, checkpoint_filename_with_path, restore, wait)
            if source is None:
                session.origin = INITIALISED
                if init_op is None and init_fn is None and self._local_init_op is None:
                    raise RuntimeError(
                        "The model is not initialised, and there is nothing to initialise it with: no checkpoint was "
                        "found, and none of init_op, init_fn and local_init_op was given."
                    )
                if init_op is not None:
                    session.run(init_op, feed_dict=init_feed_dict)
                if init_fn is not None:
                    interrupts.call_user_function(init_fn, session)
            did = f"Restoring {source!r}" if source else "Initialising (init_op, init_fn)"
            self._require_ready(
                session, self._ready_for_local_init_op, f"{did} did not make the model ready for local_init_op"
            )
            self._run_local_init_op(session)
            self._require_ready(session, self._ready_op, f"{did} did not make the model ready")
            session.backend.publish()
            return session

    def recover_session(
        self,
        master: str | StoreTarget,
        saver: Saver | None = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: Any = None,
        *,
        restore: str = LATEST,
    ) -> tuple[Session, bool]:
        """Returns a session, and whether it was restored and is ready.

        The arguments and errors are as in `prepare_session`. The second item is False if there is no checkpoint, or if
        it lacks a variable of the model. The caller must then initialise the model and, if workers wait for it, call
        `session.backend.publish()`. `local_init_op` runs in any case, if the variables it needs are ready.
        """
        check_restore_arguments(checkpoint_dir, checkpoint_filename_with_path, restore)
        with self._open_session(master, config) as session:
            wait = partial(self._wait_for_checkpoint, max_wait_secs=max_wait_secs) if wait_for_checkpoint else None
            source = restore_newest(session, saver, checkpoint_dir, checkpoint_filename_with_path, restore, wait)
            missing = _uninitialized_names(session, self._ready_for_local_init_op)
            if not missing:
                self._run_local_init_op(session)
                missing = _uninitialized_names(session, self._ready_op)
            if source is None:
                return session, False
            if missing:
                logger.warning("Restoring %r did not make the model ready. Not initialised: %s.", source, missing)
            else:
                session.backend.publish()
            return session, not missing

    def wait_for_session(
        self, master: str | StoreTarget, config: Any = None, max_wait_secs: float = float("inf")
    ) -> Session:
        """Returns a session once the chief has made the model ready.

        Args:
            master: As in `prepare_session`.
            config: The session's configuration.
            max_wait_secs: The maximum wait in seconds.

        Raises:
            DeadlineExceededError: The model was not ready in time; the message names the missing variables.
            FailedPreconditionError: This worker's graph is not the chief's; the message names the first difference.
        """
        with self._open_session(master, config) as session:
            _init_per_worker_variables(session)
            missing = ""

            def ready() -> bool | None:
                nonlocal missing
                missing = "it still initialises or restores it"
                if not session.backend.wait_until_ready(min(_WAIT_SECS, max_wait_secs)):
                    return None
                if session.backend.shared:
                    # Raises if this worker's graph is not the chief's: waiting would not help.
                    session.uninitialized()
                names = _uninitialized_names(session, self._ready_for_local_init_op)
                if not names:
                    self._run_local_init_op(session)
                    names = _uninitialized_names(session, self._ready_op)
                if names:
                    missing = f"not initialised: {names}"
                    return None
                # The chief may have started over meanwhile; then this session is lost, or the wait continues.
                return True if session.backend.wait_until_ready() else None

            self._poll(ready, lambda: f"the chief to make the model ready ({missing})", max_wait_secs)
            session.origin = SHARED
            return session

    def _run_local_init_op(self, session: Session) -> None:
        if self._local_init_op is not None:
            session.run(self._local_init_op, feed_dict=self._local_init_feed_dict, options=self._local_init_run_options)

    def _require_ready(self, session: Session, ready_op: Tensor | None, failed: str) -> None:
        missing = _uninitialized_names(session, ready_op)
        if missing:
            raise RuntimeError(f"{failed}. Not initialised: {missing}.")

    def _wait_for_checkpoint(self, directory: str, max_wait_secs: float) -> None:
        what = f"a checkpoint in {directory!r}"
        self._poll(lambda: latest_checkpoint(directory), lambda: what, max_wait_secs)

    def _poll(self, condition: Callable[[], Any], describe: Callable[[], str], max_wait_secs: float) -> Any:
        start = logged_at = clock.monotonic()
        while (found := condition()) is None:
            now = clock.monotonic()
            if now - start >= max_wait_secs:
                raise DeadlineExceededError.from_message(f"Waited {max_wait_secs} seconds for {describe()}.")
            if now - logged_at >= self._recovery_wait_secs:
                logger.info("Waiting for %s", describe())
                logged_at = now
            progress.count += 1  # The wait has a limit of its own.
            preemption.sleep(min(_POLL_SECS, start + max_wait_secs - now))
        return found

    @contextmanager
    def _open_session(self, master: str | StoreTarget, config: Any) -> Iterator[Session]:
        """Yields a new session, and closes it after an error."""
        session = Session(target=master, graph=self._graph, config=config)
        try:
            yield session
        except BaseException as exc:  # The session must be closed.
            try:
                session.close()
            except InvalidArgumentError as closing:
                exc.add_note(f"While closing the session: {closing}")
            mapped = session.backend.map_error(exc)
            if mapped is exc:
                raise
            raise mapped from mapped.__cause__


def _init_per_worker_variables(session: Session) -> None:
    """Initialises the variables that are not on the servers but in each worker, which only the worker can do."""
    if session.backend.shared:
        variables = session.graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
        session.run([variable.initializer for variable in variables if variable.per_worker])


def _at_step(session: Session) -> str:
    return "" if find_global_step(session.graph) is None else f", at global step {session.global_step}"


def _uninitialized_names(session: Session, ready_op: Tensor | None) -> str:
    """Returns the names of the uninitialised variables, separated by commas; empty when the model is ready."""
    if ready_op is None:
        return ""
    try:
        names = session.run(ready_op)
    except FailedPreconditionError as exc:
        return str(exc)
    if names is None:
        return ""
    return ", ".join(name.decode() if isinstance(name, bytes) else str(name) for name in names)
