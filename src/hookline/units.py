"""Formats numbers, sizes, counts and durations, for messages and tables."""

from __future__ import annotations


def format_number(value: float) -> str:
    """Formats a number with six significant digits."""
    return f"{value:.6g}"


def format_bytes(nbytes: float) -> str:
    """Formats a size in bytes.

    Example:
        >>> format_bytes(999), format_bytes(12_345), format_bytes(2.5e9)
        ('999 B', '12.3 kB', '2.5 GB')
    """
    units = ["B", "kB", "MB", "GB", "TB"]
    while nbytes >= 999.95 and len(units) > 1:
        nbytes /= 1000
        del units[0]
    return f"{nbytes:.4g} {units[0]}" if units[0] == "B" else f"{nbytes:.1f} {units[0]}"


def format_count(number: int, noun: str) -> str:
    """Formats a count with its noun.

    Example:
        >>> format_count(1, "checkpoint"), format_count(2, "checkpoint")
        ('1 checkpoint', '2 checkpoints')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def format_duration(secs: float) -> str:
    """Formats a duration.

    Example:
        >>> format_duration(12.3), format_duration(150), format_duration(5400), format_duration(200_000)
        ('12 s', '2 min 30 s', '1 h 30 min', '2 d 8 h')
    """
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        number, rest = divmod(round(secs / part) * part, length)
        if number > 0:
            return f"{number} {unit}" + f" {rest // part} {smaller}" * bool(rest)
    return f"{max(secs, 0):.0f} s"
