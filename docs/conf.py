"""How Sphinx builds the site: `make docs`. It asks nothing of the network."""

from __future__ import annotations

import re
from importlib.metadata import version as installed_version

from sphinx.application import Sphinx

project = "tokenphormer"
author = "The tokenphormer developers"
copyright = "The tokenphormer developers, MIT licence"
version = release = installed_version("tokenphormer")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
default_role = "code"  # docstrings are written with `single` backticks

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_class_signature = "separated"
autodoc_use_type_comments = False

html_theme = "furo"
html_title = "tokenphormer"
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

# Pages that live elsewhere in the repository and are shown on the site too: links to the file become links to the page.
ELSEWHERE = {
    "../experiments/tables/main.md": "repository/table.md",
    "../experiments/tables/sgpm.md": "repository/sgpm-table.md",
    "../experiments/tables/inputs.md": "repository/inputs-table.md",
    "../experiments/tables/ablation.md": "repository/ablation-table.md",
    "../experiments/tables/additions.md": "repository/additions-table.md",
    "../experiments/tables/defaults.md": "repository/defaults-table.md",
    "../experiments/tables/votes.md": "repository/votes-table.md",
    "../experiments/LOG.md": "repository/log.md",
    "../src/tokenphormer/walks/README.md": "repository/walk-contract.md",
    "../CONTRIBUTING.md": "repository/contributing.md",
    "../CHANGELOG.md": "repository/changelog.md",
}


def link_within_the_site(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Let links to files of the repository lead to their pages; files without one are downloads."""
    if "/" not in docname:
        for file, page in ELSEWHERE.items():
            source[0] = source[0].replace(f"]({file}", f"]({page}")


def keep_shapes(_app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Docstrings begin with shapes, as "(n) class numbers", which reStructuredText would read as item n of a list."""
    lines[:] = [re.sub(r"^(?=\(\w\) )", r"\\", line) for line in lines]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", keep_shapes)
    app.connect("source-read", link_within_the_site)
