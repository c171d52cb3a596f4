"""Hostile files in a folder of checkpoints give errors of hookline that name the file and the problem, and no hang."""

from __future__ import annotations

import json
import os
import pathlib
import random
import re
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.checkpoint import hostile

import hookline as hl
from hookline import errors, train

# Readers of files that anybody may have written, with any text.
from hookline.checkpoint.directory import lease, schema
from hookline.checkpoint.directory import owner_file as owner
from hookline.cli import main


@pytest.fixture(autouse=True)
def no_hang():
    """Interrupts a wait for a FIFO's other end."""

    def interrupt(*_):
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def trained_in(folder: pathlib.Path, steps: int) -> None:
    def step(state, batch):
        return state | {"w": state["w"] + batch.sum()}, {"loss": batch.sum()}

    state = {"b": jnp.zeros(4, jnp.float16), "key": jax.random.key(1), "w": jnp.ones((2, 3))}
    train.Loop(step, state, hl.data.from_arrays(np.arange(40.0), 4)).run(str(folder), steps)


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> pathlib.Path:
    """A directory with checkpoints of steps 0 and 2."""
    folder = tmp_path_factory.mktemp("logs")
    trained_in(folder, 2)
    return folder


@pytest.fixture
def folder(shared, tmp_path) -> pathlib.Path:
    return shutil.copytree(shared, tmp_path / "logs")


def leaf(fields, variable="state", number=0):
    return fields["variables"][variable]["leaves"][number]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(step="ten"), "step is 'ten', not an integer from 0"),
        (lambda m: m.update(step=10**400), "step is a number of more than 18 digits"),
        (lambda m: m.update(timestamp=float("nan")), "timestamp is NaN, not a number"),
        (lambda m: m.update(timestamp="now"), "timestamp is 'now', not a number"),
        (lambda m: m.update(variables=[]), "variables is a list of 0 items, not an object"),
        (lambda m: m.pop("step"), "step is missing"),
        (lambda m: m.update(extra=1), "extra is 1, not true or false"),
        (lambda m: m.update(devices="cpu"), "devices is 'cpu', not a list"),
        (lambda m: leaf(m, number=2).update(shape=[2, -3]), "variables['state'].leaves[2].shape[1] is -3"),
        (lambda m: leaf(m, number=2).update(shape=[2**62, 2**62], pieces=[]), "leaves[2].shape is larger than any"),
        (
            lambda m: leaf(m).update(shape=[1] * 65),
            "leaves[0].shape is a list of 65 items, not a list of at most 64",
        ),
        (lambda m: leaf(m).update(dtype="O"), "leaves[0].dtype is not the name of a dtype"),
        (lambda m: leaf(m).update(kind="tensor"), "leaves[0].kind is 'tensor', not one of"),
        (lambda m: leaf(m).update(name="state/w"), "leaves[2].name is the name of another leaf"),
        (lambda m: leaf(m)["pieces"][0].update(stop=[9]), "leaves[0].pieces[0] is outside of the shape"),
        (lambda m: leaf(m)["pieces"][0].update(crc32c=-1), "leaves[0].pieces[0].crc32c is -1"),
        (lambda m: leaf(m, "batches", 0).update(value="three"), "variables['batches'].leaves[0].value is no int"),
        (lambda m: m["variables"]["state"].update(structure="AAAA"), "variables['state'].structure"),
        (lambda m: m["variables"]["state"].update(structure=3), "variables['state'].structure is 3, not a string"),
        (lambda m: m["variables"]["state"]["leaves"].pop(), "structure has 3 leaves, and there are 2"),
    ],
)
def test_a_manifest_with_a_wrong_field_is_refused_with_file_and_field(folder, change, message):
    path = folder / "model.ckpt-2"
    fields = json.loads((path / "hookline.json").read_text())
    change(fields)
    (path / "hookline.json").write_text(hostile.signed(fields))
    with pytest.raises(errors.DataLossError, match=re.escape("its hookline.json is damaged: ")) as caught:
        train.list_variables(str(path))
    assert message in str(caught.value)
    assert "model.ckpt-0" in str(caught.value)


def test_shape_that_differs_from_the_files_is_named(folder):
    path = folder / "model.ckpt-2"
    fields = json.loads((path / "hookline.json").read_text())
    leaf(fields, number=2).update(shape=[7], pieces=[])
    (path / "hookline.json").write_text(hostile.signed(fields))
    with pytest.raises(errors.DataLossError, match=r"'state/w' has shape \(2, 3\) in its files, and \(7,\)"):
        train.verify(str(path))


def test_unknown_fields_of_a_manifest_and_of_an_owner_are_ignored(folder):
    path = folder / "model.ckpt-2"
    fields = json.loads((path / "hookline.json").read_text())
    (path / "hookline.json").write_text(hostile.signed(fields | {"mood": ["good"]}))
    assert train.list_variables(str(path))
    me = owner.Owner.this_process(10.0)
    file = folder / ".hookline-owner"
    owner.write(str(file), me)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"mood": "good"}))
    assert owner.read(str(file)) == me


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, '{"a": ' + "[" * 65 + "]" * 65 + "}"])
def test_deeply_nested_json_is_refused_before_parsing(text):
    with pytest.raises(schema.SchemaError, match="has more than 64 levels|is not JSON"):
        schema.load_json(text)
    assert schema.load_json('{"a": "[[[[" , "b": "\\"' + "[" * 100 + '"}') == {"a": "[[[[", "b": '"' + "[" * 100}


@pytest.mark.parametrize("what", hostile.NO_FILES)
@pytest.mark.parametrize("name", ["checkpoint", "checkpoint.tmp", ".hookline-owner", "model.ckpt-2/hookline.json"])
def test_special_file_is_not_opened_and_stops_no_training(folder, name, what):
    hostile.put(folder / name, what)
    if name.startswith("model") and what == "a huge file":
        with pytest.raises(errors.DataLossError, match="is damaged: it has more than"):
            train.list_variables(str(folder / "model.ckpt-2"))
    elif name.startswith("model"):
        with pytest.raises(errors.DataLossError, match="its hookline.json is no regular file"):
            train.list_variables(str(folder / "model.ckpt-2"))
    state = train.get_checkpoint_state(str(folder))
    assert state is not None
    is_lost = name.startswith("model") and what != "a huge file"  # That one is a file: a training stops there.
    assert state.model_checkpoint_path.endswith("-0" if is_lost else "-2")
    with hl.Graph().as_default():
        hl.Variable(1.0, name="w")
        with hl.Session() as sess:
            sess.run(hl.global_variables_initializer())
            saver = train.Saver(max_to_keep=9)
            if what == "a directory" and name in ("checkpoint", ".hookline-owner"):
                with pytest.raises(errors.OpError, match="is in the way|Is a directory"):
                    saver.save(sess, str(folder / "model.ckpt"), 3)
            else:
                saver.save(sess, str(folder / "model.ckpt"), 3)
                assert str(train.latest_checkpoint(str(folder))).endswith("-3")


@pytest.mark.parametrize("what", [*hostile.NO_FILES, "a dangling link", "a link"])
def test_lock_that_is_no_regular_file_is_refused(folder, tmp_path, what):
    lock, beyond = folder / ".hookline-lock", tmp_path / "beyond"
    if what.endswith("link"):
        lock.symlink_to(beyond)
    else:
        hostile.put(lock, what)
    if what == "a link":
        beyond.write_text("mine")
    if what == "a huge file":
        lease.acquire_lease(str(folder), 0)()  # Nothing of it is read.
        return
    kind = "a link" if "link" in what or what == "a device" else what
    with pytest.raises(errors.FailedPreconditionError, match=f"cannot be locked: it is {kind}, not a file. Remove it"):
        lease.acquire_lease(str(folder), 0)
    assert beyond.exists() == (what == "a link")


@pytest.mark.parametrize("what", hostile.NO_FILES)
@pytest.mark.parametrize("name", ["_CHECKPOINT_METADATA", "state/_METADATA", "state/manifest.ocdbt", "state/d/new"])
def test_special_file_among_orbax_files_is_named(folder, name, what):
    path = folder / "model.ckpt-2"
    if name == "state/d/new" and what in ("a directory", "a huge file"):
        pytest.skip("Data may be large, and in folders.")
    hostile.put(path / name, what)
    with pytest.raises(errors.DataLossError, match=rf"broken and cannot be read: its file {name} "):
        train.load_variable(str(path), "state/w")


@pytest.mark.usefixtures("failed_reads")
@pytest.mark.parametrize("count", [15, pytest.param(200, marks=pytest.mark.campaign)])
def test_changed_record_gives_a_hookline_error_or_the_value(folder, count, capsys):
    chance, whole = random.Random(3), count > 100
    path, state = folder / "model.ckpt-2", folder / "checkpoint"
    texts = {path / "hookline.json": (path / "hookline.json").read_text(), state: state.read_text()}
    outcomes = set()
    for _ in range(count):
        signal.alarm(30)
        file, text = chance.choice(list(texts.items()))
        fields = json.loads(text)
        change = hostile.changed_leaf if file != state and chance.randrange(2) else hostile.changed
        for _ in range(chance.randrange(1, 3)):
            change(fields, chance)
        written = hostile.signed(fields) if file != state else json.dumps(fields)
        data = written.encode() if chance.randrange(4) else hostile.changed_text(written, chance)
        file.write_bytes(data)
        for look in (
            lambda: train.get_checkpoint_state(str(folder)),
            lambda: train.list_variables(str(path)),
            lambda: train.verify(str(path)),
            lambda: train.load_variable(str(path), "batches"),
            lambda: train.load(str(folder)),
            lambda: main(["inspect", "--json", str(folder)]),
            lambda: main(["diff", "--json", str(folder / "model.ckpt-0"), str(path)]),
            lambda: main(["clean", "--keep", "1", str(folder)]),
            lambda: trained_in(shutil.copytree(folder, folder.with_name("again")), 3),
        )[: None if whole else -1]:
            try:
                look()
                outcomes.add("fine")
            except errors.OpError:
                outcomes.add("refused")
        file.write_text(text)
        shutil.rmtree(folder.with_name("again"), ignore_errors=True)
    capsys.readouterr()
    assert outcomes == {"fine", "refused"}


def test_link_among_old_checkpoints_leaves_nothing_behind_and_its_target_intact(tmp_path):
    folder, beyond = tmp_path / "logs", tmp_path / "beyond"
    with hl.Graph().as_default():
        hl.Variable(1.0, name="w")
        with hl.Session() as sess:
            sess.run(hl.global_variables_initializer())
            saver = train.Saver(max_to_keep=1)
            saver.save(sess, str(folder / "model.ckpt"), 1)
            (folder / "model.ckpt-1").rename(beyond)
            (folder / "model.ckpt-1").symlink_to(beyond)
            for step in (2, 3):
                saver.save(sess, str(folder / "model.ckpt"), step)
    train.verify(str(beyond))
    assert not [name for name in os.listdir(folder) if ".hookline-removed" in name]
