"""`tf.decode_csv`: parses lines of comma-separated values."""

from __future__ import annotations

from typing import Any

import numpy as np

from hookline.errors import InvalidArgumentError
from hookline_tf1._machinery import dtypes
from hookline_tf1._machinery.nodes import convert_to_tensor
from hookline_tf1._machinery.number_text import number
from hookline_tf1._rules.host_strings import STRING, OnHost, encoded, known_shape


def decode_csv(
    records: Any,
    record_defaults: Any,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    name: str | None = None,
    na_value: str = "",
    select_cols: Any = None,
) -> list[Any]:
    """`tf.decode_csv`: parses lines into columns, each with the dtype of its default.

    Args:
        records: Strings, a line each.
        record_defaults: The default of each column for an empty field: a list of one value, or an empty list or tensor
            if the field is required.
        field_delim: The delimiter of fields.
        use_quote_delim: Whether a field may be quoted.
        name: Name of the operations.
        na_value: Another string that means an empty field.
        select_cols: The indices of the columns to return; by default all.
    """
    lines, name = convert_to_tensor(records), name or "DecodeCSV"
    defaults = [_default(value) for value in record_defaults]
    empty, end = {b"", na_value.encode()}, field_delim.encode()
    if len(end) != 1:
        raise ValueError(f"tf.decode_csv: field_delim is one character, got {field_delim!r}.")

    def parsed(lines: Any) -> list[Any]:
        columns = [np.empty(np.shape(lines), object) for _ in defaults]
        for row, line in enumerate(np.ravel(lines)):
            fields = _fields(line, end, use_quote_delim, row)
            fields = (
                fields if select_cols is None else [fields[column] for column in select_cols if column < len(fields)]
            )
            if len(fields) != len(defaults):
                raise _refused(f"Expect {len(defaults)} fields but have {len(fields)} in record {row}")
            for column, (field, (dtype, default)) in enumerate(zip(fields, defaults, strict=True)):
                columns[column].flat[row] = _value(field, field in empty, dtype, default, f"{column} in record {row}")
        return columns

    found = OnHost(lambda lines: [encoded(c) for c in parsed(lines)], name, {"lines": lines}, None, []).output
    shape, columns = known_shape(lines), []
    for i, (dtype, _) in enumerate(defaults):
        kind = STRING if dtype == dtypes.string else dtypes.canonical(dtype)
        columns.append(OnHost(lambda column: column, name, {"column": found[i]}, kind, shape).output)
    return columns


def _default(value: Any) -> tuple[dtypes.DType, Any]:
    """Returns the dtype of a column, and the default of an empty field; `None` if the field is required."""
    if isinstance(value, dtypes.DType):
        return value, None
    tensor = convert_to_tensor(value)
    constant = getattr(tensor.op, "value", None)
    if tensor.dtype is None or constant is None:
        raise TypeError(f"tf.decode_csv: record_defaults must be plain values or dtypes, got {value!r}.")
    return tensor.dtype, np.ravel(constant)[0] if np.size(constant) else None


def _value(field: bytes, is_empty: bool, dtype: dtypes.DType, default: Any, where: str) -> Any:
    if is_empty:
        if default is None:
            column, _, rest = where.partition(" ")
            raise _refused(f"Field {column} is required but missing {rest}!")
        return default
    if dtype == dtypes.string:
        return field
    try:
        return number(field, dtype)
    except ValueError:
        raise _refused(f"Field {where} is not a valid {dtype.name}: {field.decode('utf-8', 'replace')}") from None


def _fields(line: bytes, end: bytes, quotes: bool, row: int) -> list[bytes]:
    """Splits a line into fields."""
    if not quotes or b'"' not in line:
        return line.split(end)
    found, at = [], 0
    while True:
        if line[at : at + 1] == b'"':
            field, at = _quoted(line, at + 1, row)
            if line[at : at + 1] not in (b"", end):
                raise _refused(f"Quoted field has to end with quote followed by delim, CRLF or EOF in record {row}")
        else:
            stop = line.find(end, at)
            stop = len(line) if stop < 0 else stop
            field, at = line[at:stop], stop
            if b'"' in field:
                raise _refused("Unquoted fields cannot have quotes/CRLFs inside")
        found.append(field)
        if at >= len(line):
            return found
        at += 1


def _quoted(line: bytes, at: int, row: int) -> tuple[bytes, int]:
    """Parses a quoted field, in which two quotes mean one; returns it and the position after it."""
    field = b""
    while True:
        stop = line.find(b'"', at)
        if stop < 0:
            raise _refused(f"Quoted field has to end with quote followed by delim or end in record {row}")
        field += line[at:stop]
        if line[stop + 1 : stop + 2] != b'"':
            return field, stop + 1
        field, at = field + b'"', stop + 2


def _refused(what: str) -> InvalidArgumentError:
    return InvalidArgumentError.from_message(what)


PUBLIC = {"decode_csv": decode_csv}
