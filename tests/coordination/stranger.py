"""A stranger on the machine: it speaks with JAX's coordination service, and knows only the address."""

from __future__ import annotations

import re
import struct

import grpc


class Stranger:
    """Reads and writes the keys of a job, as anyone can who reaches the service."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        told = str(self._call("TryGetKeyValue", _text(2, "any"), _INCARNATION.pack(0x19, 0)))
        found = re.search(r"currently (\d+)", told)
        assert found, told
        self._service = _INCARNATION.pack(0x19, int(found[1]))

    def set(self, key: str, value: str, *, overwrite: bool = False) -> object:
        """Sets a key; returns the error, if any."""
        entry = _part(2, _text(1, key) + _text(2, value))
        return self._call("InsertKeyValue", entry + (b"\x18\x01" if overwrite else b""), self._service)

    def keys(self, below: str) -> dict[str, str]:
        """Returns all keys below a folder, with their values."""
        answer = self._call("GetKeyValueDir", _text(2, below), self._service)
        assert isinstance(answer, bytes), answer
        entries = [each for number, each in _parts(answer) if number == 2]
        return {found[1].decode(): found[2].decode(errors="replace") for found in map(dict, map(_parts, entries))}

    def delete(self, key: str) -> object:
        """Deletes a key."""
        return self._call("DeleteKeyValue", _text(2, key), self._service)

    def _call(self, name: str, body: bytes, incarnation: bytes) -> object:
        ask = self._channel.unary_unary(f"/xla.coordination.CoordinationService/{name}")
        try:
            return ask(_part(1, incarnation) + body, timeout=10)
        except grpc.RpcError as error:
            return f"{error}"


_INCARNATION = struct.Struct("<BQ")


def _length(number: int) -> bytes:
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + _length(number >> 7)


def _part(field: int, body: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _length(len(body)) + body


def _text(field: int, text: str) -> bytes:
    return _part(field, text.encode())


def _parts(message: bytes) -> list[tuple[int, bytes]]:
    """Returns the fields of a message whose fields are all strings or messages."""
    found = []
    while message:
        field, place, length, shift = message[0] >> 3, 1, 0, 0
        while True:
            length, shift, place = length | (message[place] & 0x7F) << shift, shift + 7, place + 1
            if message[place - 1] < 0x80:
                break
        found.append((field, message[place : place + length]))
        message = message[place + length :]
    return found
