"""How large hookline is, and how many of its functions a call goes through: the table of docs/design.md.

`--against FOLDER` adds a column for another checkout: `git worktree add FOLDER COMMIT` makes one of an earlier commit.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tokenize
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def lines_of_code(file: Path) -> int:
    """Counts the lines that hold code: blank lines, comments, and statements that are only a string do not count."""
    lines: set[int] = set()
    statement: list[tokenize.TokenInfo] = []
    with tokenize.open(file) as text:
        for token in tokenize.generate_tokens(text.readline):
            if token.type == tokenize.NEWLINE:
                if any(part.type != tokenize.STRING for part in statement):
                    lines.update(*(range(part.start[0], part.end[0] + 1) for part in statement))
                statement = []
            elif token.type not in _NO_CODE:
                statement.append(token)
    return len(lines)


def counts(package: Path) -> dict[str, str]:
    """Counts the files of a package, their lines, and the files that lie in its largest folder."""
    files = sorted(package.rglob("*.py"))
    largest, most = collections.Counter(file.parent for file in files).most_common(1)[0]
    return {
        "lines": f"{sum(len(file.read_bytes().splitlines()) for file in files):,}",
        "lines of code, without docstrings and comments": f"{sum(map(lines_of_code, files)):,}",
        "files": f"{len(files):,}",
        "files in the largest folder": f"{most} (`{largest.relative_to(package.parent)}`)",
    }


def paths(source: Path) -> dict[str, str]:
    """Returns how many functions each call goes through, in how many files."""
    # In a process of its own, because a process can import only one hookline.
    environment = os.environ | {"PYTHONPATH": str(source), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(_HERE / "size_paths.py")]
    found = json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
    return {name: f"{functions} in {files}" for name, (functions, files) in found.items()}


def table(columns: dict[str, dict[str, str]]) -> str:
    """Returns the columns as a Markdown table."""
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for name in next(iter(columns.values())):
        lines.append(f"| {name} | " + " | ".join(column[name] for column in columns.values()) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=_HERE.parent, help="a checkout; by default this one")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout")
    args = parser.parse_args()
    columns = {}
    for name, folder in (("now", args.folder), ("then", args.against)):
        if folder is not None:
            source = folder.resolve() / "src"
            if not (source / "hookline").is_dir():
                parser.error(f"{folder} is no checkout of hookline: it has no src/hookline.")
            columns[name] = counts(source / "hookline") | paths(source)
    print(table(columns))


if __name__ == "__main__":
    main()
