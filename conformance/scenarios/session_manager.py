"""SessionManager and the session creators."""

from __future__ import annotations

from typing import Any

from conformance.parts import counting, raised
from conformance.scenario import Record, scenario
from conformance.system import System


def _manager(s: System, **arguments: Any) -> Any:
    return s.train.SessionManager(ready_op=s.report_uninitialized_variables(), **arguments)


def _saved(s: System, variable: Any, value: float) -> Any:
    """Saves a variable with a value and returns the saver."""
    saver, change = s.train.Saver([variable]), variable.assign(value)
    with s.Session() as sess:
        sess.run(change)
        saver.save(sess, f"{s.folder}/model", global_step=1)
    return saver


@scenario("session_manager.initialises")
def _(s: System) -> Record:
    """Without a checkpoint `init_op` runs, then `init_fn`."""
    weight = s.Variable(1.0, name="weight")
    calls: list[float] = []
    manager, init = _manager(s), s.global_variables_initializer()
    with manager.prepare_session(
        "", init_op=init, init_fn=lambda session: calls.append(float(session.run(weight)))
    ) as sess:
        return {"weight": sess.run(weight), "calls": calls}


@scenario("session_manager.restores")
def _(s: System) -> Record:
    """With a checkpoint neither runs."""
    weight = s.Variable(1.0, name="weight")
    saver = _saved(s, weight, 4.0)
    calls: list[int] = []
    manager, init = _manager(s), s.global_variables_initializer()
    with manager.prepare_session(
        "", init_op=init, saver=saver, checkpoint_dir=s.folder, init_fn=lambda _: calls.append(1)
    ) as sess:
        return {"weight": sess.run(weight), "calls": calls}


@scenario("session_manager.restores_a_named_checkpoint")
def _(s: System) -> Record:
    """A checkpoint may be named instead of a directory; both are an error."""
    weight = s.Variable(1.0, name="weight")
    saver = _saved(s, weight, 4.0)
    manager, init = _manager(s), s.global_variables_initializer()
    path = s.train.latest_checkpoint(s.folder)
    both = raised(manager.prepare_session, "", saver=saver, checkpoint_dir=s.folder, checkpoint_filename_with_path=path)
    with manager.prepare_session("", init_op=init, saver=saver, checkpoint_filename_with_path=path) as sess:
        return {"weight": sess.run(weight), "both": both}


@scenario("session_manager.nothing_to_initialise_with")
def _(s: System) -> Record:
    """Nothing to restore and nothing to initialise with is an error."""
    s.Variable(1.0, name="weight")
    return {"error": raised(_manager(s).prepare_session, "")}


@scenario("session_manager.not_ready_afterwards")
def _(s: System) -> Record:
    """A model that is not ready afterwards is an error."""
    s.Variable(1.0, name="weight")
    manager, nothing = _manager(s), s.no_op()
    return {"error": raised(manager.prepare_session, "", init_op=nothing)}


@scenario("session_manager.local_init")
def _(s: System) -> Record:
    """`local_init_op` runs once the model is ready for it."""
    s.Variable(1.0, name="weight")
    local = s.Variable(2.0, name="local", collections=[s.GraphKeys.LOCAL_VARIABLES])
    manager = _manager(
        s,
        ready_for_local_init_op=s.report_uninitialized_variables(s.global_variables()),
        local_init_op=s.local_variables_initializer(),
    )
    init = s.global_variables_initializer()
    with manager.prepare_session("", init_op=init) as sess:
        return {"local": sess.run(local)}


@scenario("session_manager.local_init_of_a_model_not_ready")
def _(s: System) -> Record:
    """A model that is not ready for its local initialisation is an error."""
    s.Variable(1.0, name="weight")
    manager = _manager(
        s,
        ready_for_local_init_op=s.report_uninitialized_variables(s.global_variables()),
        local_init_op=s.local_variables_initializer(),
    )
    nothing = s.no_op()
    return {"error": raised(manager.prepare_session, "", init_op=nothing)}


@scenario("session_manager.ready_for_local_init_without_it")
def _(s: System) -> Record:
    """`ready_for_local_init_op` without `local_init_op`."""
    ready = s.report_uninitialized_variables()
    return {"error": raised(s.train.SessionManager, ready_op=ready, ready_for_local_init_op=ready)}


@scenario("session_manager.graph_of_its_making")
def _(s: System) -> Record:
    """A manager works on the graph that was the default when it was made."""
    weight = s.Variable(2.0, name="weight")
    manager, init = _manager(s), s.global_variables_initializer()
    with s.Graph().as_default(), manager.prepare_session("", init_op=init) as sess:
        return {"same": sess.graph is weight.graph}


@scenario("session_manager.recover_without_a_checkpoint")
def _(s: System) -> Record:
    """`recover_session` without a checkpoint gives a session that is not ready."""
    weight = s.Variable(1.0, name="weight")
    sess, restored = _manager(s).recover_session("", saver=s.train.Saver(), checkpoint_dir=s.folder)
    with sess:
        return {"restored": restored, "read": raised(sess.run, weight)}


@scenario("session_manager.recover_from_a_checkpoint")
def _(s: System) -> Record:
    """`recover_session` with a checkpoint restores it."""
    weight = s.Variable(1.0, name="weight")
    saver = _saved(s, weight, 6.0)
    sess, restored = _manager(s).recover_session("", saver=saver, checkpoint_dir=s.folder)
    with sess:
        return {"restored": restored, "weight": sess.run(weight)}


@scenario("session_manager.recover_a_part")
def _(s: System) -> Record:
    """A checkpoint that does not hold all leaves a session that is not ready."""
    weight = s.Variable(1.0, name="weight")
    s.Variable(1.0, name="other")
    saver = _saved(s, weight, 6.0)
    sess, restored = _manager(s).recover_session("", saver=saver, checkpoint_dir=s.folder)
    with sess:
        return {"restored": restored, "weight": sess.run(weight)}


@scenario("session_manager.recover_waits_for_a_checkpoint")
def _(s: System) -> Record:
    """To wait for a checkpoint that does not come ends after a time."""
    s.Variable(1.0, name="weight")
    manager, saver = _manager(s, recovery_wait_secs=1), s.train.Saver()
    with s.clock():
        error = raised(
            manager.recover_session, "", saver=saver, checkpoint_dir=s.folder, wait_for_checkpoint=True, max_wait_secs=5
        )
    return {"error": error}


@scenario("session_manager.wait_for_session_in_vain")
def _(s: System) -> Record:
    """To wait for a model that nobody makes ready ends with `DeadlineExceededError`."""
    s.Variable(1.0, name="weight")
    manager = _manager(s, recovery_wait_secs=1)
    with s.clock():
        return {"error": raised(manager.wait_for_session, "", max_wait_secs=5)}


@scenario("session_manager.wait_for_session_without_variables")
def _(s: System) -> Record:
    """A model without variables is ready at once."""
    x = s.constant(1.0)
    with _manager(s).wait_for_session("", max_wait_secs=5) as sess:
        return {"x": sess.run(x)}


@scenario("creators.worker_waits_in_vain")
def _(s: System) -> Record:
    """A worker gives up after `max_wait_secs`."""
    counting(s)
    creator = s.train.WorkerSessionCreator(max_wait_secs=5)
    with s.clock():
        return {"error": raised(creator.create_session)}


@scenario("creators.chief_with_two_sources")
def _(s: System) -> Record:
    """A chief restores from a directory or from a checkpoint, not from both."""
    counting(s)

    def create() -> None:
        s.train.ChiefSessionCreator(
            checkpoint_dir=s.folder, checkpoint_filename_with_path=f"{s.folder}/model"
        ).create_session()

    return {"error": raised(create)}


@scenario("creators.chief_of_a_named_checkpoint")
def _(s: System) -> Record:
    """A chief restores the checkpoint that it is given."""
    weight = s.Variable(1.0, name="weight")
    _saved(s, weight, 5.0)
    path = s.train.latest_checkpoint(s.folder)
    with s.train.ChiefSessionCreator(checkpoint_filename_with_path=path).create_session() as sess:
        return {"weight": sess.run(weight)}


@scenario("creators.of_ones_own")
def _(s: System) -> Record:
    """A session creator of one's own makes the session."""
    x = s.constant(2.0)
    made: list[Any] = []

    class Creator(s.train.SessionCreator):
        def create_session(self) -> Any:
            made.append(s.Session())
            return made[-1]

    with s.train.MonitoredSession(Creator()) as sess:
        return {"x": sess.run(x), "made": len(made)}
