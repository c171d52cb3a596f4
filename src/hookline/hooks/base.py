"""The contract between a monitored session and what rides along with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from hookline.coordination import Coordinator
    from hookline.session import RunMetadata, RunOptions, Session

_logger = logging.getLogger(__name__)


class SessionRunArgs(NamedTuple):
    """What a run is asked for: fetches, feeds and options.

    A hook returns one from `before_run` to add to the run that is about to start. It may return the same object each
    time; a hook on the per-step path should.

    Args:
        fetches: Any nesting of lists, tuples, named tuples and dicts around tensors, operations and names of them, or
            None to ask for nothing. `SessionRunValues.results` has exactly this structure; an operation yields None.
        feed_dict: Values for tensors of the graph. A tensor that the caller or another hook feeds too is an error.
        options: Merged with those of the caller and of the other hooks: numbers take the larger (a limit on the step
            the smaller), booleans are or-ed, lists are joined.
        late: Whether the results are to come as a `LateResults`, so that the run waits neither for the device nor for
            host operations that only this hook fetches; `train.LateValues` keeps such results.

    Example:
        >>> SessionRunArgs({"loss": "loss:0"}).fetches
        {'loss': 'loss:0'}

    References:
        `tf.train.SessionRunArgs`.
    """

    fetches: Any
    feed_dict: Mapping[Any, Any] | None = None
    options: RunOptions | None = None
    late: bool = False


class SessionRunValues(NamedTuple):
    """What came of a run, as one hook sees it.

    Args:
        results: The values of the hook's own fetches, in their structure (a `LateResults` of them, if it asked with
            `late=True`); None if it asked for nothing. Device values
            are `jax.Array`s that may still be on their way: whoever reads one waits for it.
        options: The merged options of the run.
        run_metadata: What the run recorded about itself; of a run that was not asked to, an empty one.

    Example:
        >>> from hookline import RunMetadata, RunOptions
        >>> SessionRunValues({"loss": 0.5}, RunOptions(), RunMetadata()).results["loss"]
        0.5

    References:
        `tf.train.SessionRunValues`. Difference: results are `jax.Array`s, not NumPy arrays.
    """

    results: Any
    options: RunOptions
    run_metadata: RunMetadata


def _nothing_to_settle() -> None:
    pass


class SessionRunContext:
    """One run call, as all hooks see it: made before `before_run`, shared up to the last `after_run`.

    Args:
        original_args: What the caller asked for, without what hooks add.
        session: The raw session. Running it triggers no hooks.
        settle: Calls the `settle` of every hook; whoever builds the context knows the hooks.
        runs: As below.

    Attributes:
        original_args: As above.
        session: As above.
        stop_requested: Whether a hook has called `request_stop` on this run.
        runs: How many runs of the monitored session came before, also those that the hook was not called on, and those
            before a recovery. A run that is made again after one counts once.

    Example:
        >>> context = SessionRunContext(SessionRunArgs("train_op"), session=None)
        >>> context.request_stop()
        >>> context.stop_requested
        True

    References:
        `tf.train.SessionRunContext`. Difference: `settle`.
    """

    __slots__ = ("_settle", "original_args", "runs", "session", "stop_requested")

    def __init__(
        self,
        original_args: SessionRunArgs,
        session: Session,
        settle: Callable[[], None] = _nothing_to_settle,
        runs: int = 0,
    ) -> None:
        self.runs = runs
        self.original_args = original_args
        self.session = session
        self.stop_requested = False
        self._settle = settle

    def request_stop(self) -> None:
        """Ends the training after this run: all hooks still get their `after_run`, then `should_stop()` is true."""
        self.stop_requested = True

    def settle(self) -> None:
        """Lets every hook look at what it has asked for and not looked at yet; for use in `after_run`.

        A hook that is about to make the present state permanent calls it first: a loss that was NaN must not get into a
        checkpoint because nobody has read it yet. Hooks behind the caller get their `after_run` of this run first, for
        what is to be looked at may be in its results.
        """
        self._settle()


class SessionRunHook:
    """Rides along with the runs of a monitored session. Override what you need; every method here does nothing.

    | callback | when | the graph |
    |---|---|---|
    | `begin` | once, before a session exists | open: ops may be added |
    | `after_create_session` | after the session was created, and again after every recovery | finalized |
    | `before_run` | before every run | finalized |
    | `after_run` | after every run that succeeded | finalized |
    | `end` | on close, unless an error is leaving; the end of the input is none | finalized |

    `get_state` and `set_state` put the state of a hook into checkpoints. Hooks are called in list order. More callbacks
    are looked up by name and are not defined here, so that nothing is called of a hook without them:

    - `on_exception(session, exception)`: a run or the body of the `with` block failed with anything else than the end
      of the input, and no recovery follows. Called in reverse list order, in place of `end`; errors it raises are
      logged.
    - `settle(session)`: look now at what you have asked for and not looked at yet. Called before any checkpoint is
      written and before the first `end`.
    - `steps_until_trigger(global_step) -> int`: the number of steps after which the run that reaches
      `global_step + n` must be seen; 1, which is also the answer of a hook without this method, means the next run.
      The session may leave out `before_run` and `after_run` of the runs that end before that step. It asks again after
      each run that the hook has seen. Where the device alone knows by how much a run advances the step, and that is
      more than before, the hook may be seen one run late. Where a subclass overrides `before_run` or `after_run` below
      the class that defines this method, the hook is called on every run: the answer was not written for what the
      subclass does.
    - `secs_until_trigger() -> float`: the number of seconds after which the next run must be seen, also before that
      step; infinity, which is also the answer of a hook without this method, means that time does not matter. A hook
      with this method alone may be left out until then.
    - `runs_until_trigger() -> int`: the number of runs after which the hook must be seen, also before that step; for a
      hook that counts runs, with `run_context.runs`.
    - `waits_for() -> LateResults | None`: results that the hook has asked for with `late=True` and has not read yet. It
      is called on the first run that begins when they have arrived, also before those; runs that begin earlier need not
      call it. Has an effect beside one of the three above.
    - `may_fetch()`: all that the hook may ever ask for, as of `SessionRunArgs.fetches`. Asked for once, when the
      session is created. The runs that hooks watch share one program; what was said here is in it from the start, and
      anything else makes another program when it is first seen.
    - `standing_operations() -> list`: operations that every run of the monitored session carries for the hook, also the
      runs that it is not called on. Asked for once, when the session is created. For a `hookline.latch`, above all:
      once the session has noticed that a latch has latched, every hook is called on the next run.

    A hook may also say which others it must come after or before, with `comes_after` and `comes_before`: a class of
    hooks, a hook, or a tuple of them. The order of the list stays but where that demands another.

    Example:
        >>> class CountRuns(SessionRunHook):
        ...     def begin(self):
        ...         self.runs = 0
        ...     def after_run(self, run_context, run_values):
        ...         self.runs += 1

    References:
        `tf.train.SessionRunHook`. Differences: the callbacks but those of the table, and what a hook may say of its
        order.
    """

    # What a subclass may define that TF 1.x called, and nothing calls here, with what is called in its place.
    _renamed: ClassVar[tuple[tuple[str, str], ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Warns of a subclass that overrides what is called otherwise here."""
        super().__init_subclass__(**kwargs)
        for old, new in cls._renamed:
            if old in vars(cls):
                _logger.warning("%s.%s is never called: here it is called %s.", cls.__name__, old, new)

    def begin(self) -> None:
        """Called once, in the constructor of the monitored session, with the graph to be run as default graph.

        May add to the graph, or look things up in it. A second call on the same graph must not change it.
        """

    def get_state(self) -> Any:
        """Returns what the hook needs to go on where it stands; a checkpoint keeps it, and None is nothing to keep.

        Called when a checkpoint of the whole model is saved, after every hook has had its `after_run` of that run.

        Returns:
            Numbers, strings, bools, bytes and arrays in dicts and lists; None for no state.

        Example:
            >>> class EarlyStopping(SessionRunHook):
            ...     best = float("inf")
            ...     def get_state(self):
            ...         return {"best": self.best}
            ...     def set_state(self, state):
            ...         self.best = state["best"]
        """
        return None

    def set_state(self, state: Any) -> None:
        """Goes on where the hook of that state stood; called after `begin`, before `after_create_session`.

        Only where a checkpoint was restored that has a state of the hook's class, for its number among the hooks of
        that class: when training goes on in a new process, and after a recovery.

        Args:
            state: What `get_state` has returned; tuples come back as such, numbers as what they were.
        """

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Called when a session was created and initialised or restored, and again after every recovery.

        Args:
            session: The raw session. Running it triggers no hooks.
            coord: Keeps track of the threads. Register there the ones you start.
        """

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Called before each run.

        Args:
            run_context: The run that is about to start.

        Returns:
            What to add to the run, or None.
        """
        return None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Called after each run that did not raise.

        Args:
            run_context: The same object that `before_run` was given. Its `request_stop()` ends the training.
            run_values: The results of what this hook asked for.
        """

    def end(self, session: Session) -> None:
        """Called on close, unless an error other than the end of the input is leaving.

        Args:
            session: The raw session, about to be closed; last ops may be run.
        """
