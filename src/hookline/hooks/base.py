"""The contract between a monitored session and its hooks."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hookline.coordination import Coordinator
    from hookline.session import RunMetadata, RunOptions, Session


class SessionRunArgs(NamedTuple):
    """The fetches, feeds and options of one request.

    A hook returns one from `before_run`, to be added to the run that is about to start. A hook with the same request in
    each run should return the same object each time: then requests are not merged again.

    Args:
        fetches: Tensors, operations and names of them, in any nesting of lists, tuples, named tuples and dicts; None
            fetches nothing. `SessionRunValues.results` has the same structure; an operation yields None.
        feed_dict: Values for tensors of the graph. If the caller or another hook feeds the same tensor, that is an
            error.
        options: Options for the run, merged with those of the caller and of the other hooks: the maximum of numbers,
            but the minimum of `last_step`; the logical or of booleans; lists are joined.

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
    """The results of a run for one hook.

    Args:
        results: The values of the hook's own fetches, in their structure; None without fetches. Device values are
            `jax.Array`s that may not be ready yet (asynchronous dispatch); reading one blocks until it is ready.
        options: The merged options of the run.
        run_metadata: The metadata that the options requested; else empty.

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
    """The argument of `on_trigger`: the values and the circumstances of one firing.

    Args:
        values: The values of the hook's `fetches`, in their structure; None without fetches, and if a latch (see
            `train.latched`) fired the hook. Device values are `jax.Array`s; for a deferred hook they are ready.
        global_step: The global step after the run that computed the values; None in a graph without one.
        elapsed_steps: Global steps since the trigger last fired; None for the first firing, and for the first one after
            the global step moved back (a restore).
        elapsed_secs: Seconds since the trigger last fired; None in the same cases.
        options: The merged options of the run.
        run_metadata: The metadata that the options requested; else empty.
        context: The context of the current run, for `request_stop()` and the raw session.

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

    @property
    def epoch(self) -> int | None:
        """The epoch to which `global_step` belongs, from 1; None if its length is unknown, and outside `train.Loop`."""
        epochs = self.context.session.hook_data.get("epochs")
        # Where the epochs are not known, there is a reason instead.
        if self.global_step is None or epochs is None or isinstance(epochs, str):
            return None
        return epochs.number_at(self.global_step)


def request_standalone(hook: SessionRunHook, context: SessionRunContext) -> SessionRunArgs | None:
    """Returns the request of a hook whose callbacks another hook calls, so it is not in the session's list."""
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


def deliver_standalone(hook: SessionRunHook, context: SessionRunContext, run_values: SessionRunValues) -> None:
    """Calls `on_trigger` of a hook that is not in the session's list, if it fires; see `request_standalone`."""
    trigger = _trigger_of(hook, context.session)
    if trigger is None:
        return
    if latches := trigger.latches:
        _deliver_latched(latches, hook, context, run_values)
        own = None if run_values.results is None else run_values.results[0]
        run_values = run_values._replace(results=None if own == () else own)
    if hook.fetches is not None and run_values.results is None:
        return
    asks = getattr(hook.before_trigger, "__func__", None) is not SessionRunHook.before_trigger
    if asks and not vars(hook).get(_ASKED):  # This run lacks the hook's request, so the hook fires in the next one.
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
    """Returns the trigger of a hook, and resets it for a new raw session."""
    trigger, known = instance_trigger(hook), vars(hook).get(_SESSION)
    if trigger is not None and session is not None and (known is None or known() is not session):
        # A trigger that after_create_session has set to the present step is not reset.
        if known is not None and trigger.last_triggered_step() != _global_step(session):
            trigger.reset()
        trigger.on_new_session(session)
        vars(hook)[_SESSION] = weakref.ref(session)
        for name in (_RUNS, _ASKED, _DELIVERED):
            vars(hook).pop(name, None)
    return trigger


def _deliver_latched(
    latches: Sequence[Any], hook: SessionRunHook, context: SessionRunContext, run_values: SessionRunValues
) -> None:
    """Calls `on_trigger` once for each latch that is set."""
    delivered = vars(hook).setdefault(_DELIVERED, set())
    for latch in latches:
        step = context.session.latched(latch)
        if step is not None and latch not in delivered:
            delivered.add(latch)
            about = run_values.options, run_values.run_metadata, context
            hook.on_trigger(Firing(None, step, None, None, *about))


_RUNS, _ASKED, _DELIVERED = "_hookline_runs_alone", "_hookline_asked_alone", "_hookline_told_alone"
_SESSION = "_hookline_session_alone"


def instance_trigger(hook: Any) -> Any:
    """Returns the trigger of a hook; a trigger that the class declares is copied for the hook first.

    Raises:
        TypeError: The class declares a trigger, and the hook cannot hold a copy.
    """
    trigger = getattr(hook, "trigger", None)
    if trigger is not None and trigger is getattr(type(hook), "trigger", None) and hasattr(trigger, "clone"):
        try:
            hook.trigger = trigger = trigger.clone()
        except AttributeError as exc:
            raise TypeError(
                f"The hook {type(hook).__name__} has __slots__, so it cannot hold its own copy of the trigger "
                f"{trigger!r} of its class. Make 'trigger' one of the slots and set it in __init__, or leave out "
                "__slots__."
            ) from exc
    return trigger


def _global_step(session: Any) -> int | None:
    try:
        return session.global_step
    except (AttributeError, RuntimeError):  # No session, or no global step.
        return None


class SessionRunContext:
    """The context of one run, shared by all hooks from the first `before_run` to the last `after_run`.

    Args:
        original_args: The caller's request, without the additions of hooks.
        session: The raw session. Running it calls no hooks.
        runs: The number of earlier runs of the monitored session. Runs before a hook was added and runs before a
            recovery count too; a run that a recovery repeats counts once.

    Attributes:
        original_args, session, runs: As above.
        stop_requested: Whether a hook has called `request_stop` in this run.

    Example:
        >>> context = SessionRunContext(SessionRunArgs("train_op"), session=None)
        >>> context.request_stop()
        >>> context.stop_requested
        True

    References:
        `tf.train.SessionRunContext`. Differences: `deliver_pending`, `stop_callbacks`.
    """

    stop_requested = False

    def __init__(self, original_args: SessionRunArgs, session: Session, runs: int = 0) -> None:
        self.runs = runs
        self.original_args = original_args
        self.session = session

    @property
    def expected_step(self) -> int | None:
        """The expected global step after the run that is about to start; None in a graph without one."""
        step = _global_step(self.session)
        return None if step is None else step + 1

    def request_stop(self, *, final: str | None = None) -> None:
        """Ends the training after this run: all hooks still get their `after_run`, then `should_stop()` is true.

        Args:
            final: The reason why the training is complete, such as "the accuracy is above 0.99". A `train.Loop` saves
                the reason with the checkpoint. When it is started again, it trains no step, unless `train_on=True`.

                If a hook has the reason, or its part before a `; `, as its attribute `final`, the stop holds only while
                some hook of the restarted training has the same `final`. So if you change 0.99 in the reason to 0.995,
                or remove the hook, the restart trains on from the checkpoint, as it does without a reason or outside of
                a `Loop`.
        """
        self.stop_requested = True

    def deliver_pending(self) -> None:
        """Delivers all results that hooks still wait for; for use in `after_run` and `on_trigger`.

        A hook calls it before it saves the present state. Otherwise a checkpoint could hold a NaN that no hook has read
        yet. First the hooks later in the list get their `after_run` of this run. Then deferred firings are delivered,
        and at last latches are read.
        """

    def stop_callbacks(self, hook: Any) -> None:
        """Stops the calls of a hook's `before_run` and `after_run` until the next raw session; its trigger still fires.

        A hook calls it when these callbacks have done their work, so that later runs do not pay for them. It stops only
        callbacks of the class that first defines one; an override in a subclass of that class is still called. For a
        hook outside the session's list this has no effect.
        """

    def ask(self, hook: SessionRunHook) -> SessionRunArgs | None:
        """Returns the request of `before_trigger` if the hook fires in this run, else None; see `before_run`."""
        return request_standalone(hook, self)

    def deliver(self, hook: SessionRunHook, run_values: SessionRunValues) -> None:
        """Calls `on_trigger` if the hook fires in this run; see `after_run`."""
        deliver_standalone(hook, self, run_values)


class SessionRunHook:
    """The base class of hooks: callbacks around the runs of a monitored session.

    Most hooks declare a `trigger` and `fetches`, and act in `on_trigger`. The session adds the fetches to the runs in
    which the trigger fires, and calls `on_trigger` after these runs only. It saves the phase of the trigger (the step
    and time of its last firing) in checkpoints, and moves it back if the global step moves back.

    | attribute | meaning | default |
    |---|---|---|
    | `trigger` | when the hook fires, such as `train.every(100)` | None: never |
    | `fetches` | values to fetch then: any nesting of tensors, operations and names | None: nothing |
    | `deferred` | whether to call `on_trigger` later: True, once the values are computed; n, after n runs | False |
    | `stacked` | whether values have a leading axis: a run of several steps gives a row for each | False: last step |
    | `output_description` | its output and the destination, as text, for `Loop.describe` | nothing |
    | `steps_written` | a method: the steps of that output, for `Loop.describe` | its trigger's steps, and the last |
    | `state_key` | the key of its state in checkpoints, unique among hooks of its class | None: its `name`, a str |

    | callback | when | the graph |
    |---|---|---|
    | `begin` | once, before a session exists | open: operations may be added |
    | `after_create_session` | after the session was created, and again after every recovery | finalized |
    | `before_trigger` | before a run in which the hook fires; by default requests `fetches` | finalized |
    | `on_trigger` | after a run in which the hook fires | finalized |
    | `before_run`, `after_run` | around every run, where a class overrides them | finalized |
    | `end` | on close, unless an error ends the session; the end of the input is no error | finalized |
    | `on_exception` | instead of `end`, if a run or the body of the `with` block failed | finalized |
    | `get_state`, `set_state` | when a checkpoint is saved, and restored | |

    The declarations are read after `after_create_session`, which may still set them. If a class declares a trigger,
    each instance gets a copy. Hooks that share one trigger share its phase, and fire together.

    The session adds fetches before a run, for the global step that it expects after the run. If another session
    advances the step, the run may reach a due step that was not expected. Then a hook with `fetches` or its own
    `before_trigger` fires one run later; any other hook fires in this run.

    `comes_after` and `comes_before` declare the order of hooks: each is a hook class, a hook, or a tuple of them.
    Otherwise the hooks are called in list order. `on_exception` is looked up by name, and is not defined here.

    Example:
        >>> from hookline import train
        >>> class PrintStep(SessionRunHook):
        ...     trigger = train.every(100)
        ...     def on_trigger(self, firing):
        ...         print(firing.global_step)

    References:
        `tf.train.SessionRunHook`. Differences: the trigger and its attributes, `on_exception`, the state, and the
        declarations of order.
    """

    trigger: Any = None  # Trigger | None, but Any, so that a subclass may annotate it as Trigger.
    fetches: Any = None
    deferred: bool | int = False
    stacked: bool = False
    output_description: str = ""
    state_key: str | None = None

    def begin(self) -> None:
        """Called once, in the constructor of the monitored session, with the session's graph as default graph.

        It may add operations to the graph, or look up tensors. A second call on the same graph must add nothing.
        """

    def get_state(self) -> Any:
        """Returns the state of the hook for a checkpoint.

        Called when a checkpoint of the whole model is saved, after the `after_run` of every hook in that run.

        Returns:
            Numbers, strings, bools, bytes and arrays in dicts and lists; None for no state.

        Example:
            >>> class EarlyStopping(SessionRunHook):
            ...     def __init__(self, metric):
            ...         self.state_key, self.best = metric, float("inf")
            ...     def get_state(self):
            ...         return {"best": self.best}
            ...     def set_state(self, state):
            ...         self.best = state["best"]
        """
        return None

    def set_state(self, state: Any) -> None:
        """Restores the state of the hook; called after `begin`, before `after_create_session`.

        Called after a restart or a recovery, if the restored checkpoint has a state for this hook. The class (with its
        module) and the `state_key`, or else the `name`, identify a hook; its position in the list does not matter. Two
        hooks with a state and the same identity are an error. If a session lacks the hook, its checkpoints keep the
        state.

        Args:
            state: The value that `get_state` returned, with the same types.
        """

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Called when a session has been created, and initialised or restored; again after every recovery.

        Args:
            session: The raw session. Running it calls no hooks.
            coord: The coordinator of the session's threads. Register your own threads there.
        """

    def before_trigger(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Called before each run in which the hook fires; by default requests `fetches`.

        Override it to add feeds or options, or to choose the fetches for each run.

        Args:
            run_context: The run that is about to start.

        Returns:
            The additions to the run, or None.
        """
        return None if self.fetches is None else SessionRunArgs(self.fetches)

    def on_trigger(self, firing: Firing) -> None:
        """Called when the trigger fires: after its run, in list order. A deferred hook is called later.

        Args:
            firing: The values, the step and the context.
        """

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Called before each run, if a class overrides it.

        If the hook fires, the default returns the request of `before_trigger`. An override in a hook that has a trigger
        must call `super()`.

        Args:
            run_context: The run that is about to start.

        Returns:
            The additions to the run, or None.
        """
        return None if self.trigger is None else run_context.ask(self)

    def steps_written(self, trigger: Any, first: int, last: int | None) -> Iterable[int] | None:
        """Returns the steps at which a training will write `output_description`, for `Loop.describe`.

        By default these are the steps on which the trigger fires, and `last` if the hook overrides `end`.

        Args:
            trigger: A copy of the trigger, with the phase in the checkpoint; the method may change it. For a hook
                without a trigger, one that never fires.
            first: The global step at which the training begins.
            last: The global step at which the training ends; None if unknown, and then not among the steps.

        Returns:
            The steps, in order; None if they do not depend on steps alone.
        """
        fired = trigger.firing_steps(first, last)
        ends = getattr(type(self), "end", None) not in (None, SessionRunHook.end)
        return None if fired is None else itertools.chain(fired, [last] if ends and last is not None else ())

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Called after each successful run, if a class overrides it.

        If the hook fires, the default calls `on_trigger`.

        Args:
            run_context: The object that `before_run` got. Its `request_stop()` ends the training.
            run_values: The results of this hook's request.
        """
        if self.trigger is not None:
            run_context.deliver(self, run_values)

    def end(self, session: Session) -> None:
        """Called on close, unless an error other than the end of the input ends the session.

        Args:
            session: The raw session, about to be closed; it can still run operations.
        """
