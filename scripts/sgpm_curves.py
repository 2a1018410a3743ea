"""Draw docs/pictures/sgpm-curves.png: how pre-training went on six datasets, from the rows of the study.

python scripts/sgpm_curves.py
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenphormer.evaluation import plots

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "experiments" / "rows" / "sgpm-1.jsonl"
PICTURE = ROOT / "docs" / "pictures" / "sgpm-curves.png"


def main() -> None:
    """Read the rows, draw, write."""
    with ROWS.open(encoding="utf-8") as file:
        rows = [row for line in file if (row := json.loads(line))["kind"] == "pretrain"]
    figure = plots.new_figure(1.9 * plots.WIDTH, 3.4)
    left, right = figure.subplots(1, 2)
    for row in rows:
        epochs = [point["epoch"] for point in row["history"]]
        left.plot(epochs, [point["val_loss"] for point in row["history"]], marker="o", label=row["dataset"])
        right.plot(epochs, [100 * point["val_accuracy"] for point in row["history"]], marker="o")
    plots.style_axes(left, "Loss on held-out sentences", "epoch")
    plots.style_axes(right, "Masked nodes guessed right (%)", "epoch")
    left.legend(frameon=False, fontsize=8)
    plots.save_figure(figure, PICTURE)


if __name__ == "__main__":
    main()
