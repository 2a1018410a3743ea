"""Graphs of people's own in the benchmark: paths where names of datasets stand, and no row that could be another's."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmark.fakes import CPU, Inline, fake_run, make_row, use
from tests.benchmark.test_grid import KilledError, rows_of, same
from tests.benchmark.test_sgpm_study import SMALL as SMALL_SGPM
from tests.test_cli import Cli, assert_refused, cli
from tests.tiny import tiny_graph, tiny_split, write_folder
from tokenphormer.benchmark.grid import Plan, check_data, fill, find_graphs
from tokenphormer.benchmark.rows import Row, read_rows
from tokenphormer.benchmark.running import Job, OwnGraph, run, values_tuple
from tokenphormer.benchmark.sgpm_study import Pretraining
from tokenphormer.benchmark.study_tables import study_results
from tokenphormer.benchmark.tables import cell_results, latex, main_datasets
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph, load_graph, make_split
from tokenphormer.graph.external import convert

__all__ = ["cli"]  # the fixture

METHODS = ("mlp", "label_propagation")
CHEAP = ("benchmark", "--models", ",".join(METHODS), "--splits", 2, "--budget", 1, "--device", "cpu")
RESULTS = ("kind", "model", "protocol", "split", "seed", "config_hash", "split_hash", "val_accuracy", "test_accuracy")


def results(rows: list[Row]) -> list[str]:
    return same([{name: row.get(name) for name in RESULTS} for row in rows])


def plan_of(*paths: object, **others: Any) -> Plan:
    names, own = find_graphs(map(str, paths))
    return Plan(**({"models": METHODS, "datasets": names, "splits": 2, "budget": 1, "own": own} | others))


def final(plan: Plan, model: str, **values: Any) -> Row:
    (name,) = plan.datasets
    protocol = plan.protocol_of(name)
    return run(Job("final", model, name, protocol, 0, values_tuple(values), own=plan.own.get(name)), CPU)


# ---------------------------------------------------------------- from a path to tables


def test_from_a_folder_to_tables(cli: Cli, tmp_path: Path) -> None:
    """With a real worker, which has to find the graph by itself."""
    write_folder(tiny_graph(unlabelled=6), Path("data/my_graph"))
    answer = cli(*CHEAP, "--datasets", "data/my_graph", "--out", "rows")
    assert answer.code == 0, answer
    assert answer.err.startswith("my_graph: 60 nodes from nodes.csv")
    rows = read_rows([Path("rows")])
    assert len(rows) == 2 * (1 + 2)
    assert {(row["status"], row["dataset"], row["protocol"]) for row in rows} == {("done", "my_graph", "stratified")}
    assert len({row["graph"] for row in rows}) == 1
    assert str(tmp_path) not in Path("rows/rows.jsonl").read_text(encoding="utf-8")
    assert "data/" not in Path("rows/rows.jsonl").read_text(encoding="utf-8")

    assert "0 runs added" in cli(*CHEAP, "--datasets", "./data/my_graph/", "--out", "rows").out
    assert "2 runs added" in cli(*CHEAP, "--datasets", "data/my_graph", "--splits", 3, "--out", "rows").out

    for chosen in ((), ("--datasets", "my_graph")):
        assert cli("tables", "rows", "--out", "tables", *chosen).code == 0
        with Path("tables/main.csv").open(encoding="utf-8", newline="") as file:
            cells = {row["method"]: row for row in csv.DictReader(file)}
        assert {(cells[name]["status"], cells[name]["n"]) for name in METHODS} == {("re-run", "3")}
        assert (cells["gcn"]["status"], cells["gcn"]["paper_mean"]) == ("not run yet", "")
    assert r"Method & My\_graph \\" in Path("tables/main.tex").read_text(encoding="utf-8")
    assert "| method | my_graph |" in Path("tables/main.md").read_text(encoding="utf-8")
    refused = cli("tables", "rows", "--out", "tables", "--datasets", "my_graf")
    assert_refused(refused, 2, "'my_graf' is no dataset; nearest: my_graph")


def test_beside_a_dataset(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Inline(), fake_run)
    tiny_graph(name="mine").save("file.npz")
    assert cli(*CHEAP, "--datasets", "debian, file.npz", "--out", "rows").code == 0
    rows = read_rows([Path("rows")])
    assert main_datasets(rows) == ("debian", "mine")
    assert {"graph" in row for row in rows if row["dataset"] == "debian"} == {False}
    assert {row["graph"] for row in rows if row["dataset"] == "mine"} == {plan_of("file.npz").own["mine"].hash}


@pytest.mark.parametrize(("model", "values"), [("label_propagation", {}), ("mlp", {"max_epochs": 3})])
def test_a_dataset_as_a_graph_of_ones_own_gives_the_same(model: str, values: dict[str, Any], tmp_path: Path) -> None:
    dataclasses.replace(load_graph("debian"), name="packages").save(tmp_path / "any.npz")
    theirs, ours = (final(plan_of(source), model, **values) for source in ("debian", tmp_path / "any.npz"))
    assert results([ours]) == results([theirs])
    assert (ours["val_loss"], ours["test_macro_f1"]) == (theirs["val_loss"], theirs["test_macro_f1"])
    assert ours.keys() - theirs.keys() == {"graph"}
    assert ours["dataset"] == "packages"


@pytest.mark.parametrize("model", ["mlp", "gcn", "tokenphormer+"])
def test_on_disk_a_graph_gives_the_same(model: str, tmp_path: Path) -> None:
    """Tokenphormer+ too, whose recipes no graph on disk can have."""
    graph = tiny_graph()
    write_folder(graph, tmp_path / "mine", tiny_split(graph))
    convert(str(tmp_path / "mine"), tmp_path / "disk")
    tables, disk = (final(plan_of(tmp_path / name), model, max_epochs=2) for name in ("mine", "disk"))
    assert (tables["status"], tables["dataset"], tables["graph"]) == ("done", "mine", disk["graph"])
    assert results([tables]) == results([disk])


def test_stopped_anywhere_it_goes_on_to_the_same_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = plan_of(write_folder(tiny_graph(), tmp_path / "mine"))
    use(monkeypatch, Inline(), run)
    fill(plan, tmp_path / "one", CPU)
    for before in range(1, 6):
        left = before

        def stopped(job: Job, device: Any) -> Row:
            nonlocal left
            left -= 1
            if left < 0:
                raise KilledError
            return run(job, device)

        use(monkeypatch, Inline(), stopped)
        out = tmp_path / f"stopped-{before}"
        with pytest.raises(KilledError):
            fill(plan, out, CPU)
        assert len(rows_of(out)) == before
        use(monkeypatch, Inline(), run)
        assert fill(plan, out, CPU) == 6 - before
        assert results(rows_of(out)) == results(rows_of(tmp_path / "one"))


# ---------------------------------------------------------------- names


def test_the_name_of_a_dataset_is_taken(cli: Cli) -> None:
    for name in ("cora", "Cora"):
        write_folder(tiny_graph(), Path(f"in-{name}/{name}"))
        answer = cli(*CHEAP, "--datasets", f"in-{name}/{name}", "--out", "rows")
        assert_refused(answer, 2, f"in-{name}/{name}: its name, '{name}', is that of a dataset; rename its folder")
    assert not Path("rows").exists()


def test_two_of_one_name_are_refused(cli: Cli) -> None:
    write_folder(tiny_graph(), Path("a/mine"))
    write_folder(tiny_graph(seed=1), Path("b/mine"))
    answer = cli(*CHEAP, "--datasets", "a/mine,b/mine", "--out", "rows")
    assert answer.code == 2
    assert "b/mine: its name, 'mine', is that of" in answer.err
    assert not Path("rows").exists()


@pytest.mark.parametrize("name", ["", "../up", "a|b", "a,b", "a\nb", " a"])
def test_names_that_cannot_stand_in_tables_and_files(name: str, tmp_path: Path) -> None:
    tiny_graph(name=name).save(tmp_path / "file.npz")
    with pytest.raises(InputError, match=r"file.npz: its name, .* is not of letters, digits, spaces and"):
        find_graphs([str(tmp_path / "file.npz")])


def test_a_dataset_goes_before_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    Path("debian").mkdir()
    assert find_graphs(["debian"], said.append) == (("debian",), {})
    assert not said
    Path("debian/nodes.csv").touch()
    assert find_graphs(["debian"], said.append) == (("debian",), {})
    (note,) = said
    assert note.endswith("to take the folder, say ./debian")


def test_neither_a_dataset_nor_a_path(cli: Cli) -> None:
    for command in ((*CHEAP, "--out", "rows"), ("leaks",), ("benchmark", "--study", "ablation", "--out", "rows")):
        answer = cli(*command, "--datasets", "debian,./corra")
        assert_refused(answer, 2, "'./corra' is no dataset; nearest: cora")
        assert "a path: to a folder, or an .npz" in answer.err
    Path("notes.txt").write_text("no graph", encoding="utf-8")
    assert_refused(cli(*CHEAP, "--datasets", "notes.txt", "--out", "rows"), 2, "notes.txt: expected a folder with")
    assert not Path("rows").exists()


# ---------------------------------------------------------------- what is not mixed


def changed_labels(graph: Graph) -> Graph:
    return dataclasses.replace(graph, y=np.roll(graph.y, 1))


def other_split(graph: Graph) -> Graph:
    return dataclasses.replace(graph, splits=(make_split(graph, seed=2),))


@pytest.mark.parametrize("change", [changed_labels, other_split])
def test_rows_of_another_graph_of_the_name_are_refused(
    change: Callable[[Graph], Graph], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Inline(), fake_run)
    graph = tiny_graph(name="mine")
    graph = dataclasses.replace(graph, splits=(tiny_split(graph),))
    graph.save("mine.npz")
    ablation = ("benchmark", "--study", "ablation", "--splits", 1, "--device", "cpu")
    assert "6 runs added" in cli(*CHEAP, "--datasets", "mine.npz", "--out", "a").out
    assert "7 runs added" in cli(*ablation, "--datasets", "mine.npz", "--out", "a-ablation").out
    change(graph).save("mine.npz")
    before = Path("a/rows.jsonl").read_bytes()
    for command in (CHEAP, ablation):
        for given in (("--out", "a"), ("--out", "b", "--merge", "a")):
            answer = cli(*command, "--datasets", "mine.npz", *given)
            assert answer.code == 2
            assert "there are rows of another graph called 'mine', or of this one before it" in answer.err
    assert Path("a/rows.jsonl").read_bytes() == before
    assert not Path("b").exists()

    assert "6 runs added" in cli(*CHEAP, "--datasets", "mine.npz", "--out", "b").out
    assert "7 runs added" in cli(*ablation, "--datasets", "mine.npz", "--out", "b-ablation").out
    for mixed in (("a", "b"), ("a", "b-ablation"), ("a-ablation", "b-ablation")):
        assert_refused(cli("tables", *mixed, "--out", "t"), 2, "mine: there are rows of two graphs of this name (")
    assert not Path("t").exists()
    assert cli("tables", "b", "b-ablation", "--out", "t").code == 0


def test_a_row_without_a_graph_is_not_one_of_ones_own() -> None:
    rows = [make_row(dataset="mine"), make_row(dataset="mine", graph="0123456789abcdef")]
    with pytest.raises(InputError, match=r"mine: there are rows of two graphs .*\(a dataset and 0123456789ab\)"):
        cell_results(rows, ("mine",))


def test_a_graph_that_changes_meanwhile_is_no_row(tmp_path: Path) -> None:
    tiny_graph(name="mine").save(tmp_path / "mine.npz")
    plan = plan_of(tmp_path / "mine.npz")
    tiny_graph(name="mine", seed=1).save(tmp_path / "mine.npz")
    with pytest.raises(InputError, match=r"mine\.npz: was changed while it was benchmarked"):
        final(plan, "label_propagation")


def test_a_row_knows_a_graph_by_all_of_it() -> None:
    """Written down once: rows of years ago are known by it."""
    graph = Graph.from_edges([[0, 1], [1, 2]], y=[0, 1, 0])
    split = dataclasses.replace(graph, splits=(make_split(graph),))
    assert OwnGraph.of(graph, "p") == OwnGraph("p", OwnGraph.of(graph, "q").hash, "stratified")
    assert OwnGraph.of(graph, "").hash.startswith("dac7c1a3cbd8587d")
    assert OwnGraph.of(split, "").protocol == "given"
    assert OwnGraph.of(split, "").hash != OwnGraph.of(graph, "").hash


# ---------------------------------------------------------------- splits


def test_the_splits_that_came_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, Inline(), run)
    graph = tiny_graph()
    given = tiny_split(graph)
    plan = plan_of(write_folder(graph, tmp_path / "mine", given))
    assert (plan.protocol_of("mine"), plan_of(tmp_path / "mine", protocol="two-stage").protocol_of("mine")) == (
        "given",
        "two-stage",
    )
    fill(plan, tmp_path / "out", CPU)
    rows = rows_of(tmp_path / "out")
    assert {(row["protocol"], row["split_hash"]) for row in rows if row["kind"] == "final"} == {("given", given.hash)}
    assert {cell.column for cell in cell_results(rows, ("mine",), METHODS)} == {"mine, given"}
    assert "& Mine, given" not in latex(cell_results(rows, ("debian",), METHODS))


def test_no_more_splits_than_came_with_it(cli: Cli) -> None:
    graph = tiny_graph(name="mine")
    splits = tuple(make_split(graph, seed=seed) for seed in range(3))
    dataclasses.replace(graph, splits=splits).save("mine.npz")
    ask = "--splits 4: mine came with 3 splits; say --splits 3 or another --protocol"
    for command in (("benchmark", "--out", "rows"), ("benchmark", "--study", "tokens", "--out", "rows"), ("leaks",)):
        answer = cli(*command, "--datasets", "mine.npz", "--splits", 4)
        assert (answer.code, answer.out, answer.err.splitlines()[-1]) == (2, "", f"tokenphormer: error: {ask}")
    assert not Path("rows").exists()
    check_data(plan_of("mine.npz", splits=3), range(3))
    check_data(plan_of("mine.npz", splits=4, protocol="stratified"), range(4))


@pytest.mark.parametrize(
    ("labels", "protocol", "message"),
    [
        ([], "auto", "mine: expected nodes of at least 2 classes, found 0; label more"),
        (["a"] * 60, "auto", "mine: expected nodes of at least 2 classes, found 1; label more"),
        (
            ["a", "b"],
            "auto",
            "mine, stratified split 0: 2 nodes for training, 0 for validation and 0 for test;",
        ),
        (["a"] * 59 + ["b"], "two-stage", "mine, two-stage split 0: two-stage split: The least populated class"),
        (["a", "b"] * 30, "given", "mine, given split 0: graph 'mine' comes with no given split; add a 'split' column"),
    ],
)
def test_what_the_graph_lacks_is_said_before_anything_runs(
    labels: list[str], protocol: str, message: str, cli: Cli
) -> None:
    folder = write_folder(tiny_graph(), Path("mine"))
    nodes = [["id", "label"], *([str(node), label] for node, label in enumerate([*labels, *[""] * (60 - len(labels))]))]
    with (folder / "nodes.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(nodes)
    (folder / "edges.csv").write_text("source,target\n0,1\n1,2\n", encoding="utf-8")
    for study in ((), ("--study", "ablation")):
        common = ("--datasets", "mine", "--protocol", protocol, "--splits", 2, "--out", "rows")
        answer = cli("benchmark", *study, *common)
        assert answer.code == 2
        assert message in answer.err.splitlines()[-1]
    assert not Path("rows").exists()


def test_a_class_of_one_node(tmp_path: Path) -> None:
    labels = np.where(np.arange(60) == 7, 2, np.arange(60) % 2)
    tiny_graph(y=labels, name="mine").save(tmp_path / "mine.npz")
    plan = plan_of(tmp_path / "mine.npz")
    check_data(plan, range(10))
    assert final(plan, "mlp", max_epochs=2)["status"] == "done"


# ---------------------------------------------------------------- studies and leaks


def test_studies(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Inline(), fake_run)
    graph = tiny_graph()
    write_folder(graph, Path("mine"), tiny_split(graph))
    common = ("--datasets", "mine", "--splits", 2, "--device", "cpu", "--out", "rows")
    for study, runs in (("ablation", 14), ("tokens", 2 * (14 + 23)), ("defaults", 2)):
        assert f"{runs} runs added" in cli("benchmark", "--study", study, *common).out
        assert "0 runs added" in cli("benchmark", "--study", study, *common).out
    assert cli("benchmark", "--models", "tokenphormer+", "--budget", 1, *common).code == 0
    assert cli("tables", "rows", "--out", "tables").code == 0
    assert "| | mine, given |" in Path("tables/ablation.md").read_text(encoding="utf-8")
    found = study_results(read_rows([Path("rows")]), "defaults")["mine, given"]
    assert {name: sorted(splits) for name, splits in found.items()} == {
        "tuned": [0, 1],  # of the main study on the splits that came with the graph
        "without settings, on a CPU": [0, 1],
    }


def test_a_real_study_with_an_sgpm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two graphs of one name never share their vectors."""
    from tokenphormer.benchmark import variants

    base = variants.BASE | {"num_walks": 4, "hidden_channels": 8, "max_epochs": 1}
    monkeypatch.setattr(variants, "BASE", base)
    use(monkeypatch, Inline(), run)
    for number in range(2):
        plan = plan_of(write_folder(tiny_graph(seed=number), tmp_path / str(number) / "mine"), models=(), splits=1)
        out, vectors = tmp_path / f"rows-{number}", tmp_path / "vectors"
        assert variants.run_study("sgpm", plan, out, CPU, sgpm=SMALL_SGPM, vectors=vectors) == 4
        rows = rows_of(out)
        assert {(row["status"], row["dataset"], row["graph"]) for row in rows} == {
            ("done", "mine", plan.own["mine"].hash)
        }
    assert len(list(vectors.iterdir())) == 4
    assert Pretraining("cora", SMALL_SGPM, vectors).file("static").name == f"cora-{SMALL_SGPM.hash[:12]}-static.npy"


def test_leaks(cli: Cli) -> None:
    graph = tiny_graph()
    write_folder(graph, Path("mine"), tiny_split(graph))
    answer = cli("leaks", "--datasets", "mine", "--splits", 1, "--json")
    assert answer.code == 0, answer
    assert (json.loads(answer.out)["dataset"], json.loads(answer.out)["split"]) == ("mine", "given")
    dataclasses.replace(graph, x=np.eye(3, dtype=np.float32)[graph.y], name="leaky").save("leaky.npz")
    assert cli("leaks", "--datasets", "debian,leaky.npz", "--splits", 1).code == 1
