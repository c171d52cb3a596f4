"""RecoverableSession: creates a lost session again, and closes it with its threads; RecoveryPolicy."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from hookline import arguments, log
from hookline.coordination import Coordinator
from hookline.errors import GRACEFUL_EXITS, PREEMPTION_ERRORS
from hookline.monitored.hooked.hooked_session import HookedSession
from hookline.monitored.session_guard import SessionAccess, SessionGuard
from hookline.monitored.starting.session_setup import close_session
from hookline.monitored.stop_request import StopRequest
from hookline.session import RETRY, Retry, Session
from hookline.session.origin import INITIALISED
from hookline.signals import preemption

logger = log.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class RecoveryPolicy:
    """Configures how often a lost session is created again, and the waits before that.

    The count of attempts starts over when there is progress: when the global step passes the highest one before the
    failure. So a step that always fails ends the job, instead of repeating forever.

    Args:
        max_attempts: The maximum number of consecutive attempts without progress; at least 1.
        initial_backoff_secs: The wait before the first attempt.
        multiplier: The factor by which the wait grows from one attempt to the next.
        max_backoff_secs: The maximum wait.
        jitter: The fraction by which a wait varies at random, up or down, so that workers do not all retry at once.
        seed: The seed of the jitter.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of range.

    Example:
        >>> policy = RecoveryPolicy(max_attempts=3, initial_backoff_secs=1, multiplier=4, jitter=0)
        >>> [policy.backoff_secs(attempt, policy.generator()) for attempt in (1, 2, 3)]
        [1.0, 4.0, 16.0]

    References:
        None in `tf.train`, which creates sessions again without limits and waits.
    """

    max_attempts: int = 12
    initial_backoff_secs: float = 0.1
    multiplier: float = 2.0
    max_backoff_secs: float = 60.0
    jitter: float = 0.2
    seed: int | None = None

    def __post_init__(self) -> None:
        """Checks the numbers."""
        arguments.check_int("RecoveryPolicy", "max_attempts", self.max_attempts)
        for name in ("initial_backoff_secs", "multiplier", "max_backoff_secs", "jitter"):
            arguments.check_number("RecoveryPolicy", name, getattr(self, name))
        if self.seed is not None:
            arguments.check_int("RecoveryPolicy", "seed", self.seed)
        if self.max_attempts < 1:
            raise ValueError(
                f"RecoveryPolicy requires max_attempts >= 1, got {self.max_attempts}; recovery=None turns recovery off."
            )
        if self.initial_backoff_secs < 0 or self.max_backoff_secs < 0:
            raise ValueError(
                "RecoveryPolicy requires waits >= 0, got "
                f"initial_backoff_secs={self.initial_backoff_secs} and max_backoff_secs={self.max_backoff_secs}."
            )
        if self.multiplier < 1:
            raise ValueError(f"RecoveryPolicy requires multiplier >= 1, got {self.multiplier}: waits do not shrink.")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"RecoveryPolicy requires 0 <= jitter <= 1, got {self.jitter}.")

    def generator(self) -> random.Random:
        """Returns a new random generator for the jitter, which depends only on the seed."""
        return random.Random(self.seed)

    def backoff_secs(self, attempt: int, generator: random.Random) -> float:
        """Returns the wait before an attempt, in seconds.

        Args:
            attempt: The number of the attempt, from 1 on.
            generator: The generator of the jitter.
        """
        # The exponent is bounded, because 2.0 ** 1024 raises an OverflowError.
        grown = self.initial_backoff_secs * self.multiplier ** min(attempt - 1, 64)
        return min(grown, self.max_backoff_secs) * (1 + self.jitter * generator.uniform(-1, 1))


DEFAULT_RECOVERY = RecoveryPolicy()
"""The default policy of a monitored session."""


class RecoverableSession:
    """Holds a hooked session and the coordinator of its threads; recovers from `AbortedError` and `UnavailableError`.

    After such an error, of a run or reported by a thread, it closes the session, creates a new one, restored from the
    last checkpoint, and retries the run. The hooks get `after_create_session` again, but not `begin`.

    Args:
        create: Creates the session and its coordinator; called by `open` and at each recovery.
        policy: The limits and waits of recoveries; None raises every error.
        stop: The request to stop, which outlives each session.
        guard: Admits one thread at a time.
        grace_secs: The maximum wait for threads in `close`.

    Attributes:
        failure: The error of a failed recovery, after which there is no open session.

    References:
        The coordinated and the recoverable session inside `tf.train.MonitoredSession`. Differences: attempts are
        limited, with waits between them, and every recovery is logged at ERROR with its reason and the lost steps.
    """

    def __init__(
        self,
        create: Callable[[], tuple[HookedSession, Coordinator]],
        policy: RecoveryPolicy | None,
        stop: StopRequest,
        guard: SessionGuard,
        grace_secs: float,
    ) -> None:
        self._create, self._policy = create, policy
        self._stop, self._guard, self._grace_secs = stop, guard, grace_secs
        self._jitter = policy.generator() if policy else None
        self._attempts = 0
        self._highest_step: int | None = None
        self._current: tuple[HookedSession, Coordinator] | None = None
        self._recovering = False
        # The error that a thread has reported, and its mapped error: each call must return the same object.
        self._reported: tuple[BaseException | None, BaseException | None] = (None, None)
        self.failure: BaseException | None = None

    def open(self) -> None:
        """Creates the first session.

        Raises:
            BaseException: The error of the last attempt that the policy allows.
        """
        try:
            self._current = self._create()
        except PREEMPTION_ERRORS as exc:
            self._current = self._recreate(exc)
        self._forward_stop_request()

    @property
    def hooked(self) -> HookedSession:
        """The current hooked session; a new one after a recovery."""
        assert self._current is not None, "It is open."
        return self._current[0]

    @property
    def coord(self) -> Coordinator:
        """The coordinator of the current session's threads; a new one after a recovery."""
        assert self._current is not None, "It is open."
        return self._current[1]

    @property
    def raw(self) -> Session:
        """The current raw session; a new one after a recovery."""
        return self.hooked.raw

    def require_live(self) -> HookedSession:
        """Returns the current session; raises the error of a failed recovery."""
        if self.failure is not None:
            raise self.failure
        return self.hooked

    # Runs -------------------------------------------------------------------------------------------------------

    def call(self, function: Callable[[HookedSession], T], failed: BaseException | None = None) -> T:
        """Calls a function that runs the session, and again after each recovery.

        Args:
            function: The function.
            failed: The error of the first attempt, if that was a run on the fast path.

        Raises:
            BaseException: An error from which the policy does not recover, or the error of the last attempt.
        """
        if self.failure is not None:
            raise self.failure
        assert self._current is not None, "It is open."
        hooked, _ = self._current
        # If variables are on servers, the updates of an attempt remain when its session is lost.
        retry = Retry() if hooked.raw.backend.shared else None
        token = RETRY.set(retry)
        try:
            if failed is not None:
                hooked = self._recover_or_raise(hooked.handle_fast_path_failure(failed), retry)
            while True:
                try:
                    result = function(hooked)
                except Exception as exc:
                    hooked = self._recover_or_raise(exc, retry)
                    continue
                if self._attempts:
                    self._note_progress(repeats=retry is not None and retry.repeats)
                return result
        finally:
            RETRY.reset(token)

    def _recover_or_raise(self, exc: BaseException, retry: Retry | None) -> HookedSession:
        """Creates the session again if the error means that it is lost, and returns it; raises any other error."""
        error = self._root_cause(exc)
        if not isinstance(error, PREEMPTION_ERRORS):
            raise error
        RETRY.set(None)  # Runs by hooks on the new session are not part of the retried run.
        self._recover(error)
        if retry is not None:
            retry.begin_again()
            RETRY.set(retry)
        return self.hooked

    def _root_cause(self, exc: BaseException) -> BaseException:
        """Returns the mapped error of an attempt; or the preemption error that a thread reported before."""
        error = self.raw.backend.map_error(exc)
        if isinstance(error, Exception) and not isinstance(error, PREEMPTION_ERRORS):
            reported = self.reported_error()
            if isinstance(reported, PREEMPTION_ERRORS):
                reported.__cause__ = error
                return reported
        if error is not exc and error.__cause__ is None:
            error.__cause__ = exc
        return error

    # Stopping ---------------------------------------------------------------------------------------------------

    def should_stop(self) -> bool:
        """Returns whether to stop. Never raises: `close` raises an error that a thread has reported.

        It recovers from a preemption error, as often as the policy allows, unless another thread runs the session.
        """
        while self.failure is None:
            # During a recovery the old coordinator is stopped, without a request to stop.
            if self._recovering:
                return self._stop.is_requested_or_pending
            if not self.coord.should_stop():
                return self._stop.requested or self._stop.requested_for_retry
            error = self.reported_error()
            if error is None or not self._recovers_from(error):
                return True
            with SessionAccess(self._guard) as claim:
                if not claim.acquire():
                    return self._stop.is_requested_or_pending
                if error is self.reported_error():  # Else another thread has recovered meanwhile.
                    try:
                        self._recover(error)
                    except (Exception, *GRACEFUL_EXITS) as failure:
                        self.failure = self.failure or failure
        return True

    def request_stop(self) -> None:
        """Requests a stop of the coordinator; it survives a recovery, unless `clear_stop` was called before."""
        self._stop.requested_by_user = True
        if self._current is not None:
            self.coord.request_stop()
        if (
            not self._stop.requested_by_user
        ):  # A recovery that began between these lines treated the request as cleared.
            self.request_stop()

    def reported_error(self) -> BaseException | None:
        """Returns the mapped error that a thread has reported, if any."""
        try:
            self.coord.raise_requested_exception()
        except BaseException as exc:  # A thread may have reported any exception.
            if exc is not self._reported[0]:
                self._reported = exc, self.raw.backend.map_error(exc)
            return self._reported[1]
        return None

    def close(self) -> None:
        """Stops the threads, waits for them at most the grace period, and closes the session, if there is one.

        A preemption error of closing is only logged, and so is one that a thread has reported if the policy recovers
        from it: no run is left to repeat.

        Raises:
            BaseException: The error that a thread has reported.
        """
        if self._current is None or self.failure is not None:
            return
        try:
            self._close()
        except PREEMPTION_ERRORS as exc:
            if not self._recovers_from(exc):
                raise
            logger.warning("The session was lost after its last run, which changes nothing: %s", _format_error(exc))

    def _close(self) -> None:
        try:
            close_session(self.hooked, self.coord, self._grace_secs)
        except Exception as exc:
            error = self.reported_error()
            if error is None or error is exc:
                raise
            raise error from exc

    # Recovery ---------------------------------------------------------------------------------------------------
    #
    # The count of attempts starts over when the global step passes the highest one before the failure, so a step that
    # always fails ends the job. With max_attempts=3, a checkpoint at step 4, and a run to step 6 that loses the
    # session:
    #
    #     restored at   runs                attempts   highest step
    #     -             5 succeeds, 6 fails     1           5         5 is above 0: counted from the start
    #     4             5 succeeds, 6 fails     2           5         5 is not above 5: no progress
    #     4             5 succeeds, 6 fails     3           5
    #     4             5 succeeds, 6 fails     -           5         the error of the last run is raised
    #
    # If a run to step 6 succeeds once, the next loss begins with attempt 1 again, and the highest step is 6.

    def _recovers_from(self, error: BaseException) -> bool:
        return self._policy is not None and isinstance(error, PREEMPTION_ERRORS)

    def _recover(self, exc: BaseException) -> None:
        if self._policy is None:
            raise exc
        reported = self.reported_error()
        if reported is not None and not isinstance(reported, PREEMPTION_ERRORS):
            raise reported from exc  # The new coordinator would not have it.
        self._recovering = True
        try:
            self._replace(exc)
        finally:
            self._recovering = False

    def _replace(self, exc: BaseException) -> None:
        # A hook may have stopped the coordinator, or the user may have cleared the stop.
        stops = self.coord.should_stop()
        self._stop.requested_by_user = stops and (self._stop.requested_by_user or self.reported_error() is None)
        step_before = _global_step(self.raw)
        highest = self._highest_step or 0
        # `_note_progress` does not see runs on the fast path. Without a global step, any run is progress.
        progressed = not highest and self.hooked.has_run if step_before is None else step_before > highest
        if progressed and not self.raw.backend.shared:
            self._attempts = 0
        self._highest_step = max(highest, step_before or 0)
        self.hooked.deliver_after_loss()
        try:
            self._close()
        except Exception as closing:
            if closing is not exc:
                logger.warning("Closing the lost session: %s: %s", type(closing).__name__, closing)
        try:
            self._current = self._recreate(exc)
        except BaseException as failure:  # The old session is closed, and there is no new one.
            self.failure = failure
            raise
        self._reported = (None, None)
        self._forward_stop_request()
        loss = _describe_lost_steps(step_before, _global_step(self.raw), self.raw.origin)
        logger.error("Recovered from %s. %s", _format_error(exc), loss)

    def _forward_stop_request(self) -> None:
        """Stops the new coordinator if the user has requested a stop."""
        if self._stop.requested_by_user:
            self.coord.request_stop()

    def _recreate(self, exc: BaseException) -> tuple[HookedSession, Coordinator]:
        policy, generator = self._policy, self._jitter
        if policy is None or generator is None:
            raise exc
        while self._attempts < policy.max_attempts:
            preemption.check()
            self._attempts += 1
            backoff_secs = policy.backoff_secs(self._attempts, generator)
            logger.error(
                "The session was lost: %s. Attempt %d of %d to create it again follows in %.2f s.",
                _format_error(exc),
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
        # Without a global step, a successful run counts as progress. If the run repeated updates of an earlier attempt,
        # reaching the highest step again is progress too.
        if step is None or self._highest_step is None or step > self._highest_step - repeats:
            self._attempts = 0
        if step is not None:
            # The step of a lost session may be unknown; then this is the highest known step.
            self._highest_step = max(self._highest_step or 0, step)


def _global_step(session: Session) -> int | None:
    try:
        return session.global_step
    except Exception:  # no global step in the graph, or none left in a lost session
        return None


def _format_error(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}"


def _describe_lost_steps(before: int | None, after: int | None, origin: str) -> str:
    came = f" The model was {origin}." if origin else ""
    if before is None or after is None:
        return f"The number of lost steps is not known, because there is no global step.{came}"
    lost = max(before - after, 0)
    if lost and origin == INITIALISED and not after:
        return f"All {lost} steps were lost: there was no checkpoint, so the model was newly initialised."
    return f"The global step went from {before} to {after}: {lost} steps were lost.{came}"
