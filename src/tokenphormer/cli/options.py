"""What several commands take, and how they speak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tokenphormer.errors import InputError

if TYPE_CHECKING:
    from tokenphormer.graph import Graph

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


def say_once(text: str) -> None:
    """The same, of several processes from the first alone."""
    from tokenphormer import distributed

    if distributed.is_first():
        say(text)


def names(text: str) -> tuple[str, ...]:
    """Names with commas between, each once: what is named twice is not done twice.

    >>> names("cora, citeseer,cora,")
    ('cora', 'citeseer')
    """
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def some_names(text: str, option: str) -> tuple[str, ...]:
    """The same, at least one: an empty variable of a script is not to pass for a grid that is full."""
    if not (found := names(text)):
        raise InputError(f"{option} {text!r}: expected a name, or several with commas between")
    return found


def load_and_tell(source: str, directed: bool, verify: bool = False) -> Graph:
    """The graph that was named, with what there is to say about it."""
    from tokenphormer.graph.datasets import load_graph

    say_passed_over(source)
    loaded = load_graph(source, directed=directed, verify=verify)
    say_notes(loaded, source)
    return loaded


def say_passed_over(source: str | None) -> None:
    """A line if a dataset was named and there is a folder of its name too."""
    from tokenphormer import distributed
    from tokenphormer.graph.datasets import passed_over

    note = None if source is None else passed_over(source)
    if note and distributed.is_first():
        say(note)


def say_notes(graph: Graph, source: str) -> None:
    """One line on what was done to a user's own graph; the named ones are described elsewhere."""
    from tokenphormer import distributed
    from tokenphormer.graph.datasets import find_dataset

    if graph.notes and find_dataset(source) is None and distributed.is_first():
        say(f"{graph.name}: {'; '.join(graph.notes)}")
