"""Serialized summaries, as summary tensors give them."""

from __future__ import annotations

from hookline.summary import Summary


def scalar(tag: str, value: float) -> bytes:
    return Summary(value=[Summary.Value(tag=tag, simple_value=value)]).SerializeToString()


def text(tag: str, value: str) -> bytes:
    summary = Summary()
    message = summary.value.add(tag=tag)
    message.metadata.plugin_data.plugin_name = "text"
    message.tensor.dtype = 7  # DT_STRING
    message.tensor.string_val.append(value.encode())
    return summary.SerializeToString()
