"""OwnCallbacks: TensorFlow's callbacks on every run, for built-in hooks that foreign code extends."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

from hookline.extend import is_claimed, resume_callbacks
from hookline.train import SecondOrStepTimer as CoreTimer
from hookline.train import SessionRunHook

_OURS = {module.partition(".")[0] for module in (__name__, SessionRunHook.__module__)}


def also_called(name: str) -> Any:
    """Returns a property that is an alias of another attribute."""
    return property(lambda self: getattr(self, name), lambda self, value: setattr(self, name, value))


class SecondOrStepTimer(CoreTimer):
    """`hookline.train.SecondOrStepTimer`, with the protected names that published subclasses read.

    References:
        `tf.train.SecondOrStepTimer`.
    """

    _every_secs, _every_steps = also_called("every_secs"), also_called("every_steps")

    @property
    def _last_triggered_step(self) -> int | None:
        return CoreTimer.last_triggered_step(self)

    @_last_triggered_step.setter
    def _last_triggered_step(self, step: int | None) -> None:
        if step is None:
            CoreTimer.reset(self)
        else:
            CoreTimer.update_last_triggered_step(self, step)


class OwnCallbacks(SessionRunHook):
    """A built-in hook that checks its timer itself on every run, if foreign code takes part in it.

    Foreign code takes part if a class outside of hookline overrides a run callback or a method in `_published`, if it
    has read or set `_timer`, or if another hook or a custom loop forwards to the hook. Otherwise the session checks the
    timer, and calls the hook when it fires.
    """

    # Further methods that TensorFlow's hook calls within a run.
    _published: ClassVar[tuple[str, ...]] = ()
    _is_overridden: ClassVar[bool] = False

    _own_timer: Any = None
    _is_controlled = False
    _timing_session: Any = None  # The raw session whose schedule checks the timer, as a weak reference.

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Finds out whether a foreign class overrides a callback."""
        super().__init_subclass__(**kwargs)
        others = [kind for kind in cls.__mro__ if kind.__module__.partition(".")[0] not in _OURS]
        names = ("before_run", "after_run", *cls._published)
        cls._is_overridden = any(name in vars(kind) for kind in others for name in names)

    @property
    def is_driven(self) -> bool:
        """Whether the hook checks its timer itself, on every run."""
        return self._is_overridden or self._is_controlled

    @property
    def trigger(self) -> Any:
        """The timer that the session checks; None if the hook checks it itself."""
        return None if self.is_driven else self._own_timer

    @trigger.setter
    def trigger(self, trigger: Any) -> None:
        self._own_timer = trigger

    @property
    def _timer(self) -> Any:
        self._take_control()
        return self._own_timer

    @_timer.setter
    def _timer(self, timer: Any) -> None:
        self._take_control()
        self._own_timer = timer

    def _take_control(self) -> Any:
        """Lets foreign code decide when the hook fires: its session calls it on every run. Returns the session."""
        self._is_controlled = True
        session = None if self._timing_session is None else self._timing_session()
        if session is not None:
            resume_callbacks(self, session)
        return session

    def before_run(self, run_context: Any) -> Any:
        """Requests the fetches of TensorFlow's hook; stops these calls if the session checks the timer."""
        if self.is_driven:
            if self._timing_session is not None:
                self._timing_session = None
                self._continue_from(run_context)
        elif is_claimed(self):
            run_context.stop_callbacks(self)
            self._timing_session = weakref.ref(run_context.session)
            return super().before_run(run_context)
        else:
            self._is_controlled = True
        return self._request_args()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Does the work of TensorFlow's hook after a run."""
        if self.is_driven:
            self._after_driven_run(run_context, run_values)
        else:
            super().after_run(run_context, run_values)

    def _continue_from(self, run_context: Any) -> None:
        """Continues from the state of the session, which has checked the timer so far."""

    def _request_args(self) -> Any:
        raise NotImplementedError

    def _after_driven_run(self, run_context: Any, run_values: Any) -> None:
        raise NotImplementedError
