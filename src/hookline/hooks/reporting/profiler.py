"""ProfilerHook: profiles single runs, for TensorBoard's profile page and for Perfetto."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Any

import jax

from hookline import arguments, log
from hookline.coordination import Coordinator, process_group
from hookline.hooks.base import Firing, SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookline.hooks.lookup import require_global_step
from hookline.hooks.timers import trigger_from_arguments
from hookline.hooks.trigger import Trigger
from hookline.redirection import output_dir
from hookline.session import RunMetadata, RunOptions, Session
from hookline.summary import FileWriter, FileWriterCache

_logger = log.get_logger(__name__)


class ProfilerHook(SessionRunHook):
    """Profiles single runs with `jax.profiler`: the work of host and devices, and its duration.

    The first run of a session compiles and is never profiled. The first profile is made `save_steps` or `save_secs`
    after it. A profile holds exactly one run: the hook waits for the earlier runs before the profile begins, and for
    the profiled run before the profile ends. The hook is not called on other runs. In the compiled program each
    operation of the graph is a name scope: the work of `loss` is under `loss`, and the work of its derivatives under
    `gradients`.

    A profile is the folder `<output_dir>/plugins/profile/step_<n>`, where n is the expected global step after the run.
    If the run, such as an evaluation, does not reach that step, the next run is profiled. The event file has the
    durations of the run's stages, under the tag `step_<n>`. If no profile can be made (another profiler is running, the
    disk is full), a WARNING gives the reason, and the training continues.

    Callbacks: `begin`, `after_create_session`, `after_run` once, `before_trigger`, `on_trigger`, `end`, and
    `on_exception`, which writes the profile of a failed run.

    Args:
        save_steps: Global steps from one profile to the next.
        save_secs: Seconds from one profile to the next.
        output_dir: The log directory of TensorBoard. Each worker needs its own.
        show_dataflow: Whether the profile holds the compiled program. With the program TensorBoard draws the dataflow
            and names the graph's operation for each piece of work; without it the profile is smaller.
        show_memory: Whether to also write `<output_dir>/memory_step_<n>.prof`: the contents of the devices' memory
            after the run, for the tool `pprof`.
        trigger: Used instead of `save_steps` and `save_secs`.

    Attributes:
        trigger: The trigger in use.

    Raises:
        ValueError: Not exactly one of `save_steps`, `save_secs` and `trigger` is given.

    Example:
        >>> ProfilerHook(save_steps=1000, save_secs=600)
        Traceback (most recent call last):
        ...
        ValueError: ProfilerHook requires exactly one of save_steps, save_secs or trigger, got save_steps, save_secs.

    References:
        `tf.train.ProfilerHook`. Differences: profiles of `jax.profiler` instead of `timeline-<step>.json`, so
        `show_dataflow` and `show_memory` choose the contents of the profile, not of a drawing; the first run
        after a restart or a recovery is not profiled either; `trigger`.
    """

    trigger: Trigger

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
        self.trigger = trigger_from_arguments(
            "ProfilerHook", trigger, ("save_steps", save_steps), ("save_secs", save_secs)
        )
        self._output_dir = arguments.check_path("ProfilerHook", "output_dir", output_dir) or os.curdir
        self.output_description = f"profiles '{self._output_dir}/plugins/profile/step_<step>'"
        self._profile_dir = self._output_dir
        self._show_dataflow = show_dataflow
        self._show_memory = show_memory
        # With these options the run waits for the device.
        self._args = SessionRunArgs(None, options=RunOptions(trace_level=1))
        self._writer: FileWriter | None = None
        self._started = False
        self._start_step: int | None = None
        self._global_step: Any = None
        self._profile: _Profile | None = None

    @property
    def summary_writer(self) -> FileWriter | None:
        """The writer of the directory, which all hooks with this directory share; None before `begin`."""
        return self._writer

    def begin(self) -> None:
        """Opens the writer."""
        self._global_step = require_global_step(self)
        self._writer = FileWriterCache.get(self._output_dir)
        self._profile_dir = output_dir(self._output_dir)

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Skips the first run of a session."""
        self._stop_profile()
        self._started = False
        # A firing is recorded at this step, so that the first profile is made `save_steps` or `save_secs` later.
        self._start_step = session.global_step if self.trigger.last_triggered_step() is None else None
        if self._start_step is not None:
            self.trigger.update_last_triggered_step(self._start_step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Restarts the trigger's count after the first run, which compiles."""
        super().after_run(run_context, run_values)
        self._started = True
        if self._start_step is not None:
            self.trigger.update_last_triggered_step(self._start_step)
        run_context.stop_callbacks(self)

    def before_trigger(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Begins a profile of the run."""
        self._stop_profile()
        if not self._started:
            return None
        step = run_context.expected_step
        assert step is not None, "begin has checked that there is a global step"
        jax.block_until_ready(run_context.session.snapshot([self._global_step]))
        if process_group.is_primary():
            self._profile = _Profile(self._profile_dir, step, self._show_dataflow)
        return self._args

    def on_trigger(self, firing: Firing) -> None:
        """Writes the profile."""
        profile = self._stop_profile()
        if profile is not None and profile.is_written and firing.global_step is not None:
            self._record(profile.name, firing.run_metadata, firing.global_step)

    def on_exception(self, session: Session, exception: BaseException) -> None:
        """Writes the profile of the run that failed."""
        self._stop_profile()

    def steps_written(self, trigger: Trigger, first: int, last: int | None) -> Iterable[int] | None:
        """Returns the steps on which the trigger fires, as if it had fired at `first`."""
        if trigger.last_triggered_step() is None:
            trigger.update_last_triggered_step(first)
        return trigger.firing_steps(first, last)

    def end(self, session: Session) -> None:
        """Flushes the writer."""
        self._stop_profile()
        if self._writer is not None:
            self._writer.flush()

    def _stop_profile(self) -> _Profile | None:
        """Ends the running profile, if any, and returns it."""
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.stop()
        return profile

    def _record(self, name: str, run_metadata: RunMetadata, step: int) -> None:
        _logger.info("Profiled the run to step %d; the profile is %s in %s.", step, name, self._profile_dir)
        # After a recovery the same step may be profiled again, but a tag belongs to one run.
        with contextlib.suppress(ValueError):
            if self._writer is not None:
                self._writer.add_run_metadata(run_metadata, name, step)
        if self._show_memory:
            try:
                jax.profiler.save_device_memory_profile(os.path.join(self._profile_dir, f"memory_{name}.prof"))
            except (RuntimeError, OSError) as error:
                _logger.warning("ProfilerHook could not write the memory profile of step %d: %s", step, error)


class _Profile:
    """A running profile of the run that ends at a step. If no profile can be made, a warning gives the reason."""

    def __init__(self, directory: str, step: int, dataflow: bool) -> None:
        self.name = f"step_{step}"
        self.is_written = False
        self._is_active = False
        options = jax.profiler.ProfileOptions()
        options.session_id = self.name
        options.enable_hlo_proto = dataflow
        # Otherwise a conflict with another profiler is an error only at the end, and JAX then regards this profile as
        # still running.
        options.raise_error_on_start_failure = True
        try:
            jax.profiler.start_trace(directory, profiler_options=options)
        except RuntimeError as error:
            self._warn(error)
            return
        self._annotation = jax.profiler.StepTraceAnnotation("run", step_num=step)
        self._annotation.__enter__()
        self._is_active = True

    def stop(self) -> None:
        """Ends the profile and writes it."""
        if not self._is_active:
            return
        self._annotation.__exit__(None, None, None)
        try:
            jax.profiler.stop_trace()
            self.is_written = True
        except RuntimeError as error:
            self._warn(error)

    def _warn(self, error: RuntimeError) -> None:
        _logger.warning("ProfilerHook could not make the profile %s: %s", self.name, error)
