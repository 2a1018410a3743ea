"""Figures hold the artists they promise, for whole runs and for next to nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from tests.evaluation.test_metrics import random_predictions
from tokenphormer.errors import InputError
from tokenphormer.evaluation import evaluate, plots

HISTORY: list[dict[str, float | None]] = [
    {"epoch": 1, "train_loss": 2.0, "val_loss": 1.9, "val_accuracy": 0.5, "learning_rate": 0.001},
    {"epoch": 2, "train_loss": 1.5, "val_loss": 1.4, "val_accuracy": 0.8, "learning_rate": 0.002},
    {"epoch": 3, "train_loss": 1.2, "val_loss": 1.1, "val_accuracy": 0.8, "learning_rate": 0.001},
    {"epoch": 4, "train_loss": 1.0, "val_loss": 1.2, "val_accuracy": 0.7, "learning_rate": 0.0005},
]


def words(figure: Figure) -> list[str]:
    """Every text that the figure draws."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(Text) if text.get_text() and text.get_visible()]


def without(*keys: str) -> list[dict[str, float | None]]:
    return [{key: value for key, value in epoch.items() if key not in keys} for epoch in HISTORY]


# -------------------------------------------------------------------- learning curves


def test_learning_curves_mark_the_best_epoch() -> None:
    figure = plots.learning_curves(HISTORY)
    loss, accuracy, rate = figure.axes
    assert [line.get_label() for line in loss.lines] == ["training", "validation", "_best"]
    assert loss.lines[0].get_ydata().tolist() == [2.0, 1.5, 1.2, 1.0]
    # Epochs 2 and 3 tie in accuracy; the lower loss decides.
    assert all(next(iter(axes.lines[-1].get_xdata())) == 3 for axes in (loss, rate))
    assert any("best 80.0 % at epoch 3" in text for text in words(figure))
    assert accuracy.lines[-1].get_ydata().tolist() == [0.8]


def test_pretraining_curves_beside_the_neighbouring_word() -> None:
    figure = plots.pretraining_curves(HISTORY, bigram=0.3)
    assert " neighbouring word alone" in words(figure)
    assert "training" in words(figure)


def test_best_epoch() -> None:
    assert plots.best_epoch(HISTORY) == 2
    assert plots.best_epoch(without("val_accuracy")) == 2
    assert plots.best_epoch(without("val_loss")) == 1
    assert plots.best_epoch(without("val_loss", "val_accuracy")) is None
    assert plots.best_epoch([]) is None
    assert plots.best_epoch([{"epoch": 1, "val_accuracy": float("nan")}, {"epoch": 2, "val_accuracy": 0.1}]) == 1


@pytest.mark.parametrize(
    ("history", "panels"),
    [
        ([], 0),
        (HISTORY[:1], 3),
        (without("learning_rate"), 2),
        (without("val_loss", "val_accuracy", "learning_rate"), 1),
        ([{"epoch": 1, "train_loss": None}, {"epoch": 2, "train_loss": float("nan")}], 0),
        ([{"epoch": 1, "train_loss": float("inf")}, {"epoch": 2, "train_loss": 1.0}], 1),
    ],
)
def test_learning_curves_of_partial_histories(history: list[dict[str, float | None]], panels: int) -> None:
    figure = plots.learning_curves(history)
    assert len(figure.axes) == panels
    assert ("No epochs were recorded" in words(figure)) == (panels == 0)


# -------------------------------------------------------------------- classes


@pytest.mark.parametrize("classes", [1, 2, 7, 20, 21, 90])
def test_confusion_matrix(classes: int) -> None:
    metrics = evaluate(*random_predictions(1, 30 * classes, classes))
    names = [f"class {number}" for number in range(classes)]
    figure = plots.confusion_matrix_plot(metrics, names)
    axes = figure.axes[0]
    counts = np.asarray(metrics.confusion)
    shares = counts / counts.sum(axis=1, keepdims=True)
    assert np.allclose(np.asarray(axes.collections[0].get_array()).reshape(classes, classes), shares)
    shown = sorted(int(text.get_text().replace(",", "")) for text in axes.texts)
    assert shown == (sorted(counts[counts > 0].tolist()) if classes <= 20 else [])
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == (names if classes <= 40 else names[::3])
    assert axes.yaxis_inverted()


def test_confusion_matrix_takes_any_class_name(tmp_path: Path) -> None:
    metrics = evaluate(*random_predictions(2, 40, 6))
    names = ["$x^$", "中文 ☃", "<b>&", "two\nlines\x00", "very " * 20, ""]
    figure = plots.confusion_matrix_plot(metrics, names)
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels[:4] == ["$x^$", "中文 ☃", "<b>&", "two lines"]
    assert len(labels[4]) == 24
    assert labels[4].endswith("…")
    plots.save_figure(figure, tmp_path / "any.png")
    with pytest.raises(InputError, match="expected 6 names, got 2"):
        plots.confusion_matrix_plot(metrics, ["a", "b"])


def test_a_class_without_nodes_is_not_divided_by_zero() -> None:
    metrics = evaluate(np.array([[0.9, 0.1]]), np.array([0]))
    mesh = plots.confusion_matrix_plot(metrics, ["a", "b"]).axes[0].collections[0]
    assert np.asarray(mesh.get_array()).ravel().tolist() == [1, 0, 0, 0]


def test_attention_bars_keep_their_order() -> None:
    figure = plots.attention_by_kind({"self": 0.5, "hop 1": 0.2, "jump walk": 0.3})
    axes = figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [0.5, 0.2, 0.3]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["self", "hop 1", "jump walk"]
    assert [text.get_text() for text in axes.texts] == ["50.0 %", "20.0 %", "30.0 %"]
    assert axes.yaxis_inverted()
    assert words(plots.attention_by_kind({})) == ["No attention was recorded"]
    assert plots.attention_by_kind({"self": 0.0}).axes[0].get_xlim()[1] > 0


# -------------------------------------------------------------------- where errors sit


def test_accuracy_by_degree() -> None:
    degree = np.array([1, 1, 1, 1, 6, 6])
    figure = plots.accuracy_by_degree(degree, np.array([True, True, True, False, True, False]))
    axes = figure.axes[0]
    bars = [bar for bar in axes.patches if to_hex(bar.get_facecolor()) == plots.SKY]
    assert [bar.get_height() for bar in bars] == [0.75, 0.5]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["1\n(4)", "2\n(0)", "3–4\n(0)", "5–8\n(2)"]
    assert [bar.get_x() + bar.get_width() / 2 for bar in bars] == pytest.approx([0, 3])
    intervals = axes.collections[0].get_segments()
    assert np.ravel(intervals[0])[[1, 3]] == pytest.approx([0.30064, 0.95441], abs=1e-4)
    assert "dashed: all nodes, 66.7 %" in words(figure)


def test_accuracy_by_homophily() -> None:
    homophily = np.array([0.0, 0.1, 1.0, np.nan])
    axes = plots.accuracy_by_homophily(homophily, np.array([True, False, True, True])).axes[0]
    assert [bar.get_height() for bar in axes.patches] == [0.5, 1.0, 1.0]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels[0] == "0–20 %\n(2)"
    assert labels[-1] == "no\nlabelled\nneighbour\n(1)"


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("degree", [0, 5, 10**6])
def test_one_node(degree: int, correct: bool) -> None:
    for figure in (
        plots.accuracy_by_degree(np.array([degree]), np.array([correct])),
        plots.accuracy_by_homophily(np.array([0.5]), np.array([correct])),
        plots.calibration_plot(np.array([[0.3, 0.7]]), np.array([int(correct)])),
    ):
        assert words(figure)


def test_no_nodes_and_wrong_lengths() -> None:
    empty = np.empty(0, np.int64)
    assert words(plots.accuracy_by_degree(empty, empty.astype(bool))) == ["There are no nodes to show"]
    with pytest.raises(InputError, match="homophily and correct"):
        plots.accuracy_by_homophily(np.zeros(3), np.ones(2, bool))


def test_calibration_plot_shows_the_error_and_all_nodes() -> None:
    probabilities, labels = random_predictions(3, 200, 4)
    figure = plots.calibration_plot(probabilities, labels)
    upper, lower = figure.axes
    assert sum(bar.get_height() for bar in lower.patches) == 200
    error = evaluate(probabilities, labels).calibration_error
    assert f"Calibration error {100 * error:.1f} %" in words(figure)
    assert upper.lines[0].get_ydata().tolist() == [0, 1]


# -------------------------------------------------------------------- saving


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_saved_figures_are_whole_and_repeatable(tmp_path: Path, suffix: str, start: bytes) -> None:
    for name in ("a", "b"):
        plots.save_figure(plots.learning_curves(HISTORY), tmp_path / f"{name}{suffix}")
    first, second = (tmp_path / f"a{suffix}").read_bytes(), (tmp_path / f"b{suffix}").read_bytes()
    assert first.startswith(start)
    assert first == second
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"a{suffix}", f"b{suffix}"]


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.png, \.svg, \.pdf"):
        plots.save_figure(plots.learning_curves(HISTORY), tmp_path / "figure.bmp")
    assert not list(tmp_path.iterdir())


def test_pyplot_is_never_imported_and_settings_stay(tmp_path: Path) -> None:
    code = f"""
import sys
from tokenphormer.evaluation import plots
assert "matplotlib" not in sys.modules, "importing the module must stay light"
assert "sklearn" not in sys.modules and "torch" not in sys.modules
import matplotlib
def settings():  # all but the backend, which reading would resolve, by importing pyplot
    return {{key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != "backend"}}
before = settings()
plots.save_figure(plots.attention_by_kind({{"self": 1.0}}), {str(tmp_path / "a.svg")!r})
assert "matplotlib.pyplot" not in sys.modules
assert settings() == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
