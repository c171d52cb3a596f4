"""How long importing hookline takes, against `import jax, optax`: new processes in turns."""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import subprocess
import sys

import interleaved

JAX, HOOKLINE = "import jax, optax", "from hookline import Session, Variable, summary"


def _process(code: str) -> interleaved.Run:
    def run(count: int) -> None:
        for _ in range(count):
            subprocess.run([sys.executable, "-c", code], check=True)

    return run


def measure(*, rounds: int) -> dict[str, interleaved.Row]:
    """Times the imports, of compiled bytecode, as installers leave it."""
    found = importlib.util.find_spec("hookline")
    assert found is not None, "it is installed"
    for folder in found.submodule_search_locations or ():
        compileall.compile_dir(folder, quiet=1)
    runs = {JAX: _process(JAX), HOOKLINE: _process(HOOKLINE), f"{JAX}, again": _process(JAX)}
    return interleaved.measure(runs, rounds=rounds, steps=1, references=(JAX,))


def sentence(rows: dict[str, interleaved.Row]) -> str:
    """Returns what was found."""
    row, again = rows[HOOKLINE], rows[f"{JAX}, again"]
    return (
        f"`{HOOKLINE}` takes {row.added[JAX] / 1e6:.3f} s more than the {rows[JAX].micros / 1e6:.2f} s of `{JAX}`, "
        f"{row.ratios[JAX]:.3f} ± {row.errors[JAX]:.3f} times as long; that once more "
        f"{again.ratios[JAX]:.3f} ± {again.errors[JAX]:.3f} times."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    print(sentence(measure(rounds=parser.parse_args().rounds)))


if __name__ == "__main__":
    main()
