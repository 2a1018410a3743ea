"""`tokenphormer explain`: explain a node of a run's graph, or sum up its attention, on the screen or into a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenphormer.errors import InputError
from tokenphormer.evaluation.explanations.page import explanation_page, summary_page
from tokenphormer.evaluation.explanations.pictures import explanation_figure
from tokenphormer.evaluation.explanations.summary import summarise_attention, summary_plot
from tokenphormer.evaluation.explanations.words import NO_TOKENS, PASSED_ON, to_text
from tokenphormer.evaluation.plots import save_figure
from tokenphormer.evaluation.run_folder import load_graph_for, load_run, write_text
from tokenphormer.explain.explanation import check_method

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".html", ".json")


def explain_run(
    folder: Path,
    node: str | None,
    source: str | None,
    method: str,
    out: Path | None,
    device: str,
    directed: bool | None,
    overwrite: bool,
    say: Callable[[str], None] = lambda _: None,
) -> str:
    """Explain a node, or without one sum up the attention of all; what there is to say about it, for the screen.

    `directed` None: as in training.
    """
    if out is not None and out.suffix.lower() not in FORMATS:
        raise InputError(f"{out}: expected a name that ends in {', '.join(FORMATS)}")
    if out is not None and out.exists() and not overwrite:
        raise InputError(f"{out}: exists already; choose another name, or say --force")
    chosen = check_method(method)
    if node is None and method not in ("auto", "attention"):
        raise InputError(f"--method {method}: explains one node; name it with --node, or leave --method out")
    classifier, manifest = load_run(folder, device=device)
    graph = load_graph_for(folder, classifier, manifest, source, directed, "--graph", say)
    explainer = classifier.explainer(graph)
    if node is None:
        summary = summarise_attention(explainer)
        if out is not None:
            _write(out, summary.to_json(), lambda: summary_plot(summary), lambda: summary_page(summary))
        read = NO_TOKENS + (PASSED_ON if explainer.method.passes_scores else "")
        return summary.to_markdown() if summary.table("all")[1] else f"{read}: there is no attention to sum up"
    explanation = explainer.explain(node, chosen)
    if out is not None:
        _write(
            out,
            explanation.to_json(),
            lambda: explanation_figure(explanation),
            lambda: explanation_page(explanation),
        )
    return to_text(explanation)


def _write(out: Path, values: dict[str, Any], draw: Callable[[], Figure], render: Callable[[], str]) -> None:
    """The one of the three forms that the file's name asks for."""
    if out.suffix.lower() == ".png":
        save_figure(draw(), out)
    else:
        write_text(out, render() if out.suffix.lower() == ".html" else json.dumps(values, ensure_ascii=True, indent=1))
