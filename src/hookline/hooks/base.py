"""The contract between a monitored session and what rides along with it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
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

    Example:
        >>> SessionRunArgs({"loss": "loss:0"}).fetches
        {'loss': 'loss:0'}

    References:
        `tf.train.SessionRunArgs`.
    """

    fetches: Any
    feed_dict: Mapping[Any, Any] | None = None
    options: RunOptions | None = None


class SessionRunValues(NamedTuple):
    """What came of a run, as one hook sees it.

    Args:
        results: The values of the hook's own fetches, in their structure; None if it asked for nothing. Device values
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


class Firing(NamedTuple):
    """What a hook gets when its trigger fires.

    Args:
        values: The values of its `fetches`, in their structure; None where it asked for nothing, and where a latch is
            why it fires. Device values are `jax.Array`s; those of a late hook have arrived.
        global_step: The global step to which the run led that computed them; None in a graph without one.
        elapsed_steps: Global steps since the trigger last fired; None the first time, and the first time after the step
            has gone back.
        elapsed_secs: Seconds since then; None likewise.
        options: The merged options of the run.
        run_metadata: What the run recorded about itself; of a run that was not asked to, an empty one.
        context: Of the run under way now, for `request_stop()` and the raw session.

    Example:
        >>> class PrintLoss(SessionRunHook):
        ...     def on_trigger(self, firing):
        ...         print(f"step {firing.global_step}: {firing.values:.2f}")
    """

    values: Any
    global_step: int | None
    elapsed_steps: int | None
    elapsed_secs: float | None
    options: RunOptions
    run_metadata: RunMetadata
    context: SessionRunContext


def ask_alone(hook: SessionRunHook, context: SessionRunContext) -> SessionRunArgs | None:
    """Asks the trigger of a hook that no session knows: another hook forwards to it, with a context of its own."""
    trigger = _trigger_of(hook, context.session)
    if trigger is None:
        return None
    step = _global_step(context.session)
    vars(hook)[_RUNS] = runs = vars(hook).get(_RUNS, 0) + 1
    trigger.count_runs(runs)
    vars(hook)[_ASKED] = due = trigger.should_trigger_for_step(runs if step is None else step + 1)
    args = hook.before_trigger(context) if due else None
    latches = trigger.latches
    if not latches:
        return args
    args = args or SessionRunArgs(None)
    return args._replace(fetches=(() if args.fetches is None else args.fetches, latches))


def deliver_alone(hook: SessionRunHook, context: SessionRunContext, run_values: SessionRunValues) -> None:
    """Calls `on_trigger` of such a hook if it fires."""
    trigger = _trigger_of(hook, context.session)
    if trigger is None:
        return
    if latches := trigger.latches:
        _look_at(latches, hook, context, run_values)
        own = None if run_values.results is None else run_values.results[0]
        run_values = run_values._replace(results=None if own == () else own)
    if hook.fetches is not None and run_values.results is None:
        return
    asks = getattr(hook.before_trigger, "__func__", None) is not SessionRunHook.before_trigger
    if asks and not vars(hook).get(_ASKED):  # It fires on the next run.
        return
    step = _global_step(context.session)
    asked = vars(hook).get(_RUNS, 0) if step is None else step
    if trigger.should_trigger_for_step(asked):
        elapsed_secs, elapsed_steps = trigger.update_last_triggered_step(asked)
        hook.on_trigger(
            Firing(
                run_values.results,
                step,
                None if step is None else elapsed_steps,
                elapsed_secs,
                run_values.options,
                run_values.run_metadata,
                context,
            )
        )


def _trigger_of(hook: SessionRunHook, session: Any) -> Any:
    """Returns the trigger of a hook, which begins anew with each raw session."""
    trigger, known = own_trigger(hook), vars(hook).get(_SESSION)
    if trigger is not None and session is not None and (known is None or known() is not session):
        # An after_create_session that has marked it as fired has done so for this session.
        if known is not None and trigger.last_triggered_step() != _global_step(session):
            trigger.reset()
        vars(hook)[_SESSION] = weakref.ref(session)
        for name in (_RUNS, _ASKED, _TOLD):
            vars(hook).pop(name, None)
    return trigger


def _look_at(
    latches: Sequence[Any], hook: SessionRunHook, context: SessionRunContext, run_values: SessionRunValues
) -> None:
    """Fires a hook for the latches that have latched, once each."""
    told = vars(hook).setdefault(_TOLD, set())
    for latch in latches:
        step = context.session.latched(latch)
        if step is not None and latch not in told:
            told.add(latch)
            about = run_values.options, run_values.run_metadata, context
            hook.on_trigger(Firing(None, step, None, None, *about))


_RUNS, _ASKED, _TOLD = "_hookline_runs_alone", "_hookline_asked_alone", "_hookline_told_alone"
_SESSION = "_hookline_session_alone"


def own_trigger(hook: Any) -> Any:
    """Returns the trigger of a hook; where its class declares one, a phase of its own for this hook.

    Raises:
        TypeError: Its class declares one, and the hook cannot have one of its own.
    """
    trigger = getattr(hook, "trigger", None)
    if trigger is not None and trigger is getattr(type(hook), "trigger", None) and hasattr(trigger, "anew"):
        try:
            hook.trigger = trigger = trigger.anew()
        except AttributeError as exc:
            raise TypeError(
                f"The hook {type(hook).__name__} has __slots__, so it cannot have a phase of its own for the trigger "
                f"{trigger!r} of its class. Make 'trigger' one of the slots and set it in __init__, or leave out "
                "__slots__."
            ) from exc
    return trigger


def _global_step(session: Any) -> int | None:
    try:
        return session.global_step
    except (AttributeError, RuntimeError):  # There is none.
        return None


class SessionRunContext:
    """One run call, as all hooks see it: made before `before_run`, shared up to the last `after_run`.

    Args:
        original_args: What the caller asked for, without what hooks add.
        session: The raw session. Running it triggers no hooks.
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
        `tf.train.SessionRunContext`. Differences: `settle`, `retire`.
    """

    stop_requested = False

    def __init__(self, original_args: SessionRunArgs, session: Session, runs: int = 0) -> None:
        self.runs = runs
        self.original_args = original_args
        self.session = session

    @property
    def expected_step(self) -> int | None:
        """The global step to which the run that is about to start is expected to lead; None in a graph without one."""
        step = _global_step(self.session)
        return None if step is None else step + 1

    def request_stop(self) -> None:
        """Ends the training after this run: all hooks still get their `after_run`, then `should_stop()` is true."""
        self.stop_requested = True

    def settle(self) -> None:
        """Completes all that hooks have asked for so far; for use in `after_run` and `on_trigger`.

        A hook that is about to make the present state permanent calls it first: a loss that was NaN must not get into a
        checkpoint because nobody has read it yet. Hooks behind the caller get their `after_run` of this run first, then
        late firings are delivered, then latches are read.
        """

    def retire(self, hook: Any) -> None:
        """Has a hook called on no more runs until the next raw session; its trigger goes on firing.

        For a `before_run` or `after_run` that has done its work, so that later runs need not pay for it. A callback
        that a subclass overrides is called all the same. Nothing happens if the session does not know the hook.
        """

    def ask(self, hook: SessionRunHook) -> SessionRunArgs | None:
        """Returns what `before_trigger` asks for if the hook fires in this run, else None; see `before_run`."""
        return ask_alone(hook, self)

    def deliver(self, hook: SessionRunHook, run_values: SessionRunValues) -> None:
        """Calls `on_trigger` if the hook fires in this run; see `after_run`."""
        deliver_alone(hook, self, run_values)


class SessionRunHook:
    """Rides along with the runs of a monitored session.

    Most hooks declare *when* (`trigger`), *what* (`fetches`), and do something in `on_trigger`. The session asks the
    trigger, adds the fetches to the runs in which it fires, calls `on_trigger` then, and on no other run. It keeps the
    phase of the trigger in checkpoints, and moves it back with the global step.

    | attribute | meaning | default |
    |---|---|---|
    | `trigger` | when the hook fires: `train.every(100)`, say | None: never |
    | `fetches` | what it wants to see then, any nesting of tensors, operations and names | None: nothing |
    | `late` | whether it can wait for the values: True, until they have arrived; n, for n runs | False |
    | `stacked` | whether it takes the values of all steps of a run at once, in rows | False |
    | `writes` | what it writes, and where, in words, for `Loop.describe` | nothing |

    | callback | when | the graph |
    |---|---|---|
    | `begin` | once, before a session exists | open: ops may be added |
    | `after_create_session` | after the session was created, and again after every recovery | finalized |
    | `before_trigger` | before a run in which the hook fires; by default it asks for `fetches` | finalized |
    | `on_trigger` | after a run in which the hook fires | finalized |
    | `before_run`, `after_run` | around every run, where a class overrides them | finalized |
    | `end` | on close, unless an error is leaving; the end of the input is none | finalized |
    | `on_exception` | in place of `end`: a run or the body of the `with` block failed | finalized |
    | `get_state`, `set_state` | when a checkpoint is saved, and restored | |

    The declarations are read after `after_create_session`, which may still set them. A trigger that a class declares is
    copied for each hook; one that is given to several hooks has one phase, and they fire together. A hook with neither
    `fetches` nor a `before_trigger` of its own fires in the run that got there, whatever moved the step; one that has
    either may then fire one run later. `on_exception` is looked up by name and is not defined here.

    A hook may also say which others it must come after or before, with `comes_after` and `comes_before`: a class of
    hooks, a hook, or a tuple of them. The order of the list stays but where that demands another.

    Example:
        >>> from hookline import train
        >>> class PrintStep(SessionRunHook):
        ...     trigger = train.every(100)
        ...     def on_trigger(self, firing):
        ...         print(firing.global_step)

    References:
        `tf.train.SessionRunHook`. Differences: the trigger and what belongs to it, `on_exception`, the state, and what
        it may say of its order.
    """

    trigger: Any = None  # A Trigger or None; not so annotated, for a subclass may say that it always has one.
    fetches: Any = None
    late: bool | int = False
    stacked: bool = False
    writes: str = ""

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

    def before_trigger(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Called before each run in which the hook fires; by default it asks for `fetches`.

        Override it for feeds and options, or for fetches that depend on the moment.

        Args:
            run_context: The run that is about to start.

        Returns:
            What to add to the run, or None.
        """
        return None if self.fetches is None else SessionRunArgs(self.fetches)

    def on_trigger(self, firing: Firing) -> None:
        """Called when the trigger fires: in the `after_run` of its run, in list order; if the hook is late, later.

        Args:
            firing: What was asked for, and where and when.
        """

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Called before each run, where a class overrides it.

        Here it asks for what `before_trigger` returns, if the hook fires: a class that overrides it and still has a
        trigger calls `super()`.

        Args:
            run_context: The run that is about to start.

        Returns:
            What to add to the run, or None.
        """
        return None if self.trigger is None else run_context.ask(self)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Called after each run that did not raise, where a class overrides it.

        Here it calls `on_trigger`, if the hook fires.

        Args:
            run_context: The same object that `before_run` was given. Its `request_stop()` ends the training.
            run_values: The results of what this hook asked for.
        """
        if self.trigger is not None:
            run_context.deliver(self, run_values)

    def end(self, session: Session) -> None:
        """Called on close, unless an error other than the end of the input is leaving.

        Args:
            session: The raw session, about to be closed; last ops may be run.
        """
