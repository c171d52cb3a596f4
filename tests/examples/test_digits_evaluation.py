"""The evaluation job beside the training job, each a process, as a user runs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.python import Python

from hookline.testing import read_events

EXAMPLES = Path(__file__).parents[2] / "examples"


def start(script: str, folder: Path, env: dict[str, str]) -> Python:
    return Python("-u", EXAMPLES / script, "--logdir", folder, "--steps", 120, env=env)


def finish(process: Python) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


@pytest.mark.campaign
def test_each_new_checkpoint_is_evaluated_during_the_training(tmp_path, environment):
    evaluation = start("digits_evaluation.py", tmp_path, environment(writes=False))
    try:
        trained = finish(start("digits.py", tmp_path, environment()))
        evaluated = finish(evaluation)
    finally:
        evaluation.kill()
    results = [(int(step), float(value)) for step, value in re.findall(r"step (\d+)  test accuracy (\S+)", evaluated)]
    steps = [step for step, _ in results]
    assert steps == sorted(set(steps))
    assert steps[-1] == 120

    (said,) = re.findall(r"^test accuracy: (\S+)$", trained, re.MULTILINE)
    assert f"final test accuracy: {said}" in evaluated, "the training came to the same at its end"
    assert float(said) > 0.9

    written = [
        (event.step, round(value.simple_value, 3))
        for event in read_events(tmp_path / "eval")
        for value in event.summary.value
        if value.tag == "accuracy"
    ]
    assert written == results


def test_the_example_is_short():
    assert len((EXAMPLES / "digits_evaluation.py").read_text(encoding="utf-8").splitlines()) < 80
