"""Properties of a batch: its checksum, and arrays of its own."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest
from tests import python

from hookline.data import batches  # A position shows the sum of a batch, and no two batches of these differ there.


@pytest.mark.parametrize("dtype", ["U8", "S8", object])
def test_checksum_covers_each_string(dtype):
    text = np.array([str(number) for number in range(5000)], dtype)
    other = text.copy()
    other[2500] = "other"
    assert batches.crc32c(text) == batches.crc32c(text.copy()) != batches.crc32c(other)


def test_checksum_of_objects_is_the_same_in_another_process():
    code = """
        import numpy as np
        from hookline.data import batches

        class Record:
            pass

        print(batches.crc32c({"objects": np.array([Record(), {"a", "b", "c", "d"}]), "one": Record()}))
    """
    code = "padding = bytearray(10 ** 6)\n" + textwrap.dedent(code)
    sums = {python.run("-c", code, server=server, check=True).stdout for server in (0, 1)}
    assert len(sums) == 1


def test_overwritten_text_is_unchanged_in_the_batch():
    text = np.array(["a", "b"])
    batch = batches.copy_owned({"text": text})
    text[:] = "c"
    assert batch["text"].tolist() == ["a", "b"]
