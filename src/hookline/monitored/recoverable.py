"""RecoverableSession: creates a lost session again, and retries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard, TypeVar

from hookline import log, preemption
from hookline.errors import LEFT_IN_ORDER, PREEMPTION_ERRORS
from hookline.monitored.coordinated import CoordinatedSession
from hookline.monitored.recovery import RecoveryPolicy
from hookline.session import RETRY, Retry, RunMetadata, RunOptions, Session
from hookline.session.origin import INITIALISED

logger = log.of(__name__)

T = TypeVar("T")


class RecoverableSession:
    """A coordinated session that survives `AbortedError` and `UnavailableError`.

    After such an error it closes the session, creates a new one, restored from the last checkpoint, and retries the
    run. The hooks get `after_create_session` again, but never `begin`.

    Args:
        create: Creates the session; called in the constructor and at each recovery.
        policy: The limits and waits of recoveries; None lets every error pass.

    Attributes:
        current: The current session.
        failure: The error of a failed recovery, after which there is no live session.

    References:
        The recoverable session inside `tf.train.MonitoredSession`. Differences: attempts are limited, with waits
        between them, and every recovery is logged at ERROR with its reason and the lost steps.
    """

    def __init__(self, create: Callable[[], CoordinatedSession], policy: RecoveryPolicy | None) -> None:
        self._create = create
        self._policy = policy
        self._generator = policy.generator() if policy else None
        self._attempts = 0
        self._highest_step: int | None = None
        self.failure: BaseException | None = None
        self._stop_requested = False
        self._recovering = False
        try:
            self.current = create()
        except PREEMPTION_ERRORS as exc:
            self.current = self._created_again(exc)
        self._shared = self.raw.lowlevel.shared

    @property
    def raw(self) -> Session:
        """The current raw session; a new one after a recovery."""
        return self.current.hooked.raw

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        """Runs with the hooks, as often as the policy allows.

        Raises:
            BaseException: An error that allows no recovery, or the last error when the attempts are used up.
        """
        return self._persist(CoordinatedSession.run, fetches, feed_dict, options, run_metadata)

    def retry(self, error: BaseException, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Any:
        """Does the same as `run`, after a first attempt on the fast path that failed with this error."""
        failed = [error]

        def attempt(session: CoordinatedSession, *request: Any) -> Any:
            if failed:
                session.raise_as_run(failed.pop())
            return session.run(*request)

        return self._persist(attempt, fetches, feed_dict)

    def call(self, function: Callable[[CoordinatedSession], T]) -> T:
        """Calls a function that uses the session, again after each recovery."""
        return self._persist(lambda session: session.call(lambda: function(session)))

    def _persist(self, attempt: Callable[..., T], *args: Any) -> T:
        if self.failure is not None:
            raise self.failure
        # An attempt's effects on variables that live elsewhere remain when its session is lost.
        retry = Retry() if self._shared else None
        token = RETRY.set(retry)
        try:
            while True:
                try:
                    result = attempt(self.current, *args)
                except PREEMPTION_ERRORS as exc:
                    # The hooks' work on the new session is not part of the run.
                    RETRY.set(None)
                    self._recover(exc)
                    if retry is not None:
                        retry.begin_again()
                        RETRY.set(retry)
                    continue
                if self._attempts:
                    self._note_progress(repeats=retry is not None and retry.repeats)
                return result
        finally:
            RETRY.reset(token)

    def should_stop(self) -> bool:
        """Returns whether to stop. Never raises: `close` raises an error that a thread has reported.

        It recovers from a preemption error, as often as the policy allows.
        """
        while self.failure is None:
            session = self.current
            if not session.coord.should_stop():
                return session.hooked.should_stop()
            error = session.reported_error()
            if not self.recovers_from(error):
                return True
            try:
                self._recover(error)
            except (Exception, *LEFT_IN_ORDER) as failure:
                self.failure = self.failure or failure
        return True

    def goes_on(self) -> bool:
        """Returns whether no stop was requested; costs next to nothing."""
        session = self.current
        return self.failure is None and not session.coord.should_stop() and not session.hooked.should_stop()

    def looks_stopped(self) -> bool:
        """Returns the result of `should_stop`, without a recovery, for callers while another thread is inside."""
        session = self.current
        if self.failure is not None or self._stop_requested or session.hooked.should_stop():
            return True
        # The coordinator of a session being replaced was stopped for the replacement.
        return not self._recovering and session.coord.should_stop() and not self.recovers_from(session.reported_error())

    def recovers_from(self, error: BaseException | None) -> TypeGuard[BaseException]:
        """Returns whether the policy recovers from an error."""
        return self._policy is not None and isinstance(error, PREEMPTION_ERRORS)

    def request_stop(self) -> None:
        """Asks the coordinator to stop; the request survives a recovery under way."""
        self._stop_requested = True
        self.current.coord.request_stop()

    def close(self) -> None:
        """Stops the threads and closes the session, as `CoordinatedSession.close`.

        If a thread reported a preemption error from which the policy recovers, it is only logged, because nothing is
        left to run.
        """
        if self.failure is not None:
            return
        try:
            self.current.close()
        except PREEMPTION_ERRORS as exc:
            if not self.recovers_from(exc):
                raise
            logger.warning("The session was lost after its last run, which changes nothing: %s", _reason(exc))

    def live(self) -> CoordinatedSession:
        """Returns the current session; raises the error of a failed recovery."""
        if self.failure is not None:
            raise self.failure
        return self.current

    def _recover(self, exc: BaseException) -> None:
        if self._policy is None:
            raise exc
        reported = self.current.reported_error()
        if reported is not None and not isinstance(reported, PREEMPTION_ERRORS):
            raise reported from exc  # A new session would forget it.
        self._recovering = True
        try:
            self._replace(exc)
        finally:
            self._recovering = False

    def _replace(self, exc: BaseException) -> None:
        stop_requested = self.current.stop_requested_cleanly()
        step_before = _global_step(self.raw)
        highest = self._highest_step or 0
        # Runs on the fast path are not noted one by one. Without a global step, any of them is progress.
        progressed = not highest and self.current.hooked.has_run if step_before is None else step_before > highest
        if progressed and not self._shared:
            self._attempts = 0
        self._highest_step = max(highest, step_before or 0)
        self.current.hooked.salvage()
        try:
            self.current.close()
        except Exception as closing:
            if closing is not exc:
                logger.warning("Closing the lost session: %s: %s", type(closing).__name__, closing)
        try:
            self.current = self._created_again(exc)
        except BaseException as failure:
            self.failure = failure
            raise
        if stop_requested or self._stop_requested:
            self.current.coord.request_stop()
        loss = _loss(step_before, _global_step(self.raw), self.raw.origin)
        logger.error("Recovered from %s. %s", _reason(exc), loss)

    def _created_again(self, exc: BaseException) -> CoordinatedSession:
        policy, generator = self._policy, self._generator
        if policy is None or generator is None:
            raise exc
        while self._attempts < policy.max_attempts:
            preemption.check()
            self._attempts += 1
            backoff_secs = policy.backoff_secs(self._attempts, generator)
            logger.error(
                "The session was lost: %s. Attempt %d of %d to create it again follows in %.2f s.",
                _reason(exc),
                self._attempts,
                policy.max_attempts,
                backoff_secs,
            )
            preemption.sleep(backoff_secs)
            try:
                return self._create()
            except PREEMPTION_ERRORS as again:
                exc = again
        exc.add_note(f"Recovery gave up after {policy.max_attempts} attempts without progress; see RecoveryPolicy.")
        raise exc

    def _note_progress(self, repeats: bool) -> None:
        step = _global_step(self.raw)
        # Without a global step, a successful run is the only visible progress. If the run repeated updates of an
        # earlier attempt, reaching the highest step again is progress too.
        if step is None or self._highest_step is None or step > self._highest_step - repeats:
            self._attempts = 0
        if step is not None:
            # The step may have been lost with the session; then this is the highest one known.
            self._highest_step = max(self._highest_step or 0, step)


def _global_step(session: Session) -> int | None:
    try:
        return session.global_step
    except Exception:  # no global step in the graph, or none left in a lost session
        return None


def _reason(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}"


def _loss(before: int | None, after: int | None, origin: str) -> str:
    came = f" The model was {origin}." if origin else ""
    if before is None or after is None:
        return f"The number of lost steps is not known, because there is no global step.{came}"
    lost = max(before - after, 0)
    if lost and origin == INITIALISED and not after:
        return f"All {lost} steps were lost: there was no checkpoint, so the model was initialised anew."
    return f"The global step went from {before} to {after}: {lost} steps were lost.{came}"
