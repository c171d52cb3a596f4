"""FinalStop: a training that has stopped for good trains no step when it is started again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookline import arguments, log
from hookline.coordination import peers
from hookline.hooks import CheckpointSaverHook, SessionRunHook, StopAtStepHook
from hookline.hooks.lookup import savers_of
from hookline.hooks.when import bare
from hookline.loop.eval_result import FINAL
from hookline.loop.evaluate import Evaluate
from hookline.monitored.hooked import HookedSession
from hookline.session import origin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hookline.coordination import Coordinator
    from hookline.session import Session

_logger = log.of(__name__)


class FinalStop(SessionRunHook):
    """Remembers a final stop (`request_stop(final=...)`) with the checkpoint, and stops the next start before a step.

    The reason of a stop may be declared: a hook has it as its attribute `final`. Then it holds as long as a hook of the
    session declares it:

        saved by StopIfNoImprovement("loss", 2)    "loss of 'eval' has not improved in 2 evaluations"
        restored beside patience=2                 no step is trained
        restored beside patience=5, or "accuracy"  the training goes on

    Args:
        hooks: The other hooks of the session.
        train_on: Whether to train on all the same.
    """

    # The last evaluation belongs to the checkpoint that `end` saves, and a reached last step is said before.
    comes_after = (Evaluate, StopAtStepHook)
    comes_before = CheckpointSaverHook

    def __init__(self, hooks: Sequence[Any], train_on: bool) -> None:
        self._hooks = hooks
        self._train_on = arguments.instance("Loop", "train_on", train_on, bool)
        self._session: Session | None = None
        self._forget()

    def _forget(self) -> None:
        self._why, self._is_declared = "", False
        self._is_first, self._is_new = True, False

    def begin(self) -> None:
        """Forgets an earlier session."""
        self._forget()
        self._session = None

    def get_state(self) -> dict[str, Any] | None:
        """Returns the reason of a final stop, and whether a hook declares it; None without one."""
        self._look()
        return {"why": self._why, "is_declared": self._is_declared} if self._why else None

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the reason."""
        self._why, self._is_declared = state["why"], state["is_declared"]

    def reason(self) -> str:
        """Returns why the training that was restored has stopped for good; empty if it goes on."""
        is_lifted = self._train_on or (self._is_declared and not self._declares())
        return "" if is_lifted else self._why

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Requests a stop if the training has stopped for good; a recovery is no start."""
        self._session = session
        if not self._is_first or not self.reason():
            if self._why and self._is_first and peers.speaks():
                _logger.info("The training goes on %s, where it had stopped: %s.", origin.where(session), self._why)
            if self._why and self._is_first:
                for hook in map(bare, self._hooks):
                    getattr(hook, "go_on", _nothing)()
            self._why = ""
        elif self._why and not coord.should_stop():  # Else another hook has said why no step is left.
            if peers.speaks():
                _logger.warning(
                    "Nothing is trained: the training begins %s, where it has stopped early: %s. To train on, give "
                    "train_on=True%s%s.",
                    origin.where(session),
                    self._why,
                    ", or change the hook that has stopped it" if self._is_declared else "",
                    origin.to_begin_anew(session),
                )
            coord.request_stop()
        self._is_first = False

    def end(self, session: Session) -> None:
        """Saves the reason with the last step, also if that was saved before the stop was requested."""
        self._look()
        if self._is_new:
            for save in savers_of(session).values():
                save(session, again=True)

    def _look(self) -> None:
        """Notes a final stop that was requested in this session."""
        if self._session is None or self._why:
            return
        hooked = self._session.hook_data.get(HookedSession)
        self._why = self._session.hook_data.get(FINAL, "") or (hooked.final_stop if hooked is not None else "")
        self._is_declared, self._is_new = self._declares(), bool(self._why)

    def _declares(self) -> bool:
        """Returns whether a hook declares the reason."""
        declared = [getattr(bare(hook), "final", None) for hook in self._hooks]
        return any(isinstance(why, str) and why == self._why for why in declared)


def _nothing() -> None: ...
