from __future__ import annotations

import inspect

import numpy as np
import pytest

from hookline import (
    Graph,
    GraphKeys,
    RunOptions,
    Session,
    Variable,
    constant,
    global_variables,
    global_variables_initializer,
    host_op,
    local_variables_initializer,
    placeholder,
    report_uninitialized_variables,
    variables_initializer,
)
from hookline.errors import (
    AbortedError,
    DataLossError,
    DeadlineExceededError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
)
from hookline.train import (
    ChiefSessionCreator,
    Saver,
    Scaffold,
    SessionManager,
    WorkerSessionCreator,
    get_or_create_global_step,
)


class Model:
    def __init__(self, graph):
        self.graph = graph
        self.w = Variable(1.0, name="w")
        self.local = Variable(5.0, name="local", trainable=False, collections=[GraphKeys.LOCAL_VARIABLES])
        self.set_w = self.w.assign(7.0)
        self.init_op = global_variables_initializer()
        self.local_init_op = local_variables_initializer()
        self.ready_op = report_uninitialized_variables()
        self.saver = Saver()

    def manager(self, **arguments):
        defaults = {"local_init_op": self.local_init_op, "ready_op": self.ready_op, "graph": self.graph}
        return SessionManager(**{**defaults, **arguments})

    def save(self, directory):
        with Session(graph=self.graph) as session:
            session.run([self.init_op])
            session.run(self.set_w)
            return self.saver.save(session, str(directory / "model.ckpt"), global_step=3)


@pytest.fixture
def model():
    with Graph().as_default() as graph:
        yield Model(graph)


def test_without_a_checkpoint_the_model_is_initialised_in_order(model, tmp_path):
    seen = []

    def init_fn(session):
        seen.append(float(session.run(model.w)))
        session.run(model.set_w)

    session = model.manager().prepare_session(
        "", init_op=model.init_op, init_fn=init_fn, saver=model.saver, checkpoint_dir=str(tmp_path)
    )
    assert seen == [1.0]
    assert session.run((model.w, model.local)) == (7.0, 5.0)


def test_restored_model_initialises_only_its_local_variables(model, tmp_path):
    model.save(tmp_path)

    def init_fn(session):
        pytest.fail("init_fn ran after a restore")

    session = model.manager().prepare_session(
        "", init_op=model.init_op, init_fn=init_fn, saver=model.saver, checkpoint_dir=str(tmp_path)
    )
    assert session.run((model.w, model.local)) == (7.0, 5.0)


def test_named_checkpoint_is_restored(model, tmp_path):
    path = model.save(tmp_path)
    session = model.manager().prepare_session("", saver=model.saver, checkpoint_filename_with_path=path)
    assert session.run(model.w) == 7.0


def test_saver_continues_with_the_checkpoints_of_the_directory(model, tmp_path):
    path = model.save(tmp_path)
    saver = Saver()
    model.manager().prepare_session("", saver=saver, checkpoint_dir=str(tmp_path))
    assert [str(kept) for kept in saver.last_checkpoints] == [path]


def test_feed_reaches_the_init_op():
    with Graph().as_default() as graph:
        x = placeholder("float32", (), name="x")
        w = Variable(np.float32(0), name="w")
        init_op = w.assign(x)
        session = SessionManager(graph=graph).prepare_session("", init_op=init_op, init_feed_dict={x: 4.0})
        assert session.run(w) == 4.0


@pytest.fixture
def fed():
    """A model whose local variables are initialised from a feed."""
    with Graph().as_default():
        x = placeholder("float32", (), name="x")
        local = Variable(np.float32(0), name="local", trainable=False, collections=[GraphKeys.LOCAL_VARIABLES])
        yield local, Scaffold(local_init_op=local.assign(x), local_init_feed_dict={x: 4.0})


@pytest.mark.parametrize("creator", [ChiefSessionCreator, WorkerSessionCreator])
def test_feed_reaches_the_local_init_op_of_chief_and_worker(fed, creator):
    local, scaffold = fed
    assert creator(scaffold).create_session().run(local) == 4.0


def test_feed_reaches_the_local_init_op_after_a_restore(fed, tmp_path):
    local, scaffold = fed
    Variable(1.0, name="w")
    creator = ChiefSessionCreator(scaffold, checkpoint_dir=str(tmp_path))
    session = creator.create_session()
    scaffold.saver.save(session, str(tmp_path / "model.ckpt"), global_step=3)
    session = creator.create_session()
    assert "model.ckpt-3" in session.origin
    assert session.run(local) == 4.0


def test_local_init_op_runs_with_its_options():
    with Graph().as_default() as graph:
        step = get_or_create_global_step()
        options = RunOptions(last_step=0)
        manager = SessionManager(graph=graph, local_init_op=step.assign_add(1), local_init_run_options=options)
        assert manager.prepare_session("", init_op=global_variables_initializer()).global_step == 0


def test_directory_and_checkpoint_together_are_an_error(model):
    for call in (model.manager().prepare_session, model.manager().recover_session):
        with pytest.raises(ValueError, match="at most one of checkpoint_dir and checkpoint_filename_with_path"):
            call("", checkpoint_dir="a", checkpoint_filename_with_path="b")
    with pytest.raises(ValueError, match="at most one"):
        ChiefSessionCreator(checkpoint_dir="a", checkpoint_filename_with_path="b")


def test_missing_init_op_is_an_error(model, tmp_path):
    with pytest.raises(RuntimeError, match="nothing to initialise it with"):
        model.manager(local_init_op=None).prepare_session("", saver=model.saver, checkpoint_dir=str(tmp_path))


def test_variables_left_uninitialised_are_named(model):
    with pytest.raises(RuntimeError, match=r"did not make the model ready\. Not initialised: w\."):
        model.manager().prepare_session("", init_op=variables_initializer([model.local]))
    ready = report_uninitialized_variables(global_variables())
    with pytest.raises(RuntimeError, match=r"ready for local_init_op\. Not initialised: w\."):
        model.manager(ready_for_local_init_op=ready).prepare_session("", init_op=variables_initializer([model.local]))


def test_session_that_could_not_be_prepared_is_closed(model):
    seen = []

    def init_fn(session):
        seen.append(session)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        model.manager().prepare_session("", init_fn=init_fn)
    assert seen[0].closed


@pytest.mark.usefixtures("failed_reads")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("how", ["missing", "damaged", "of another model"])
def test_unusable_checkpoint_never_leads_to_a_fresh_start(model, tmp_path, how):
    path = model.save(tmp_path)
    arguments = {"checkpoint_dir": str(tmp_path)}
    if how == "missing":
        arguments = {"checkpoint_filename_with_path": str(tmp_path / "model.ckpt-9")}
    elif how == "damaged":
        for file in (tmp_path / path.rpartition("/")[2]).rglob("*"):
            if file.is_file():
                file.write_bytes(b"")
    graph, saver, init_op = model.graph, model.saver, model.init_op
    if how == "of another model":
        with Graph().as_default() as graph:
            Variable(np.zeros(3), name="other")
            saver, init_op = Saver(), global_variables_initializer()
    manager = SessionManager(graph=graph)
    with pytest.raises((OpError, NotFoundError, DataLossError)):
        manager.prepare_session("", init_op=init_op, saver=saver, **arguments)
    with pytest.raises((OpError, NotFoundError, DataLossError)):
        manager.recover_session("", saver=saver, **arguments)


class FailedSaver(Saver):
    """Its last background save has failed, and nothing has reported it yet."""

    def __init__(self, error):
        super().__init__()
        self._untold = [error]

    def wait(self):
        if self._untold:
            raise self._untold.pop()


@pytest.mark.parametrize("how", ["prepare_session", "recover_session"])
def test_failed_save_is_raised_before_an_older_checkpoint_is_restored(model, tmp_path, how):
    model.save(tmp_path)
    saver = FailedSaver(ResourceExhaustedError(None, None, "disk full"))
    with pytest.raises(ResourceExhaustedError, match="disk full"):
        getattr(model.manager(), how)("", saver=saver, checkpoint_dir=str(tmp_path))


def test_save_ended_by_a_lost_session_restores_the_previous_checkpoint(model, tmp_path, caplog):
    model.save(tmp_path)
    saver = FailedSaver(AbortedError(None, None, "gone with the session"))
    session = model.manager().prepare_session("", saver=saver, checkpoint_dir=str(tmp_path))
    assert session.run(model.w) == 7.0
    assert "is lost too: gone with the session" in caplog.text


def test_recover_session_returns_whether_it_restored(model, tmp_path):
    session, restored = model.manager().recover_session("", saver=model.saver, checkpoint_dir=str(tmp_path))
    assert not restored
    session.run(model.init_op)  # initialising is left to the caller
    model.save(tmp_path)
    session, restored = model.manager().recover_session("", saver=model.saver, checkpoint_dir=str(tmp_path))
    assert restored
    assert session.run((model.w, model.local)) == (7.0, 5.0)


def test_recovery_without_a_checkpoint_runs_the_local_init_op_if_ready(model, tmp_path):
    ready = report_uninitialized_variables(global_variables())
    for arguments, local in (({}, [5.0]), ({"ready_for_local_init_op": ready}, [])):
        for saver in (model.saver, None):
            session, restored = model.manager(**arguments).recover_session("", saver, str(tmp_path))
            assert not restored
            assert ([] if session.uninitialized([model.local]) else [session.run(model.local)]) == local


def test_manager_keeps_the_default_graph_of_its_construction(model):
    manager = SessionManager(model.local_init_op, model.ready_op)
    with Graph().as_default():
        session = manager.prepare_session("", init_op=model.init_op)
        assert session.graph is model.graph


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ready_for_local_init_op", constant([])),
        ("local_init_run_options", RunOptions()),
        ("local_init_feed_dict", {"x:0": 1}),
    ],
)
def test_arguments_of_the_local_init_op_need_one(name, value):
    with pytest.raises(ValueError, match=f"SessionManager: {name} does nothing without local_init_op"):
        SessionManager(**{name: value})


@pytest.mark.parametrize("name", sorted(inspect.signature(SessionManager).parameters.keys() - {"recovery_wait_secs"}))
def test_manager_refuses_unusable_arguments(name):
    with pytest.raises(TypeError, match=rf"SessionManager requires an? .* \(or None\) as {name}, got 3"):
        SessionManager(**{name: 3})


@pytest.mark.parametrize("secs", ["30", None, float("nan"), -1])
def test_wait_is_a_number_of_seconds(secs):
    with pytest.raises((TypeError, ValueError), match="SessionManager requires .*recovery_wait_secs"):
        SessionManager(recovery_wait_secs=secs)


def test_partial_checkpoint_does_not_count_as_restored(tmp_path, caplog):
    with Graph().as_default() as graph:
        w, v = Variable(1.0, name="w"), Variable(2.0, name="v")
        saver, init_op, ready_op = Saver([w]), global_variables_initializer(), report_uninitialized_variables()
        with Session() as session:
            session.run(init_op)
            saver.save(session, str(tmp_path / "model.ckpt"))
        manager = SessionManager(graph=graph, ready_op=ready_op)
        _, restored = manager.recover_session("", saver=saver, checkpoint_dir=str(tmp_path))
        assert not restored
        assert "Not initialised: v" in caplog.text
        with pytest.raises(RuntimeError, match="Not initialised: v"):
            manager.prepare_session("", init_op=init_op, saver=saver, checkpoint_dir=str(tmp_path))
        assert v is not None


def test_wait_for_session_ends_soon_after_the_model_is_ready(clock):
    start = clock.monotonic()
    with Graph().as_default() as graph:
        ready_op = host_op(lambda: [] if clock.monotonic() > start + 3 else ["w"]).node()
        SessionManager(ready_op=ready_op, graph=graph).wait_for_session("", max_wait_secs=60)
    assert 3 < clock.monotonic() - start < 3.5


def test_wait_timeout_names_the_missing_condition(model, clock):
    with pytest.raises(DeadlineExceededError, match=r"Waited 5 seconds for the chief .* \(not initialised: w, local\)"):
        model.manager(ready_for_local_init_op=None, local_init_op=None).wait_for_session("", max_wait_secs=5)


def test_wait_for_a_checkpoint_ends_with_it_or_at_the_timeout(model, tmp_path, clock):
    with pytest.raises(DeadlineExceededError, match="a checkpoint in"):
        model.manager().prepare_session(
            "", saver=model.saver, checkpoint_dir=str(tmp_path), wait_for_checkpoint=True, max_wait_secs=5
        )
    model.save(tmp_path)
    session = model.manager().prepare_session(
        "", saver=model.saver, checkpoint_dir=str(tmp_path), wait_for_checkpoint=True, max_wait_secs=5
    )
    assert session.run(model.w) == 7.0


def test_wait_logs_its_reason_repeatedly(model, clock, caplog):
    caplog.set_level("INFO")
    with pytest.raises(DeadlineExceededError):
        model.manager(local_init_op=None, recovery_wait_secs=2).wait_for_session("", max_wait_secs=5)
    assert caplog.text.count("Waiting for the chief") == 2


def test_creators_finalize_their_scaffold_and_pass_its_arguments(model, tmp_path):
    path = model.save(tmp_path)
    scaffold = Scaffold(saver=model.saver)
    session = ChiefSessionCreator(scaffold, checkpoint_filename_with_path=path).create_session()
    assert model.graph.finalized
    assert session.run(model.w) == 7.0


def test_other_master_is_refused(model):
    for creator in (ChiefSessionCreator(master="grpc://a"), WorkerSessionCreator(master="grpc://a")):
        with pytest.raises(ValueError, match="grpc://a"):
            creator.create_session()
