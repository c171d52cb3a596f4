"""SessionReplay: the replay of a monitored session, whose runs the script makes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hookline.graph import GraphKeys, Tensor, get_default_graph
from hookline.graph.nodes.nodes import Source
from hookline.graph.nodes.spec import UNKNOWN
from hookline.hooks import Firing, NanTensorHook, SessionRunHook, at_steps
from hookline.hooks.lookup import find_tensor
from hookline.hooks.only_for import unwrap
from hookline.monitored.monitored_session import MonitoredSession
from hookline.monitored.replaying.names import Tree, tensors_by_name
from hookline.monitored.replaying.replay import ENDS_OF_RUN, Replay, ReplayEnded, describe_end
from hookline.monitored.replaying.result import ReplayResult
from hookline.session import Session


class SessionReplay:
    """The replay of a monitored session.

    Args:
        who: The caller, for messages.
        folder: The folder of the run.
        steps: As in `train.replay`.
        look: As in `train.replay`.
        every: As in `train.replay`.
        hooks: The hooks of the run that the user has made.
        scratch: The temporary folder, to which all output is redirected already.

    Attributes:
        checkpoint_dir: The folder for the session.
        hooks: The hooks that come first, and last, in the session.
    """

    def __init__(
        self, who: str, folder: str, steps: Any, look: Iterable[Any], every: int, hooks: Sequence[Any], scratch: str
    ) -> None:
        self._replay = Replay(who, folder, steps, look, every, lambda names: _names(who, names, hooks))
        self._until_closed = contextlib.ExitStack()
        self._until_closed.enter_context(self._replay.open(scratch))
        self._session: MonitoredSession | None = None
        self._end = _End(self._replay)
        self.checkpoint_dir = scratch
        self.hooks: tuple[list[SessionRunHook], list[SessionRunHook]] = self._replay.hooks, [self._end]

    @property
    def is_over(self) -> bool:
        """Whether the last step is made."""
        return self._end.was_reached

    def begin(self, make: Callable[[SessionReplay], MonitoredSession]) -> MonitoredSession:
        """Makes the session."""
        self._session = self._replay.restored(lambda: make(self))
        return self._session

    def close(self) -> None:
        """Closes the session, if the script has not."""
        with self._until_closed:
            if self._session is not None:
                with contextlib.suppress(Exception):
                    self._session.__exit__(ReplayEnded, ReplayEnded("The replay is over."), None)

    def result(self) -> ReplayResult:
        """Returns the result.

        Raises:
            BaseException: An error other than one that ends a run ended the session before the last step.
        """
        error = self._end.error
        if not self.is_over and error is not None and not isinstance(error, ENDS_OF_RUN):
            raise error
        if not self.is_over:
            why = describe_end(error) if error is not None else self._session and self._session.stop_reason
            self._replay.stopped = why or "its session was left."
        return self._replay.result()


class _End(SessionRunHook):
    """Ends a session, and the script that runs it, after the last step of a replay.

    Attributes:
        was_reached: Whether the last step is made.
        error: The error that ended the session.
    """

    def __init__(self, made: Replay) -> None:
        self._replay, self.trigger = made, at_steps(made.last)
        self.was_reached, self.error = False, None

    def on_trigger(self, firing: Firing) -> None:
        """Raises `ReplayEnded`."""
        firing.context.deliver_pending()
        ended = self._replay.ended(firing.context.session)
        self.was_reached = True
        raise ended

    def on_exception(self, session: Session, exception: BaseException) -> None:
        """Keeps the error."""
        self.error: BaseException | None = exception


def _names(who: str, names: Sequence[str], hooks: Sequence[Any]) -> dict[str, Tensor]:
    """Returns tensors of the default graph, and arrays of its batches and variables, by name."""
    graph = get_default_graph()
    found = [each for each in graph.get_operations() if isinstance(each, Source) and each.example is not UNKNOWN]
    trees = [Tree(source.name, source.output, source.example) for source in found]
    variables = graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
    trees += [Tree(variable.op.name, variable, variable.spec) for variable in variables]
    metrics: dict[str, Tensor] = {}
    for hook in map(unwrap, hooks):
        if isinstance(hook, NanTensorHook) and isinstance(hook.loss_tensor, str | Tensor):
            tensor = find_tensor(hook, hook.loss_tensor)
            metrics[tensor.op.name] = tensor
    taken = {tree.source.op.name for tree in trees}
    names = [name.removesuffix(":0") for name in names]
    for name in names:
        with contextlib.suppress(KeyError, ValueError):
            if name not in taken:
                metrics[name] = graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
    return tensors_by_name(who, names, metrics, trees, " All tensors of the graph have names, too, such as loss:0.")
