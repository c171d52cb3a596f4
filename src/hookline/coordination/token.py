"""The token of a job: the secret that its processes share."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

from hookline import log
from hookline.errors import UnauthenticatedError

_logger = log.of(__name__)

TOKEN, TOKEN_PATH = "HOOKLINE_TOKEN", "HOOKLINE_TOKEN_PATH"
"""The environment variables with a token, which the launcher makes, and with the path of its file."""

_LEAST_CHARACTERS = 16


def found(token_path: str | None, environ: MutableMapping[str, str]) -> bytes | None:
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
        return _checked(given, TOKEN)
    path = token_path or environ.get(TOKEN_PATH)
    if not path:
        return None
    missing = (
        f"There is no token for the processes in step: {path} is not a file. Copy the job's token there (mode 0600), "
        f"or name its file with {TOKEN_PATH}."
    )
    try:
        text = file_of(path, missing).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UnauthenticatedError.from_message(f"The token file {path} cannot be read: {error.strerror}.") from error
    return _checked(text, str(path))


def file_of(path: str | Path, missing: str) -> Path:
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


def _checked(text: str, where: str) -> bytes:
    text = text.strip()
    if len(text) < _LEAST_CHARACTERS:
        raise UnauthenticatedError.from_message(
            f"The token in {where} has {len(text)} characters, and anybody can guess it: take {_LEAST_CHARACTERS} or "
            "more, such as of `python -c 'import secrets; print(secrets.token_hex(32))'`.",
        )
    return text.encode()
