"""The board on which processes in step write; seals, which keep strangers from it; and the token that they need."""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, Protocol

from hookline import clock, log
from hookline.errors import UnauthenticatedError

_logger = log.get_logger(__name__)

_VERSION, _CODE = "v1:", 64

TOKEN, TOKEN_PATH = "HOOKLINE_TOKEN", "HOOKLINE_TOKEN_PATH"
"""The environment variables with a token, which the launcher makes, and with the path of its file."""

_LEAST_CHARACTERS = 16


class KeyValueStore(Protocol):
    """Keys with texts that all processes see."""

    def set(self, key: str, value: str) -> bool:
        """Sets a key; returns False if it was set before."""
        ...

    def get(self, key: str, timeout_secs: float) -> str | None:
        """Waits for a key and returns its text; None when the time is over."""
        ...

    def delete(self, prefix: str) -> None:
        """Deletes a key; with a slash at its end, all keys below it."""
        ...


class MemoryKeyValueStore:
    """A board within one process.

    Example:
        >>> board = MemoryKeyValueStore()
        >>> board.set("word", "yes"), board.set("word", "no"), board.get("word", 0)
        (True, False, 'yes')
    """

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> bool:
        """See `Board`."""
        with self._changed:
            if key in self._values:
                return False
            self._values[key] = value
            self._changed.notify_all()
            return True

    def get(self, key: str, timeout_secs: float) -> str | None:
        """See `Board`."""
        with self._changed:
            clock.wait_for(self._changed, lambda: key in self._values, timeout_secs)
            return self._values.get(key)

    def delete(self, prefix: str) -> None:
        """See `Board`."""
        with self._changed:
            below = prefix if prefix.endswith("/") else f"{prefix}/"
            for key in [key for key in self._values if key == prefix or key.startswith(below)]:
                del self._values[key]


class Signer:
    """A secret with which processes seal texts: an HMAC of the place of a text and of the text itself."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, key: str, text: str) -> str:
        """Returns the text with its seal."""
        return f"{_VERSION}{self._mac(key, text)}:{text}"

    def verify(self, key: str, signed: str) -> str | None:
        """Returns the text; None if its seal is missing, or is for another place, text or secret."""
        text = signed[len(_VERSION) + _CODE + 1 :]
        is_ours = hmac.compare_digest(_bytes(signed), _bytes(self.sign(key, text)))
        return text if is_ours else None

    def for_attempt(self, attempt: str) -> Signer:
        """Returns a seal for one start of a job: what was sealed in another one does not open with it."""
        return Signer(hmac.digest(self._secret, attempt.encode(), "sha256"))

    def _mac(self, place: str, text: str) -> str:
        return hmac.digest(self._secret, _bytes(f"{len(place)}:{place}{text}"), "sha256").hex()


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def is_signed(text: str) -> bool:
    """Returns whether a text has a seal, of any secret."""
    return text.startswith(_VERSION)


class SignedKeyValueStore:
    """A board whose entries are sealed. An entry that is not, or has a wrong seal, is an error and never a value.

    Args:
        store: The board on which strangers can write.
        signer: The seal of this job and attempt.

    Example:
        >>> from hookline.coordination.key_value_store import MemoryKeyValueStore
        >>> everyones = MemoryKeyValueStore()
        >>> ours = SignedKeyValueStore(everyones, Signer(b"secret"))
        >>> ours.set("decision", "go on"), everyones.set("answer", "stop")
        (True, True)
        >>> ours.get("decision", 0)
        'go on'
        >>> ours.get("answer", 0)
        Traceback (most recent call last):
        ...
        hookline.errors.UnauthenticatedError: The entry 'answer' on the board of this job has no valid seal: ...
    """

    def __init__(self, store: KeyValueStore, signer: Signer) -> None:
        self._store, self._signer = store, signer

    def set(self, key: str, value: str) -> bool:
        """See `Board`."""
        return self._store.set(key, self._signer.sign(key, value))

    def get(self, key: str, timeout_secs: float) -> str | None:
        """See `Board`.

        Raises:
            UnauthenticatedError: Somebody else has written the entry.
        """
        found = self._store.get(key, timeout_secs)
        if found is not None and (found := self._signer.verify(key, found)) is None:
            raise UnauthenticatedError.from_message(
                f"The entry {key!r} on the board of this job has no valid seal: somebody other than its processes has "
                "written it. It has had no effect, and the job ends. See 'Safety' in docs/spmd.md.",
            )
        return found

    def delete(self, prefix: str) -> None:
        """See `Board`."""
        self._store.delete(prefix)


def handshake(
    ask: Callable[[str, Any, Callable[[list[Any]], Any]], Any], secret: bytes | None, index: int
) -> Signer | None:
    """Greets the other processes, and returns the seal of all entries from then on; None if they have no token.

    Each contributes a random number, so that the seal of this attempt is new: what a stranger has copied from an
    earlier attempt does not open, and a process that is left of one cannot take part.

    Args:
        ask: The method of `Peers`, on a board without seals.
        secret: The token of the job; None for none.
        index: The number of this process.

    Raises:
        UnauthenticatedError: They have not all the same token, or somebody else has written on the board.
        DeadlineExceededError: A process has not come.
    """
    ours, mine = None if secret is None else Signer(secret), secrets.token_hex(8)

    def closed(place: str, text: str) -> str:
        return text if ours is None else ours.sign(place, text)

    def opened(place: str, text: Any) -> str | None:
        if not isinstance(text, str):
            return None
        return ours.verify(place, text) if ours is not None else None if is_signed(text) else text

    def answer(given: list[Any]) -> str:
        numbers = [opened(f"greeting/{process}", text) for process, text in enumerate(given)]
        strange = [process for process, number in enumerate(numbers) if number is None]
        refused = ", ".join(_mismatch_reason(process, given[process], ours, 0) for process in strange)
        return closed("answer", json.dumps([refused, numbers]))

    try:
        told = ask("a greeting", closed(f"greeting/{index}", mine), answer)
        text = opened("answer", told)
        refused, numbers = (_mismatch_reason(0, told, ours, index), []) if text is None else json.loads(text)
        if not refused and numbers[index] != mine:
            refused = f"somebody else has answered process {index}"
    except (ValueError, TypeError, LookupError):  # No process writes such an entry.
        refused, numbers = "somebody who is not one of them has written on their board", []
    if refused:
        raise UnauthenticatedError.from_message(
            f"The processes of this job do not trust each other: {refused}. All need the same token "
            "(HOOKLINE_TOKEN_PATH, or token_path of hookline.distributed.initialize), or none.",
        )
    return None if ours is None else ours.for_attempt(json.dumps(numbers))


def _mismatch_reason(process: int, text: Any, ours: Signer | None, asking: int) -> str:
    """Describes why the greeting of a process does not open, in a clause."""
    if ours is None:
        return f"process {process} has a token, and process {asking} has none"
    if isinstance(text, str) and is_signed(text):
        return f"process {process} has another token than process {asking}"
    return f"process {process} has no token, and process {asking} has one"


# The token ----------------------------------------------------------------------------------------------------------


def find_token(token_path: str | None, environ: MutableMapping[str, str]) -> bytes | None:
    """Returns the token of processes in step; None if there is none.

    A variable with the token itself is removed, so that it does not reach processes that this one starts.

    Args:
        token_path: The path of its file; takes precedence over the variables.
        environ: The environment variables.

    Raises:
        UnauthenticatedError: There is no such file, it cannot be read, or the token is too short.
    """
    given = environ.pop(TOKEN, None)
    if token_path is None and given:
        return _checked_token(given, TOKEN)
    path = token_path or environ.get(TOKEN_PATH)
    if not path:
        return None
    missing = (
        f"There is no token for the processes in step: {path} is not a file. Copy the job's token there (mode 0600), "
        f"or name its file with {TOKEN_PATH}."
    )
    try:
        text = token_file(path, missing).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UnauthenticatedError.from_message(f"The token file {path} cannot be read: {error.strerror}.") from error
    return _checked_token(text, str(path))


def token_file(path: str | Path, missing: str) -> Path:
    """Returns the file of a token, and warns if others can read it.

    Raises:
        UnauthenticatedError: There is no such file; the error has the text `missing`.
    """
    path = Path(path)
    if not path.is_file():
        raise UnauthenticatedError.from_message(missing)
    if path.stat().st_mode & 0o077:
        _logger.warning("The token file %s can be read by others: chmod 600 it.", path)
    return path


def _checked_token(text: str, where: str) -> bytes:
    text = text.strip()
    if len(text) < _LEAST_CHARACTERS:
        raise UnauthenticatedError.from_message(
            f"The token in {where} has {len(text)} characters, and anybody can guess it: take {_LEAST_CHARACTERS} or "
            "more, such as of `python -c 'import secrets; print(secrets.token_hex(32))'`.",
        )
    return text.encode()
