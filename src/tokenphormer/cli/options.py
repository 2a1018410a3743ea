"""What several commands take, and how they speak."""

from __future__ import annotations

from typing import Annotated

import typer

GraphArgument = Annotated[
    str,
    typer.Argument(
        metavar="GRAPH", help="A dataset's name, a folder with nodes and edges tables or of `convert`, an .npz."
    ),
]
DirectedOption = Annotated[bool, typer.Option(help="Keep the direction of edges.")]
DirectedAgainOption = Annotated[
    bool | None,
    typer.Option(
        "--directed/--no-directed", help="Of another graph: keep the direction of edges; default: as in training."
    ),
]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is one.")]
MemoryOption = Annotated[str, typer.Option(help="About how much memory sorting may take, such as 500MB or 2GB.")]
HalfOption = Annotated[bool, typer.Option("--float16", help="Store features in half precision.")]
VerifyOption = Annotated[bool, typer.Option("--verify", help="Read a graph on disk through, and compare its hashes.")]


def say(text: str) -> None:
    """A line for people: on the error stream, so that what a command prints stays clean."""
    typer.echo(text, err=True)


def names(text: str) -> tuple[str, ...]:
    """Names with commas between.

    >>> names("cora, citeseer,")
    ('cora', 'citeseer')
    """
    return tuple(name.strip() for name in text.split(",") if name.strip())
