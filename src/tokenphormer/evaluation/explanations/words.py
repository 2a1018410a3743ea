"""How explanations are put into words: names of tokens, signed points, and the lines that the command line prints."""

from __future__ import annotations

from tokenphormer.explain import Edge, Explanation, Neighbour, Token

ARROW = " → "
METHOD_NAMES = {
    "occlusion": "occlusion: the change in probability when something is removed",
    "attention": "readout attention: the weight of each token in the final sum",
    "rollout": "attention rollout: the weights of readout and layers multiplied through",
}
NO_TOKENS = "the model's settings have no walk- and no hop-token: it reads the node's own features"
PASSED_ON = ", and the scores that neighbours pass on"
SHOWN = 8
"""Lines of each list that are printed."""


def token_name(token: Token) -> str:
    """`hop 2`, or the kind of a walk and its nodes; `× 3` where three walks are the same."""
    if not token.path:
        return token.kind
    often = f" × {token.count}" if token.count > 1 else ""
    return f"{token.kind.replace('_', ' ')}{often}: {ARROW.join(token.path)}"


def edge_name(edge: Edge) -> str:
    """The two ends; a jump is said to be one."""
    return f"{edge.source}{ARROW}{edge.target}{' (jump)' if edge.jump else ''}"


def neighbour_name(neighbour: Neighbour) -> str:
    """A node that passes scores on: its label, what its own tokens say, how far away it is."""
    label = neighbour.label or "no label"
    return f"{neighbour.id} ({label}, says {neighbour.says}, {neighbour.distance} away)"


def amount(value: float | None, method: str) -> str:
    """Percentage points with a sign for occlusion, a share for the attentions; `–` for none."""
    if value is None:
        return "–"
    if method != "occlusion":
        return f"{100 * value:.1f} %"
    points = 100 * value
    shown = f"{points:+.1f}" if abs(points) >= 10 else f"{points:+.2f}" if abs(points) >= 0.01 else f"{points:+.1g}"
    return (shown if points else "0").replace("-", "−")


def verdict(explanation: Explanation) -> str:
    """The prediction in one line."""
    e = explanation
    label = f"; its label is {e.label}" if e.label else ""
    return (
        f"{e.node}: {e.predicted} {e.probability(e.predicted):.1%}, then {e.runner_up} "
        f"{e.probability(e.runner_up):.1%}{label}"
    )


def to_text(explanation: Explanation) -> str:
    """The explanation as lines for a terminal."""
    e = explanation
    both = f"points of probability for {e.predicted} and {e.runner_up}"
    unit = both if e.method == "occlusion" else "share of the attention"
    lines = [verdict(e), f"by {METHOD_NAMES[e.method]}", ""]
    parts = [(part, part.name) for part in e.parts]
    tokens = [(token, token_name(token)) for token in e.tokens]
    nodes = [(node, f"{node.id} ({node.label or 'no label'}, {node.distance} away)") for node in e.nodes]
    edges = [(edge, edge_name(edge)) for edge in e.edges]
    scores = [(each, neighbour_name(each)) for each in e.neighbours]
    lists = (("parts", parts), ("tokens", tokens), ("scores passed on by", scores), ("nodes", nodes), ("edges", edges))
    if not e.tokens:
        lines.append(NO_TOKENS + (PASSED_ON if scores else ""))
    for title, items in lists:
        if items:
            lines.append(f"{title}, {unit}")
        largest = sorted(items, key=lambda pair: -abs(pair[0].importance))[: None if title == "parts" else SHOWN]
        for each, name in largest:
            lines.append(f"{amount(each.importance, e.method):>9} {amount(each.runner_up, e.method):>9}  {name}")
    return "\n".join(lines)
