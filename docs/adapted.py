"""Draw what learning does along a stream: bits per byte of a window, of the model as loaded and of a session.

    python docs/adapted.py FILE ... --out adapted.svg

The files are read in turn as one text, from the first byte of each.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import rlstm_model

EVERY = 20
"""Bytes from one point of a line to the next."""

INK = {"as loaded": "#9a5b2e", "learning": "#1f6f8b"}


def main() -> None:
    """Read the arguments, the texts, and draw."""
    parser = argparse.ArgumentParser(description="What learning does along a stream.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True, help=".svg or .png")
    parser.add_argument("--bytes", type=int, default=20_000, help="of each file")
    parser.add_argument("--window", type=int, default=400, help="bytes that are averaged")
    given = parser.parse_args()
    texts = [path.read_bytes()[: given.bytes].decode("utf-8", errors="ignore") for path in given.files]
    seen = rlstm_model.load("bytes-small").stream().observe("".join(texts))
    costs = {
        "as loaded": -seen.static_logprobs.astype(np.float64) / np.log(2),
        "learning": -seen.scores.logprobs.astype(np.float64) / np.log(2),
    }
    starts = np.cumsum([0, *(len(text.encode()) for text in texts[:-1])]).tolist()
    draw(costs, starts, window=given.window).savefig(given.out, metadata=_undated(given.out))
    sys.stdout.write(
        f"{seen.static_bits_per_byte:.3f} bits per byte as loaded, {seen.bits_per_byte:.3f} learning\n"
    )


def draw(costs: dict[str, "np.ndarray"], starts: Sequence[int], *, window: int) -> Figure:
    """Give the figure: a line each, and a rule where a file begins."""
    mpl.rcParams["svg.hashsalt"] = "rlstm"  # the same picture, the same file
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.subplots()
    for name, bits in costs.items():
        smooth = np.convolve(bits, np.ones(window) / window, mode="valid")
        places = np.arange(0, len(smooth), EVERY)
        axes.plot(places + window, smooth[places], label=name, color=INK[name], linewidth=1.4)
    for start in starts[1:]:
        axes.axvline(start, color="#bbbbbb", linewidth=0.8)
    axes.set(xlabel="bytes read", ylabel=f"bits per byte, mean of {window}", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def _undated(path: Path) -> dict[str, None]:
    return {"Date": None} if path.suffix == ".svg" else {}


if __name__ == "__main__":
    main()
