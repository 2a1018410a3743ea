"""The report needs nothing but itself, escapes everything, and is well-formed."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.test_metrics import random_predictions
from tests.evaluation.test_plots import HISTORY
from tokenphormer.errors import InputError
from tokenphormer.evaluation import evaluate
from tokenphormer.evaluation.report import Report, render, write_report

EVIL = "<script>alert('1')</script>&\"x\""
VOID = {"meta", "br", "hr", "img", "input", "link"}


def make_report(classes: int = 3, **changes: Any) -> Report:
    rng = np.random.default_rng(0)
    probabilities, labels = random_predictions(0, 80, classes)
    metrics = {part: evaluate(*random_predictions(seed, 90, classes)) for seed, part in enumerate(["train", "val"])}
    report = Report(
        title="Tokenphormer on toys",
        graph={"name": "toys", "nodes": "300"},
        settings={"hidden_channels": 64, "walks": {"jump": 60, "uniform": 30}, "schedule": [1, 2]},
        split_name="stratified-0",
        split_sizes=(90, 90, 80),
        split_hash="0f" * 32,
        metrics={**metrics, "test": evaluate(probabilities, labels)},
        class_names=[f"class {number}" for number in range(classes)],
        nodes=rng.choice(300, size=80, replace=False),
        probabilities=probabilities,
        labels=labels,
        degree=rng.integers(0, 40, size=80),
        homophily=np.where(rng.random(80) < 0.1, np.nan, rng.random(80)),
        history=HISTORY,
        attention={"self": 0.5, "hop 1": 0.3, "jump walk": 0.2},
        comparison=[("logistic regression", 0.61), ("GCN", 0.99)],
        seeds=[0.80, 0.82, 0.84],
        seconds=83.2,
        peak_memory_bytes=3 * 2**29,
        environment={"python": "3.11", "torch": "2.10"},
        command="tokenphormer train toys",
    )
    return dataclasses.replace(report, **changes)


class Page(HTMLParser):
    """Collects tags, ids, attributes and text, and fails where tags are not balanced."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


VARIANTS: list[tuple[int, dict[str, Any]]] = [
    (3, {}),
    (1, {}),
    (2, {"seeds": [0.8], "comparison": []}),
    (30, {}),
    (3, {"history": [], "attention": None, "peak_memory_bytes": None, "command": "", "environment": {}}),
    (3, {"history": [{"epoch": 1, "train_loss": 1.0}]}),
    (3, {"history": [{"epoch": 1, "val_accuracy": 0.5}]}),
]


@pytest.mark.parametrize(("classes", "changes"), VARIANTS)
def test_is_balanced_and_needs_nothing_but_itself(classes: int, changes: dict[str, Any]) -> None:
    source = render(make_report(classes, **changes))
    page = Page(source)
    addresses = re.findall(r"https?://[^\s\"'<>)]+", source)
    assert set(addresses) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not {"script", "link", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    assert "@import" not in source
    assert "<?xml" not in source
    for tag, attributes in page.tags:
        for key in ("src", "href", "xlink:href"):
            assert (attributes.get(key) or "#").startswith(("#", "data:image/png;base64,")), (tag, attributes)
    identities = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    targets = re.findall(r'href="#([^"]+)"', source) + re.findall(r"url\(#([^)]+)\)", source)
    assert targets
    assert set(targets) <= set(identities)


def test_is_accessible() -> None:
    page = Page(render(make_report()))
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == len(page.all("main")) == len(page.all("title")) == 1
    assert all(cell.get("scope") in ("row", "col") for cell in page.all("th"))
    drawings = page.all("svg")
    assert len(drawings) == 6
    assert all(drawing["role"] == "img" and drawing["aria-label"] for drawing in drawings)
    assert len(page.all("caption")) == len(page.all("table"))
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")


@pytest.mark.parametrize("attention", [None, {}])
def test_a_model_without_tokens_has_no_attention(attention: dict[str, float] | None) -> None:
    assert "Attention" in render(make_report())
    assert "ttention" not in render(make_report(attention=attention))


def test_says_what_was_found() -> None:
    report = make_report()
    text = Page(render(report)).text
    assert f"Test accuracy {100 * report.headline.accuracy:.1f} %" in text
    assert f"{100 * report.headline.macro_f1:.1f} %" in text
    assert "82.0 ± 2.0 %" in text
    assert "1 min 23 s" in text
    assert "1.50 GiB" in text
    assert f"{100 * (0.61 - report.headline.accuracy):+.1f}".replace("-", "−") in text
    for word in ("class 2", "hidden_channels", '{"jump": 60, "uniform": 30}', "0f" * 32, "tokenphormer train toys"):
        assert word in text


def test_escapes_whatever_a_user_gives() -> None:
    report = make_report(
        title=EVIL,
        graph={"name": EVIL, EVIL: EVIL},
        settings={EVIL: EVIL, "list": [EVIL]},
        split_name=EVIL,
        class_names=[EVIL, "#2b2f36", 'id="x" url(#y)'],
        attention={EVIL: 1.0},
        comparison=[(EVIL, 0.5)],
        environment={EVIL: EVIL},
        command=EVIL,
    )
    source = render(report)
    assert "<script" not in source.lower()
    page = Page(source)
    assert page.text.count(EVIL) >= 10
    # What looks like markup in a name is left as it is in the pictures too: both axes and the table of classes.
    assert page.words.count("#2b2f36") == 3
    assert page.words.count('id="x" url(#y)') == 3


def test_names_that_no_font_or_file_holds(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, make_report(class_names=["中文 $x^$", "half \ud83d pair", "a\x00b\nc"]))
    text = Page(path.read_text(encoding="utf-8")).text
    assert text.count("中文 $x^$") == 3
    assert "half ? pair" in text


def test_without_a_test_part_the_headline_is_validation() -> None:
    report = make_report()
    metrics = {part: report.metrics[part] for part in ("train",)} | {"val": report.metrics["test"]}
    text = Page(render(dataclasses.replace(report, metrics=metrics, split_sizes=(90, 80, 0)))).text
    assert "Validation accuracy" in text
    assert "Test accuracy" not in text


def test_same_report_same_bytes_and_nothing_left_behind(tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        write_report(tmp_path / name, make_report())
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="part 'test' was evaluated on 80 nodes"):
        make_report(nodes=np.arange(5))
    with pytest.raises(InputError, match="at least one part"):
        make_report(metrics={})


def test_macro_f1_says_of_which_classes_it_is() -> None:
    """It is the mean over those that occur in labels or predictions."""
    assert "<small>of 3 classes</small>" in render(make_report())
    probabilities, labels = random_predictions(0, 80, 3)
    wider = np.concatenate([probabilities, np.zeros((80, 2))], axis=1)
    names = ["a", "b", "c", "absent", "absent too"]
    page = render(
        make_report(metrics={"test": evaluate(wider, labels)}, probabilities=wider, labels=labels, class_names=names)
    )
    assert "<small>of 3 classes; the other 2 do not occur here</small>" in page
