from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

from hookline.extend import frame
from hookline.summary import FileWriter
from hookline.testing import read_events


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "events.out.tfevents.0"


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_tensorboard_reads_the_framed_bytes(path: Path, payloads: list[bytes]):
    path.write_bytes(b"".join(map(frame, payloads)))
    assert list(RawEventFileLoader(str(path)).Load()) == payloads


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.data())
def test_truncated_file_yields_exactly_its_complete_records(path: Path, payloads: list[bytes], data: st.DataObject):
    whole = b"".join(map(frame, payloads))
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    read = list(RawEventFileLoader(str(path)).Load())
    assert read == payloads[: len(read)]
    assert len(b"".join(map(frame, payloads[: len(read) + 1]))) > cut or len(read) == len(payloads)


@given(st.binary(min_size=1, max_size=40), st.data())
def test_flipped_bit_is_detected(path: Path, payload: bytes, data: st.DataObject):
    record = bytearray(frame(payload))
    # Not in the length: TensorBoard's reader takes a length whose checksum fails for a torn record as well.
    record[data.draw(st.integers(8, len(record) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(record)
    assert list(RawEventFileLoader(str(path)).Load()) == []


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_steps_of_any_size_and_sign_are_written(steps: list[int]):
    with tempfile.TemporaryDirectory() as folder:
        with FileWriter(folder) as writer:
            for step in steps:
                writer.add_summary(b"", step)
        assert [event.step for event in read_events(folder) if event.HasField("summary")] == steps
