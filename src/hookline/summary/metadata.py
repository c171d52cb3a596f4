"""Metadata of tags: which page of TensorBoard shows a tag, and how. In each file, one value of a tag has it."""

from __future__ import annotations

from hookline.summary import wire

# Fields of Summary, and of Summary.Value.
_VALUE = 1
_TAG = 1
_METADATA = 9

METADATA = wire.key(_METADATA, 2)
"""A byte that is somewhere in every summary with metadata, and in few others."""


def told_once(summary: bytes, told: set[str]) -> bytes:
    """Returns a summary without the metadata of tags that were written before.

    Args:
        summary: Serialized `Summary`; anything else is returned as it is.
        told: Tags whose metadata is known; the tags of `summary` with metadata are added.

    Example:
        >>> from hookline.summary import Summary, encode
        >>> told = set()
        >>> values = [Summary.FromString(told_once(encode.text("note", "hi"), told)).value[0] for _ in range(2)]
        >>> [(value.tag, value.metadata.plugin_data.plugin_name) for value in values]
        [('note', 'text'), ('note', '')]
    """
    try:
        return b"".join(_slim(summary, field, told) for field in wire.fields(summary))
    except ValueError:
        return summary


def _slim(summary: bytes, field: wire.Field, told: set[str]) -> bytes:
    whole = summary[field.begin : field.end]
    if field.number != _VALUE:
        return whole
    value = summary[field.value : field.end]
    parts = list(wire.fields(value))
    tag = b"".join(value[part.value : part.end] for part in parts if part.number == _TAG).decode()
    others = [value[part.begin : part.end] for part in parts if part.number != _METADATA]
    if len(others) == len(parts):
        return whole
    if tag not in told:
        told.add(tag)
        return whole
    return wire.length_delimited(_VALUE, b"".join(others))
