"""Session creators: a chief initialises or restores the model, and a worker waits for it."""

from __future__ import annotations

import abc
from typing import Any

from hookline import arguments
from hookline.graph import get_default_graph
from hookline.monitored.replaying import claims
from hookline.monitored.starting.restoring import LATEST, check_restore_arguments
from hookline.monitored.starting.scaffold import Scaffold
from hookline.monitored.starting.session_manager import SessionManager
from hookline.session import Session, StoreTarget


class SessionCreator(abc.ABC):
    """Creates the raw session of a monitored session, at the start and after each loss.

    Example:
        >>> class Plain(SessionCreator):
        ...     def create_session(self):
        ...         return Session()

    References:
        `tf.train.SessionCreator`.
    """

    @abc.abstractmethod
    def create_session(self) -> Session:
        """Returns a session whose model is ready, on the default graph."""


class ChiefSessionCreator(SessionCreator):
    """Creates a session, and restores its model from a checkpoint or else initialises it.

    Args:
        scaffold: The scaffold that initialises, restores and checks; a default one if None.
        master: Where variables are: in this process (""), or on a `hookline.distributed.Cluster` or its `target`.
        config: The session's configuration.
        checkpoint_dir: A directory; its newest checkpoint is restored, if it has one.
        checkpoint_filename_with_path: A checkpoint to restore.
        restore: The reaction to a broken newest checkpoint. "latest": raise an error. "latest-valid": move it
            aside, to `<path>.hookline-broken`, and restore the one before it.

    Attributes:
        scaffold: The scaffold.

    Raises:
        ValueError: Both `checkpoint_dir` and `checkpoint_filename_with_path` are given; or `restore` has another value.

    Example:
        >>> import hookline as hl
        >>> with hl.Graph().as_default():
        ...     weight = hl.Variable(2.0, name="weight")
        ...     session = ChiefSessionCreator().create_session()
        >>> print(session.run(weight))
        2.0

    References:
        `tf.train.ChiefSessionCreator`. `restore` is new.
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str | StoreTarget = "",
        config: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        *,
        restore: str = LATEST,
    ) -> None:
        check_restore_arguments(checkpoint_dir, checkpoint_filename_with_path, restore)
        claims.refuse("ChiefSessionCreator", checkpoint_dir)
        self._restore = restore
        self.scaffold = arguments.check_optional("ChiefSessionCreator", "scaffold", scaffold, Scaffold) or Scaffold()
        self._master = master
        self._config = config
        self._checkpoint_dir = checkpoint_dir
        self._checkpoint_filename_with_path = checkpoint_filename_with_path

    def create_session(self) -> Session:
        """Finalizes the scaffold and returns a session whose model is ready."""
        scaffold = self.scaffold.finalize()
        return _manager(scaffold).prepare_session(
            self._master,
            init_op=scaffold.init_op,
            saver=scaffold.saver,
            checkpoint_dir=self._checkpoint_dir,
            checkpoint_filename_with_path=self._checkpoint_filename_with_path,
            config=self._config,
            init_feed_dict=scaffold.init_feed_dict,
            init_fn=scaffold.init_fn,
            restore=self._restore,
        )


class WorkerSessionCreator(SessionCreator):
    """Creates a session and waits until the chief has made the model ready.

    Args:
        scaffold: The scaffold with the readiness checks; a default one if None.
        master: As in `ChiefSessionCreator`.
        config: The session's configuration.
        max_wait_secs: The maximum wait in seconds.

    Attributes:
        scaffold: The scaffold.

    Example:
        >>> import hookline as hl
        >>> with hl.Graph().as_default():
        ...     weight = hl.Variable(2.0, name="weight")
        ...     WorkerSessionCreator(max_wait_secs=0).create_session()
        Traceback (most recent call last):
        ...
        hookline.errors.DeadlineExceededError: Waited 0 seconds for the chief to make the model ready ...

    References:
        `tf.train.WorkerSessionCreator`.
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str | StoreTarget = "",
        config: Any = None,
        max_wait_secs: float = 1800,
    ) -> None:
        self.scaffold = arguments.check_optional("WorkerSessionCreator", "scaffold", scaffold, Scaffold) or Scaffold()
        arguments.check_number("WorkerSessionCreator", "max_wait_secs", max_wait_secs, at_least=0)
        self._master = master
        self._config = config
        self._max_wait_secs = max_wait_secs

    def create_session(self) -> Session:
        """Finalizes the scaffold and returns a session once its model is ready.

        Raises:
            DeadlineExceededError: The model was not ready in time.
        """
        scaffold = self.scaffold.finalize()
        return _manager(scaffold).wait_for_session(self._master, config=self._config, max_wait_secs=self._max_wait_secs)


def _manager(scaffold: Scaffold) -> SessionManager:
    return SessionManager(
        local_init_op=scaffold.local_init_op,
        ready_op=scaffold.ready_op,
        ready_for_local_init_op=scaffold.ready_for_local_init_op,
        graph=get_default_graph(),
        local_init_feed_dict=scaffold.local_init_feed_dict,
    )
