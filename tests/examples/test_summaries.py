"""The example whose pages are shown in docs/summaries.md."""

from __future__ import annotations

from pathlib import Path

from tests import python

from hookline.testing import read_events

SCRIPT = Path(__file__).parents[2] / "examples" / "summaries.py"


def test_example_writes_every_kind_of_summary(tmp_path, environment):
    python.run(SCRIPT, "--logdir", tmp_path, "--steps", 12, env=environment(), check=True)
    events = read_events(tmp_path)
    assert [event.step for event in events if event.HasField("summary")] == [0, 1, 11], "hyperparameters come first"
    kinds = {value.WhichOneof("value") for event in events for value in event.summary.value}
    assert kinds == {"simple_value", "histo", "image", "audio", "tensor"}
    assert any(event.HasField("graph_def") for event in events)
