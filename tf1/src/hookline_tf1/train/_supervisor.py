"""`tf.train.Supervisor`: prepares a session, and saves and writes summaries in threads during training."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hookline import Graph, Session, clock
from hookline.extend import log
from hookline.summary import FileWriter
from hookline.train import Coordinator, LooperThread, Saver, Scaffold, SessionManager, get_global_step
from hookline.train import global_step as step_of
from hookline_tf1._machinery.graphs import get_default_graph

_logger = log.get_logger("hookline.tf1")


class Supervisor:
    """Prepares a session, and saves and writes summaries at intervals while it is used.

    Args:
        graph: The graph; the default graph if None.
        ready_op: A tensor of the names of uninitialised variables.
        ready_for_local_init_op: Likewise, for the variables that `local_init_op` needs.
        is_chief: Whether this process initialises, restores, saves and writes summaries; others wait for it.
        init_op: Initialises a model that was not restored.
        init_feed_dict: Feed of `init_op`.
        local_init_op: Initialises the local variables, which are in no checkpoint.
        logdir: The directory for checkpoints and summaries.
        summary_op: The summary to write at intervals; None for none.
        saver: Saves and restores; None for nothing.
        global_step: The global step; None for none.
        save_summaries_secs: Seconds between summaries; 0 for none.
        save_model_secs: Seconds between checkpoints; 0 for none.
        recovery_wait_secs: Seconds between log lines while waiting for the chief.
        stop_grace_secs: Seconds that `stop` waits for the threads.
        checkpoint_basename: The name of checkpoints, without the step.
        session_manager: Makes the session; a new one if None.
        summary_writer: Writes summaries; None for no writer.
        init_fn: Called as `init_fn(session)` after `init_op`.
        local_init_run_options: Options of the run of `local_init_op`.

    References:
        `tf.train.Supervisor`. `USE_DEFAULT` chooses the graph's own, as there.
    """

    USE_DEFAULT = 0

    def __init__(
        self,
        graph: Graph | None = None,
        ready_op: Any = USE_DEFAULT,
        ready_for_local_init_op: Any = USE_DEFAULT,
        is_chief: bool = True,
        init_op: Any = USE_DEFAULT,
        init_feed_dict: Mapping[Any, Any] | None = None,
        local_init_op: Any = USE_DEFAULT,
        logdir: str | None = None,
        summary_op: Any = USE_DEFAULT,
        saver: Any = USE_DEFAULT,
        global_step: Any = USE_DEFAULT,
        save_summaries_secs: float = 120,
        save_model_secs: float = 600,
        recovery_wait_secs: float = 30,
        stop_grace_secs: float = 120,
        checkpoint_basename: str = "model.ckpt",
        session_manager: SessionManager | None = None,
        summary_writer: Any = USE_DEFAULT,
        init_fn: Callable[[Session], Any] | None = None,
        local_init_run_options: Any = None,
    ) -> None:
        self.is_chief, self.coord = is_chief, Coordinator()
        self.save_summaries_secs, self.save_model_secs = save_summaries_secs, save_model_secs
        self._logdir, self._stop_grace_secs, self._threads = logdir, stop_grace_secs, []
        self.save_path = os.path.join(logdir, checkpoint_basename) if logdir and is_chief else None
        self._graph = graph or get_default_graph()
        with self._graph.as_default():
            self.global_step: Any = get_global_step() if global_step is self.USE_DEFAULT else global_step
            scaffold = Scaffold(
                _given(init_op),
                init_feed_dict,
                None if init_fn is None else lambda _, session: init_fn(session),
                _given(ready_op),
                _given(ready_for_local_init_op),
                _given(local_init_op),
                _given(summary_op),
                _given(saver),
            ).finalize()
        self._scaffold = scaffold
        self.init_op, self.local_init_op = scaffold.init_op, scaffold.local_init_op
        self.ready_op, self.ready_for_local_init_op = scaffold.ready_op, scaffold.ready_for_local_init_op
        self.init_feed_dict = init_feed_dict
        self.summary_op = None if summary_op is None else scaffold.summary_op
        self.saver: Saver | None = None if saver is None else scaffold.saver
        self.summary_writer: FileWriter | None = summary_writer or None
        if summary_writer is self.USE_DEFAULT and logdir and is_chief:
            self.summary_writer = FileWriter(logdir)
        self.session_manager = session_manager or SessionManager(
            local_init_op=self.local_init_op,
            ready_op=self.ready_op,
            ready_for_local_init_op=self.ready_for_local_init_op,
            graph=self._graph,
            recovery_wait_secs=recovery_wait_secs,
            local_init_run_options=local_init_run_options,
        )

    # The session ------------------------------------------------------------------------------------------------

    def prepare_or_wait_for_session(
        self,
        master: Any = "",
        config: Any = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        start_standard_services: bool = True,
    ) -> Session:
        """Returns a session whose model is ready: the chief prepares it, others wait for the chief."""
        self.coord.clear_stop()
        if self.summary_writer is not None:
            self.summary_writer.reopen()
        with self._graph.as_default():
            if not self.is_chief:
                return self.session_manager.wait_for_session(master, config, max_wait_secs)
            session = self.session_manager.prepare_session(
                master,
                self.init_op,
                self.saver,
                self._logdir if self.saver is not None else None,
                wait_for_checkpoint=wait_for_checkpoint,
                max_wait_secs=max_wait_secs,
                config=config,
                init_feed_dict=self.init_feed_dict,
                init_fn=self._scaffold.init_fn,
            )
        if self.summary_writer is not None:
            self.summary_writer.add_graph(self._graph)
            self._log_session("START", self._step(session))
        if start_standard_services:
            self.start_standard_services(session)
        return session

    PrepareSession = prepare_or_wait_for_session

    @contextlib.contextmanager
    def managed_session(
        self,
        master: Any = "",
        config: Any = None,
        start_standard_services: bool = True,
        close_summary_writer: bool = True,
    ) -> Iterator[Session]:
        """Yields a prepared session; stops the threads and closes the session afterwards.

        The end of the input (`OutOfRangeError`) ends the block normally; other errors propagate.
        """
        session = None
        try:
            session = self.prepare_or_wait_for_session(master, config, start_standard_services=start_standard_services)
            yield session
        except Exception as error:
            self.request_stop(error)
        finally:
            try:
                self.stop(close_summary_writer=close_summary_writer)
            finally:
                if session is not None:
                    session.close()

    # The threads ------------------------------------------------------------------------------------------------

    def start_standard_services(self, sess: Session) -> list[LooperThread]:
        """Starts the threads that save, write summaries and log the speed."""
        if not self.is_chief:
            raise RuntimeError("Only the chief starts the standard services: is_chief is False.")
        if self._logdir is None:
            _logger.warning("Supervisor saves and summarises nothing, because it has no logdir.")
            return []
        started = []
        if self.summary_writer is not None and self.save_summaries_secs:
            if self.summary_op is not None:
                started.append(self.loop(self.save_summaries_secs, self._summarise, (sess,)))
            if self.global_step is not None:
                speed = _Speed(self, sess)
                started.append(self.loop(self.save_summaries_secs, speed.measure))
        if self.saver is not None and self.save_model_secs:
            started.append(self.loop(self.save_model_secs, self._save, (sess,)))
        return started

    def loop(
        self, timer_interval_secs: float | None, target: Callable[..., Any], args: Any = None, kwargs: Any = None
    ) -> LooperThread:
        """Calls a function at intervals, in a thread that stops with the supervisor."""
        thread = LooperThread(self.coord, timer_interval_secs, target, args, kwargs)
        self._threads.append(thread)
        thread.start()
        return thread

    Loop = loop

    def start_queue_runners(self, sess: Session, queue_runners: Any = None) -> list[Any]:
        """Starts no thread: there are no queues."""
        return []

    StartQueueRunners = start_queue_runners

    def _save(self, session: Session) -> None:
        assert self.saver is not None
        assert self.save_path is not None
        self.saver.save(session, self.save_path, global_step=self.global_step)

    def _summarise(self, session: Session) -> None:
        self.summary_computed(session, session.run(self.summary_op))

    def summary_computed(self, sess: Session, summary: Any, global_step: Any = None) -> None:
        """Writes a summary that a run has computed, at the global step."""
        if self.summary_writer is None:
            raise RuntimeError("Supervisor has no summary writer: give it a logdir, or a summary_writer.")
        self.summary_writer.add_summary(summary, self._step(sess) if global_step is None else global_step)

    SummaryComputed = summary_computed

    def _log_session(self, status: str, step: int | None = None) -> None:
        from hookline.summary import SessionLog

        if self.summary_writer is not None:
            self.summary_writer.add_session_log(SessionLog(status=getattr(SessionLog, status)), step)

    def _step(self, session: Session) -> int | None:
        return None if self.global_step is None else int(step_of(session, self.global_step))

    # The end ----------------------------------------------------------------------------------------------------

    def should_stop(self) -> bool:
        """Whether a stop was requested."""
        return self.coord.should_stop()

    def request_stop(self, ex: BaseException | None = None) -> None:
        """Requests a stop; `stop` raises the given error."""
        self.coord.request_stop(ex)

    def wait_for_stop(self) -> None:
        """Waits until a stop is requested."""
        self.coord.wait_for_stop()

    def stop_on_exception(self) -> Any:
        """Requests a stop if the block fails."""
        return self.coord.stop_on_exception()

    def stop(
        self, threads: Iterable[Any] | None = None, close_summary_writer: bool = True, ignore_live_threads: bool = False
    ) -> None:
        """Stops the threads, and raises their first error."""
        self.coord.request_stop()
        try:
            self.coord.join(
                self._threads if threads is None else threads,
                stop_grace_period_secs=self._stop_grace_secs,
                ignore_live_threads=ignore_live_threads,
            )
        finally:
            self._threads = []
            if close_summary_writer and self.summary_writer is not None and not self.summary_writer.closed:
                self._log_session("STOP")
                self.summary_writer.close()

    RequestStop, ShouldStop, Stop, WaitForStop = request_stop, should_stop, stop, wait_for_stop


class _Speed:
    """Writes the global steps per second since the last call."""

    def __init__(self, supervisor: Supervisor, session: Session) -> None:
        self._supervisor, self._session, self._step = supervisor, session, supervisor.global_step
        self._last: tuple[float, int] | None = None

    def measure(self) -> None:
        from hookline.summary import Summary

        now, step = clock.monotonic(), int(step_of(self._session, self._step))
        if self._last is not None and now > self._last[0]:
            speed = (step - self._last[1]) / (now - self._last[0])
            summary = Summary(value=[Summary.Value(tag="global_step/sec", simple_value=speed)])
            self._supervisor.summary_computed(self._session, summary, step)
            _logger.info("global_step/sec: %g", speed)
        self._last = now, step


def _given(argument: Any) -> Any:
    """Returns an argument, or None for the default."""
    return None if argument is Supervisor.USE_DEFAULT else argument
