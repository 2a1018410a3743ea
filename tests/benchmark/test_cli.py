"""`benchmark`, `tables` and `leaks` as a person meets them."""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.benchmark.fakes import CPU, Inline, fake_run, make_row, trial, use
from tests.benchmark.test_variants import fake_pretraining
from tests.test_cli import Cli, assert_refused, cli
from tokenphormer.benchmark import running, variants
from tokenphormer.benchmark.methods import METHODS
from tokenphormer.benchmark.rows import Row, append_row, read_rows
from tokenphormer.benchmark.sgpm_study import Pretraining
from tokenphormer.graph import Graph
from tokenphormer.graph.datasets import DATASETS
from tokenphormer.graph.raw_files import missing_files
from tokenphormer.sgpm.settings import SMALL as SMALL_SGPM
from tokenphormer.sgpm.settings import SGPMSettings

__all__ = ["cli"]  # the fixture

SMALL = ("--models", "mlp, label_propagation", "--datasets", "cora", "--splits", 2, "--budget", 2, "--device", "cpu")


@pytest.fixture
def here(tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Cli:
    use(monkeypatch, Inline(random.Random(0)), fake_run)
    return cli


def test_from_nothing_to_tables(here: Cli) -> None:
    answer = here("benchmark", *SMALL, "--out", "rows")
    assert answer.code == 0, answer
    assert answer.out == "rows/rows.jsonl: 8 runs added; tables: tokenphormer tables rows --out TABLES\n"
    assert len(answer.err.splitlines()) == 8
    assert answer.err.startswith("cora mlp trial 0: 0.")
    assert here("benchmark", *SMALL, "--out", "rows").out.startswith("rows/rows.jsonl: 0 runs added")

    answer = here("tables", "rows", "--out", "tables", "--models", "mlp,label_propagation")
    assert answer.out.splitlines() == [f"tables/main.{form}" for form in ("md", "tex", "csv", "html")]
    assert "| MLP | **" in Path("tables/main.md").read_text(encoding="utf-8")


def test_what_is_named_twice_is_run_once(here: Cli) -> None:
    twice = ("--models", "mlp,mlp", "--datasets", "cora, cora", "--splits", 2, "--budget", 2, "--device", "cpu")
    assert "4 runs added" in here("benchmark", *twice, "--out", "rows").out
    here("tables", "rows", "--out", "tables", "--models", "mlp,mlp", "--datasets", "cora,cora")
    assert len(Path("tables/main.csv").read_text(encoding="utf-8").splitlines()) == 2


def test_several_slices_and_machines(here: Cli) -> None:
    assert "3 runs added" in here("benchmark", *SMALL, "--splits", 1, "--models", "mlp", "--out", "a").out
    assert "5 runs added" in here("benchmark", *SMALL, "--out", "b", "--merge", "a", "--merge", "a/rows.jsonl").out
    answer = here("tables", "a", "b", "--out", "tables", "--models", "mlp,label_propagation")
    assert answer.code == 0, answer
    assert len(read_rows([Path("a"), Path("b")])) == 8


def test_all_methods_by_default(here: Cli) -> None:
    answer = here("benchmark", "--datasets", "cora", "--budget", 1, "--splits", 1, "--device", "cpu", "--out", "rows")
    assert f"{2 * len(METHODS)} runs added" in answer.out
    assert {row["model"] for row in read_rows([Path("rows")])} == set(METHODS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--models", "gnc"), "'gnc' is no method of the benchmark; nearest: gcn"),
        (("--datasets", "citeser"), "'citeser' is no dataset; nearest: citeseer"),
        (("--models", ""), "--models '': expected a name, or several with commas between"),
        (("--datasets", ","), "--datasets ',': expected a name, or several with commas between"),
        (("--splits", 0), "--splits 0: expected 1 to 100"),
        (("--budget", 0), "--budget 0: expected at least 1"),
        (("--workers", 0), "--workers 0: expected at least 1"),
        (("--minutes", -1), "--minutes -1: expected 0, which is no limit, or more"),
        (("--protocol", "fair"), "--protocol fair: expected auto or one of stratified"),
        (("--merge", "nowhere"), "nowhere: no such file or folder of rows"),
        (("--device", "abacus"), "abacus"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(here: Cli, arguments: tuple[object, ...], message: str) -> None:
    assert_refused(here("benchmark", *SMALL, "--out", "rows", *arguments), 2, message)
    assert not Path("rows").exists()


def test_without_optuna(here: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    told = "a search needs Optuna: pip install 'tokenphormer[benchmark]'"
    assert_refused(here("benchmark", *SMALL, "--out", "rows"), 2, told)
    assert not Path("rows").exists()


def test_a_truncated_last_line_and_another_format_are_said_and_kept(here: Cli) -> None:
    here("benchmark", *SMALL, "--out", "rows")
    append_row(Path("rows/rows.jsonl"), make_row(format=0))
    whole = Path("rows/rows.jsonl").read_bytes()
    Path("rows/rows.jsonl").write_bytes(whole + b'{"kind": "fin')
    answer = here("tables", "rows", "--out", "tables")
    assert answer.code == 0
    assert answer.err.splitlines() == [
        "rows/rows.jsonl, line 10: not a whole row; it is kept in the file and not counted",
        "rows/rows.jsonl: 1 rows of format 0, not 1; they are not counted",
    ]
    answer = here("benchmark", *SMALL, "--out", "rows")
    assert "0 runs added" in answer.out
    assert Path("rows/rows.jsonl").read_bytes() == whole + b'{"kind": "fin'
    answer = here("benchmark", *SMALL, "--splits", 3, "--out", "rows")
    assert "2 runs added" in answer.out
    assert len(read_rows([Path("rows")])) == 10


# ---------------------------------------------------------------- studies

STUDY = ("--datasets", "cora", "--splits", 2, "--device", "cpu", "--out", "rows")


def test_studies_from_nothing_to_tables(here: Cli) -> None:
    answer = here("benchmark", "--study", "ablation", *STUDY)
    assert answer.code == 0, answer
    assert answer.out == "rows/rows.jsonl: 14 runs added; tables: tokenphormer tables rows --out TABLES\n"
    assert answer.err.startswith("cora tokenphormer ablation: all tokens, split 0: 0.")
    assert "0 runs added" in here("benchmark", "--study", "ablation", *STUDY).out
    assert "92 runs added" in here("benchmark", "--study", "tokens", *STUDY).out
    answer = here("tables", "rows", "--out", "tables")
    names = ["ablation.md", "ablation.tex", "ablation.csv", "tokens.csv"]
    names += ["ablation.png", "ablation.svg", "tokens.png", "tokens.svg"]
    assert answer.out.splitlines() == [f"tables/{name}" for name in names]  # and no main table of nothing
    assert "8 runs added" in here("benchmark", *SMALL, "--out", "rows").out
    assert here("tables", "rows", "--out", "tables").out.splitlines()[:4] == [
        f"tables/main.{form}" for form in ("md", "tex", "csv", "html")
    ]
    assert "| method | cora |" in Path("tables/main.md").read_text(encoding="utf-8")


def test_a_study_with_an_sgpm(here: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def pretrained(job: Pretraining, device: object) -> Row:
        asked.append(job)
        return fake_pretraining(job, CPU)

    monkeypatch.setattr(variants, "pretrain_for_study", pretrained)
    answer = here("benchmark", "--study", "sgpm", *STUDY, "--vectors", "kept", "--set", "epochs=3")
    assert "7 runs added" in answer.out, answer
    (job,) = asked
    assert job.settings == SGPMSettings().replace(SMALL_SGPM | {"epochs": 3})
    assert job.folder == Path("kept").resolve()
    answer = here("benchmark", "--study", "ablation", "--sgpm", *STUDY, "--vectors", "kept", "--set", "epochs=3")
    assert "16 runs added" in answer.out, answer
    assert len(asked) == 1
    answer = here("tables", "rows", "--out", "tables")
    assert "tables/sgpm.md" in answer.out.splitlines(), answer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--study", "albation"),
            "--study albation: there is no such study; expected main, ablation, tokens, sgpm, inputs, additions,",
        ),
        (("--study", "foo", "--models", "mlp"), "--study foo: there is no such study; expected main, ablation"),
        (("--study", "foo", "--sgpm"), "--study foo: there is no such study"),
        (("--study", "tokens", "--models", ","), "--models ',': expected a name, or several with commas between"),
        (
            ("--study", "ablation", "--models", "gcn"),
            "--models gcn: the study 'ablation' compares tokenphormer, no others",
        ),
        (
            ("--study", "tokens", "--budget", 3),
            "--budget, --search-splits, --held-out: the study 'tokens' searches nothing",
        ),
        (("--study", "tokens", "--vectors", "kept"), "--vectors, --set: are about SGPMs; say --sgpm too"),
        (("--study", "sgpm", "--set", "epoch=3"), "--set: 'epoch' is no setting; nearest: epochs"),
        (("--sgpm",), "--sgpm, --vectors, --set: are for the studies"),
        (("--study", "ablation", "--merge", "nowhere"), "nowhere: no such file or folder of rows"),
        (("--study", "ablation", "--datasets", "corra"), "'corra' is no dataset; nearest: cora"),
        (("--study", "ablation", "--splits", 0), "--splits 0: expected 1 to 100"),
        (("--study", "ablation", "--workers", 0), "--workers 0: expected at least 1"),
    ],
)
def test_bad_input_of_a_study(here: Cli, arguments: tuple[object, ...], message: str) -> None:
    assert_refused(here("benchmark", *STUDY, *arguments), 2, message)
    assert not Path("rows").exists()


def test_tables_of_no_rows(cli: Cli) -> None:
    assert_refused(cli("tables", "nowhere", "--out", "tables"), 2, "nowhere: no such file or folder of rows")
    Path("empty").mkdir()
    assert_refused(cli("tables", "empty", "--out", "tables"), 2, "there are no rows to make a table of")
    assert not Path("tables").exists()


def test_tables_of_a_budget(cli: Cli) -> None:
    rows = [trial(0, val_accuracy=0.1), trial(1, val_accuracy=0.9, values={"dropout": 0.2})]
    rows += [make_row(test_accuracy=0.6), make_row(test_accuracy=0.8, values={"dropout": 0.2})]
    for row in rows:
        append_row(Path("rows.jsonl"), row)
    for budget, expected in ((0, "80.00"), (1, "60.00"), (2, "80.00")):
        assert cli("tables", "rows.jsonl", "--out", "t", "--budget", budget, "--models", "mlp").code == 0
        assert f"**{expected}** (1)" in Path("t/main.md").read_text(encoding="utf-8")
    assert_refused(
        cli("tables", "rows.jsonl", "--out", "t", "--datasets", "corra"), 2, "'corra' is no dataset; nearest: cora"
    )
    assert_refused(cli("tables", "rows.jsonl", "--out", "t", "--models", ""), 2, "--models '': expected a name")


def test_leaks_for_people_and_for_programs(cli: Cli, tiny_datasets: Graph) -> None:
    answer = cli("leaks", "--datasets", "cora,cornell", "--splits", 2)
    assert answer.code == 0, answer
    assert [line.split()[3] for line in answer.out.splitlines()] == [
        "stratified-0",
        "stratified-1",
        "geom-gcn-0",
        "geom-gcn-1",
    ]
    (line,) = cli("leaks", "--datasets", "cora", "--splits", 1, "--json").out.splitlines()
    assert json.loads(line)["label_columns"] == 0
    assert_refused(cli("leaks", "--datasets", "core"), 2, "'core' is no dataset; nearest: cora")


def test_leaks_of_every_dataset_that_is_here(
    cli: Cli, tiny_datasets: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENPHORMER_DATA", str(tmp_path / "none"))
    here = [name for name in DATASETS if not missing_files(DATASETS[name], tmp_path / "none")]
    assert "debian" in here
    answer = cli("leaks", "--splits", 1, "--json")
    assert len(answer.out.splitlines()) == len(here), answer
    monkeypatch.setitem(DATASETS, "debian-2", DATASETS["debian"])
    assert len(cli("leaks", "--splits", 1, "--json").out.splitlines()) == len(here) + 1


def test_a_leak_is_an_exit_code(cli: Cli, tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    leaky = dataclasses.replace(tiny_datasets, x=np.eye(3, dtype=np.float32)[tiny_datasets.y])
    monkeypatch.setattr(running, "dataset", lambda name: leaky)
    answer = cli("leaks", "--datasets", "cora", "--splits", 1)
    assert answer.code == 1
    assert "label_columns 3" in answer.out
