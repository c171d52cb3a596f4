"""Weights in files written by other libraries; and weights written for others."""

from __future__ import annotations

import json
import logging
import os
import textwrap
import zipfile
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as orbax
import pytest
from flax import linen as nn
from flax import nnx, serialization
from flax.training.train_state import TrainState
from orbax.checkpoint import v1
from tests import spmd

import hookline as hl
from hookline.train import WarmStart

NET = nn.Sequential([nn.Dense(3), nn.relu, nn.Dense(2, param_dtype=jnp.bfloat16)])
X = np.ones((8, 4), "float32")
ROWS = np.arange(32, dtype="float32").reshape(8, 4).T  # Their order in memory differs from a file's.
NO_SAFETENSORS = "no safetensors: pip install safetensors"
needs_safetensors = pytest.mark.skipif(find_spec("safetensors") is None, reason=NO_SAFETENSORS)


def state_of(seed):
    """A train state whose arrays differ by the seed, those of the optimizer too."""
    state = TrainState.create(apply_fn=NET.apply, params=NET.init(jax.random.key(seed), X), tx=optax.adam(1e-3))
    if seed:
        state = state.apply_gradients(grads=jax.tree.map(jnp.ones_like, state.params))
    return state.replace(step=jnp.asarray(state.step))


OLD, FLAT = state_of(1), {}
for path, leaf in jax.tree.leaves_with_path(OLD.params):
    FLAT[jax.tree_util.keystr(path, simple=True, separator="/")] = np.asarray(leaf)


def dotted(flat):
    return {name.replace("/", "."): array for name, array in flat.items()}


def standard(path, tree=OLD):
    with orbax.StandardCheckpointer() as saver:
        saver.save(path, tree)


def manager(path, item=None):
    with orbax.CheckpointManager(path) as saver:
        for step, tree in ((3, state_of(2)), (20, OLD)):
            args = orbax.args.StandardSave(tree)
            if item:
                args = orbax.args.Composite(**{item: args, "notes": orbax.args.JsonSave({"a": 1})})
            saver.save(step, args=args)


def by_v1(path):
    with v1.training.Checkpointer(path) as saver:
        saver.save(7, OLD)


def safetensors(path):
    from safetensors.numpy import save_file

    save_file(dotted(FLAT), path)


def npz(path, **arrays):
    with open(path, "wb") as file:  # NumPy adds an extension to a name.
        np.savez_compressed(file, **(arrays or FLAT))


WHOLE = {
    "StandardCheckpointer": standard,
    "PyTreeCheckpointer": lambda path: orbax.PyTreeCheckpointer().save(path, OLD),
    "v1": lambda path: v1.save(path, OLD),
    "CheckpointManager": manager,
    "CheckpointManager with items": lambda path: manager(path, "state"),
    "Checkpointer of v1": by_v1,
    "msgpack": lambda path: path.write_bytes(serialization.to_bytes(OLD)),
}
PARAMS = {
    "safetensors": pytest.param(safetensors, marks=needs_safetensors),
    "npz": npz,
    "npz with dots": lambda path: npz(path, **dotted(FLAT)),
}


def train(state, warm, **more):
    step = lambda state, batch: (jax.tree.map(lambda leaf: leaf, state), {})  # noqa: E731
    return hl.train.Loop(step, state, hl.data.from_arrays(X, 8, epochs=None), **more).run(
        None, last_step=1, progress=False, warm_start=warm
    )


def same(one, other):
    return jax.tree.all(jax.tree.map(lambda a, b: a.dtype == b.dtype and np.array_equal(a, b), one, other))


@pytest.mark.parametrize("write", WHOLE.values(), ids=WHOLE)
def test_foreign_train_state_is_restored_with_or_without_the_optimizer(write, tmp_path):
    write(tmp_path / "other")
    found = train(state_of(0), str(tmp_path / "other"))
    assert same(found.params, OLD.params)
    assert (int(found.opt_state[0].count), int(found.step)) == (0, 0)
    with_slots = train(state_of(0), WarmStart(tmp_path / "other", opt_state=True))
    assert same(with_slots.opt_state, OLD.opt_state)
    assert int(with_slots.step) == 1


@pytest.mark.parametrize("write", PARAMS.values(), ids=PARAMS)
def test_parameters_of_a_flat_file_are_restored_by_path(write, tmp_path):
    write(tmp_path / "weights")  # No extension: the contents show the format.
    found = train(state_of(0), WarmStart(tmp_path / "weights", rename={"/": "params"}))
    assert same(found.params, OLD.params)
    assert same(hl.train.load(tmp_path / "weights", like=state_of(0).params), OLD.params)
    plain = hl.train.load(tmp_path / "weights")
    assert same(plain, jax.tree.map(np.asarray, OLD.params))
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(plain))


def test_step_of_an_orbax_manager_is_restored_or_named(tmp_path):
    manager(tmp_path)
    assert same(train(state_of(0), WarmStart(tmp_path, step=3)).params, state_of(2).params)
    assert same(hl.train.load(tmp_path, state_of(0).params, prefix="params"), OLD.params)
    assert same(hl.train.load(tmp_path / "3", state_of(0).params, prefix="params"), state_of(2).params)
    with pytest.raises(hl.errors.NotFoundError, match="no checkpoint of step 4. It has those of: 3, 20"):
        train(state_of(0), WarmStart(tmp_path, step=4))
    with pytest.raises(ValueError, match=r"does not know which step is the best. Give its number: 3, 20"):
        train(state_of(0), WarmStart(tmp_path, step="best"))
    with pytest.raises(ValueError, match="has no steps, and step=3"):
        hl.train.load(tmp_path / "3", step=3)


def test_checkpoints_of_several_trainings_are_refused(tmp_path):
    for name in ("resnet_50", "vit_16"):
        v1.save(tmp_path / name, {"w": X})
    with pytest.raises(
        hl.errors.InvalidArgumentError, match="has checkpoints of several trainings: resnet_50.*, vit_16.*Give the path"
    ):
        hl.train.load(tmp_path)


def test_object_array_in_an_npz_is_not_called_damage(tmp_path):
    np.savez(tmp_path / "w.npz", names=np.array(["a", None]), w=X)
    with pytest.raises(hl.errors.InvalidArgumentError, match="'names' of dtype object, which JAX lacks"):
        hl.train.load(tmp_path / "w.npz")


def test_several_trees_require_a_choice(tmp_path):
    v1.save_checkpointables(tmp_path / "gan", {"generator": {"w": X}, "critic": {"w": X + 1}})
    with pytest.raises(
        hl.errors.InvalidArgumentError,
        match="an Orbax checkpoint, and has several trees, critic, generator. Give the path",
    ):
        train({"w": X}, tmp_path / "gan")
    assert same(train({"w": jnp.zeros((8, 4))}, tmp_path / "gan" / "critic"), {"w": X + 1})


def test_nnx_state_is_restored_by_module_names(tmp_path):
    there = nnx.Linear(4, 2, rngs=nnx.Rngs(3))
    standard(tmp_path / "nnx", nnx.state(there))
    net = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
    hl.train.Loop(lambda net, batch: None, net, [X]).run(None, progress=False, warm_start=str(tmp_path / "nnx"))
    assert same(nnx.to_pure_dict(nnx.state(net)), nnx.to_pure_dict(nnx.state(there)))


def test_names_are_mapped_by_prefix_or_function(tmp_path, caplog):
    caplog.set_level(logging.INFO, "hookline")
    np.savez(tmp_path / "a.npz", **{"h.0.w": X[0], "h.1.w": X[0] + 1, "h.1.b": X[0] + 2, "lm.w": X[0] + 3})
    state = {"body": {"0": {"w": jnp.zeros(4)}, "1": {"w": jnp.zeros(4), "b": jnp.zeros(4)}}, "lm": {"w": jnp.zeros(4)}}

    def sums(rename):
        return [float(leaf[0]) for leaf in jax.tree.leaves(train(state, WarmStart(tmp_path / "a.npz", rename)))]

    assert sums({"h": "body"}) == [1, 3, 2, 4]
    assert sums({"h.1": "body/0", "lm": None}) == [2, 0, 0, 0]  # Names as the file has them do, too.
    assert sums(lambda name: name.replace("h/", "body/") if "w" in name else None) == [1, 0, 2, 4]
    assert "Left in the checkpoint: h/1/b." in caplog.text
    taken = train({"h": {"0": {"w": jnp.zeros(4)}}}, WarmStart(tmp_path / "a.npz", rename={"h/1": "h/0"}))
    assert float(taken["h"]["0"]["w"][0]) == 2, "what is renamed comes before what has that name"
    with pytest.raises(ValueError, match=r"rename maps 'h/0/w' and 'h/1/w' of '.*a.npz' to one name, 'lm/w'"):
        sums(lambda name: "lm/w" if name.startswith("h") else None)
    with pytest.raises(TypeError, match="a function that returns names as rename, got 3 for 'h/0/w'"):
        sums(lambda name: 3)


def test_mismatches_are_named_and_floats_are_cast_on_request(tmp_path, caplog):
    np.savez(tmp_path / "a.npz", w=X.astype("float16"), b=X[0], n=np.arange(4))
    state = {"w": jnp.zeros((8, 4)), "b": jnp.zeros(5), "n": jnp.zeros(4), "new": jnp.zeros(1)}
    with pytest.raises(ValueError, match="nothing of checkpoint '.*a.npz' fits the state") as error:
        train(state, tmp_path / "a.npz")
    assert "w is float16[8,4] in the checkpoint and float32[8,4] in the state, and cast=True converts it" in str(
        error.value
    )
    assert "b is float32[4] in the checkpoint and float32[5] in the state\n" in str(error.value)
    assert "n is int64[4] in the checkpoint and float32[4] in the state\n" in str(error.value)
    assert str(error.value).endswith("{'params': '/'} restores that part as the whole state.")
    found = train(state, WarmStart(tmp_path / "a.npz", cast=True))
    assert found["w"].dtype == "float32"
    assert np.array_equal(found["w"], X)
    assert "b is float32[4] in the checkpoint and float32[5] in the state; n is int64[4]" in caplog.text
    with pytest.raises(hl.errors.NotFoundError, match="missing in the checkpoint: ./new"):
        hl.train.load(tmp_path / "a.npz", state)
    with pytest.raises(hl.errors.NotFoundError, match="has nothing called 'x'. It has: w, b, n"):
        hl.train.load(tmp_path / "a.npz", prefix="x")
    np.savez(tmp_path / "b.npz", **{"x": X, "x.y": X, "texts": np.array(["a"]), "z": np.float32(3)})
    with pytest.raises(hl.errors.InvalidArgumentError, match="has 'texts' of dtype str32, which JAX lacks"):
        hl.train.load(tmp_path / "b.npz")
    with pytest.raises(ValueError, match="has an array below another one"):
        hl.train.load(tmp_path / "b.npz", prefix="x")
    assert hl.train.load(tmp_path / "b.npz", prefix="z") == 3
    with pytest.raises(ValueError, match=r"averages only from checkpoints of train.Loop"):
        hl.train.load(tmp_path / "a.npz", state, averaged=True)


def broken_files():
    """Files of an interrupted download, or of somebody else; and the message for each."""
    header = lambda text: len(text).to_bytes(8, "little") + text  # noqa: E731
    huge = b'{"a":{"dtype":"F32","shape":[99999999999],"data_offsets":[0,4]}}'
    whole = serialization.to_bytes({"w": X})
    yield "empty", b"", "has none of the formats that hookline reads: safetensors, npz, Flax msgpack"
    yield "a pickle", b"\x80\x04\x95" + b"\0" * 20, "has none of the formats"
    yield "cut msgpack", whole[:-9], "is broken and cannot be read"
    yield "nested msgpack", b"\x81\xa1a" * 100_000, "is broken and cannot be read"
    yield "objects in msgpack", whole.replace(b"float32", b"object_"), "is broken and cannot be read"
    yield "wrong safetensors", header(b'{"a":1}  '), "is broken and cannot be read"
    yield "huge safetensors", header(huge) + b"1234", "is broken and cannot be read"


def zipped(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)


@pytest.mark.parametrize(("content", "said"), [pytest.param(*two, id=name) for name, *two in broken_files()])
def test_broken_file_is_one_sentence_with_its_name(content, said, tmp_path):
    if content[8:9] == b"{":
        pytest.importorskip("safetensors", reason=NO_SAFETENSORS)
    path = tmp_path / "weights.bin"
    path.write_bytes(content)
    with pytest.raises(hl.errors.OpError, match=said) as error:
        train({"w": X}, path)
    assert f"'{path}'" in str(error.value)
    assert "\n" not in str(error.value)


def test_broken_npz_is_one_sentence_with_its_name(tmp_path):
    path = tmp_path / "a.npz"

    def refused():
        with pytest.raises((hl.errors.OpError, ValueError)) as error:
            train({"w": X}, path)
        return str(error.value).replace(str(path), "PATH")

    zipped(path, data_pkl=b"")
    assert refused().startswith("'PATH' is not an npz file of NumPy, which holds only arrays: it holds 'data.pkl'.")
    np.savez(path, w=np.array([{}, 1]))
    assert "w is object[2] in the checkpoint" in refused()
    np.savez(path, w=X)
    path.write_bytes(path.read_bytes()[:-30])
    assert refused().startswith("Checkpoint 'PATH' is broken and cannot be read: File is not a zip file.")
    with zipfile.ZipFile(path, "w") as archive, archive.open("w.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (10**15,)})
    assert "'w.npy' has another size than its shape (1000000000000000,) and dtype float32 need." in refused()
    os.remove(path)
    os.mkfifo(path)
    assert "it is a FIFO, not a file" in refused()


def test_broken_orbax_checkpoint_is_one_sentence_with_its_name(tmp_path):
    standard(tmp_path / "a", {"w": jnp.ones(4)})
    (data,) = (tmp_path / "a" / "d").iterdir()
    data.write_bytes(data.read_bytes()[:-3])
    with pytest.raises(hl.errors.DataLossError, match=f"'{tmp_path}/a' is broken and cannot be read: "):
        train({"w": jnp.zeros(4)}, tmp_path / "a")
    (tmp_path / "a" / "_METADATA").write_text("{")
    with pytest.raises(hl.errors.DataLossError, match=f"'{tmp_path}/a' is broken and cannot be read: "):
        train({"w": jnp.zeros(4)}, tmp_path / "a")
    os.mkfifo(tmp_path / "a" / "more")
    with pytest.raises(hl.errors.DataLossError, match="its file more is a FIFO, not a file"):
        train({"w": jnp.zeros(4)}, tmp_path / "a")


def test_remains_of_a_hookline_checkpoint_are_not_read_as_orbax(tmp_path):
    loop = hl.train.Loop(lambda state, batch: ({"w": state["w"] + 1}, {}), {"w": jnp.zeros(3)}, [X, X])
    loop.run(str(tmp_path), progress=False)
    newest = hl.train.latest_checkpoint(str(tmp_path))
    os.remove(newest + "/hookline.json")
    for path in (newest, tmp_path):
        with pytest.raises(hl.errors.DataLossError, match="it has no hookline.json"):
            hl.train.load(path)


def test_only_restored_arrays_are_read(tmp_path):
    path, big = tmp_path / "a.npz", np.arange(100_000, dtype="float32")
    np.savez(path, w=X, big=big)
    path.write_bytes(path.read_bytes().replace(big[-9:].tobytes(), bytes(36)))
    assert same(train({"w": jnp.zeros((8, 4))}, path), {"w": X})
    with pytest.raises(hl.errors.DataLossError, match="a.npz' is broken and cannot be read: Bad CRC-32 for file 'big"):
        train({"w": jnp.zeros((8, 4)), "big": jnp.zeros(100_000)}, path)


def test_spmd_processes_read_their_shards_and_compare_the_files(tmp_path):
    for name, array in (("one", X), ("two", X[:4])):
        np.savez(tmp_path / f"{name}.npz", w=array + np.arange(4, dtype="float32"))
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import sys
            import jax, numpy as np
            import hookline as hl

            mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
            columns = jax.NamedSharding(mesh, jax.P(None, "x"))
            for path in ("one", ("one", "two")[jax.process_index()]):
                state = {"w": jax.make_array_from_callback((8, 4), columns, lambda index: np.zeros((8, 2), "f4"))}
                loop = hl.train.Loop(lambda state, batch: state, state, hl.data.from_arrays(np.ones(4), 4))
                w = loop.run(None, progress=False, warm_start=f"{sys.argv[1]}/{path}.npz")["w"]
                print([shard.data[0].tolist() for shard in w.addressable_shards])
                try:
                    hl.train.save_safetensors("w", {"w": w})
                except ValueError as error:
                    print(error)
        """)
    )
    ended = spmd.run(script, tmp_path, timeout_secs=120)
    assert [one.out.splitlines()[0] for one in ended] == ["[[1.0, 2.0]]", "[[3.0, 4.0]]"]
    assert all("'w' is sharded over several processes. Read the checkpoint in one process" in one.out for one in ended)
    assert "has other arrays in process 1 than in process 0. Give all processes the same file." in ended[0].err


@needs_safetensors
def test_saved_weights_are_read_by_safetensors_and_start_a_training(tmp_path):
    from safetensors import safe_open
    from safetensors.numpy import load_file

    path = tmp_path / "new" / "folder" / "net.safetensors"
    more = {
        "layer.0/x": jnp.arange(3, dtype="int32"),
        "none": jnp.zeros((0, 2)),
        "flags": np.ones(3, bool),
        "scalar": np.float64(3),
        "f": jnp.tanh,
    }
    hl.train.save_safetensors(path, {"net": OLD.params, "rows": ROWS, **more}, metadata={"format": "flax"})
    found = load_file(path)
    assert found.keys() == {
        *("net." + name for name in dotted(FLAT)), "rows", "layer%2E0%2Fx", "none", "flags", "scalar",
    }  # fmt: skip
    assert all(same(found[f"net.{name}"], array) for name, array in dotted(FLAT).items())
    assert same(found["rows"], ROWS)
    assert (found["none"].shape, found["scalar"].shape, found["layer%2E0%2Fx"].tolist()) == ((0, 2), (), [0, 1, 2])
    with safe_open(path, framework="np") as file:
        assert file.metadata() == {"format": "flax"}

    content = path.read_bytes()  # The format in five lines, for those without any library.
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    one = header["net.params.layers_0.kernel"]
    start, stop = one["data_offsets"]
    by_hand = np.frombuffer(content[begin + start : begin + stop], "<f4").reshape(one["shape"])
    assert np.array_equal(by_hand, OLD.params["params"]["layers_0"]["kernel"])
    starts = {name: begin + header[name]["data_offsets"][0] for name in found}
    assert [name for name, start in starts.items() if start % found[name].dtype.itemsize] == [], "each is aligned"

    again = hl.train.load(path)
    assert same(again["layer.0/x"], np.arange(3, dtype="int32"))
    assert same(train({"net": state_of(0).params, **more}, path)["net"], OLD.params)
    assert os.listdir(path.parent) == [path.name]


def test_weights_that_cannot_be_saved_are_named_and_the_old_file_stays(tmp_path):
    path = tmp_path / "net.safetensors"
    save = hl.train.save_safetensors
    net = nnx.Sequential(nnx.Linear(4, 2, rngs=nnx.Rngs(0)), nnx.Dropout(0.1, rngs=nnx.Rngs(0)))
    save(path, nnx.state(net, nnx.Param))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"has dtype key<fry>, which safetensors lacks. Leave it out, as by"):
        save(path, net)
    with pytest.raises(ValueError, match="'w' is abstract"):
        save(path, {"w": jax.ShapeDtypeStruct((2,), jnp.float32)})
    with pytest.raises(ValueError, match="requires a pytree with arrays"):
        save(path, {"w": 3})
    with pytest.raises(TypeError, match="text by name as metadata"):
        save(path, {"w": X}, metadata={"step": 3})
    with pytest.raises(hl.errors.OpError, match="could not be written"):
        save(path / "below", {"w": X})
    assert path.read_bytes() == before
    assert b"layers.0.kernel" in before
