"""The studies: every variant on the same splits from one start, each run once, whatever is merged or stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.benchmark.fakes import CPU, Inline, fake_run, make_row, trial, use
from tests.benchmark.test_sgpm_study import SMALL as SMALL_SGPM
from tokenphormer.benchmark import grid, variants
from tokenphormer.benchmark.grid import Plan
from tokenphormer.benchmark.methods import complete, entry
from tokenphormer.benchmark.rows import Row, append_row, config_hash, origin, read_rows, row_key
from tokenphormer.benchmark.running import Job, split_of
from tokenphormer.benchmark.running import run as real_run
from tokenphormer.benchmark.sgpm_study import Pretraining
from tokenphormer.benchmark.study_tables import study_results, write_studies
from tokenphormer.benchmark.variants import (
    ABLATION,
    ADDITIONS,
    BASE,
    INPUTS,
    VOTERS,
    VOTING,
    jobs_of,
    run_study,
    start_values,
)
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.sgpm import SGPMSettings
from tokenphormer.sgpm.pretrained import VECTOR_KINDS
from tokenphormer.training.presets import CPU_SIZE, config_for
from tokenphormer.training.settings import Config

SGPM = SGPMSettings(seed=4)
Run = Callable[..., list[Row]]


def fake_pretraining(job: Pretraining, device: torch.device) -> Row:
    job.folder.mkdir(exist_ok=True)
    for kind in VECTOR_KINDS:
        np.save(job.file(kind), np.zeros((2, 2)))
    row = {"kind": "pretrain", "study": "sgpm", "model": "sgpm", "dataset": job.dataset, "status": "done"}
    row |= {
        "config": job.settings.to_dict(),
        "config_hash": job.settings.hash,
        "seed": job.settings.seed,
        "val_accuracy": 0.5,
        "seconds": 1.0,
    }
    return (
        row | {"history": [{"val_loss": 1.0, "val_accuracy": 0.5}], "bigram_accuracy": 0.1, "chance": 0.01} | origin()
    )


@pytest.fixture
def study(tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setattr(variants, "pretrain_for_study", fake_pretraining)
    use(monkeypatch, Inline(), fake_run)

    def call(name: str, splits: int = 2, datasets: tuple[str, ...] = ("cora", "photo"), **options: Any) -> list[Row]:
        before = read_rows([tmp_path / "out"]) if (tmp_path / "out").exists() else []
        added = run_study(name, Plan((), datasets, splits), tmp_path / "out", CPU, **options)
        rows = read_rows([tmp_path / "out"])
        assert added == len(rows) - len(before)
        return rows

    return call


# ---------------------------------------------------------------- what is run


@pytest.mark.parametrize(("sgpm", "names"), [(SGPM, set(ABLATION)), (None, set(ABLATION) - {"without SGPM-token"})])
def test_the_ablation(study: Run, sgpm: SGPMSettings | None, names: set[str]) -> None:
    finals = [row for row in study("ablation", sgpm=sgpm) if row["kind"] == "final"]
    found = {(row["study"], row["dataset"], row["split"]) for row in finals}
    assert found == {(f"ablation: {n}", d, s) for n in names for d in ("cora", "photo") for s in (0, 1)}
    assert len(finals) == len(found)
    for row in finals:
        token = sgpm is not None and row["study"] != "ablation: without SGPM-token"
        assert row.get("sgpm", "") == (f"static {SGPM.hash}" if token else "")
        values = BASE | ABLATION[row["study"].partition(": ")[2]]
        assert row["config_hash"] == config_hash(complete(entry("tokenphormer"), values))


def test_the_tokens(study: Run) -> None:
    rows = study("tokens", splits=1)
    ours = [row["config"] for row in rows if (row["model"], row["dataset"]) == ("tokenphormer", "cora")]
    assert [config["num_walks"] for config in ours] == list(range(10, 141, 10))
    assert {config["num_hops"] for config in ours} == {3}
    hops = [row["config"]["num_hops"] for row in rows if (row["model"], row["dataset"]) == ("nagphormer", "cora")]
    assert hops == [*range(1, 20), *range(20, 141, 10)]
    hops = [row["config"]["num_hops"] for row in rows if (row["model"], row["dataset"]) == ("nagphormer", "photo")]
    assert hops == [*range(1, 12), *range(20, 141, 10)]


def test_the_sgpm_study(study: Run) -> None:
    rows = study("sgpm", sgpm=SGPM)
    assert [row["dataset"] for row in rows if row["kind"] == "pretrain"] == ["cora", "photo"]
    finals = [row for row in rows if row["kind"] == "final"]
    kinds = {"without": "", **{kind: f"{kind} {SGPM.hash}" for kind in VECTOR_KINDS}}
    assert sorted((row["dataset"], row["split"], row["study"], row.get("sgpm", "")) for row in finals) == sorted(
        (name, split, f"sgpm: {kind}", token)
        for name in ("cora", "photo")
        for split in (0, 1)
        for kind, token in kinds.items()
    )
    assert len({row["config_hash"] for row in finals}) == 1  # the token alone makes the difference


def test_what_is_added_is_taken_away_where_it_is_there(study: Run, tmp_path: Path) -> None:
    """On Cora nothing is known of a search, so its defaults are taken apart; on Photo the settings that were found."""
    found = {"consistency": 0.0, "feature_dropout": 0.0, "fresh_walks": True, "l2": 5e-3}
    found |= {"final_norm": True, "score_learned": True, "weight_average": 0.9}
    found |= {"token_activation": True, "include_own": False}
    append_row(tmp_path / "main.jsonl", trial(20, model="tokenphormer+", dataset="photo", values=found))
    rows = study("additions", merge=(tmp_path / "main.jsonl",))
    names = {d: {r["study"].partition(": ")[2] for r in rows if r["dataset"] == d} for d in ("cora", "photo")}
    lacking = {
        "without activated tokens",
        "with own features in every token",
        "without fresh walks",
        "without Adam's decay",
        "without learned weights of scores",
        "without a last norm",
        "without a running mean of the weights",
    }
    assert names["cora"] == {"all of it", *ADDITIONS} - lacking
    assert names["photo"] == {"all of it", *ADDITIONS} - {"without agreement", "without dropout of features"}
    for row in rows:
        start = found if row["dataset"] == "photo" else {}
        values = start | ADDITIONS.get(row["study"].partition(": ")[2], {})
        assert row["config_hash"] == config_hash(complete(entry("tokenphormer+"), values))
    assert study("additions", merge=(tmp_path / "main.jsonl",)) == rows, "it goes on from what it began with"


def test_without_settings(study: Run, tiny_datasets: Graph) -> None:
    """The runs are those that `train` would make; those for GPUs take one, and the tuned ones are the main study's."""
    rows = study("defaults")
    assert {row["study"] for row in rows} == {"defaults: without settings, on a CPU"}
    assert len(rows) == 4
    for row in rows:
        split = split_of(tiny_datasets, "stratified", row["split"])
        wanted = config_for(tiny_datasets, split, CPU).replace({"compile": "no", "seed": row["seed"]})
        assert Config().replace(row["config"]).replace({"seed": row["seed"]}) == wanted
    both = jobs_of("defaults", Plan((), ("cora",), 1), [], device=torch.device("cuda"))
    assert [job.study for job in both] == [f"defaults: without settings, on a {name}" for name in ("CPU", "GPU")]
    epochs = [complete(entry(job.model), dict(job.values))["max_epochs"] for job in both]
    assert epochs == [CPU_SIZE["max_epochs"], 500]


def test_votes(study: Run, tmp_path: Path) -> None:
    """Five of each method, in the settings of the main study; what one gives is the main study's."""
    main = tmp_path / "main.jsonl"
    found = {"tokenphormer+": dict(entry("tokenphormer+").starts[0]), "appnp": {"dropout": 0.7}}
    for model, values in found.items():
        append_row(main, trial(0, model=model, val_accuracy=0.4))
        append_row(main, trial(1, model=model, val_accuracy=0.6, values=values))
        append_row(main, make_row(model=model, values=values, test_accuracy=0.25))
    rows = study("votes", 1, ("cora",), merge=(main,))
    assert [(row["study"], row["voters"]) for row in rows] == [
        (f"votes: {entry(model).title}, five that vote", VOTERS) for model in VOTING
    ]
    assert all(row["test_accuracy"] != 0.25 for row in rows), "one training is not what five say"
    for row in rows:
        assert row["config"] == json.loads(json.dumps(complete(entry(row["model"]), found.get(row["model"], {}))))
    results = study_results([*rows, *read_rows([main])], "votes")["cora"]
    assert results["Tokenphormer+, one"] == results["APPNP, one"] == {0: 25.0}
    assert {name for name in results if name.endswith("vote")} == {
        f"{entry(model).title}, five that vote" for model in VOTING
    }


def test_protocols_have_columns_of_their_own(study: Run, tmp_path: Path) -> None:
    rows = study("votes", 1, ("photo",))
    run_study("votes", Plan((), ("photo",), 1, protocol="given"), tmp_path / "given", CPU)
    rows += read_rows([tmp_path / "given"])
    assert list(study_results(rows, "votes")) == ["photo", "photo, given"]


def test_runs_of_the_main_study_are_not_run_again(study: Run, tmp_path: Path) -> None:
    """The same settings, split and seed: the row is the main study's, under the name of this one. Said, and counted."""
    found = {"num_walks": 4, "hidden_channels": 8}
    main = tmp_path / "main.jsonl"
    told = found | {"walk_length": Config().walk_length}  # a default, by name or without
    append_row(main, trial(20, model="tokenphormer+", dataset="cora", values=told))
    final = trial(-1, kind="final", model="tokenphormer+", dataset="cora", values=found, split=1, seed=1)
    append_row(main, final | {"test_accuracy": 0.123})
    other = trial(-1, kind="final", model="tokenphormer+", dataset="cora", values=found, split=0, seed=3)
    append_row(main, other | {"test_accuracy": 0.456})
    for elsewhere in ({"dataset": "photo"}, {"protocol": "two-stage"}, {"model": "tokenphormer"}):
        append_row(main, final | {"test_accuracy": 0.789} | elsewhere)
    said: list[str] = []
    rows = study("additions", datasets=("cora",), merge=(main,), say=said.append)
    whole = {row["split"]: row for row in rows if row["study"] == "additions: all of it"}
    assert whole[1]["test_accuracy"] == 0.123
    assert whole[0]["test_accuracy"] != 0.456, "another seed is another run"
    assert all(row["test_accuracy"] != 0.123 for row in rows if row["study"] != "additions: all of it")
    assert [line for line in said if "main study" in line] == ["1 runs are the main study's: their rows are taken"]


def test_a_run_with_an_sgpm_token_is_none_of_the_main_study(study: Run, tmp_path: Path) -> None:
    """Its settings are the same: what it reads beside is not among them."""
    main = tmp_path / "main.jsonl"
    append_row(main, make_row(model="tokenphormer", values=BASE, test_accuracy=0.123))
    rows = study("sgpm", 1, ("cora",), sgpm=SGPM, merge=(main,))
    taken = {row["study"] for row in rows if row.get("test_accuracy") == 0.123}
    assert taken == {"sgpm: without"}


def test_some_methods_of_a_study() -> None:
    every = jobs_of("tokens", Plan((), ("cora",), 1), [])
    hops = jobs_of("tokens", Plan(("nagphormer",), ("cora",), 1), [])
    assert {job.model for job in every} == {"tokenphormer", "nagphormer"}
    assert hops == [job for job in every if job.model == "nagphormer"]


def test_the_first_split_comes_first() -> None:
    jobs = jobs_of("ablation", Plan((), ("cora", "photo"), 3), [])
    assert [job.split for job in jobs] == sorted(job.split for job in jobs)
    assert all(job.seed == job.split for job in jobs)


def test_a_study_there_is_not(study: Run, tmp_path: Path) -> None:
    message = r"--study albation: there is no such study; expected main, ablation, .*, defaults or votes"
    with pytest.raises(InputError, match=message):
        study("albation")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="--workers 0: expected at least 1"):
        study("tokens", workers=0)
    with pytest.raises(InputError, match="nowhere: no such file or folder of rows"):
        study("tokens", merge=(Path("nowhere"),))


def test_it_needs_no_optuna(study: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert len(study("tokens", splits=1)) == 14 + 32 + 14 + 24


def test_a_real_run(tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two variants of the ablation, in this process, on the tiny graph."""
    monkeypatch.setattr(variants, "BASE", BASE | {"num_walks": 4, "hidden_channels": 8, "max_epochs": 2})
    monkeypatch.setattr(variants, "ABLATION", {name: ABLATION[name] for name in ("all tokens", "without hop-tokens")})
    use(monkeypatch, Inline(), real_run)
    assert run_study("ablation", Plan((), ("cora",), 1), tmp_path, CPU) == 2
    rows = read_rows([tmp_path])
    assert [(row["status"], row["epochs"]) for row in rows] == [("done", 2)] * 2
    assert all(0 <= row["test_accuracy"] <= 1 for row in rows)
    assert rows[0]["split_hash"] == rows[1]["split_hash"]


def test_a_real_run_with_sgpm_tokens(tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(variants, "BASE", BASE | {"num_walks": 4, "hidden_channels": 8, "max_epochs": 2})
    use(monkeypatch, Inline(), real_run)
    assert run_study("sgpm", Plan((), ("cora",), 1), tmp_path, CPU, sgpm=SMALL_SGPM) == 4
    pretrained, *finals = read_rows([tmp_path])
    assert (pretrained["kind"], pretrained["config_hash"]) == ("pretrain", SMALL_SGPM.hash)
    assert [row["status"] for row in finals] == ["done"] * 3
    assert len({row["val_loss"] for row in finals}) == 3  # each reads something else
    assert finals[0]["parameters"] < finals[1]["parameters"]


# ---------------------------------------------------------------- stopping and going on


@pytest.mark.parametrize("name", ["ablation", "tokens", "sgpm"])
def test_gone_on_with_nothing_is_doubled(study: Run, name: str, tmp_path: Path) -> None:
    sgpm = SGPM if name == "sgpm" else None
    first = study(name, 1, sgpm=sgpm)
    rows = study(name, 2, sgpm=sgpm)
    pretrained = sum(row["kind"] == "pretrain" for row in rows)
    assert len(rows) - pretrained == 2 * (len(first) - pretrained)
    assert len({row_key(row) for row in rows}) == len(rows)
    assert len((tmp_path / "out" / "rows.jsonl").read_text(encoding="utf-8").splitlines()) == len(rows)
    assert study(name, 2, sgpm=sgpm) == rows


def test_what_is_merged_is_done(study: Run, tmp_path: Path) -> None:
    rows = study("ablation", 1)
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    mine = study("ablation", 2, merge=(tmp_path / "elsewhere",))
    assert {row["split"] for row in mine} == {1}
    assert len(mine) == len(rows)


def test_the_time_ends_it_and_the_next_slice_goes_on(study: Run, tmp_path: Path) -> None:
    assert study("sgpm", 1, sgpm=SGPM, minutes=0.0) == []
    assert not (tmp_path / "out" / "vectors").exists()
    assert len(study("sgpm", 1, sgpm=SGPM)) == 2 + 6


def test_vectors_that_are_there_are_not_made_again(study: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study("sgpm", 1, sgpm=SGPM, vectors=tmp_path / "kept")
    monkeypatch.setattr(variants, "pretrain_for_study", lambda *_: pytest.fail("pre-trained again"))
    rows = study("ablation", 1, sgpm=SGPM, vectors=tmp_path / "kept")
    assert sum(row["kind"] == "pretrain" for row in rows) == 2
    assert not (tmp_path / "out" / "vectors").exists()
    for path in (tmp_path / "kept").iterdir():
        path.unlink()
    assert study("ablation", 1, sgpm=SGPM, vectors=tmp_path / "kept") == rows  # nothing needs them any more


def test_two_cannot_fill_one_folder(study: Run, tmp_path: Path) -> None:
    with (
        grid.only_writer(tmp_path / "out" / "rows.jsonl"),
        pytest.raises(InputError, match="another process is filling it"),
    ):
        study("ablation", 1)


# ---------------------------------------------------------------- what it starts from


def test_it_starts_from_what_the_search_settled_on() -> None:
    rows = [trial(0, model="tokenphormer", val_accuracy=0.1)]
    rows += [trial(1, model="tokenphormer", val_accuracy=0.2, values={"dropout": 0.7, "walk_ratios": [1, 0, 0, 0]})]
    here = ("ablation", "tokenphormer", "cora", "stratified")
    assert start_values([], *here) == BASE
    assert start_values(rows, *here) == {"dropout": 0.7, "walk_ratios": [1, 0, 0, 0]}
    assert start_values(rows, "ablation", "tokenphormer", "photo", "stratified") == BASE
    assert start_values(rows, "ablation", "tokenphormer", "cora", "two-stage") == BASE
    assert start_values(rows, "tokens", "nagphormer", "cora", "stratified") == {}
    old = [row | {"config_hash": "of other defaults"} for row in rows]
    assert start_values(old, *here) == BASE


def test_it_starts_from_what_the_main_table_shows() -> None:
    """A method that has gone on searching alone has no more trials in the table than the others, and none here."""
    rows = [trial(n, model="tokenphormer", val_accuracy=n / 10, values={"dropout": (n + 1) / 10}) for n in range(3)]
    rows += [trial(n, model="mlp", val_accuracy=0.5) for n in range(2)]
    here = ("ablation", "tokenphormer", "cora", "stratified")
    assert start_values(rows, *here) == {"dropout": 0.3}, "nothing is in the table yet"
    rows += [make_row(model=name, dataset="cora", kind="final") for name in ("mlp", "tokenphormer")]
    assert start_values(rows, *here) == {"dropout": 0.2}


@pytest.mark.parametrize("name", ["ablation", "tokens", "sgpm"])
def test_a_study_that_has_begun_keeps_its_start(study: Run, name: str, tmp_path: Path) -> None:
    """A search that went on meanwhile has found something better; the study's rows must stay comparable."""
    sgpm = SGPM if name == "sgpm" else None
    append_row(tmp_path / "main.jsonl", trial(0, model="tokenphormer", val_accuracy=0.1, values={"dropout": 0.7}))
    study(name, 1, ("cora",), sgpm=sgpm, merge=(tmp_path / "main.jsonl",))
    append_row(tmp_path / "main.jsonl", trial(1, model="tokenphormer", val_accuracy=0.9, values={"dropout": 0.3}))
    rows = study(name, 2, ("cora",), sgpm=sgpm, merge=(tmp_path / "main.jsonl",))
    ours = [row for row in rows if row["model"] == "tokenphormer"]
    assert {row["split"] for row in ours} == {0, 1}
    assert {row["config"]["dropout"] for row in ours} == {0.7}


def test_of_two_beginnings_the_first_is_gone_on_with() -> None:
    """Two machines began from other settings; in whatever order their rows are read, all go on from the same."""
    rows = [
        make_row(model="tokenphormer", study="ablation: all tokens", values={"dropout": dropout}, time=time)
        for dropout, time in ((0.7, 2.0), (0.3, 1.0), (0.5, 3.0))
    ]
    for found in (rows, rows[::-1]):
        assert start_values(found, "ablation", "tokenphormer", "cora", "stratified") == {"dropout": 0.3}


def test_an_ablation_does_not_start_from_what_it_left_out() -> None:
    job = Job("final", "tokenphormer", "cora", "stratified", 0, (("num_walks", 0),), study="ablation: without walks")
    row = make_row(model="tokenphormer") | job.row()
    assert start_values([row], "ablation", "tokenphormer", "cora", "stratified") == BASE


def test_each_input_left_out_has_an_sgpm_of_its_own(study: Run, tmp_path: Path) -> None:
    rows = study("inputs", sgpm=SGPM)
    pretrained = [row for row in rows if row["kind"] == "pretrain"]
    assert len(pretrained) == 2 * 5
    assert {tuple(part for part in INPUTS if not row["config"][f"use_{part}"]) for row in pretrained} == {
        (), ("tokens",), ("positions",), ("features",), ("centrality",)
    }  # fmt: skip
    finals = [row for row in rows if row["kind"] == "final"]
    assert len(finals) == 2 * 2 * 5
    assert {row["study"] for row in finals} == {"inputs: all inputs", *(f"inputs: without {part}" for part in INPUTS)}
    of = {row["config_hash"]: row for row in pretrained}
    for row in finals:
        kind, _, hash_ = row["sgpm"].partition(" ")
        assert kind == "contextual"
        left_out = row["study"].partition("without ")[2]
        assert [part for part in INPUTS if not of[hash_]["config"][f"use_{part}"]] == ([left_out] if left_out else [])
    found = study_results(rows, "inputs")
    assert {name: len(splits) for name, splits in found["cora"].items()} == dict.fromkeys(
        ["all inputs", *(f"without {part}" for part in INPUTS)], 2
    )
    written = {path.name for path in write_studies(rows, tmp_path / "tables")}
    assert {"inputs.md", "inputs.tex", "inputs.csv", "sgpm.md"} <= written
    assert "| cora | features |" in (tmp_path / "tables" / "sgpm.md").read_text(encoding="utf-8")
    assert study("inputs", sgpm=SGPM) == rows


def test_studies_start_from_what_the_main_table_shows() -> None:
    """On one split the first trial is the best, on both that all methods have had, the second."""
    rows = [make_row(model=model) for model in ("gcn", "mlp")]
    for model in ("gcn", "mlp"):
        for number, accuracies in enumerate(([0.9, 0.1], [0.8, 0.8])):
            for split, accuracy in zip((100, 101), accuracies, strict=True):
                more: dict[str, Any] = {"split": split, "val_accuracy": accuracy, "values": {"dropout": 0.1 * number}}
                rows.append(trial(number, model=model, **more))
    assert start_values(rows, "additions", "mlp", "cora", "stratified") == {"dropout": 0.1}
    one_split = [row for row in rows if row["split"] != 101]
    assert start_values(one_split, "additions", "mlp", "cora", "stratified") == {"dropout": 0.0}
