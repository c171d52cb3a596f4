"""The metadata of a tag is written with its first value in each file, as in TensorFlow's event files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import summaries

from hookline.summary import FileWriter, Summary
from hookline.testing import read_events


def described(logdir: Path) -> list[tuple[int, str, str]]:
    """Step, tag and plugin of each value in a directory."""
    return [
        (event.step, value.tag, value.metadata.plugin_data.plugin_name)
        for event in read_events(logdir)
        for value in event.summary.value
    ]


def several(*tags: str) -> bytes:
    return b"".join(summaries.text(tag, f"of {tag}") for tag in tags)


def test_metadata_is_written_with_the_first_value_of_its_tag(tmp_path: Path):
    with FileWriter(tmp_path) as writer:
        writer.add_summary(several("a", "J"), 1)
        writer.add_summary(summaries.scalar("J/loss", 0.5) + several("a", "b"), 2)
        writer.add_summary(Summary.FromString(several("b", "b", "c")), 3)
    assert described(tmp_path) == [
        (1, "a", "text"),
        (1, "J", "text"),
        (2, "J/loss", ""),
        (2, "a", ""),
        (2, "b", "text"),
        (3, "b", ""),
        (3, "b", ""),
        (3, "c", "text"),
    ]


def test_other_fields_of_a_value_are_unchanged(tmp_path: Path):
    summary = Summary.FromString(several("a"))
    summary.value[0].node_name = "a_1"
    with FileWriter(tmp_path) as writer:
        writer.add_summary(summary, 1)
        writer.add_summary(summary, 2)
    first, second = (event.summary for event in read_events(tmp_path)[1:])
    assert first == summary
    summary.value[0].ClearField("metadata")
    assert second == summary


def test_each_file_has_the_metadata(tmp_path: Path):
    with FileWriter(tmp_path) as writer:
        writer.add_summary(several("a"), 1)
        writer.close()
        writer.reopen()
        writer.add_summary(several("a"), 2)
    assert described(tmp_path) == [(1, "a", "text"), (2, "a", "text")]


def test_file_that_replaces_a_failed_one_has_the_metadata(tmp_path: Path):
    with FileWriter(tmp_path, strict=False) as writer:
        writer.add_summary(several("a"), 1)
        writer.flush()
        for path in tmp_path.iterdir():
            path.unlink()
        writer.add_summary(several("a"), 2)
        writer.flush()
    assert described(tmp_path) == [(2, "a", "text")]


@pytest.mark.parametrize("damaged", [b"J", b"J\x05ab", b"\x0a\x05J", b"\x0bJ", b"\xffJ" * 9, b"\x0a\x04J\x00\x0f\x00"])
def test_bytes_that_are_no_summary_are_written_unchanged(damaged: bytes, tmp_path: Path):
    with FileWriter(tmp_path) as writer:
        writer.add_summary(damaged, 1)
        writer.add_summary(summaries.scalar("loss", 0.5), 2)
    (path,) = tmp_path.iterdir()
    assert damaged in path.read_bytes()
