"""The benchmark's page: self-contained, escaped, with every number of the tables and a plot of each kind a dataset."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.benchmark.fakes import make_row, trial
from tests.evaluation.test_report import EVIL, Page
from tokenphormer.benchmark.page import accuracy_plot, cost_plot, html_page, usual_device
from tokenphormer.benchmark.tables import CellResult, cell_results

METHODS_HERE = ("tokenphormer", "gcn", "mlp", "jknet")


@pytest.fixture(scope="module")
def cells() -> list[CellResult]:
    rows = []
    for model, start in (("tokenphormer", 0.8), ("gcn", 0.7)):
        rows += [
            trial(0, model=model),
            *(make_row(model=model, split=n, test_accuracy=start + n / 20) for n in range(3)),
        ]
    rows += [trial(0, model="mlp", status="did not run", reason=EVIL)]
    return cell_results(rows, ("cora", "debian"), METHODS_HERE)


def test_it_needs_nothing_but_itself_and_escapes_everything(cells: list[CellResult]) -> None:
    source = html_page(cells)
    page = Page(source)
    addresses = re.findall(r"https?://[^\s\"'<>)]+", source)
    assert set(addresses) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not {"script", "link", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    assert EVIL not in source
    assert "did not run: " + EVIL in page.text
    identities = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identities) == len(set(identities))


def test_it_shows_the_tables(cells: list[CellResult]) -> None:
    text = Page(html_page(cells)).text
    assert "85.00 ± 5.00 (n = 3)" in text
    assert "91.20 ± 0.47" in text
    assert "-10.00 [-10.00, -10.00]" in text
    for caption in ("re-run here", "from the paper", "Paired difference to Tokenphormer and its 95 % interval"):
        assert caption in text
    assert "did not run" in text
    assert "cora: stratified splits; search of 1 trials" in text


def test_plots_of_datasets_with_more_than_one_method(cells: list[CellResult]) -> None:
    page = Page(html_page(cells))
    labels = [attributes["aria-label"] for attributes in page.all("svg")]
    assert labels == [
        "Test accuracy of 2 methods on cora, the best on top",
        "Accuracy against time and memory on cora; numbers are those of the plot above",
    ]


def test_the_plot_of_accuracies_has_the_interval_of_the_mean(cells: list[CellResult]) -> None:
    ran = [cell for cell in cells if cell.mean is not None]
    (axes,) = accuracy_plot(ran).axes
    assert [text.get_text().split("  ") for text in axes.get_yticklabels()] == [["Tokenphormer", "1"], ["GCN", "2"]]
    bars = [segment for container in axes.collections for segment in container.get_segments()]
    half = 4.302653 * 5 / 3**0.5  # Student's t for 2, standard deviation 5, three splits
    for bar, cell in zip(bars, ran, strict=True):
        assert bar[:, 0].tolist() == pytest.approx([(cell.mean or 0) - half, (cell.mean or 0) + half], abs=1e-4)


def test_costs_are_drawn_on_a_scale_that_takes_zero(cells: list[CellResult]) -> None:
    ran = [dataclasses.replace(cell, seconds=0.0) for cell in cells if cell.mean is not None]
    time, memory = cost_plot(ran, "").axes
    assert (time.get_xscale(), memory.get_xscale()) == ("log", "log")
    assert [text.get_text() for text in time.texts] == ["1", "2"]
    assert memory.texts[0].get_position() == (pytest.approx(3.0), pytest.approx(85.0))


def test_costs_of_two_devices_are_not_drawn_together(cells: list[CellResult]) -> None:
    ran = [cell for cell in cells if cell.mean is not None]
    ours, gcn = (dataclasses.replace(cell, device=device) for cell, device in zip(ran, ("cuda", "cpu"), strict=True))
    more = [dataclasses.replace(gcn, method=name, mean=60.0) for name in ("mlp", "jknet")]
    assert usual_device([ours, gcn, *more]) == ("cpu", [ours])
    assert [text.get_text() for text in cost_plot([ours, gcn, *more], "cpu").axes[0].texts] == ["2", "3", "4"]
    text = Page(html_page([ours, gcn, *more])).text
    assert "the methods of the plot above, on a CPU. Not drawn, since run elsewhere: Tokenphormer." in text
    unknown = dataclasses.replace(gcn, method="gat", device="")  # rows of before there was a device in them
    text = Page(html_page([ours, gcn, *more, unknown])).text
    told = "run elsewhere: Tokenphormer. Not drawn, since their rows do not say where they ran: GAT."
    assert told in text


def test_a_page_of_nothing() -> None:
    page = Page(html_page(cell_results([], ("debian",), METHODS_HERE)))
    assert page.all("svg") == []
    assert "debian: stratified splits; nothing re-run yet" in page.text
    assert "Paired" not in page.text
    assert "from the paper" not in page.text
