"""read_events: reads event files."""

from __future__ import annotations

import os
from typing import Any

from hookline import arguments
from hookline.regular_file import UnreadableFileError, open_regular


def read_events(logdir: str | os.PathLike[str]) -> list[Any]:
    """Returns all events in the event files of a directory, read by TensorBoard's own reader.

    Reading of a file ends at an incomplete or damaged record, as in TensorBoard.

    Args:
        logdir: The directory; its subdirectories are not searched.

    Returns:
        The `Event` messages, file by file in the order of the files' names, which is the order of their creation.

    Raises:
        FileNotFoundError: There is no such directory.
        ValueError: An entry with the name of an event file is not a regular file.

    Example:
        >>> import tempfile
        >>> from hookline import summary
        >>> with tempfile.TemporaryDirectory() as logdir:
        ...     summary.FileWriter(logdir).close()
        ...     [event.file_version for event in read_events(logdir)]
        ['brain.Event:2']
    """
    # Imported here, because the reader imports more modules than the rest of hookline.
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    logdir = arguments.check_path("read_events", "logdir", logdir)
    paths = [os.path.join(logdir, name) for name in sorted(os.listdir(logdir)) if "tfevents" in name]
    for path in paths:
        try:
            os.close(open_regular(path))
        except UnreadableFileError as error:
            raise ValueError(f"read_events cannot read '{path}': {error}.") from error
    return [event for path in paths for event in LegacyEventFileLoader(path).Load()]
