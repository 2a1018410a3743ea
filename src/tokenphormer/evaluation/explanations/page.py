"""An explanation as one HTML file that needs nothing but itself, in the clothes of the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenphormer.evaluation import html
from tokenphormer.evaluation.explanations.pictures import PAGE, neighbourhood_plot, token_plot
from tokenphormer.evaluation.explanations.summary import AttentionSummary, By, summary_plot
from tokenphormer.evaluation.explanations.words import METHOD_NAMES, PASSED_ON, amount, edge_name, token_name, verdict
from tokenphormer.evaluation.report import POLICY
from tokenphormer.explain import Explanation, Importance

SHOWN = 12
"""Rows of a table that are open to the eye; the others unfold."""

HOW_TO_READ = {
    "occlusion": (
        "Numbers are percentage points of probability that are lost when something is removed: positive speaks for the "
        "class, negative against it. A token is left out of the sequence; equal walks are left out together. A node's "
        "features are taken for zero wherever the model reads them. A step is removed by ending the walks that take "
        "it. Where several things say the same, removing one changes little, so small numbers do not mean that the "
        "thing is useless; the parts, removed as a whole, tell."
    ),
    "attention": (
        "Numbers are shares of the readout's attention. They say where the model looks, not what decides: where it was "
        "measured, removing what has most of it changed predictions no more than chance. Trust occlusion rather."
    ),
    "rollout": (
        "Numbers are shares of attention, followed from the readout through the layers to the tokens' inputs. They say "
        "where the model looks, not what decides: where it was measured, it was far less faithful than occlusion."
    ),
}


def explanation_page(explanation: Explanation) -> str:
    """The whole page as a string; the same explanation gives the same string."""
    e = explanation
    title = f"Why {e.node} is predicted {e.predicted}"
    cards = [
        ("Predicted", e.predicted, f"probability {e.probability(e.predicted):.1%}"),
        ("Runner-up", e.runner_up, f"probability {e.probability(e.runner_up):.1%}"),
    ]
    if e.label:
        cards.append(("Label in the graph", e.label, "as predicted" if e.label == e.predicted else "not as predicted"))
    everything = next((part for part in e.parts if part.name == "all tokens"), None)
    if everything is not None and everything.runner_up is not None:
        left = e.probability(e.predicted) - everything.importance
        rest = "from its own features" + (PASSED_ON if e.neighbours else " alone")
        cards.append(("Without all tokens", f"{left:.1%}", f"for {e.predicted}, {rest}"))
    votes = f", mean of {e.votes} draws of walks" if e.votes > 1 else ""
    pictures = html.figure("tokens", token_plot(e), _spoken("Tokens", [(t, token_name(t)) for t in e.tokens], e))
    pictures += html.figure("nodes", neighbourhood_plot(e), _spoken("Nodes", [(n, n.id) for n in e.nodes], e))
    body = [
        f"<h1>{html.text(title)}</h1>",
        f'<p class="muted">{html.text(f"Graph {e.graph} · {METHOD_NAMES[e.method]}{votes}")}</p>',
        html.cards(cards),
        f'<div class="pair">{pictures}</div>',
        f"<p>{html.text(HOW_TO_READ[e.method])}</p>",
        _parts(e),
        _tokens(e),
        _neighbours(e),
        _nodes(e),
        _edges(e),
        _classes(e),
    ]
    return _document(verdict(e), body)


def summary_page(summary: AttentionSummary) -> str:
    """What attention does over a whole graph, as a page."""
    picture = html.figure("summary", summary_plot(summary), f"Attention of {summary.nodes} nodes by kind of token.")
    body = [
        f"<h1>{html.text(f'Where the model looks: {summary.graph}')}</h1>",
        f'<p class="muted">Readout attention, mean of {summary.nodes:,} nodes</p>',
        picture,
        f"<p>{html.text(HOW_TO_READ['attention'])}</p>",
    ]
    titles: dict[By, str] = {"all": "All nodes", "class": "By predicted class", "degree": "By degree"}
    for by, title in titles.items():
        header, rows = summary.table(by)
        body.append(f"<h2>{title}</h2>{html.table(f'Mean attention: {title.lower()}', header, rows)}")
    return _document(f"Attention on {summary.graph}", body)


def _document(title: str, body: Sequence[str]) -> str:
    style = Path(html.__file__).with_name("report.css").read_text(encoding="utf-8")
    # The pictures' halos take the colour of the page, also in the dark.
    inner = "\n".join(part for part in body if part).replace(f": {PAGE}", ": var(--page)")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{html.text(title)}</title>
<style>
{style}.words th[scope="row"] {{ min-width: 11rem; white-space: normal; }}
.cards dd {{ white-space: normal; overflow-wrap: anywhere; }}
@media (max-width: 30rem) {{ .words th[scope="row"] {{ min-width: 8rem; }} }}
</style>
</head>
<body>
<main class="words">
{inner}
</main>
</body>
</html>
"""


def _spoken(what: str, items: Sequence[tuple[Importance, str]], e: Explanation) -> str:
    """What a picture shows, for those who cannot see it."""
    largest = sorted(items, key=lambda pair: -abs(pair[0].importance))[:3]
    found = "; ".join(f"{name} {amount(each.importance, e.method)}" for each, name in largest)
    return f"{what} with the largest effect: {found or 'none'}."


def _pair(each: Importance, e: Explanation) -> list[str]:
    shown = [amount(each.importance, e.method)]
    return [*shown, amount(each.runner_up, e.method)] if e.method == "occlusion" else shown


def _header(first: str, e: Explanation, *more: str) -> list[str]:
    names = [f"for {e.predicted}", f"for {e.runner_up}"] if e.method == "occlusion" else ["share"]
    return [first, *names, *more]


def _folded(title: str, note: str, caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A section with a table: its first rows to be seen, the others behind a click."""
    if not rows:
        return ""
    shown = html.table(caption, header, rows[:SHOWN])
    rest = rows[SHOWN:]
    more = f"<details><summary>{len(rest)} more</summary>{html.table(caption, header, rest)}</details>" if rest else ""
    return f"<h2>{html.text(title)}</h2><p>{html.text(note)}</p>{shown}{more}"


def _parts(e: Explanation) -> str:
    rows = [
        [part.name.replace("_", " "), *_pair(part, e), str(part.tokens), f"{part.attention:.1%}"]
        for part in sorted(e.parts, key=lambda part: -abs(part.importance))
    ]
    note = "Tokens of a kind removed together." if e.method == "occlusion" else "Tokens of a kind together."
    header = _header("part", e, "tokens", "attention")
    return _folded("Parts", note, "Largest effect first", header, rows)


def _tokens(e: Explanation) -> str:
    rows = [
        [token_name(token), *_pair(token, e), f"{token.attention:.1%}"]
        for token in sorted(e.tokens, key=lambda token: -abs(token.importance))
    ]
    note = "Walks are written as the nodes they visit, the start first; × 3: three walks were the same."
    return _folded("Tokens", note, "Largest effect first", _header("token", e, "attention"), rows)


def _neighbours(e: Explanation) -> str:
    rows = [
        [each.id, *_pair(each, e), each.label or "–", each.says, str(each.distance), f"{each.weight:.3f}"]
        for each in sorted(e.neighbours, key=lambda each: -abs(each.importance))
    ]
    note = (
        "Nodes whose class scores are passed on to this one, what their own tokens say, and by what it is multiplied."
    )
    note += f" {e.neighbours_left_out:,} whose scores weigh least were not examined." if e.neighbours_left_out else ""
    header = _header("node", e, "label", "says", "edges away", "weight")
    return _folded("Scores passed on", note, "Largest effect first", header, rows)


def _nodes(e: Explanation) -> str:
    rows = [
        [node.id, *_pair(node, e), node.label or "–", str(node.distance), str(node.visits)]
        for node in sorted(e.nodes, key=lambda node: -abs(node.importance))
    ]
    note = "Nodes whose features the tokens read. The node itself is among them. Labels are not read by the model."
    note += f" {e.nodes_left_out:,} nodes that are read least were not examined." if e.nodes_left_out else ""
    header = _header("node", e, "label", "edges away", "visits")
    return _folded("Nodes", note, "Largest effect first", header, rows)


def _edges(e: Explanation) -> str:
    rows = [
        [edge_name(edge), *_pair(edge, e), str(edge.walks)]
        for edge in sorted(e.edges, key=lambda edge: -abs(edge.importance))
    ]
    note = "Steps that walks take; a jump passes over nodes in between. Hop-tokens are not counted here."
    note += f" {e.edges_left_out:,} steps that few walks take were not examined." if e.edges_left_out else ""
    return _folded("Edges", note, "Largest effect first", _header("step", e, "walks"), rows)


def _classes(e: Explanation) -> str:
    ranked = sorted(zip(e.classes, e.probabilities, strict=True), key=lambda pair: -pair[1])
    rows = [[name, f"{probability:.2%}"] for name, probability in ranked]
    return _folded("Classes", "All probabilities.", "Most probable first", ["class", "probability"], rows)
