from __future__ import annotations

import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl
from hookline.testing import FakeClock, read_events

SIZE = 64
X = np.ones((32, SIZE), "float32")
MATMUL = 2 * 8 * SIZE * SIZE


class Tick(hl.train.SessionRunHook):
    """Lets a second pass in each run."""

    def __init__(self, clock):
        self._clock = clock

    def after_run(self, run_context, run_values):
        self._clock.advance(1)


class WaitingTick(Tick):
    """Waits for each run, too: on a busy machine a line may be delayed to the time of a later run."""

    fetches = "loss"
    trigger = hl.train.every(1)

    def on_trigger(self, firing):
        assert firing.values is not None


def step(state, batch):
    return {"w": state["w"] * 0.5}, {"loss": (batch @ state["w"]).sum()}


def loop(**more):
    return hl.train.Loop(step, {"w": jnp.ones((SIZE, SIZE))}, hl.data.from_arrays(X, 8, epochs=None), **more)


def run(made, logdir=None, tick=Tick, progress=False, **rates):
    written = hl.train.LoggingOptions(rate_steps=4, **rates)
    with FakeClock() as clock:
        made.run(logdir and str(logdir), 9, hooks=[tick(clock)], progress=progress, logging=written)


def numbers(logdir):
    return {
        value.tag: value.simple_value
        for event in read_events(str(logdir))
        for value in event.summary.value
        if "/sec" in value.tag or "peak" in value.tag or "memory" in value.tag
    }


def test_examples_per_second_are_computed_from_the_batches(tmp_path, caplog, capsys):
    caplog.set_level(logging.INFO, "hookline")
    run(loop(), tmp_path, WaitingTick, progress=True)
    assert numbers(tmp_path) == {"global_step/sec": 1.0, "examples/sec": 8.0}, "and no memory, where there is none"
    assert "global_step/sec: 1, examples/sec: 8" in caplog.text
    steps, examples = re.search(r"(\S+) steps/s  (\S+) examples/s", capsys.readouterr().err).groups()
    assert float(examples) == pytest.approx(8 * float(steps), rel=0.01)


def test_tokens_are_given_and_unknown_rates_are_not_shown(caplog):
    caplog.set_level(logging.INFO, "hookline")
    run(loop(), per_step={"tokens": 512})
    assert "global_step/sec: 1, tokens/sec: 512" in caplog.text
    caplog.clear()
    run(loop(), per_step={})
    assert "examples" not in caplog.text
    uneven = [(np.ones(3, "float32"), np.ones(2, "float32"))] * 9
    run(hl.train.Loop(lambda state, batch: (state, {}), jnp.ones(()), uneven))
    assert "examples" not in caplog.text


@pytest.mark.parametrize("steps_per_run", [1, 4])
def test_peak_share_uses_the_operations_counted_by_xla(steps_per_run, tmp_path, caplog):
    caplog.set_level(logging.INFO, "hookline")
    run(loop(steps_per_run=steps_per_run), tmp_path, peak_flops=1e6)
    found = numbers(tmp_path)
    assert MATMUL < found["flops/sec"] < 1.3 * MATMUL
    assert found["peak_share"] == pytest.approx(found["flops/sec"] / 1e6)
    assert re.search(r"XLA counts \S+e?\+?\d* floating point operations a step", caplog.text)
    assert re.search(r"flops/sec: \S+, \d\.\d% of the peak", caplog.text)


def test_operations_are_counted_on_the_cpu_if_the_device_does_not_report_them(tmp_path, monkeypatch):
    """As on a GPU. The device of the test is the CPU, and gives no count at first."""
    says = jax.stages.Lowered.cost_analysis
    monkeypatch.setattr(
        jax.stages.Lowered, "cost_analysis", lambda self: says(self) if jax.config.jax_default_device else None
    )
    run(loop(), tmp_path, peak_flops=1e6)
    assert MATMUL < numbers(tmp_path)["flops/sec"] < 1.3 * MATMUL


def test_batches_of_unknown_structure_have_no_rates(caplog):
    caplog.set_level(logging.INFO, "hookline")
    with hl.Graph().as_default():
        batches = hl.op(lambda x, y: x + y)(*(hl.data.iterator([X[:4]] * 9, name=name) for name in "ab"))
    run(hl.train.Loop(lambda state, batch: (state, {}), jnp.ones(()), batches), peak_flops=1e6)
    assert "examples" not in caplog.text
    assert caplog.text.count("XLA does not report the floating point operations") == 1


def test_step_without_an_operation_count_is_logged_once(caplog):
    caplog.set_level(logging.INFO, "hookline")
    idle = lambda: hl.train.Loop(lambda state, batch: (state, {}), jnp.ones((), int), [X] * 9)  # noqa: E731
    run(idle(), peak_flops=1e6)
    assert caplog.text.count("XLA does not report the floating point operations of a step") == 1
    assert "of the peak" not in caplog.text
    caplog.clear()
    run(idle(), peak_flops=1e6, per_step={"flops": 5e5})
    assert "flops/sec: 5e+05, 50.0% of the peak" in caplog.text
    assert "XLA" not in caplog.text


def test_memory_of_the_fullest_device_is_shown(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "hookline")

    class Full:
        """Replaces a device that reports its memory in use."""

        def __init__(self, in_use):
            self._in_use = in_use

        def memory_stats(self):
            return {"bytes_in_use": self._in_use, "peak_bytes_in_use": 2 * self._in_use, "bytes_limit": 80 * 10**9}

    made = loop()
    made.run(None, 1, progress=False)
    monkeypatch.setattr(jax, "local_devices", lambda: [Full(10**9), Full(12 * 10**9), *jax.devices("cpu")])
    run(made, tmp_path)
    assert "device memory: 12 GB of 80 GB, 24 GB at most" in caplog.text
    found = numbers(tmp_path)
    assert (found["device_memory/bytes_in_use"], found["device_memory/peak_bytes"]) == (12e9, 24e9)


def test_wrong_arguments_are_refused(caplog):
    caplog.set_level(logging.INFO, "hookline")
    for wrong, message in (
        ({"per_step": {"tokens": 0}}, "above 0 as per_step"),
        ({"peak_flops": -1}, "LoggingOptions requires peak_flops > 0"),
    ):
        with pytest.raises(ValueError, match=message):
            run(loop(), **wrong)
    assert "XLA" not in caplog.text, "it is refused before anything is traced for it"
    for wrong in ({"per_step": 8}, {"per_step": {3: 8}}, {"peak_flops": "1e12"}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            run(loop(), **wrong)
