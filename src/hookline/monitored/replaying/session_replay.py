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
from hookline.monitored.replaying.replay import Replay, ReplayEnded
from hookline.monitored.replaying.result import ReplayResult


class SessionReplay:
    """The replay of a monitored session.

    Args:
        who: The caller, for messages.
        folder: The folder of the run.
        steps: As in `train.replay`.
        look: As in `train.replay`.
        every: As in `train.replay`.
        hooks: The hooks of the run that the user has made.

    Attributes:
        checkpoint_dir: The folder for the session.
        hooks: The hooks that come first, and last, in the session.
    """

    _session: MonitoredSession | None = None

    def __init__(
        self, who: str, folder: str, steps: Any, look: Iterable[Any], every: int, hooks: Sequence[Any]
    ) -> None:
        self._replay = Replay(who, folder, steps, look, every, hooks, lambda names: _names(who, names, hooks))
        self._replay.open()
        self.checkpoint_dir = self._replay.scratch
        self._end = _End(self._replay)
        self.hooks: tuple[list[SessionRunHook], list[SessionRunHook]] = self._replay.hooks, [self._end]

    @property
    def is_over(self) -> bool:
        """Whether the last step is made."""
        return self._end.was_reached

    def begin(self, make: Callable[[SessionReplay], MonitoredSession]) -> MonitoredSession:
        """Makes the session."""
        self._session = self._replay.restored(lambda: make(self))
        return self._session

    def finish(self) -> ReplayResult | None:
        """Closes the session, if the script has not, and returns the result; None if it could not be made."""
        with self._replay:
            if (session := self._session) is None:
                return None
            if not self.is_over:
                self._replay.stopped = f"{session.stop_reason or 'its session was left'}."
            with contextlib.suppress(Exception):
                session.__exit__(ReplayEnded, ReplayEnded("The replay is over."), None)
            return self._replay.result()


class _End(SessionRunHook):
    """Ends a session, and the script that runs it, after the last step of a replay."""

    def __init__(self, made: Replay) -> None:
        self._replay, self.trigger = made, at_steps(made.last)
        self.was_reached = False

    def on_trigger(self, firing: Firing) -> None:
        """Raises `ReplayEnded`."""
        firing.context.deliver_pending()
        self.was_reached = True
        raise self._replay.ended(firing.context.session)


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
    for name in names:
        operation, _, _ = name.partition(":")
        with contextlib.suppress(KeyError, ValueError):
            if operation not in taken:
                metrics[name] = graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
    return tensors_by_name(who, names, metrics, trees)
