"""Explanations as people meet them: words, pictures, self-contained pages, summaries, the command."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.explain.models import CASES, ISOLATED, LEAF, awkward_graph, case_of, method_of
from tests.test_cli import Cli, assert_refused, cli
from tests.tiny import tiny_graph, write_folder
from tokenphormer.errors import InputError
from tokenphormer.evaluation import html
from tokenphormer.evaluation.explanations.page import explanation_page, summary_page
from tokenphormer.evaluation.explanations.pictures import (
    MAX_TOKENS,
    explanation_figure,
    neighbourhood_plot,
    token_plot,
)
from tokenphormer.evaluation.explanations.summary import AttentionSummary, summarise_attention, summary_plot
from tokenphormer.evaluation.explanations.words import amount, edge_name, to_text, token_name
from tokenphormer.evaluation.plots import save_figure
from tokenphormer.explain import Edge, Explainer, Explanation, Token
from tokenphormer.explain.attention import readout_attention
from tokenphormer.graph import Graph

__all__ = ["cli"]  # the fixture

SHOWN = [(case, "occlusion") for case in CASES] + [({}, "attention"), ({}, "rollout")]


def explanation_of(case: dict[str, Any], node: int, method: Any = "auto") -> Explanation:
    graph, model = case_of(case)
    return Explainer(model, graph, graph.class_names).explain(node, method)


# ---------------------------------------------------------------- words


def test_names() -> None:
    hop = Token(0.1, None, kind="hop 2", path=(), count=1, attention=0.1)
    walk = Token(0.1, None, kind="non_backtracking", path=("a", "b", "a"), count=3, attention=0.1)
    assert token_name(hop) == "hop 2"
    assert token_name(walk) == "non backtracking × 3: a → b → a"
    assert edge_name(Edge(0.1, None, source="a", target="b", jump=True, walks=1)) == "a → b (jump)"


@pytest.mark.parametrize(
    ("value", "method", "shown"),
    [
        (0.5, "occlusion", "+50.0"),
        (-0.0123, "occlusion", "−1.23"),
        (-0.0000004, "occlusion", "−4e−05"),
        (0.0, "occlusion", "0"),
        (None, "occlusion", "–"),
        (0.062, "attention", "6.2 %"),
    ],
)
def test_amounts(value: float | None, method: str, shown: str) -> None:
    assert amount(value, method) == shown


def test_text_names_both_classes_and_all_lists() -> None:
    e = explanation_of({}, 0)
    lines = to_text(e).splitlines()
    assert lines[0].startswith(f"{e.node}: {e.predicted} ")
    assert f"then {e.runner_up} " in lines[0]
    titles = [line.split(",")[0] for line in lines if line.endswith(f"for {e.predicted} and {e.runner_up}")]
    assert titles == ["parts", "tokens", "nodes", "edges"]
    assert any(token_name(e.tokens[0]) in line for line in lines)


ALONE: dict[str, Any] = {"num_walks": 0, "num_hops": 0, "score_hops": 3}
"""No token but the node's own, and scores that neighbours pass on."""


def test_where_there_is_no_token_neighbours_are_told() -> None:
    e = explanation_of(ALONE, 0)
    assert not e.tokens
    lines = to_text(e).splitlines()
    assert "the model's settings have no walk- and no hop-token: it reads the node's own features, and the scores " in (
        to_text(e)
    )
    titles = [line.split(",")[0] for line in lines if line.endswith(f"for {e.predicted} and {e.runner_up}")]
    assert titles == ["parts", "scores passed on by", "nodes"]
    most = max(e.neighbours, key=lambda each: abs(each.importance))
    assert any(
        f"{most.id} ({most.label or 'no label'}, says {most.says}, {most.distance} away)" in line for line in lines
    )
    bars, around = explanation_figure(e).axes
    assert bars.get_title(loc="left") == "Neighbours whose scores have the largest effect"
    assert len(bars.patches) == 2 * min(len(e.neighbours), MAX_TOKENS)
    assert "scores that they pass on" in around.texts[-1].get_text()
    page = explanation_page(e)
    assert "<h2>Scores passed on</h2>" in page
    assert html.text(most.id) in page


def test_what_is_left_without_tokens_is_not_the_nodes_own_where_neighbours_pass_scores_on() -> None:
    assert ", from its own features alone" in explanation_page(explanation_of({}, 0))
    passed = explanation_page(explanation_of({"score_hops": 3}, 0))
    assert ", from its own features, and the scores that neighbours pass on" in passed


def test_where_there_is_neither_it_is_said() -> None:
    e = explanation_of({"num_walks": 0, "num_hops": 0}, 0)
    assert (e.tokens, e.neighbours) == ((), ())
    assert "no hop-token: it reads the node's own features\n" in to_text(e)
    (axes,) = token_plot(e).axes
    assert axes.texts[0].get_text() == "There is no token but the node's own"


# ---------------------------------------------------------------- pictures


@pytest.mark.parametrize(("case", "method"), SHOWN, ids=str)
@pytest.mark.parametrize("node", [0, ISOLATED])
def test_pictures_of_every_case(case: dict[str, Any], method: Any, node: int) -> None:
    e = explanation_of(case, node, method)
    assert len(explanation_figure(e).axes) == 2
    (axes,) = token_plot(e).axes
    bars = len(axes.patches)
    shown = min(len(e.tokens), MAX_TOKENS)
    assert bars == shown * (2 if method == "occlusion" else 1)
    (axes,) = neighbourhood_plot(e).axes
    assert any(text.get_text().startswith("node <") for text in axes.texts)


def test_bars_are_the_importances() -> None:
    e = explanation_of({}, LEAF)
    (axes,) = token_plot(e).axes
    largest = sorted(e.tokens, key=lambda token: -abs(token.importance))[:MAX_TOKENS]
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == [token.importance for token in largest] + [token.runner_up for token in largest]


def test_names_that_look_like_formulas(tmp_path: Path) -> None:
    for names in (("$", "<b>", "a\nb"), ("$^$", "$_$", r"$\frac$")):
        graph = awkward_graph(node_ids=[f"$^{v}$ \n{'long' * 20}" for v in range(20)], class_names=names)
        e = Explainer(method_of(graph), graph, graph.class_names).explain(0)
        save_figure(explanation_figure(e), tmp_path / "picture.png")
        assert (tmp_path / "picture.png").stat().st_size > 10_000


# ---------------------------------------------------------------- pages


class Checker(HTMLParser):
    """Collects what a page would fetch, its text, and whether tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "path", "use", "br"):
            self.open.append(tag)
        self.fetched += [str(v) for k, v in attrs if k in ("src", "href", "xlink:href") and not str(v).startswith("#")]
        assert tag != "script"

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "use", "br", "meta"):
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Closed at once."""

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def checked(page: str) -> str:
    parser = Checker()
    parser.feed(page)
    assert parser.open == []
    assert parser.fetched == []
    assert "url(http" not in page
    assert "@import" not in page
    return " ".join(parser.text)


@pytest.mark.parametrize(("case", "method"), SHOWN, ids=str)
def test_pages_need_nothing_but_themselves(case: dict[str, Any], method: Any) -> None:
    e = explanation_of(case, 0, method)
    page = explanation_page(e)
    text = checked(page)
    assert e.node in text  # <, > and & came through the escaping
    for token in e.tokens:
        assert token_name(token) in text
    assert ("for " + e.runner_up in text) == (method == "occlusion")
    assert explanation_page(e) == page
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))


def test_a_page_says_what_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenphormer.explain import explainer

    monkeypatch.setattr(explainer, "MAX_NODES", 3)
    monkeypatch.setattr(explainer, "MAX_STEPS", 2)
    e = explanation_of({}, 0)
    text = checked(explanation_page(e))
    assert f"{e.nodes_left_out} nodes that are read least were not examined" in text
    assert f"{e.edges_left_out} steps that few walks take were not examined" in text


# ---------------------------------------------------------------- summaries


@pytest.mark.parametrize("case", CASES, ids=str)
def test_summaries_add_up(case: dict[str, Any]) -> None:
    graph, method = case_of(case)
    found = summarise_attention(Explainer(method, graph, graph.class_names))
    kinds = set(method.source.token_kinds[1:])
    walks = method.source.settings.num_walks
    for by in ("all", "class", "degree"):
        groups = found.of(by)  # type: ignore[arg-type]
        if not kinds:
            assert groups == {}
            continue
        assert sum(rows[0].nodes for rows in groups.values()) == 20
        for rows in groups.values():
            by_kind = [row for row in rows if row.part in kinds]
            assert sum(row.attention for row in by_kind) == pytest.approx(1, abs=1e-6)
            assert sum(row.even for row in by_kind) == pytest.approx(1)
            for start in ("walks of", "walks over"):
                some = [row for row in rows if row.part.startswith(start)]
                assert sum(row.tokens for row in some) == pytest.approx(walks)
    checked(summary_page(found))
    assert json.loads(json.dumps(found.to_json()))["nodes"] == 20


def test_summary_is_the_mean_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = awkward_graph()
    method = method_of(graph)
    explainer = Explainer(method, graph, graph.class_names)
    chosen = np.array([0, 3, LEAF, ISOLATED])
    found = summarise_attention(explainer, chosen)
    reading = explainer.read(chosen)
    attention = readout_attention(reading)
    rows = {row.part: row for row in found.of("all")["all"]}
    hop = reading.kinds.index("hop 2")
    assert rows["hop 2"].attention == pytest.approx(attention[:, hop].mean())
    jumps = np.array([kind == "jump" for kind in reading.kinds])
    assert rows["jump"].attention == pytest.approx(attention[:, jumps].sum(axis=1).mean())
    # Only the isolated node's walks end at once: their length is 0, and they stand on one node.
    ended = attention[3, -reading.num_walks :].sum() / 4
    assert rows["walks of 0 steps"].attention == pytest.approx(ended)
    slow = [len(set(walk.tolist())) for walks in reading.walks[:3] for walk in walks]
    assert rows["walks over 3 nodes"].tokens == pytest.approx(slow.count(3) / 4)
    degrees = {row.group: row.nodes for row in found.rows if row.by == "degree" and row.part == "hop 1"}
    assert degrees["0"] == degrees["1"] == 1
    monkeypatch.setattr("tokenphormer.evaluation.explanations.summary.NUMBERS_AT_ONCE", 1)
    one_by_one = summarise_attention(explainer, chosen)
    assert [row.attention for row in one_by_one.rows] == pytest.approx([row.attention for row in found.rows], abs=1e-6)


def test_summary_tables(tmp_path: Path) -> None:
    graph = awkward_graph(class_names=("a|b", "$x^$", "c"))
    found = summarise_attention(Explainer(method_of(graph), graph, graph.class_names))
    for by in ("all", "class", "degree"):
        header, *lines = found.to_markdown(by).splitlines()  # type: ignore[arg-type]
        assert all(line.count("|") == header.count("|") for line in lines)
    save_figure(summary_plot(found), tmp_path / "summary.png")
    with pytest.raises(InputError, match="at least one node"):
        summarise_attention(Explainer(method_of(graph), graph, graph.class_names), np.empty(0, np.int64))


def test_a_summary_without_tokens(tmp_path: Path) -> None:
    save_figure(summary_plot(AttentionSummary("g", 3, ())), tmp_path / "empty.png")


# ---------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a graph of the user's own, trained in milliseconds."""
    return write_run(tmp_path_factory.mktemp("explain"))


def write_run(folder: Path, **changes: object) -> Path:
    from tests.tiny import CPU, tiny_config, tiny_split
    from tokenphormer.evaluation.runs import train_run
    from tokenphormer.graph import load_graph

    source = write_folder(tiny_graph(), folder / "mine")
    graph = load_graph(str(source))
    train_run(graph, str(source), tiny_split(graph), tiny_config(**changes), folder / "run", CPU)
    return folder / "run"


def first_id(run: Path) -> str:
    manifest = json.loads((run / "run.json").read_text(encoding="utf-8"))
    from tokenphormer.graph import load_graph

    return load_graph(manifest["graph"]["source"]).id_of(0)


def test_the_command_explains(cli: Cli, run_folder: Path) -> None:
    node = first_id(run_folder)
    answer = cli("explain", run_folder, "--node", node, "--device", "cpu", "--out", "why.json")
    assert answer.code == 0, answer
    assert answer.out.startswith(f"{node}: ")
    e = Explanation.from_json(json.loads(Path("why.json").read_text(encoding="utf-8")))
    assert (e.node, e.method) == (node, "occlusion")
    assert to_text(e) == answer.out.rstrip("\n")
    for name in ("why.png", "why.html"):
        other = cli("explain", run_folder, "--node", node, "--method", "rollout", "--device", "cpu", "--out", name)
        assert other.code == 0, other
    assert Path("why.png").read_bytes().startswith(b"\x89PNG")
    checked(Path("why.html").read_text(encoding="utf-8"))


def test_the_command_sums_up(cli: Cli, run_folder: Path) -> None:
    answer = cli("explain", run_folder, "--device", "cpu", "--out", "all.html")
    assert answer.code == 0, answer
    assert answer.out.splitlines()[0] == "| part | tokens | attention | even share | ratio |"
    checked(Path("all.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("score_hops", "also"), [(3, ", and the scores that neighbours pass on"), (0, "")])
def test_the_command_has_nothing_to_sum_up(cli: Cli, tmp_path: Path, score_hops: int, also: str) -> None:
    answer = cli("explain", write_run(tmp_path, **(ALONE | {"score_hops": score_hops})), "--device", "cpu")
    assert f"it reads the node's own features{also}: there is no attention to sum up" in answer.out


def test_the_command_on_another_graph(cli: Cli, run_folder: Path) -> None:
    other: Graph = tiny_graph(20, seed=3, node_ids=[f"other {v}" for v in range(20)])
    write_folder(other, Path("other"))
    answer = cli("explain", run_folder, "--graph", "other", "--node", "other 4", "--device", "cpu")
    assert answer.code == 0, answer
    assert answer.out.startswith("other 4: ")


def test_the_command_refuses(cli: Cli, run_folder: Path) -> None:
    node = first_id(run_folder)
    assert_refused(cli("explain", run_folder, "--node", node[:-1] + "x", "--device", "cpu"), 2, f"nearest: {node}")
    assert_refused(cli("explain", run_folder, "--node", node, "--method", "shap"), 2, "expected auto, attention")
    assert_refused(cli("explain", run_folder, "--method", "occlusion"), 2, "explains one node; name it with --node")
    assert_refused(cli("explain", run_folder, "--node", node, "--out", "why.csv"), 2, "ends in .png, .html, .json")
    assert_refused(cli("explain", "nowhere", "--node", node), 2, "no such folder")
    Path("why.png").write_text("mine")
    assert_refused(cli("explain", run_folder, "--node", node, "--out", "why.png"), 2, "exists already")
    assert Path("why.png").read_text() == "mine"
    assert cli("explain", run_folder, "--node", node, "--out", "why.png", "--force", "--device", "cpu").code == 0
    assert Path("why.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_notices_another_graph(cli: Cli, run_folder: Path) -> None:
    source = Path(json.loads((run_folder / "run.json").read_text(encoding="utf-8"))["graph"]["source"])
    table = source / "edges.csv"
    before = table.read_bytes()
    lines = before.splitlines(keepends=True)
    try:
        table.write_bytes(b"".join(lines[: len(lines) // 3]))
        assert_refused(cli("explain", run_folder, "--node", first_id(run_folder)), 2, "trained on any more")
    finally:
        table.write_bytes(before)
