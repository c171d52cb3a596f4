"""A checkpoint that was changed on the disk is refused, so a restore gives the saved bits."""

from __future__ import annotations

import json
import pathlib
import random

import google_crc32c
import jax
import numpy as np
import pytest
from tests.loop.devices import run

import hookline as hl
from hookline import train
from hookline.errors import DataLossError, FailedPreconditionError
from hookline.train import Saver

SIZE = 3000

pytestmark = [
    pytest.mark.usefixtures("failed_reads"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def saved(tmp_path):
    """Returns a session, a saver and the path of its checkpoint."""
    hl.Variable(np.linspace(1, 2, SIZE, dtype=np.float32), name="dense/kernel")
    hl.Variable({"count": np.arange(7), "key": jax.random.key(3)}, name="opt_state")
    session = hl.Session()
    session.run(hl.global_variables_initializer())
    saver = Saver()
    return session, saver, saver.save(session, str(tmp_path / "model.ckpt"), global_step=5)


def values(session):
    kernel, opt_state = session.run(hl.global_variables())
    return (
        np.asarray(kernel).tobytes(),
        np.asarray(opt_state["count"]).tobytes(),
        str(jax.random.key_data(opt_state["key"])),
    )


def files_of(path):
    return sorted(file for file in pathlib.Path(path).rglob("*") if file.is_file())


def data_file(path):
    """The largest file: the one that the arrays are in."""
    return max(files_of(path), key=lambda file: file.stat().st_size)


def test_no_flipped_bit_is_restored(saved):
    session, saver, path = saved
    before, outcomes = values(session), []
    generator = random.Random(0)
    for trial in range(60):
        file = data_file(path) if trial % 2 else generator.choice(files_of(path))
        whole = file.read_bytes()
        if not whole:
            continue
        position, bit = generator.randrange(len(whole)), generator.randrange(8)
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 1 << bit]) + whole[position + 1 :])
        try:
            saver.restore(session, path)
            outcomes.append("same" if values(session) == before else f"changed by bit {bit} of {position} in {file}")
        except DataLossError:
            outcomes.append("refused")
        file.write_bytes(whole)
    assert set(outcomes) <= {"same", "refused"}, outcomes
    assert outcomes.count("refused") > 30
    saver.restore(session, path)
    assert values(session) == before


@pytest.mark.parametrize("size", [512, 4096])
def test_a_zeroed_block_is_refused_with_variable_file_and_remedy(saved, size):
    session, saver, path = saved
    older = Saver().save(session, path.removesuffix("-5") + "-4")
    file = data_file(path)
    whole = bytearray(file.read_bytes())
    start = len(whole) // 2
    whole[start : start + size] = bytes(len(whole[start : start + size]))
    file.write_bytes(whole)
    with pytest.raises(DataLossError) as caught:
        saver.restore(session, path)
    message = str(caught.value)
    assert "'dense/kernel' is not the saved value" in message
    assert str(file.relative_to(path)) in message
    assert f"Restore another one, such as the newest of: {older}" in message
    assert "object at" not in message
    with pytest.raises(DataLossError, match="'dense/kernel' is not the saved value"):
        train.verify(path)
    with pytest.raises(DataLossError, match="'dense/kernel' is not the saved value"):
        train.load_variable(path, "dense/kernel")
    train.verify(older)


def test_verification_is_skipped_on_request(saved):
    session, _, path = saved
    file = data_file(path)
    whole = file.read_bytes()
    at = whole.index(np.float32(1).tobytes())
    file.write_bytes(whole[:at] + np.float32(9).tobytes() + whole[at + 4 :])
    Saver(verify=False).restore(session, path)
    assert session.run(hl.global_variables()[0])[0] == 9


@pytest.mark.parametrize(("old", "new"), [('"step": 5', '"step": 6'), ("float32", "uint32"), ("fry", "rbg")])
def test_a_changed_manifest_is_refused(saved, old, new):
    session, saver, path = saved
    file = pathlib.Path(path) / "hookline.json"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(DataLossError, match="does not have its checksum"):
        saver.restore(session, path)


@pytest.mark.parametrize(("number", "remedy"), [(1, "use the version that wrote it"), (3, "use the"), (5, "upgrade")])
def test_checkpoint_of_another_format_is_refused(saved, number, remedy):
    session, saver, path = saved
    file = pathlib.Path(path) / "hookline.json"
    fields = json.loads(file.read_text()) | {"format": number}
    del fields["crc32c"]
    text = json.dumps(fields)[:-1]
    file.write_text(f'{text}, "crc32c": {google_crc32c.value(text.encode())}}}')
    for read in (lambda: saver.restore(session, path), lambda: train.verify(path), lambda: train.list_variables(path)):
        with pytest.raises(FailedPreconditionError) as caught:
            read()
        said = f"it has format {number}, and this version of hookline reads 4: {remedy}"
        assert str(caught.value).startswith(f"Checkpoint '{path}' cannot be read: {said}")


def test_damaged_format_is_data_loss(saved):
    session, saver, path = saved
    file = pathlib.Path(path) / "hookline.json"
    file.write_text(file.read_text().replace('"format": 4', '"format": 3'))
    with pytest.raises(DataLossError, match="does not have its checksum"):
        saver.restore(session, path)


SHARDED = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from hookline.checkpoint.saving import host_copy
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
array = jax.device_put(np.arange(24.0).reshape(4, 6), NamedSharding(mesh, P("a")))
pieces = host_copy.pieces_of(host_copy.copy_to_host({"array": array})["array"])
assert [(piece.start, piece.stop) for piece in pieces] == [((0, 0), (2, 6)), ((2, 0), (4, 6))], pieces
assert host_copy.compare_checksums(pieces, array) == host_copy.compare_checksums(pieces, np.asarray(array)) == {}
assert host_copy.compare_checksums(pieces, array.at[3, 5].add(1)) is None
# As on a GPU, whose memory NumPy does not see: block by block.
host_copy.is_host_visible, host_copy._BLOCK_BYTES = lambda data: False, 16
for spec in (P(), P("a"), P(None, "b"), P("a", "b")):
    moved = jax.device_put(np.arange(24.0).reshape(4, 6), NamedSharding(mesh, spec))
    changed = moved.at[2, 3].add(1)
    with jax.set_mesh(mesh):
        assert host_copy.compare_checksums(pieces, moved) == {} and host_copy.compare_checksums(pieces, changed) is None
"""


def test_sharded_array_has_a_checksum_for_each_shard():
    run(4, ["-c", SHARDED])
