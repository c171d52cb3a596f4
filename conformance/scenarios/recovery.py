"""Recovery."""

from __future__ import annotations

from typing import Any

from conformance.parts import aborted, counting, raised, recorder, train
from conformance.scenario import Record, scenario
from conformance.system import System


def _recovering(s: System, callback: str, error: Exception) -> Record:
    step, train_op = counting(s)
    events: list[Any] = []
    hooks = [recorder(s, events, "a", fails={callback: [None, error]}), recorder(s, events, "b")]
    with s.train.MonitoredSession(hooks=hooks) as sess:
        sess.run(train_op)
        sess.run(train_op)
        value = int(sess.run(step))
    return {"step": value, "events": events}


@scenario("recovery.before_run_aborted")
def _(s: System) -> Record:
    """After an `AbortedError` in `before_run` a new session, without `begin`, runs the same call again."""
    return _recovering(s, "before", aborted(s))


@scenario("recovery.after_run_unavailable")
def _(s: System) -> Record:
    """An `UnavailableError` in `after_run` is recovered from as well."""
    return _recovering(s, "after", s.errors.UnavailableError(None, None, "peer away"))


@scenario("recovery.cancelled_is_not_recovered")
def _(s: System) -> Record:
    """Other errors of the engine reach the caller."""
    error = s.errors.CancelledError(None, None, "cancelled")
    return {"error": raised(_recovering, s, "before", error)}


@scenario("recovery.from_the_last_checkpoint")
def _(s: System) -> Record:
    """A recovery goes back to the last checkpoint."""
    step, train_op = counting(s)
    hooks = [recorder(s, [], fails={"before": [None] * 5 + [aborted(s)]})]
    creator = s.train.ChiefSessionCreator(checkpoint_dir=s.folder)
    saver_hook = s.train.CheckpointSaverHook(s.folder, save_steps=3, saver=s.train.Saver())
    with s.train.MonitoredSession(creator, hooks=[saver_hook, *hooks]) as sess:
        for _ in range(7):
            sess.run(train_op)
        final = int(sess.run(step))
    return {"final": final}


@scenario("recovery.without_a_checkpoint")
def _(s: System) -> Record:
    """Without a checkpoint a recovery begins with the initial values."""
    step, train_op = counting(s)
    hook = recorder(s, [], fails={"before": [None, None, None, aborted(s)]})
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        for _ in range(4):
            sess.run(train_op)
        return {"step": int(sess.run(step))}


@scenario("recovery.stop_stays_requested")
def _(s: System) -> Record:
    """A stop that a hook requested in a run that was lost: whether the loop goes on."""
    _, train_op = counting(s)
    hooks = [
        recorder(s, [], "a", stops_at_run=2),
        recorder(s, [], "b", fails={"after": [None, aborted(s)]}),
    ]
    with s.train.MonitoredSession(hooks=hooks) as sess:
        runs = train(sess, train_op, limit=6)
    return {"runs": runs}


@scenario("recovery.singular_session_does_not")
def _(s: System) -> Record:
    """A singular session passes an `AbortedError` on."""
    _, train_op = counting(s)
    events: list[Any] = []

    def play() -> None:
        with s.train.SingularMonitoredSession(hooks=[recorder(s, events, fails={"before": [aborted(s)]})]) as sess:
            sess.run(train_op)

    return {"error": raised(play), "events": events}


@scenario("recovery.creator_is_asked_again")
def _(s: System) -> Record:
    """A recovery asks the session creator for another session."""
    _, train_op = counting(s)
    made: list[int] = []
    chief = s.train.ChiefSessionCreator()

    class Creator(s.train.SessionCreator):
        def create_session(self) -> Any:
            made.append(len(made))
            return chief.create_session()

    hook = recorder(s, [], fails={"before": [None, aborted(s), aborted(s)]})
    with s.train.MonitoredSession(Creator(), hooks=[hook]) as sess:
        sess.run(train_op)
        sess.run(train_op)
    return {"made": made}


@scenario("recovery.creation_is_tried_again")
def _(s: System) -> Record:
    """A session that cannot be created for an `AbortedError` is tried again."""
    _, train_op = counting(s)
    chief = s.train.ChiefSessionCreator()
    errors = [aborted(s)]

    class Creator(s.train.SessionCreator):
        def create_session(self) -> Any:
            if errors:
                raise errors.pop()
            return chief.create_session()

    events: list[Any] = []
    with s.clock(), s.train.MonitoredSession(Creator(), hooks=[recorder(s, events)]) as sess:
        sess.run(train_op)
    return {"events": events}
