"""ProfilerHook: profiles a run now and then, for TensorBoard's profile page and for Perfetto."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING, Any

import jax

from hookline.hooks.base import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookline.hooks.cadence import Foresight, chosen_trigger
from hookline.hooks.lookup import require_global_step
from hookline.hooks.triggers import Trigger
from hookline.session import RunOptions
from hookline.summary import FileWriter, FileWriterCache

if TYPE_CHECKING:
    from hookline.coordination import Coordinator
    from hookline.session import RunMetadata, Session

_logger = logging.getLogger(__name__)


class ProfilerHook(SessionRunHook):
    """Profiles the run it fires on, with `jax.profiler`: what host and devices did, and for how long.

    The first run of a session is never profiled, for it compiles; the first profile comes one cadence after it. Before
    a profile begins the hook waits for the training so far, and before it ends for the profiled run: a profile holds
    one run. Other runs cost nothing and wait for nothing. Each operation of the graph is a name scope of the compiled
    program: the work of `loss` is found under `loss`, that of its derivatives under `gradients`.

    A profile is the folder `<output_dir>/plugins/profile/step_<n>`, where n is the global step to which the run was
    expected to lead. A run that gains less, such as one that only evaluates, does not count: the next one is profiled,
    in its place. How long the stages of the run took stands in the event file, under the tag `step_<n>`. Where there
    can be no profile (somebody else is profiling, the disk is full), a WARNING says why, and the training goes on.

    Runs `begin`, `after_create_session`, `before_run`, `after_run` and `end`; a run that fails leaves its profile too.

    Args:
        save_steps: Global steps from one profile to the next.
        save_secs: Seconds from one to the next.
        output_dir: Where to write: the log directory of TensorBoard. Workers need one each.
        show_dataflow: Whether the profile holds the compiled program, from which TensorBoard draws the dataflow and
            tells which operation of the graph the work belongs to. Without it, it is smaller.
        show_memory: Whether to write `<output_dir>/memory_step_<n>.prof` too: what is in the devices' memory after the
            run, for the tool `pprof`.
        trigger: Says when, in place of `save_steps` and `save_secs`.

    Attributes:
        trigger: Says when.

    Raises:
        ValueError: Not exactly one cadence.

    Example:
        >>> ProfilerHook(save_steps=1000, save_secs=600)
        Traceback (most recent call last):
        ...
        ValueError: ProfilerHook requires exactly one of save_steps, save_secs or trigger, got save_steps, save_secs.

    References:
        `tf.train.ProfilerHook`. Differences: profiles of `jax.profiler` instead of `timeline-<step>.json`, so that
        `show_dataflow` and `show_memory` say what is recorded instead of what is drawn; the first run after a restart
        or a recovery is not profiled either; `trigger`.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str = "",
        show_dataflow: bool = True,
        show_memory: bool = False,
        *,
        trigger: Trigger | None = None,
    ) -> None:
        self.trigger = chosen_trigger("ProfilerHook", trigger, ("save_steps", save_steps), ("save_secs", save_secs))
        self._output_dir = os.fspath(output_dir) or os.curdir
        self._show_dataflow = show_dataflow
        self._show_memory = show_memory
        # With this the run waits for the device.
        self._args = SessionRunArgs(None, options=RunOptions(trace_level=1))
        self._writer: FileWriter | None = None
        self._foresight = Foresight()
        self._started = False
        self._began_at = 0
        self._global_step: Any = None
        self._profile: _Profile | None = None

    @property
    def summary_writer(self) -> FileWriter | None:
        """The writer, which all hooks with this directory share; None before `begin`."""
        return self._writer

    def begin(self) -> None:
        """Opens the writer."""
        self._global_step = require_global_step(self)
        self.trigger.reset()
        self._foresight = Foresight()
        self._writer = FileWriterCache.get(self._output_dir)

    def get_state(self) -> dict[str, Any]:
        """Returns the phase of its trigger."""
        return {"trigger": self.trigger.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Keeps the phase of a trigger over a restart."""
        self.trigger.set_state(state["trigger"])

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Moves back with a session that was restored from an earlier step, and lets its first run go by."""
        self._stop()
        self._foresight.start(session)
        self.trigger.start(session.global_step)
        self._started = False
        self._began_at = session.global_step

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Begins a profile if this run, should it gain as many steps as the one before, is to be profiled."""
        self._stop()
        session = run_context.session
        step = self._foresight.step_after(session)
        if not self._started or not self.trigger.should_trigger_for_step(step):
            return None
        jax.block_until_ready(session.snapshot([self._global_step]))
        self._profile = _Profile(self._output_dir, step, self._show_dataflow)
        return self._args

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Writes the profile; begins to count after the first run."""
        step = run_context.session.global_step
        self._foresight.learn(step)
        profile = self._stop()
        if not self._started:
            self._started = True
            if self.trigger.last_triggered_step() is None:
                self.trigger.update_last_triggered_step(self._began_at)
        # Asked anew, for the run may have gained less.
        elif profile is not None and self.trigger.should_trigger_for_step(step):
            self.trigger.update_last_triggered_step(step)
            if profile.written:
                self._record(profile.name, run_values.run_metadata, step)

    def on_exception(self, session: Session, exception: BaseException) -> None:
        """Writes the profile of the run that failed."""
        self._stop()

    def end(self, session: Session) -> None:
        """Flushes the writer."""
        self._stop()
        if self._writer is not None:
            self._writer.flush()

    def steps_until_trigger(self, global_step: int) -> int:
        """Returns when the next profile is due."""
        return self.trigger.steps_until_trigger(global_step) if self._started else 1

    def secs_until_trigger(self) -> float:
        """Returns the seconds until the next profile is due."""
        return self.trigger.secs_until_trigger()

    def _stop(self) -> _Profile | None:
        """Ends the profile under way, if there is one, and returns it."""
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.stop()
        return profile

    def _record(self, name: str, run_metadata: RunMetadata, step: int) -> None:
        _logger.info("Profiled the run to step %d; the profile is %s in %s.", step, name, self._output_dir)
        # After a recovery the same step is profiled again; a tag is for one run.
        with contextlib.suppress(ValueError):
            if self._writer is not None:
                self._writer.add_run_metadata(run_metadata, name, step)
        if self._show_memory:
            try:
                jax.profiler.save_device_memory_profile(os.path.join(self._output_dir, f"memory_{name}.prof"))
            except (RuntimeError, OSError) as error:
                _logger.warning("ProfilerHook could not write what was in memory at step %d: %s", step, error)


class _Profile:
    """A profile under way. Where it cannot be made, the log says why.

    Args:
        directory: TensorBoard's log directory.
        step: To which the run leads.
        dataflow: Whether to put the compiled programs into it.

    Attributes:
        name: Its name on TensorBoard's profile page.
        written: Whether it is on the disk.
    """

    def __init__(self, directory: str, step: int, dataflow: bool) -> None:
        self.name = f"step_{step}"
        self.written = False
        self._under_way = False
        options = jax.profiler.ProfileOptions()
        options.session_id = self.name
        options.enable_hlo_proto = dataflow
        # Else it would show at the end only that somebody else profiles, and JAX would take this one for running then.
        options.raise_error_on_start_failure = True
        try:
            jax.profiler.start_trace(directory, profiler_options=options)
        except RuntimeError as error:
            self._warn(error)
            return
        self._annotation = jax.profiler.StepTraceAnnotation("run", step_num=step)
        self._annotation.__enter__()
        self._under_way = True

    def stop(self) -> None:
        """Writes it."""
        if not self._under_way:
            return
        self._annotation.__exit__(None, None, None)
        try:
            jax.profiler.stop_trace()
            self.written = True
        except RuntimeError as error:
            self._warn(error)

    def _warn(self, error: RuntimeError) -> None:
        _logger.warning("ProfilerHook has no profile %s: %s", self.name, error)
