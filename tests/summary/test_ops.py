from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl
from hookline import GraphKeys, errors, summary

Accumulate = Callable[[Path], Any]


@pytest.fixture(autouse=True)
def graph() -> Iterator[hl.Graph]:
    with hl.Graph().as_default() as graph:
        yield graph


def run(tensor: Any, feeds: Any = None) -> dict[str, Any]:
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        value = sess.run(tensor, feeds)
    return {value.tag: value for value in summary.Summary.FromString(value).value}


def test_tensorboard_shows_a_training_graph(tmp_path: Path, accumulate: Accumulate, graph: hl.Graph):
    weights = hl.Variable(jnp.arange(4.0), name="w")
    loss = hl.op(lambda w: jnp.sum(w * w), name="loss_fn")(weights)
    with hl.name_scope("train"):
        summary.scalar("loss", loss)
        summary.histogram("weights", weights)
        summary.text("note", "warm-up over")
    everything = summary.merge_all()
    assert everything is not None
    with hl.Session() as sess, summary.FileWriter(tmp_path) as writer:
        writer.add_graph(graph)
        sess.run(hl.global_variables_initializer())
        for step in (1, 2):
            writer.add_summary(sess.run(everything), step)
            sess.run(weights.assign_add(jnp.ones(4)))
    seen = accumulate(tmp_path)
    assert [(p.step, p.value) for p in seen.Scalars("train/loss")] == [(1, 14.0), (2, 30.0)]
    assert [p.histogram_value.num for p in seen.Histograms("train/weights")] == [4.0, 4.0]
    assert seen.CompressedHistograms("train/weights")[1].compressed_histogram_values[-1] == (10000, 4.0)
    assert seen.Tensors("train/note")[0].tensor_proto.string_val == [b"warm-up over"]


def test_graph_page_shows_operations_inputs_and_control_inputs(tmp_path: Path, accumulate: Accumulate, graph: hl.Graph):
    x = hl.constant({"a": 1.0}, name="x")
    with hl.name_scope("scope"), hl.control_dependencies([hl.no_op(name="before")]):
        hl.op(lambda a, b: a + b, name="sum")(x["a"], x["a"])
    with summary.FileWriter(tmp_path) as writer:
        writer.add_graph(graph)
    nodes = {node.name: node for node in accumulate(tmp_path).Graph().node}
    assert list(nodes["scope/sum"].input) == ["x", "^scope/before"]
    assert nodes["x"].op == "Constant"


def test_tags_take_the_scope_and_are_unique():
    with hl.name_scope("a"):
        first, second = summary.scalar("loss", 1.0), summary.scalar("loss", 2.0)
    values = run(summary.merge([first, second]))
    assert {tag: value.simple_value for tag, value in values.items()} == {"a/loss": 1.0, "a/loss_1": 2.0}


def test_invalid_tag_is_cleaned_with_a_log_line(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, logger="hookline"):
        tensor = summary.scalar("/my loss (ü)", 1.0)
    assert list(run(tensor)) == ["my_loss____"]
    (line,) = [record.getMessage() for record in caplog.records if record.name == "hookline.summary.ops"]
    assert "'/my loss (ü)'" in line
    assert "'my_loss____'" in line
    with pytest.raises(ValueError, match="requires a name"):
        summary.scalar("/", 1.0)


def test_summaries_are_collected_and_merged_ones_are_not(graph: hl.Graph):
    assert summary.merge_all() is None
    first = summary.scalar("first", 1.0)
    other = summary.histogram("other", [1.0], collections=["mine"])
    assert graph.get_collection(GraphKeys.SUMMARIES) == [first]
    assert graph.get_collection("mine") == [other]
    assert list(run(summary.merge_all())) == ["first"]
    assert list(run(summary.merge_all("mine"))) == ["other"]
    assert graph.get_collection(GraphKeys.SUMMARIES) == [first]


def test_merge_of_nothing_is_an_empty_summary():
    assert run(summary.merge([])) == {}


def test_merge_all_follows_the_order_of_creation():
    for name in "cab":
        summary.scalar(name, 1.0)
    assert list(run(summary.merge_all())) == ["c", "a", "b"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "bool"])
def test_scalars_of_every_device_dtype_are_written(dtype: str):
    value = hl.Variable(jnp.asarray(1, dtype), name="v")
    assert run(summary.scalar("tag", value))["tag"].simple_value == 1.0


def test_scalar_of_a_known_wrong_shape_is_refused_at_its_definition():
    with pytest.raises(errors.InvalidArgumentError, match=r"'loss' requires one number, got shape \(2,\)"):
        summary.scalar("loss", hl.constant([1.0, 2.0]))


def test_scalar_of_unknown_shape_is_refused_in_the_run():
    x = hl.placeholder(jnp.float32, None, name="x")
    tensor = summary.scalar("loss", x)
    assert run(tensor, {x: 3.0})["loss"].simple_value == 3.0
    with pytest.raises(errors.InvalidArgumentError, match=r"'loss' requires one number, got .* shape \(2,\)"):
        run(tensor, {x: [1.0, 2.0]})


def test_histogram_of_all_gradients_transfers_only_buckets():
    params = hl.Variable({"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}, name="params")
    gradients = hl.op(jax.grad(lambda p: jnp.sum(p["w"] ** 2) + jnp.sum(p["b"])), name="gradients")(params)
    tensor = summary.histogram("gradients", gradients)
    (counted,) = tensor.op.inputs
    assert sum(np.prod(leaf.shape, dtype=int) for leaf in jax.tree.leaves(counted.spec)) < 2000
    (value,) = run(tensor).values()
    assert (value.tag, value.histo.num, value.histo.min, value.histo.max) == ("gradients", 8.0, 1.0, 2.0)


def test_a_histogram_takes_several_tensors():
    values = [hl.constant([1.0, 2.0]), {"b": hl.constant(3)}]
    assert run(summary.histogram("h", values))["h"].histo.num == 3.0


def test_a_histogram_leaves_nan_out_and_warns_once(caplog: pytest.LogCaptureFixture):
    x = hl.placeholder(jnp.float32, [None], name="x")
    tensor = summary.histogram("h", x)
    for _ in range(2):
        assert run(tensor, {x: [1.0, np.nan, np.inf]})["h"].histo.num == 1.0
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "'h' leaves out 2 NaN or infinite values" in warnings[0]


def test_a_finalized_graph_refuses_summaries(graph: hl.Graph):
    graph.finalize()
    with pytest.raises(RuntimeError, match="finalized"):
        summary.scalar("loss", 1.0)


def test_summary_operation_has_the_name_of_its_tag(graph: hl.Graph):
    with hl.name_scope("train"):
        loss = summary.scalar("loss", 1.0)
    assert loss.name == "train/loss:0"
    assert graph.get_tensor_by_name("train/loss:0") is loss
    hl.constant(1.0, name="lr")
    rate = summary.scalar("lr", 1.0)
    assert (rate.op.name, list(run(rate))) == ("lr_1", ["lr"])
    assert [list(run(summary.scalar(name, 1.0))) for name in ("a/", "a//b", "../c")] == [["a"], ["a/b"], ["c"]]
