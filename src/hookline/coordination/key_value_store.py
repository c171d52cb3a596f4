"""The key-value store of SPMD processes, signatures (HMAC) of its entries, and the token of the job."""

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
"""The environment variables with the token itself (the launcher sets it), and with the path of a token file."""

_LEAST_CHARACTERS = 16


class KeyValueStore(Protocol):
    """A write-once store of string keys and texts, shared by all processes."""

    def set(self, key: str, value: str) -> bool:
        """Sets a key that is not set; returns False, without a change, if it is set already."""
        ...

    def get(self, key: str, timeout_secs: float) -> str | None:
        """Waits for a key and returns its text; None after the timeout."""
        ...

    def delete(self, prefix: str) -> None:
        """Deletes the key `prefix` and all keys `prefix/...`; `prefix` may end with the slash."""
        ...


class MemoryKeyValueStore:
    """A key-value store within one process.

    Example:
        >>> store = MemoryKeyValueStore()
        >>> store.set("word", "yes"), store.set("word", "no"), store.get("word", 0)
        (True, False, 'yes')
    """

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> bool:
        """See `KeyValueStore`."""
        with self._changed:
            if key in self._values:
                return False
            self._values[key] = value
            self._changed.notify_all()
            return True

    def get(self, key: str, timeout_secs: float) -> str | None:
        """See `KeyValueStore`."""
        with self._changed:
            clock.wait_for(self._changed, lambda: key in self._values, timeout_secs)
            return self._values.get(key)

    def delete(self, prefix: str) -> None:
        """See `KeyValueStore`."""
        with self._changed:
            below = prefix if prefix.endswith("/") else f"{prefix}/"
            for key in [key for key in self._values if key == prefix or key.startswith(below)]:
                del self._values[key]


class Signer:
    """Signs texts with a secret of the processes: an HMAC of the key and the text."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, key: str, text: str) -> str:
        """Returns the text with its signature."""
        return f"{_VERSION}{self._mac(key, text)}:{text}"

    def verify(self, key: str, signed: str) -> str | None:
        """Returns the text; None if its signature is missing, or is for another key, text or secret."""
        text = signed[len(_VERSION) + _CODE + 1 :]
        is_ours = hmac.compare_digest(_bytes(signed), _bytes(self.sign(key, text)))
        return text if is_ours else None

    def for_attempt(self, attempt: str) -> Signer:
        """Derives a signer for one start of a job, which rejects texts signed in another start."""
        return Signer(hmac.digest(self._secret, attempt.encode(), "sha256"))

    def _mac(self, key: str, text: str) -> str:
        return hmac.digest(self._secret, _bytes(f"{len(key)}:{key}{text}"), "sha256").hex()


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def is_signed(text: str) -> bool:
    """Returns whether a text has the form of a signed one; does not verify the signature."""
    return text.startswith(_VERSION)


class SignedKeyValueStore:
    """A key-value store with signed entries. An entry without a valid signature is an error and never a value.

    Args:
        store: A key-value store in which unauthenticated writers can write.
        signer: The signer of this job and attempt.

    Example:
        >>> from hookline.coordination.key_value_store import MemoryKeyValueStore
        >>> unsigned = MemoryKeyValueStore()
        >>> signed = SignedKeyValueStore(unsigned, Signer(b"secret"))
        >>> signed.set("decision", "go on"), unsigned.set("answer", "stop")
        (True, True)
        >>> signed.get("decision", 0)
        'go on'
        >>> signed.get("answer", 0)
        Traceback (most recent call last):
        ...
        hookline.errors.UnauthenticatedError: The entry 'answer' in the key-value store of this job has no valid ...
    """

    def __init__(self, store: KeyValueStore, signer: Signer) -> None:
        self._store, self._signer = store, signer

    def set(self, key: str, value: str) -> bool:
        """See `KeyValueStore`."""
        return self._store.set(key, self._signer.sign(key, value))

    def get(self, key: str, timeout_secs: float) -> str | None:
        """See `KeyValueStore`.

        Raises:
            UnauthenticatedError: The entry has no valid signature.
        """
        found = self._store.get(key, timeout_secs)
        if found is not None and (found := self._signer.verify(key, found)) is None:
            raise UnauthenticatedError.from_message(
                f"The entry {key!r} in the key-value store of this job has no valid signature: somebody other than its "
                "processes has written it. The entry is ignored, and the job ends. See 'Safety' of multi-process SPMD "
                "in hookline's documentation.",
            )
        return found

    def delete(self, prefix: str) -> None:
        """See `KeyValueStore`."""
        self._store.delete(prefix)


def handshake(
    ask: Callable[[str, Any, Callable[[list[Any]], Any]], Any], secret: bytes | None, index: int
) -> Signer | None:
    """Performs the handshake with the other processes.

    Each process contributes a random number, so each attempt has its own key for signatures: entries copied from an
    earlier attempt are rejected, and so are processes left over from it.

    Args:
        ask: `ProcessGroup.all_reduce`, with a store without signatures.
        secret: The token of the job; None for none.
        index: The number of this process.

    Returns:
        The signer of all later entries; None if the processes have no token.

    Raises:
        UnauthenticatedError: The processes have different tokens, or somebody else has written to the store.
        DeadlineExceededError: A process did not arrive in time.
    """
    signer, nonce = None if secret is None else Signer(secret), secrets.token_hex(8)

    def sign(key: str, text: str) -> str:
        return text if signer is None else signer.sign(key, text)

    def verify(key: str, text: Any) -> str | None:
        if not isinstance(text, str):
            return None
        if signer is not None:
            return signer.verify(key, text)
        return None if is_signed(text) else text  # Without a token, a signed entry is a mismatch.

    def answer(given: list[Any]) -> str:
        nonces = [verify(f"nonce/{process}", text) for process, text in enumerate(given)]
        unverified = [process for process, verified in enumerate(nonces) if verified is None]
        problem = ", ".join(_mismatch_reason(process, given[process], signer, 0) for process in unverified)
        return sign("answer", json.dumps([problem, nonces]))

    try:
        reply = ask("handshake", sign(f"nonce/{index}", nonce), answer)
        text = verify("answer", reply)
        problem, nonces = (_mismatch_reason(0, reply, signer, index), []) if text is None else json.loads(text)
        if not problem and nonces[index] != nonce:
            problem = f"somebody else has answered process {index}"
    except (ValueError, TypeError, LookupError):  # No process writes such an entry.
        problem, nonces = "an entry of their handshake is malformed, so somebody else has written it", []
    if problem:
        raise UnauthenticatedError.from_message(
            f"The processes of this job do not trust each other: {problem}. All need the same token "
            "(HOOKLINE_TOKEN_PATH, or token_path of hookline.distributed.initialize), or none.",
        )
    return None if signer is None else signer.for_attempt(json.dumps(nonces))


def _mismatch_reason(process: int, text: Any, ours: Signer | None, asking: int) -> str:
    """Describes why the handshake of a process was rejected, in a clause."""
    if ours is None:
        return f"process {process} has a token, and process {asking} has none"
    if isinstance(text, str) and is_signed(text):
        return f"process {process} has another token than process {asking}"
    return f"process {process} has no token, and process {asking} has one"


# The token ----------------------------------------------------------------------------------------------------------


def find_token(token_path: str | None, environ: MutableMapping[str, str]) -> bytes | None:
    """Returns the token of an SPMD job; None if there is none.

    Removes `HOOKLINE_TOKEN` from `environ`, so that child processes do not inherit the token.

    Args:
        token_path: The path of the token file; takes precedence over the variables.
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
        f"There is no token for this SPMD job: {path} is not a file. Copy the job's token there (mode 0600), or set "
        f"{TOKEN_PATH} to the path of its file."
    )
    try:
        text = token_file(path, missing).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UnauthenticatedError.from_message(f"The token file {path} cannot be read: {error.strerror}.") from error
    return _checked_token(text, str(path))


def token_file(path: str | Path, missing: str) -> Path:
    """Returns the path of a token file, and warns if others can read the file.

    Raises:
        UnauthenticatedError: There is no such file; `missing` is the message.
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
            "more, for example from `python -c 'import secrets; print(secrets.token_hex(32))'`.",
        )
    return text.encode()
