"""The site builds without a warning, and what its pages and README say of the repository is so."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tokenphormer
from tests.benchmark.fakes import make_row, trial
from tokenphormer.benchmark.rows import Row

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
MAP_ROW = re.compile(r"^\|.*\]\(\.\./([\w./]+)\).*\| *([^|]*) \|$", re.MULTILINE)


def script(name: str) -> ModuleType:
    """A file of scripts/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_source_archive_has_every_page_of_the_top() -> None:
    """Pages name them: an archive without one sends its readers nowhere."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {path.name for path in ROOT.glob("*.md")} <= set(included)
    assert all((ROOT / name).exists() for name in included)


# ---------------------------------------------------------------- the site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages as HTML; a warning is an error."""
    out = tmp_path_factory.mktemp("site")
    line = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-d",
        str(out / "doctrees"),
        str(DOCS),
        str(out),
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md") if "_build" not in path.parts}
    assert pages <= {path.relative_to(site) for path in site.rglob("*.html")}


def test_the_site_asks_nobody_else(site: Path) -> None:
    for page in site.rglob("*.html"):
        asked = re.findall(
            r"<(?:script|link|img)\b[^>]*(?:src|href)=\"(https?:[^\"]+)", page.read_text(encoding="utf-8")
        )
        assert not asked, f"{page.name}: {asked}"


def test_links_to_files_of_the_repository_work(site: Path) -> None:
    """Links out of docs/ are downloads or pages; none is left as it was, where it would lead nowhere."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r"<a\b[^>]*href=\"([^\"#]+)", text):
            if not re.match(r"\w+:", link):
                assert (page.parent / link.partition("?")[0]).exists(), f"{page.name}: {link}"


def test_the_api_page_has_every_public_name(site: Path) -> None:
    text = (site / "api.html").read_text(encoding="utf-8")
    for name in set(tokenphormer.__all__) - {"__version__"}:
        assert f'id="tokenphormer.{name}"' in text, name


def test_shapes_in_docstrings_are_no_lists(site: Path) -> None:
    assert "(n) class numbers" in (site / "api.html").read_text(encoding="utf-8")


# ---------------------------------------------------------------- the paper's map


def test_the_map_names_what_is_there() -> None:
    rows = MAP_ROW.findall((DOCS / "paper-map.md").read_text(encoding="utf-8"))
    assert len(rows) > 35
    for file, names in rows:
        assert (ROOT / file).is_file(), file
        for name in re.findall(r"`([^`]+)`", names):
            module = file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            assert hasattr(importlib.import_module(module), name), f"{file}: {name}"


def test_the_map_has_every_section_of_the_method() -> None:
    text = (DOCS / "paper-map.md").read_text(encoding="utf-8")
    for section in ("Graph Serialization", "Walk-token", "SGPM-token", "Hop-token", "encoder", "readout", "Ablation"):
        assert section in text


# ---------------------------------------------------------------- README


def test_links_of_the_readme_lead_somewhere() -> None:
    links = [link for link in LINK.findall(README) if not link.startswith("http")]
    assert len(links) > 15
    assert not [link for link in links if not (ROOT / link).exists()]


def test_the_example_has_twelve_lines() -> None:
    code = README.partition("```python\n")[2].partition("```")[0]
    assert len(code.splitlines()) == 12


def test_the_pictures_are_small() -> None:
    shown = re.findall(r"!\[[^\]]+\]\((docs/pictures/[\w-]+\.png)\)", README)
    assert len(shown) == 3
    for path in (DOCS / "pictures").iterdir():
        assert path.stat().st_size < 300_000, path.name


def test_the_pictures_are_what_the_script_draws(tmp_path: Path) -> None:
    for drawn in script("docs_pictures").main(tmp_path):
        kept = DOCS / "pictures" / drawn.name
        with Image.open(drawn) as new, Image.open(kept) as old:
            assert new.size == old.size
            pixels = [np.asarray(each.convert("RGB"), np.float64) for each in (new, old)]
        assert np.abs(pixels[0] - pixels[1]).mean() < 1, f"{kept.name}: draw it anew"  # fonts may differ a little


# ---------------------------------------------------------------- results


@pytest.fixture(scope="module")
def blocks() -> ModuleType:
    return script("results_blocks")


@pytest.mark.parametrize("page", ["README.md", "docs/limits.md"])
def test_results_are_those_of_the_tables(page: str, blocks: ModuleType) -> None:
    assert page in blocks.PAGES
    text = (ROOT / page).read_text(encoding="utf-8")
    assert f"<!-- results: {blocks.PAGES[page]} -->" in text
    assert blocks.rewritten(text) == text, "run python scripts/results_blocks.py"


CSV = """\
method,dataset,protocol,status,mean,std,n,seconds,device,difference,low,high,plus_difference,plus_low,plus_high
tokenphormer,cora,stratified,re-run,80,1,10,3,cuda,,,,-1,-2,0
tokenphormer+,cora,stratified,re-run,81,1,10,3,cpu,1,0,2,,,
gcn,cora,stratified,re-run,82,1,10,1,cuda,2,1,3,1,-1,3
gcn_tuned,cora,stratified,re-run,81,1,10,2,cuda,1,-1,3,0,-1,1
mlp,cora,stratified,from the paper,99,1,0,,,,,,,,
appnp,cora,two-stage,re-run,98,1,10,1,cuda,18,17,19,17,16,18
tokenphormer,photo,stratified,re-run,90,1,3,3,cuda,,,,-9,-10,-8
tokenphormer+,photo,stratified,re-run,99,1,3,3,cuda,9,8,10,,,
gcn,photo,stratified,re-run,88,1,3,1,cuda,-2,-3,-1,-11,-12,-10
tokenphormer,pubmed,stratified,re-run,70,1,10,3,cuda,,,,,,
gcn,dblp,stratified,re-run,80,1,10,1,cuda,,,,,,
"""


def lay_out(folder: Path, table: str, **files: list[Row]) -> None:
    """A table and files of rows where a script looks for them."""
    for path in ("tables", "rows"):
        (folder / "experiments" / path).mkdir(parents=True, exist_ok=True)
    (folder / "experiments" / "tables" / "main.csv").write_text(table, encoding="utf-8")
    for name, rows in files.items():
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / "experiments" / "rows" / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def test_blocks_follow_the_tables(blocks: ModuleType, tmp_path: Path) -> None:
    searches = [trial(0, model=model) for model in ("tokenphormer", "gcn", "gat")]
    searches += [trial(1, model="gcn", val_accuracy=0.1, values={"dropout": 0.2})]
    lay_out(
        tmp_path,
        CSV,
        a=[*searches, make_row(model="tokenphormer")],
        b=[make_row(model="gcn"), make_row(model="gcn", dataset="photo")],
        not_chosen=[make_row(model="gcn", values={"dropout": 0.2})],
        not_shown=[make_row(model="gat"), make_row(model="gcn", study="votes: one"), make_row(protocol="two-stage")],
    )
    page = "before\n<!-- results: main -->\nstale\n<!-- end of results -->\nafter\n"
    text = blocks.rewritten(page, tmp_path)
    a, b = "[a](experiments/rows/a.jsonl)", "[b](experiments/rows/b.jsonl)"
    assert text.startswith("before\n<!-- results: main -->\n| dataset |")
    assert text.endswith("<!-- end of results -->\nafter\n")
    assert "stale" not in text
    assert (
        "| cora | 80.0 ± 1.0 (10) | 81.0 ± 1.0 (10) | GCN 82.0 ± 1.0 (10) | 81.0 ± 1.0 (10) | +1.00 [-1.00, +3.00] |"
        in text
    )
    assert f" [-1.00, +3.00] | {a}, {b} |" in text
    assert "experiments/rows/not" not in text  # of the figures that are shown alone
    numbered = [f"[{n}](experiments/rows/grid-{n}.jsonl)" for n in (1, 2, 10)]
    assert (
        blocks.links(["a.jsonl", "grid-1.jsonl", "grid-10.jsonl", "grid-2.jsonl"]) == f"{a}, grid {' '.join(numbered)}"
    )
    assert "dblp" not in text  # Tokenphormer itself was not run there
    assert "| pubmed | 70.0 ± 1.0 (10) | not run yet | not run yet | not run yet |  |" in text
    assert "On photo Tokenphormer+ is ahead of all others" in text
    assert "On cora Tokenphormer+ and the best of the others cannot be told apart." in text
    assert "On photo Tokenphormer is ahead of all others" in text
    assert "On cora the best of the others is ahead of Tokenphormer." in text
    assert blocks.rewritten(text, tmp_path) == text
    enough = blocks.rewritten("<!-- results: enough -->\n<!-- end of results -->", tmp_path)
    assert "| +1.00 [-1.00, +3.00] | 3.0 on a CPU, 1.0 |" in enough
    told = (
        "On cora a GCN cannot be told from Tokenphormer+, so it is enough. On photo Tokenphormer+ is ahead of the one "
    )
    assert f"{told}GCN that was run." in enough


def test_ahead_of_both_takes_two(blocks: ModuleType) -> None:
    def cell(method: str, gaps: dict[str, tuple[float, float, float]]) -> Any:
        return blocks.Cell(method, 80.0, 1.0, 10, 1.0, "cuda", gaps)

    behind = {"tokenphormer+": (-1.0, -2.0, -0.5)}
    ours = {"tokenphormer": cell("tokenphormer", {}), "tokenphormer+": cell("tokenphormer+", {})}
    both = ours | {method: cell(method, behind) for method in ("gcn", "gcn_tuned")}
    told = blocks.enough({"photo": both, "dblp": ours | {"gcn": cell("gcn", behind)}}, {})
    assert "On photo Tokenphormer+ is ahead of both. On dblp Tokenphormer+ is ahead of the one GCN" in told


def test_ahead_of_all_others_means_of_each(blocks: ModuleType, tmp_path: Path) -> None:
    """The best rival is told from ours, a lower one that jumps from split to split is not."""
    uneven = CSV + "gcn_tuned,photo,stratified,re-run,80,20,3,1,cuda,-10,-30,10,-19,-39,1\n"
    lay_out(tmp_path, uneven)
    text = blocks.rewritten("<!-- results: main -->\n<!-- end of results -->", tmp_path)
    assert "ahead of all others" not in text
    for ours in ("Tokenphormer+", "Tokenphormer"):
        assert f"On photo {ours} is ahead of the best of the others; not all others can be told" in text
    enough = blocks.rewritten("<!-- results: enough -->\n<!-- end of results -->", tmp_path)
    assert "ahead of both" not in enough
    assert "On photo Tokenphormer+ is ahead of the better GCN; the other one is too uneven to tell." in enough


def test_the_page_says_what_each_addition_is_worth() -> None:
    """All that is lost beyond doubt, to a tenth of a point, the most first, and nothing else."""
    lost: dict[str, dict[str, float]] = {}
    with (ROOT / "experiments" / "tables" / "additions.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["variant"] != "all of it":
                name = row["variant"].replace(
                    "with own features in every token", "own features in the self token alone"
                )
                found = lost.setdefault(name.removeprefix("without "), {})
                if float(row["from"]) > 0 or float(row["to"]) < 0:
                    found[row["dataset"]] = -float(row["difference"])
    page = (DOCS / "benchmark.md").read_text(encoding="utf-8")
    table = page.partition("| without | points lost |\n|---|---|\n")[2].partition("\n\n")[0]
    told = dict(line.strip("| ").split(" | ") for line in table.splitlines())
    nowhere = [name for name, points in told.items() if points == "nowhere"]
    assert {part.removeprefix("a ") for name in nowhere for part in name.split(", ")} == {
        name.removeprefix("a ") for name, points in lost.items() if not points
    }
    for name, points in told.items():
        if name not in nowhere:
            pairs = [pair.rsplit(" ", 1) for pair in points.split(", ")]
            values = lost.pop(name.replace("Adam's own decay", "Adam's decay"))
            assert {dataset.lower(): float(value) for dataset, value in pairs} == {
                dataset: round(value, 1) for dataset, value in values.items()
            }
            assert [float(value) for _, value in pairs] == sorted((float(value) for _, value in pairs), reverse=True)
    assert not any(lost.values()), "worth something, and not on the page"


def test_lists_read_as_sentences_do(blocks: ModuleType) -> None:
    assert [blocks.listed(list(names)) for names in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]


# ---------------------------------------------------------------- the search behind Tokenphormer+'s defaults


def test_the_page_counts_the_trainings_behind_the_recipes() -> None:
    """They are an advantage that other methods had not, so all of them are told."""
    page = (DOCS / "benchmark.md").read_text(encoding="utf-8")
    counts = {"plus-*": r"there were ([\d,]+) trainings", "search-defaults-*": r"The ([\d,]+) of the first"}
    for pattern, told in counts.items():
        files = (ROOT / "experiments" / "rows").glob(f"{pattern}.jsonl")
        count = sum(len(path.read_bytes().splitlines()) for path in files)
        assert re.findall(told, page) == [f"{count:,}"]


def test_what_is_shown_of_a_search_has_its_first_settings_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Number 0 is the defaults where settings are drawn, and one of the combinations where all are tried."""
    search = script("plus_search")
    found = {0: 0.9, 1: 0.8, 2: 0.7, 3: 0.6}
    for study, told in (
        ("plus-averaged", "0.0: 90.00 (1), 0.9: 80.00 (1)"),
        ("plus-light", "num_heads            4: 80.00 (1)\n"),
    ):
        rows = [trial(n, study=study, val_accuracy=accuracy) for n, accuracy in found.items()]
        others = [trial(n, split=101, study=study, val_accuracy=0.1) for n in found]
        search.show(study, [*others, *rows])  # in any order: a setting is judged on the first split
        assert told in capsys.readouterr().out
        search.show(study, others)  # of which nothing has come yet
        assert "none" in capsys.readouterr().out


@pytest.mark.parametrize("study", ["plus-agreeing", "plus-near", "plus-hops", "plus-apart", "plus-own"])
def test_sixteen_of_all_combinations_tell_each_choice_from_any_other_and_from_any_two(study: str) -> None:
    search = script("plus_search")
    space = {key: values for key, values in search.SPACES[study].items() if len(values) == 2}
    settings = [search.values_of(study, number) for number in search.fraction(study)]
    levels = np.array([[2 * values.index(one[key]) - 1 for key, values in space.items()] for one in settings])
    assert levels.shape == (16, 8)
    assert (levels.T @ levels == 16 * np.eye(8)).all()
    pairs = [levels[:, i] * levels[:, j] for i in range(8) for j in range(i)]
    assert (levels.T @ np.array(pairs).T == 0).all()


def test_what_each_choice_is_worth_is_found_from_the_sixteen(capsys: pytest.CaptureFixture[str]) -> None:
    search, study = script("plus_search"), "plus-near"
    rows = []
    for number in search.fraction(study):
        for split, luck in ((100, 0.0), (101, 0.01), (102, 0.02)):
            worth = 0.02 * (search.values_of(study, number)["num_hops"] == 2) * (1 + luck)
            rows.append(trial(number, study=study, split=split, val_accuracy=0.7 + luck + worth))
    rows.append(trial(search.fraction(study)[0], study=study, split=103, val_accuracy=0.1))  # the others are to come
    found = search.effects(study, rows)
    assert found.pop("num_hops") == (pytest.approx(2.02), pytest.approx(0.02 / 3**0.5))
    assert set(found) == {key for key, values in search.NEAR.items() if len(values) == 2} - {"num_hops"}
    assert all(abs(points) < 1e-9 for points, _ in found.values())
    search.show(study, rows)
    assert "num_hops             1 -> 2: +2.02 ± 0.01\n" in capsys.readouterr().out
