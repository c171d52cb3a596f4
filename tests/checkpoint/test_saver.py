from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import logging
import os
import pathlib
import re
import resource
import shutil
import subprocess
import threading
import weakref
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from orbax.checkpoint import v1 as ocp
from tests import python

import hookline as hl
from hookline import errors, train

# Moments of a save and of a restore in which something fails.
from hookline.checkpoint import orbax_io
from hookline.checkpoint.directory.leaves import Match
from hookline.checkpoint.restoring import reading
from hookline.checkpoint.saving import manager, moves
from hookline.testing import FakeClock
from hookline.train import RetryPolicy, Saver


@pytest.fixture
def logdir(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "logs")


@pytest.fixture
def path(logdir: str) -> str:
    return logdir + "/model.ckpt"


def started(*variables: hl.Variable) -> hl.Session:
    sess = hl.Session()
    sess.run(hl.global_variables_initializer())
    return sess


@pytest.fixture
def sess() -> Iterator[hl.Session]:
    """A session with one variable, `w`."""
    hl.Variable(1.0, name="w")
    with started() as sess:
        yield sess


def names_in(directory) -> list[str]:
    """Returns all names but the owner file's."""
    return sorted(name for name in os.listdir(directory) if not name.startswith(".hookline-"))


def leaves_equal(one, other) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        a.dtype == b.dtype and np.array_equal(raw(a), raw(b)) for a, b in pairs
    )


def raw(leaf):
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Running:
    mean: jax.Array
    count: jax.Array


def test_variable_is_restored_with_value_dtype_and_step(path):
    w = hl.Variable(jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3), name="hidden/w")
    step = hl.train.get_or_create_global_step()
    ahead, spoil = step.assign_add(7), w.assign(jnp.zeros((2, 3), jnp.bfloat16))
    sess = started()
    sess.run(ahead)
    saved = Saver().save(sess, path, global_step=step)
    assert saved == path + "-7"
    sess.run([spoil, ahead])
    Saver().restore(sess, saved)
    assert sess.global_step == 7
    value = sess.run(w)
    assert value.dtype == jnp.bfloat16
    assert np.array_equal(value, np.arange(6).reshape(2, 3))


def structures() -> dict[str, object]:
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    params = {"dense": {"kernel": jnp.ones((2, 2)), "a/b.c": jnp.zeros(3)}, "dense/kernel": jnp.ones(5)}
    return {
        "params": params,
        "opt_state": optax.adam(1e-3).init(params),
        "nnx": nnx.state(model),
        "running": Running(jnp.ones(2), jnp.array(3)),
        "key": {"one": jax.random.key(3), "many": jax.random.split(jax.random.key(1, impl="rbg"), 4)},
        "numbers": (jnp.array(True), jnp.array(5, jnp.int8), jnp.zeros((0, 3), jnp.int32), jnp.ones(2, jnp.complex64)),
        "params/dense": jnp.full(2, 9.0),
        "nothing": (),
    }


def test_any_pytree_is_restored_into_an_uninitialised_graph(path):
    for name, value in structures().items():
        hl.Variable(value, name=name)
    with started() as sess:
        before = sess.snapshot()
        saved = Saver().save(sess, path)
    with hl.Session() as fresh:
        Saver().restore(fresh, saved)
        after = fresh.snapshot()
    assert set(before) == set(structures()) == set(after)
    assert all(leaves_equal(before[name], after[name]) for name in before)
    assert isinstance(after["running"], Running)


def test_orbax_alone_reads_a_checkpoint(path):
    hl.Variable({"dense": {"kernel": jnp.ones((2, 2), jnp.bfloat16)}}, name="params")
    hl.Variable(jnp.arange(3), name="scope/w")
    with started() as sess:
        saved = Saver().save(sess, path, 1)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    tree = ocp.load(saved)
    assert set(tree) == {"params/dense/kernel", "scope/w"}
    assert tree["params/dense/kernel"].dtype == jnp.bfloat16
    abstract = {
        "params/dense/kernel": jax.ShapeDtypeStruct((2, 2), jnp.bfloat16, sharding=sharding),
        "scope/w": jax.ShapeDtypeStruct((3,), jnp.int32, sharding=sharding),
    }
    assert np.array_equal(ocp.load(saved, abstract)["scope/w"], [0, 1, 2])


def test_local_variables_are_not_saved_and_var_list_chooses_and_renames(path):
    w = hl.Variable(1.0, name="w")
    b = hl.Variable(2.0, name="b")
    hl.Variable(3.0, name="local", collections=[hl.GraphKeys.LOCAL_VARIABLES])
    zero = [w.assign(0.0), b.assign(0.0)]
    sess = started()
    everything = Saver().save(sess, path, 1)
    only_w = Saver([w]).save(sess, path, 2)
    renamed = Saver({"old/w": w, "b": b}).save(sess, path, 3)
    assert [name for name, _ in train.list_variables(everything)] == ["b", "w"]
    assert train.list_variables(only_w) == [("w", ())]
    assert [name for name, _ in train.list_variables(renamed)] == ["b", "old/w"]
    sess.run(zero)
    Saver({"old/w": w}).restore(sess, renamed)
    assert sess.run((w, b)) == (1.0, 0.0)


def test_a_variable_of_unknown_spec_is_restored_as_it_was_saved(path):
    load_pretrained = hl.host_op(lambda: {"a": np.ones(2, np.float32), "b": [np.zeros(1, np.int32)]})
    w = hl.Variable(load_pretrained.node(), name="w")
    with started() as sess:
        saved = Saver().save(sess, path)
    with hl.Session() as fresh:
        Saver().restore(fresh, saved)
        assert np.array_equal(fresh.run(w)["b"][0], [0])


def test_changes_after_save_async_are_not_saved(path):
    w = hl.Variable(jnp.ones(1000), name="w")
    grow = w.assign_add(jnp.ones(1000))
    sess = started()
    saver = Saver()
    pending = saver.save_async(sess, path, 1)
    for _ in range(20):
        sess.run(grow)
    pending.wait()
    assert pending.done()
    assert train.load_variable(pending.path, "w")[0] == 1.0
    again = saver.save_async(sess, path, 2)
    third = saver.save_async(sess, path, 3)
    assert again.done()
    third.wait()
    assert saver.last_checkpoints == [f"{path}-{step}" for step in (1, 2, 3)]


def test_old_checkpoint_stays_readable_until_its_replacement_is_complete(path):
    w = hl.Variable(1.0, name="w")
    sess = started()
    saver = Saver()
    saver.save(sess, path)
    sess.run(w.assign(2.0))
    pending = saver.save_async(sess, path)
    while not pending.done():
        assert train.load_variable(path, "w") in (1.0, 2.0)
    pending.wait()
    assert train.load_variable(path, "w") == 2.0
    assert saver.last_checkpoints == [path]
    assert names_in(os.path.dirname(path)) == ["checkpoint", "model.ckpt"]


def test_newest_are_kept_and_recovered_checkpoints_count(path, logdir, sess):
    first = Saver(max_to_keep=2)
    for step in range(3):
        first.save(sess, path, step)
    assert first.last_checkpoints == [path + "-1", path + "-2"]
    assert names_in(logdir) == ["checkpoint", "model.ckpt-1", "model.ckpt-2"]
    second = Saver(max_to_keep=2)
    second.recover_last_checkpoints([path + "-0", *first.last_checkpoints])
    second.save(sess, path, 3)
    assert names_in(logdir) == ["checkpoint", "model.ckpt-2", "model.ckpt-3"]


def test_broken_old_checkpoint_is_kept_with_a_warning(path, caplog, sess):
    first = Saver()
    for step in range(3):
        first.save(sess, path, step)
    pathlib.Path(path + "-1", "hookline.json").write_text("{}")
    second = Saver()
    second.recover_last_checkpoints(first.last_checkpoints)
    assert second.last_checkpoints == [path + "-0", path + "-2"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "model.ckpt-1' is broken" in caplog.text


@pytest.mark.usefixtures("failed_reads")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_only_orbax_errors_of_the_failed_save_are_hidden(path, caplog):
    hl.Variable(jnp.ones(2), name="w")
    sess = started()
    saver = Saver()
    saver.save(sess, path, 0)
    absl, before = logging.getLogger("absl"), list(logging.getLogger("absl").filters)
    with small_files(100):
        pending = saver.save_async(sess, path, 1)
        absl.error("of the user's program")
        with pytest.raises(errors.ResourceExhaustedError):
            pending.wait()
    broken = pathlib.Path(saver.save(sess, path, 2))
    for file in [broken / "_CHECKPOINT_METADATA", *broken.rglob("d/*")]:
        os.truncate(file, 0)
    with pytest.raises(errors.DataLossError):
        saver.restore(sess, str(broken))
    assert absl.filters == before
    assert [record.getMessage() for record in caplog.records if record.name == "absl"] == ["of the user's program"]


def test_one_checkpoint_every_n_hours_is_kept_for_good(path, logdir, sess):
    saver = Saver(max_to_keep=1, keep_checkpoint_every_n_hours=1)
    with FakeClock() as fake:
        for step in range(8):
            saver.save(sess, path, step)
            fake.advance(30 * 60)
    assert names_in(logdir) == ["checkpoint", *(f"model.ckpt-{step}" for step in (2, 4, 6, 7))]


def test_one_checkpoint_every_n_hours_is_kept_though_the_training_restarts_hourly(logdir):
    class Waits(hl.train.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            """Is promised a complete checkpoint: so it is complete before the clock goes on."""

    count = hl.train.get_or_create_global_step().assign_add(1)
    with FakeClock() as fake:
        for _ in range(6):
            saver = Saver(max_to_keep=2, keep_checkpoint_every_n_hours=2)
            hook = hl.train.CheckpointSaverHook(logdir, save_steps=1, saver=saver, listeners=[Waits()])
            creator = hl.train.ChiefSessionCreator(hl.train.Scaffold(saver=saver), checkpoint_dir=logdir)
            with hl.train.MonitoredSession(creator, [hook]) as sess:
                for _ in range(2):
                    fake.advance(31 * 60)
                    sess.run(count)
    kept = sorted(int(name.rpartition("-")[2]) for name in names_in(logdir) if "-" in name)
    assert kept == [4, 8, 11, 12]


def test_failed_save_leaves_nothing_and_is_raised_once(path, logdir):
    hl.Variable(jnp.ones(300_000), name="w")
    sess = started()
    saver = Saver(max_to_keep=1)
    saver.save(sess, path, 1)
    with small_files():
        pending = saver.save_async(sess, path, 2)
        with pytest.raises(errors.ResourceExhaustedError, match=r"ckpt-2' could not be written.*Make room") as told:
            pending.wait()
    assert isinstance(told.value.__cause__, ValueError)
    assert names_in(logdir) == ["checkpoint", "model.ckpt-1"]
    assert train.latest_checkpoint(logdir) == path + "-1"
    saver.save(sess, path, 3)
    with small_files():
        saver.save_async(sess, path, 4)
        with pytest.raises(errors.ResourceExhaustedError):
            saver.save(sess, path, 5)
    assert saver.last_checkpoints == [path + "-3"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hookline-save")]


@contextlib.contextmanager
def small_files(most_bytes: int = 100_000) -> Iterator[None]:
    """A full disk, as far as one process can make one: no file may grow past 100 kB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_read_only_directory_is_refused(tmp_path, sess):
    Saver().save(sess, str(tmp_path / "first" / "model.ckpt"))  # Orbax and its modules are read as this user.
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    is_root = os.geteuid() == 0
    if is_root:
        tmp_path.chmod(0o755)
        for parent in tmp_path.parents:
            if not parent.stat().st_mode & 0o001:
                parent.chmod(0o755)
        os.seteuid(65534)
    try:
        with pytest.raises(errors.PermissionDeniedError, match=r"model.ckpt-1' could not be written") as told:
            Saver().save(sess, str(locked / "model.ckpt"), 1)
    finally:
        if is_root:
            os.seteuid(0)
    assert isinstance(told.value.__cause__, PermissionError)
    assert not list(locked.iterdir())


def test_file_at_the_path_of_a_directory_and_the_reverse_are_refused(tmp_path, sess):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(errors.AlreadyExistsError, match="Something else of that name is in the way"):
        Saver().save(sess, str(tmp_path / "file" / "model.ckpt"))
    with pytest.raises(errors.FailedPreconditionError, match="Something else of that name is in the way"):
        Saver().save(sess, str(tmp_path / "file" / "runs" / "model.ckpt"))
    with pytest.raises(errors.AlreadyExistsError, match=r"will not overwrite .*no checkpoint of hookline"):
        Saver().save(sess, str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(errors.InvalidArgumentError, match="its state file has that name"):
        Saver().save(sess, str(tmp_path / "checkpoint"))
    with pytest.raises(errors.InvalidArgumentError, match="requires a directory and a name"):
        Saver().save(sess, str(tmp_path) + "/")
    with pytest.raises(errors.InvalidArgumentError, match="mount it as a directory"):
        Saver().save(sess, "gs://bucket/model.ckpt")


def left_without_manifest(place: pathlib.Path) -> None:
    (place / "hookline.json").unlink()


def left_empty(place: pathlib.Path) -> None:
    shutil.rmtree(place)
    place.mkdir()


def left_as_a_file(place: pathlib.Path) -> None:
    shutil.rmtree(place)
    place.write_text("was a checkpoint")


@pytest.mark.parametrize("damage", [left_without_manifest, left_empty, left_as_a_file])
@pytest.mark.parametrize("again", [True, False])
def test_checkpoint_remains_are_named_to_readers_and_replaced_by_a_save(path, damage, again, caplog, sess):
    saver, place = Saver(), pathlib.Path(path + "-2")
    for step in (1, 2):
        saver.save(sess, path, step)
    damage(place)
    for look in (
        lambda: saver.restore(sess, str(place)),
        lambda: train.load_variable(str(place), "w"),
        lambda: train.verify(os.path.dirname(path)),
    ):
        with pytest.raises(errors.DataLossError, match=r"model.ckpt-2' is broken and cannot be read: it .*ckpt-1\."):
            look()
    saver.restore(sess, path + "-1")
    if again:
        saver = Saver()
    train.verify(saver.save(sess, path, 2))
    assert os.path.exists(f"{place}.hookline-broken")
    assert f"The remains of checkpoint '{place}' are in the way of a new one (it " in caplog.text


@pytest.mark.parametrize("damage", [left_without_manifest, left_empty, left_as_a_file])
@pytest.mark.parametrize("step", [1, 2])
def test_remains_at_the_path_of_a_complete_checkpoint_are_moved(path, damage, step, caplog, sess):
    """A process was killed before the last of its renames, and something else was put at that path."""
    place = pathlib.Path(path + "-1")
    Saver().save(sess, path, 1)
    shutil.copytree(place, f"{place}.hookline-saving")
    damage(place)
    Saver().save(sess, path, step)
    train.verify(str(place))
    assert f"The remains at '{place}' are in the way of the complete checkpoint, and were moved to " in caplog.text
    broken = pathlib.Path(f"{place}.hookline-broken")
    assert broken.exists()
    assert not (broken / "hookline.json").exists()
    assert not os.path.exists(f"{place}.hookline-saving")


def test_pending_save_does_not_keep_its_session_alive(path):
    hl.Variable(1.0, name="w")
    sess, saver, may_commit = started(), Saver(), threading.Event()
    saver.add_pre_commit(may_commit.wait)
    pending, forgotten = saver.save_async(sess, path, 1), weakref.ref(sess)
    del sess
    try:
        for _ in range(100):
            gc.collect()  # Does nothing while another thread collects.
            if forgotten() is None:
                break
            threading.Event().wait(0.05)
        assert forgotten() is None
    finally:
        may_commit.set()
    pending.wait()
    train.verify(path + "-1")


def test_failed_pre_commit_leaves_nothing_of_the_save(path, logdir, sess):
    saver, filters, failures = Saver(), list(logging.getLogger("absl").filters), [KeyError("a mistake")]

    def fail():
        if failures:
            raise failures.pop()

    saver.add_pre_commit(fail)
    with pytest.raises(errors.UnknownError, match="a mistake"):
        saver.save(sess, path, 1)
    assert logging.getLogger("absl").filters == filters
    assert not [thread for thread in threading.enumerate() if "type_handler" in thread.name]  # Orbax writes in it.
    assert names_in(logdir) == []
    train.verify(saver.save(sess, path, 2))


BESIDE_A_FAILED_SAVE = """
import os, sys
import numpy as np
from orbax.checkpoint import AsyncCheckpointer, StandardCheckpointHandler
from orbax.checkpoint.args import StandardSave
import hookline as hl
from hookline.checkpoint import Saver

own = AsyncCheckpointer(StandardCheckpointHandler())
own.save(os.path.abspath("file/own"), args=StandardSave({"w": np.ones(3)}))
try:
    own.wait_until_finished()
except OSError as error:
    print("own:", error)
hl.Variable(1.0, name="w")
with hl.Session() as sess:
    sess.run(hl.global_variables_initializer())
    Saver().save_async(sess, "model.ckpt", 1).wait()
print("saved")
sys.stdout.flush()
os._exit(0)  # Orbax's threads would wait five minutes for the save that failed.
"""


def test_failed_orbax_save_of_the_script_blocks_no_save(tmp_path, environment):
    (tmp_path / "file").write_text("")
    done = python.run("-c", BESIDE_A_FAILED_SAVE, cwd=tmp_path, env=environment(), timeout=60)
    assert done.stdout.startswith("own: "), done.stderr
    assert done.stdout.endswith("\nsaved\n"), done.stderr
    train.verify(str(tmp_path / "model.ckpt-1"))


def test_value_that_cannot_be_saved_is_named():
    w = hl.Variable(1.0, name="w")
    with pytest.raises(TypeError, match="requires variables in var_list, got str: 'w'"):
        Saver(["w"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="a variable or more"):
        Saver([])
    with pytest.raises(ValueError, match="each variable once"):
        Saver([w, w])
    with pytest.raises(ValueError, match="max_to_keep >= 0"):
        Saver(max_to_keep=-1)
    with pytest.raises(ValueError, match="keep_checkpoint_every_n_hours > 0"):
        Saver(keep_checkpoint_every_n_hours=0)
    with pytest.raises(errors.FailedPreconditionError, match="'w' has no value yet"), hl.Session() as sess:
        Saver().save(sess, "/nowhere/model.ckpt")
    with pytest.raises(ValueError, match="no global variables"), hl.Session(graph=hl.Graph()) as sess:
        Saver().save(sess, "/nowhere/model.ckpt")


def test_all_mismatches_are_listed_and_nothing_is_changed(path):
    with hl.Graph().as_default():
        hl.Variable({"kernel": jnp.ones((2, 2)), "old": jnp.ones(1)}, name="params")
        hl.Variable(jnp.ones(2), name="shape")
        hl.Variable(jnp.ones(2), name="dtype")
        hl.Variable(1.0, name="spare")
        with started() as sess:
            saved = Saver().save(sess, path)
    hl.Variable({"kernel": jnp.zeros((2, 2)), "new": jnp.zeros(1)}, name="params")
    hl.Variable(jnp.zeros(3), name="shape")
    hl.Variable(jnp.zeros(2, jnp.int32), name="dtype")
    absent = hl.Variable(0.0, name="absent")
    sess = started()
    with pytest.raises(errors.NotFoundError) as told:
        Saver().restore(sess, saved)
    for line in (
        "missing in the checkpoint: params/new",
        "missing in the checkpoint: absent",
        "only in the checkpoint: params/old",
        "only in the checkpoint: spare",
        "different: shape has shape (2,) in the checkpoint, (3,) in the graph",
        "different: dtype has dtype float32 in the checkpoint, int32 in the graph",
        "var_list=",
    ):
        assert line in str(told.value)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(sess.snapshot()))
    shape_alone = [v for v in hl.global_variables() if v.op.name == "shape"]
    with pytest.raises(errors.InvalidArgumentError, match="nothing was changed"):
        Saver(shape_alone).restore(sess, saved)
    with pytest.raises(errors.NotFoundError):
        Saver([absent]).restore(sess, saved)


def test_variable_only_in_the_checkpoint_is_ignored(path):
    with hl.Graph().as_default():
        hl.Variable(1.0, name="w")
        hl.Variable(jnp.ones(4), name="w/adam")
        with started() as sess:
            saved = Saver().save(sess, path)
    w = hl.Variable(0.0, name="w")
    with hl.Session() as sess:
        Saver().restore(sess, saved)
        assert sess.run(w) == 1.0


def test_no_checkpoint_and_a_missing_path_give_different_errors(path, logdir, tmp_path, sess):
    Saver().save(sess, path, 5)
    with pytest.raises(errors.NotFoundError, match=r"no checkpoint '.*model.ckpt-6'.*Checkpoints in .*: model.ckpt-5"):
        Saver().restore(sess, path + "-6")
    with pytest.raises(errors.InvalidArgumentError, match="is a directory of checkpoints"):
        Saver().restore(sess, logdir)
    foreign = str(tmp_path / "foreign")
    ocp.save(foreign, {"w": jnp.ones(2)})
    with pytest.raises(errors.InvalidArgumentError, match="Orbax checkpoint of another program"):
        Saver().restore(sess, foreign)
    with pytest.raises(errors.NotFoundError, match="is no checkpoint of hookline.*no checkpoint has been saved in it"):
        Saver().restore(sess, str(tmp_path))
    with pytest.raises(errors.InvalidArgumentError, match="is a file"):
        Saver().restore(sess, path + "-5/hookline.json")


@pytest.mark.usefixtures("failed_reads")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("damage", ["truncated", "a file is gone", "manifest"])
def test_broken_checkpoint_is_data_loss_and_restores_nothing(path, damage):
    a = hl.Variable(jnp.arange(50_000), name="a")
    hl.Variable(jnp.arange(50_000), name="b")
    sess = started()
    saver = Saver()
    saver.save(sess, path, 1)
    broken = saver.save(sess, path, 2)
    sess.run(a.assign(jnp.zeros(50_000, jnp.int32)))
    if damage == "manifest":
        pathlib.Path(broken, "hookline.json").write_text("{}")
    elif damage == "truncated":
        for file in pathlib.Path(broken, "state").rglob("d/*"):
            os.truncate(file, file.stat().st_size // 2)
    else:
        shutil.rmtree(pathlib.Path(broken, "state", "ocdbt.process_0"))
    with pytest.raises(errors.DataLossError, match=r"model.ckpt-2' is broken.*Restore another one.*model.ckpt-1"):
        saver.restore(sess, broken)
    assert not np.any(sess.run(a))
    saver.restore(sess, path + "-1")
    assert sess.run(a)[3] == 3


def test_checkpoint_replaced_during_a_read_is_read_again(path):
    def save(value) -> None:
        with hl.Graph().as_default():
            hl.Variable(value, name="w")
            with started() as sess:
                Saver().save(sess, path)

    save(jnp.ones(2))
    looks = []

    def choose(manifest):
        looks.append(manifest)
        if len(looks) == 1:
            save(jnp.zeros(3))
        return {"w": Match(manifest.variables["w"].leaves, jax.tree.structure(0))}

    assert np.array_equal(reading.read(path, choose)["w"], np.zeros(3))
    assert len(looks) == 2


def test_arguments_without_effect_are_accepted_and_logged_once(path: str, caplog):
    w = hl.Variable([1.0, 2.0, 3.0, 4.0], name="w")
    with caplog.at_level(logging.INFO, logger="hookline"), started(w) as sess:
        for _ in range(2):
            saver = Saver([w], sharded=True, restore_sequentially=True, save_relative_paths=True, write_version=2)
            saver.save(sess, path, 1, write_meta_graph=False)
    said = [record.getMessage() for record in caplog.records if "without effect" in record.getMessage()]
    assert said == [
        "Saver accepts these arguments without effect: "
        "restore_sequentially, save_relative_paths, sharded, write_version.",
        "Saver.save accepts these arguments without effect: write_meta_graph.",
    ]
    with pytest.raises(TypeError, match="Saver has no argument 'shardet'"):
        Saver(shardet=True)
    with started(w) as sess, pytest.raises(TypeError, match=r"Saver\.save has no argument 'stepp'"):
        Saver().save(sess, path, stepp=1)


def test_padded_step_is_found_again(path: str, logdir: str):
    w = hl.Variable(1.0, name="w")
    with started(w) as sess:
        saver = Saver(pad_step_number=True, max_to_keep=1)
        saver.save(sess, path, 7)
        saved = saver.save(sess, path, 8)
        assert saved == f"{path}-00000008" == hl.train.latest_checkpoint(logdir)
        assert saver.last_checkpoints == [saved]
        saver.restore(sess, saved)


def test_another_shape_is_restored_on_request(path: str):
    w = hl.Variable(np.arange(6.0, dtype="float32").reshape(2, 3), name="w")
    with started(w) as sess:
        saved = Saver().save(sess, path)
    with hl.Graph().as_default():
        flat = hl.Variable(np.zeros(6, "float32"), name="w")
        with started(flat) as sess:
            with pytest.raises(errors.InvalidArgumentError, match=r"shape \(2, 3\) in the checkpoint"):
                Saver().restore(sess, saved)
            Saver(reshape=True).restore(sess, saved)
            assert sess.run(flat).tolist() == [0, 1, 2, 3, 4, 5]
    with hl.Graph().as_default():
        other = hl.Variable(np.zeros(5, "float32"), name="w")
        with started(other) as sess, pytest.raises(errors.InvalidArgumentError, match="different: w has shape"):
            Saver(reshape=True).restore(sess, saved)


def test_empty_save_is_possible_on_request(path: str):
    with hl.Session() as sess:
        saver = Saver(allow_empty=True)
        saved = saver.save(sess, path, 3)
        saver.restore(sess, saved)
        assert hl.train.list_variables(saved) == []


def test_part_of_a_variable_or_folder_is_loaded_by_name(path: str):
    opt = hl.Variable(lambda: optax.adam(0.1).init({"w": jnp.ones(2)}), name="opt_state/net", trainable=False)
    other = hl.Variable(5.0, name="opt_state/other")
    with started(opt, other) as sess:
        saved = Saver().save(sess, path)
    loaded = hl.train.load_variable(saved, "opt_state/net")
    assert loaded["0"].keys() == {"count", "mu", "nu"}
    assert loaded["0"]["mu"]["w"].tolist() == [0.0, 0.0]
    assert hl.train.load_variable(saved, "opt_state").keys() == {"net", "other"}
    assert hl.train.load_variable(saved, "opt_state/net/0/mu")["w"].tolist() == [0.0, 0.0]
    with pytest.raises(errors.NotFoundError, match="has no 'slot'"):
        hl.train.load_variable(saved, "slot")
    assert hl.train.load_variable(saved, other.name) == 5.0, "the name of a tensor means its variable"
    assert hl.train.load_variable(saved, opt.name).keys() == loaded.keys()


def test_names_of_both_a_value_and_a_folder_are_loaded_one_by_one(path: str):
    with started(hl.Variable(1.0, name="n/w"), hl.Variable(2.0, name="n/w/v")) as sess:
        saved = Saver().save(sess, path)
    with pytest.raises(ValueError, match="load each by its full name"):
        hl.train.load_variable(saved, "n")
    assert [float(hl.train.load_variable(saved, name)) for name in ("n/w", "n/w/v")] == [1.0, 2.0]


@pytest.fixture
def small_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of 4 MiB."""
    if os.geteuid() != 0:
        pytest.skip("file systems are mounted by root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    gc.collect()
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


class Freeing(logging.Handler):
    """Frees disk space when a log line announces the second retry of the save."""

    def __init__(self, filler):
        super().__init__()
        self.filler, self.lines = filler, []

    def emit(self, record):
        self.lines.append(record.getMessage())
        if "Attempt 3 of 4" in self.lines[-1]:
            self.filler.unlink()


def test_save_to_a_full_disk_is_retried(small_disk):
    hl.Variable(jnp.ones(200_000), name="w")
    sess, saver, filler = started(), Saver(), small_disk / "filler"
    path = str(small_disk / "model.ckpt")
    saver.save(sess, path, 1)
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - 300_000))
    freeing = Freeing(filler)
    logger = logging.getLogger("hookline.checkpoint.saving.failures")
    logger.addHandler(freeing)
    try:
        with FakeClock() as clock:
            before = clock.monotonic()
            saver.save(sess, path, 2)
            assert clock.monotonic() - before == 1 + 2
    finally:
        logger.removeHandler(freeing)
    assert [line.rpartition("Attempt")[2] for line in freeing.lines] == [
        " 2 of 4 follows in 1 s.",
        " 3 of 4 follows in 2 s.",
    ]
    train.verify(path + "-2")
    assert names_in(small_disk) == ["checkpoint", "model.ckpt-1", "model.ckpt-2"]
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - 300_000))
    with (
        FakeClock(),
        pytest.raises(errors.ResourceExhaustedError, match=r"model.ckpt-3' could not be written.*Make room"),
    ):
        Saver(retry=RetryPolicy(max_attempts=2)).save(sess, path, 3)
    assert names_in(small_disk) == ["checkpoint", "filler", "model.ckpt-1", "model.ckpt-2"]
    sess.close()


def test_pending_removals_of_a_killed_process_are_done_by_the_next(path, logdir, monkeypatch, sess):
    saver = Saver(max_to_keep=2)
    saver.save(sess, path, 1)
    saver.save(sess, path, 2)
    with monkeypatch.context() as killed:
        killed.setattr(moves, "remove", lambda old: None)
        saver.save(sess, path, 3)
    assert names_in(logdir) == ["checkpoint", "model.ckpt-1", "model.ckpt-2", "model.ckpt-3"]
    again = Saver(max_to_keep=2)
    again.recover_last_checkpoints(train.get_checkpoint_state(logdir).all_model_checkpoint_paths)
    again.save(sess, path, 4)
    assert names_in(logdir) == ["checkpoint", "model.ckpt-3", "model.ckpt-4"]


def test_old_checkpoints_that_cannot_be_removed_delay_no_save(path, logdir, monkeypatch, caplog):
    def busy(old):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), old)

    hl.Variable(1.0, name="w")
    with started() as sess, FakeClock() as clock:
        saver, begun = Saver(max_to_keep=1), clock.monotonic()
        with monkeypatch.context() as patched:
            patched.setattr(moves, "remove", busy)
            for step in range(3):
                saver.save(sess, path, step)
        assert clock.monotonic() == begun
        assert f"'{path}-0' could not be removed, and stays until the next save: " in caplog.text
        assert names_in(logdir) == ["checkpoint", "model.ckpt-0", "model.ckpt-1", "model.ckpt-2"]
        saver.save(sess, path, 3)
    assert names_in(logdir) == ["checkpoint", "model.ckpt-3"]


@pytest.mark.parametrize(
    ("failure", "attempts"),
    [(TypeError("a mistake"), 1), (ValueError("nothing there"), 4), (FileNotFoundError("nothing there"), 4)],
)
def test_missing_orbax_file_is_retried_and_a_mistake_is_not(path, failure, attempts, monkeypatch, caplog):
    def fail(*given):
        raise failure

    hl.Variable(1.0, name="w")
    monkeypatch.setattr(orbax_io, "start_writing", fail)
    with started() as sess, FakeClock(), pytest.raises(errors.UnknownError, match=str(failure)):
        Saver().save(sess, path, 1)
    assert caplog.text.count(" follows in ") == attempts - 1


def test_best_is_recorded_by_the_next_save_if_the_state_file_cannot_be_written(path, logdir, monkeypatch, caplog):
    hl.Variable(1.0, name="w")
    with started() as sess, FakeClock() as clock:
        saver, begun = Saver(), clock.monotonic()
        for step in (1, 2):
            saver.save(sess, path, step)
        with monkeypatch.context() as patched:
            patched.setattr(manager, "write_state", broken_disk)
            saver.mark_best(1)
        assert clock.monotonic() == begun
        assert f"'{path}-1' is the best checkpoint; only the next save can record that: " in caplog.text
        assert train.get_checkpoint_state(logdir).best is None
        saver.save(sess, path, 3)
    assert train.get_checkpoint_state(logdir).best == f"{path}-1"


def test_mark_best_does_not_wait_for_a_pending_save(path, logdir, monkeypatch, sess):
    writes, writing, named = manager.write_state, threading.Event(), threading.Event()

    def held_up(*given):
        writing.set()
        assert named.wait(30)
        writes(*given)

    saver = Saver()
    saver.save(sess, path, 1)
    monkeypatch.setattr(manager, "write_state", held_up)
    pending = saver.save_async(sess, path, 2)
    assert writing.wait(30)
    saver.mark_best(1)
    named.set()
    pending.wait()
    assert train.get_checkpoint_state(logdir).best == f"{path}-1"


def broken_disk(*given):
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_failed_save_does_not_keep_the_values_alive(path):
    w = hl.Variable(jnp.ones(300_000), name="w")
    sess = started()
    saver = Saver(retry=RetryPolicy(max_attempts=1))
    saver.save(sess, path, 1)
    sess.run(w.assign(jnp.zeros(300_000)))
    gc.collect()
    before = sum(array.nbytes for array in jax.live_arrays())
    with small_files(), pytest.raises(errors.ResourceExhaustedError) as caught:
        saver.save(sess, path, 2)
    for _ in range(200):  # Orbax's threads end one after the other.
        gc.collect()
        if sum(array.nbytes for array in jax.live_arrays()) <= before:
            break
        threading.Event().wait(0.05)
    else:
        pytest.fail("the copy that was to be written is still there")
    assert caught.value.__cause__.__traceback__ is None


def test_other_threads_wait_for_a_rollback_and_find_values(tmp_path):
    weights = hl.Variable(jnp.zeros((300, 300)), name="weights")
    look, found, failures = hl.op(jnp.sum)(weights), [], []
    with hl.Session() as session:
        session.run(weights.initializer)
        saver = Saver()
        saver.save(session, str(tmp_path / "model.ckpt"))
        is_over = threading.Event()

        def read():
            while not is_over.is_set():
                try:
                    found.append(float(session.run(look)))
                except Exception as error:
                    failures.append(error)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            saver.roll_back(session)
        is_over.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert set(found) == {0.0}


def test_rollback_that_fails_half_way_invalidates_the_session(tmp_path):
    weights = hl.Variable(jnp.ones((300, 300)), name="weights")
    with hl.Session() as session:
        session.run(weights.initializer)
        saver = Saver()
        path = saver.save(session, str(tmp_path / "model.ckpt"))
        for file in (part for part in tmp_path.rglob("*") if part.is_file() and part.parent.name == "d"):
            file.write_bytes(bytes(len(file.read_bytes())))
        with pytest.raises(errors.DataLossError, match=re.escape(path)):
            saver.roll_back(session)
        with pytest.raises(errors.AbortedError, match="its variables were freed for others, which could not be read"):
            session.run(weights)


@pytest.mark.parametrize("restores", [True, False])
def test_saver_logs_checkpoints_of_an_earlier_session(path, logdir, caplog, restores):
    hl.Variable(1.0, name="w")
    for steps in ((1, 2), (3, 4)):
        saver = Saver()
        with hl.Session() as sess:
            sess.run(hl.global_variables_initializer())
            if restores and (newest := train.latest_checkpoint(logdir)):
                saver.restore(sess, newest)
            for step in steps:
                saver.save(sess, path, step)
    told = [line for line in caplog.messages if "begins to save in" in line]
    assert len(told) == (not restores)
    for line in told:
        assert f"'{logdir}' beside checkpoints that this session did not restore (model.ckpt-1, model.ckpt-2): " in line
        assert f"saver.restore(session, train.latest_checkpoint('{logdir}'))" in line
        assert "To start over, use another directory." in line


def test_hook_logs_checkpoints_of_an_earlier_session_unless_it_resumed(logdir, caplog):
    train_op = train.get_or_create_global_step().assign_add(1)
    for last_step, arguments in ((2, {}), (4, {"checkpoint_dir": logdir}), (1, {})):
        caplog.clear()
        scaffold = train.Scaffold(saver=Saver())
        hooks = [
            train.CheckpointSaverHook(logdir, save_steps=1, scaffold=scaffold),
            train.StopAtStepHook(last_step=last_step),
        ]
        with train.MonitoredSession(train.ChiefSessionCreator(scaffold, **arguments), hooks) as session:
            while not session.should_stop():
                session.run(train_op)
    told = [line for line in caplog.messages if "begins to save in" in line]
    assert len(told) == 1
    assert "(model.ckpt-0, model.ckpt-2, model.ckpt-3 and 1 more)" in told[0]
