"""The paper's own figures, in percent, as printed in its tables; methods by our names. None where it has none."""

from __future__ import annotations

MAIN_DATASETS = ("cora", "citeseer", "flickr", "photo", "dblp", "pubmed")
HETEROPHILOUS_DATASETS = ("cornell", "wisconsin", "actor")

Figure = tuple[float, float] | None
"""Mean and standard deviation."""

_MAIN: dict[str, tuple[Figure, ...]] = {
    "gcn": ((87.33, 0.38), (79.43, 0.26), (61.49, 0.61), (92.70, 0.20), (83.62, 0.13), (86.54, 0.12)),
    "gat": ((86.29, 0.53), (80.13, 0.62), (54.29, 2.56), (93.87, 0.11), (84.19, 0.19), (86.32, 0.16)),
    "sage": ((86.90, 0.84), (79.23, 0.53), (60.37, 0.27), (93.84, 0.40), (84.73, 0.28), (86.19, 0.18)),
    "appnp": ((87.15, 0.43), (79.33, 0.35), (93.25, 0.24), (94.32, 0.14), (84.40, 0.17), (88.43, 0.15)),
    "jknet": ((87.70, 0.65), (78.43, 0.31), (53.66, 0.40), None, (84.57, 0.28), (87.64, 0.26)),
    "gprgnn": ((88.27, 0.40), (78.46, 0.88), None, (94.49, 0.14), None, (89.34, 0.25)),
    "gatv2": (None, None, None, None, (84.96, 0.47), (85.75, 0.55)),
    "grand_plus": ((85.8, 0.4), (75.6, 0.4), None, (94.75, 0.12), None, (88.64, 0.09)),
    "gt": ((71.84, 0.62), (67.38, 0.76), (68.59, 0.64), (94.74, 0.13), (81.04, 0.27), (88.79, 0.12)),
    "graphormer": ((72.85, 0.76), (66.21, 0.83), (66.16, 0.24), (92.74, 0.14), (80.93, 0.39), (82.76, 0.24)),
    "san": ((74.02, 1.01), (70.64, 0.97), (70.26, 0.73), (94.86, 0.10), (83.11, 0.32), (88.22, 0.15)),
    "gophormer": ((87.85, 0.10), (80.23, 0.09), (91.51, 0.28), None, (85.20, 0.20), (89.40, 0.14)),
    "ans_gt": ((88.60, 0.45), (80.25, 0.39), None, (94.41, 0.62), None, (89.56, 0.55)),
    "graphgps": (None, None, None, (95.06, 0.13), None, (88.94, 0.16)),
    "exphormer": (None, None, None, (95.27, 0.42), None, (89.52, 0.54)),
    "gapformer": ((87.37, 0.76), (76.21, 1.47), None, (94.81, 0.45), (85.50, 0.43), (88.98, 0.46)),
    "nagphormer": ((90.56, 0.39), (80.02, 0.80), (89.66, 0.63), (95.49, 0.11), (84.62, 0.13), (89.60, 0.14)),
    "tokenphormer": ((91.20, 0.47), (81.04, 0.24), (92.44, 0.35), (96.14, 0.14), (85.13, 0.10), (89.94, 0.20)),
}
_HETEROPHILOUS: dict[str, tuple[Figure, ...]] = {
    "gcn": ((45.67, 7.96), (52.55, 4.27), (28.73, 1.17)),
    "gat": ((47.02, 7.66), (57.45, 3.51), (28.33, 1.13)),
    "appnp": ((41.35, 7.15), (55.29, 3.90), (29.42, 0.81)),
    "gatv2": ((50.27, 8.97), (52.74, 3.96), (28.79, 1.47)),
    "san": ((50.85, 8.54), (51.37, 3.08), (27.12, 2.59)),
    "gapformer": ((77.57, 3.43), (83.53, 3.42), (36.90, 0.82)),
    "nagphormer": ((56.22, 8.08), (63.51, 6.53), (34.33, 0.94)),
    "tokenphormer": ((76.22, 2.13), (86.17, 2.30), (37.01, 0.83)),
}
_ABLATION: dict[str, tuple[Figure, ...]] = {
    "all tokens": _MAIN["tokenphormer"],
    "without SGPM-token": ((90.33, 0.30), (79.85, 1.00), (91.75, 0.50), (95.61, 0.47), (84.42, 0.41), (89.38, 0.46)),
    "without walk-tokens": ((88.37, 1.23), (79.70, 0.71), (92.24, 0.35), (94.81, 0.44), (83.93, 0.16), (89.60, 0.35)),
    "without hop-tokens": ((90.73, 0.34), (80.19, 2.32), (91.97, 0.71), (95.80, 0.30), (85.01, 0.16), (89.35, 0.36)),
    "only uniform walks": ((90.41, 0.56), (80.69, 0.49), (92.07, 0.77), (95.83, 0.32), (84.90, 0.39), (89.33, 0.39)),
    "only non-backtracking walks": (
        (89.72, 0.36), (80.03, 0.90), (92.27, 0.53), (95.74, 0.41), (84.86, 0.25), (89.26, 0.45),
    ),
    "only jump walks": ((90.80, 0.66), (80.92, 0.50), (92.38, 0.70), (95.61, 0.38), (84.70, 0.44), (89.50, 0.36)),
    "only non-backtracking jump walks": (
        (89.63, 0.64), (80.56, 0.74), (92.09, 0.39), (96.00, 0.31), (84.71, 0.35), (89.36, 0.35),
    ),
}  # fmt: skip


def paper_figure(method: str, dataset: str) -> Figure:
    """Mean and standard deviation that the paper prints, in percent."""
    for datasets, table in ((MAIN_DATASETS, _MAIN), (HETEROPHILOUS_DATASETS, _HETEROPHILOUS)):
        if dataset in datasets and method in table:
            return table[method][datasets.index(dataset)]
    return None


def paper_ablation(name: str, dataset: str) -> Figure:
    """Mean and standard deviation of a row of the paper's ablation, in percent."""
    return _ABLATION[name][MAIN_DATASETS.index(dataset)] if dataset in MAIN_DATASETS else None
