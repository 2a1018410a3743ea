"""The few pieces of HTML that the report is made of. Whatever goes in as text comes out escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tokenphormer.evaluation import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THEMED = {
    plots.INK: "var(--ink)",
    plots.MUTED: "var(--muted)",
    plots.GRID: "var(--line)",
    plots.BLUE: "var(--blue)",
    plots.SKY: "var(--bar)",
    plots.ORANGE: "var(--orange)",
    plots.GREEN: "var(--green)",
}
"""Colours of the plots that follow the page into the dark."""


def text(value: object) -> str:
    """Escape anything for use between tags and in attributes."""
    # Ids and names come from people's files and may hold half a surrogate pair, which no file can be written with.
    return html.escape(str(value).encode("utf-8", "replace").decode("utf-8"))


def facts(caption: str, rows: Mapping[str, object]) -> str:
    """A table of names and values."""
    body = "".join(f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>' for name, value in rows.items())
    return f'<table class="facts"><caption>{text(caption)}</caption><tbody>{body}</tbody></table>'


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], strong: Sequence[int] = ()) -> str:
    """A table whose first column names the row; `strong` rows stand out. It scrolls where the page is narrow."""
    head = "".join(f'<th scope="col">{text(cell)}</th>' for cell in header)
    body = []
    for number, (name, *cells) in enumerate(rows):
        mark = ' class="here"' if number in strong else ""
        data = "".join(f"<td>{text(cell)}</td>" for cell in cells)
        body.append(f'<tr{mark}><th scope="row">{text(name)}</th>{data}</tr>')
    inner = f"<caption>{text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}"><table>{inner}</table></div>'


def cards(items: Sequence[tuple[str, str, str]]) -> str:
    """Headline figures: (name, value, what it rests on)."""
    shown = [
        f"<div><dt>{text(name)}</dt><dd>{text(value)}<small>{text(note)}</small></dd></div>"
        for name, value, note in items
    ]
    return f'<dl class="cards">{"".join(shown)}</dl>'


def figure(name: str, drawn: Figure, label: str, caption: str = "", *, wide: bool = False) -> str:
    """An inline picture; `name` keeps its ids apart from those of other pictures, `label` says what it shows."""
    below = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    opening = '<figure class="wide">' if wide else "<figure>"
    drawing = inline_svg(drawn, name, label)
    # A picture that scrolls must be reachable from the keyboard.
    focus = f' tabindex="0" role="region" aria-label="{text(label)}"' if wide else ""
    return f'{opening}<div class="scroll"{focus}>{drawing}</div>{below}</figure>'


def inline_svg(drawn: Figure, name: str, label: str) -> str:
    """The figure as an <svg> element: no XML header, own ids, no fixed size, colours of the page, a text label."""
    source = plots.svg_text(drawn)
    opening = re.search(r"<svg\b[^>]*>", source)
    assert opening is not None, "matplotlib wrote an SVG without <svg>"
    view = re.search(r'viewBox="[^"]*"', opening.group())
    assert view is not None, "matplotlib wrote an SVG without a viewBox"
    # Its style element would apply to the whole page.
    body = re.sub(r"<style\b.*?</style>", "", source[opening.end() :], flags=re.DOTALL)
    # Only what stands within tags: a class may well be called "#2b2f36" or 'id="x"'.
    body = re.sub(r"<[^>]*>", lambda tag: _adopt(tag.group(), name), body)
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f'<svg {spaces} {view.group()} role="img" aria-label="{text(label)}">{body.strip()}'


def _adopt(tag: str, name: str) -> str:
    """One tag of an SVG with its ids prefixed, its colours those of the page, its font left to the page."""
    tag = re.sub(r'\bid="|href="#|url\(#', lambda start: f"{start.group()}{name}-", tag)
    tag = re.sub(r"font-family: [^;\"]*(; )?", "", tag)
    return re.sub(r"#[0-9a-f]{6}\b", lambda colour: THEMED.get(colour.group(), colour.group()), tag)
