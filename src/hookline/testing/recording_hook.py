"""RecordingHook: records the calls of its callbacks, with their order and arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline import arguments
from hookline.coordination import Coordinator
from hookline.hooks import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookline.session import RunOptions, Session


class RecordedEvent(NamedTuple):
    """One call of a callback of a `RecordingHook`.

    Args:
        hook: The name of the hook.
        callback: The name of the callback.
        given: The argument to compare, as a Python value: the global step for `after_create_session` and `end` (None
            without one), the caller's fetches for `before_run`, the results for `after_run`, the exception for
            `on_exception`.

    Example:
        >>> hook = RecordingHook("a")
        >>> hook.begin()
        >>> hook.events == [RecordedEvent(hook="a", callback="begin")]
        True
    """

    hook: str
    callback: str
    given: Any = None


class RecordingHook(SessionRunHook):
    """Records every callback; it can also fetch, feed, raise or request a stop.

    Args:
        name: The name of the hook in its events.
        events: The list to record in. Hooks with the same list record the order of their calls.
        fetches: Its fetches in every run.
        feed_dict: Its feeds in every run.
        options: Its options for every run.
        failures: The exceptions to raise, by callback: an exception for all calls, or an iterable with an exception or
            None for each call. Calls after its end raise nothing.
        stop_at_run: The run, counted from 1, in whose `after_run` it requests a stop.

    Example:
        >>> from hookline import Graph
        >>> from hookline.train import MonitoredSession, get_or_create_global_step
        >>> hook = RecordingHook("a", fetches="global_step:0")
        >>> with Graph().as_default():
        ...     train_op = get_or_create_global_step().assign_add(1)
        ...     with MonitoredSession(hooks=[hook]) as session:
        ...         _ = session.run(train_op)
        >>> hook.callbacks
        ['begin', 'after_create_session', 'before_run', 'after_run', 'end']
        >>> hook.events[3]
        RecordedEvent(hook='a', callback='after_run', given=0)
    """

    def __init__(
        self,
        name: str = "",
        events: list[RecordedEvent] | None = None,
        *,
        fetches: Any = None,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        failures: Mapping[str, BaseException | Iterable[BaseException | None]] | None = None,
        stop_at_run: int | None = None,
    ) -> None:
        self.name = name
        self.events = events if events is not None else []
        asks = fetches is not None or feed_dict is not None or options is not None
        self._args = SessionRunArgs(fetches, feed_dict, options) if asks else None
        arguments.check_mapping("RecordingHook", "failures", failures, optional=True)
        self._failures = {callback: _each_call(failure) for callback, failure in (failures or {}).items()}
        self._stop_at_run = stop_at_run
        self._runs = 0

    @property
    def callbacks(self) -> list[str]:
        """The names of this hook's callbacks so far."""
        return [event.callback for event in self.events if event.hook == self.name]

    def begin(self) -> None:
        """Records the call."""
        self._record("begin")

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Records the call."""
        self._record("after_create_session", _step(session))

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Records the call, and returns the fetches, feeds and options given to the constructor; None without any."""
        self._record("before_run", run_context.original_args.fetches)
        return self._args

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Records the call, and requests a stop at the given run."""
        self._runs += 1
        if self._runs == self._stop_at_run:
            run_context.request_stop()
        self._record("after_run", to_python(run_values.results))

    def on_exception(self, session: Session, exception: BaseException) -> None:
        """Records the call."""
        self._record("on_exception", exception)

    def end(self, session: Session) -> None:
        """Records the call."""
        self._record("end", _step(session))

    def _record(self, callback: str, given: Any = None) -> None:
        self.events.append(RecordedEvent(self.name, callback, given))
        failure = next(self._failures.get(callback, iter(())), None)
        if failure is not None:
            raise failure


def to_python(value: Any) -> Any:
    """Converts the arrays in a structure of results to Python numbers and lists; waits for the device.

    Example:
        >>> to_python([np.float32(0.5), {"logits": np.arange(3)}])
        [0.5, {'logits': [0, 1, 2]}]
    """

    def plain_leaf(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return np.asarray(leaf).tolist() if isinstance(leaf, (jax.Array, np.ndarray, np.generic)) else leaf

    return jax.tree.map(plain_leaf, value)


def _each_call(failure: BaseException | Iterable[BaseException | None]) -> Iterator[BaseException | None]:
    if not isinstance(failure, BaseException):
        return iter(failure)
    return iter(lambda: failure, object())


def _step(session: Session) -> int | None:
    try:
        return session.global_step
    except RuntimeError:  # the graph has none
        return None
