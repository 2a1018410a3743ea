"""The command line: parsing and printing only; every command is one function elsewhere.

Imports of the heavy libraries stand inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tokenphormer.errors import InputError, InterruptedTrainingError, OtherRankError, TokenphormerError

if TYPE_CHECKING:
    from tokenphormer.graph import Graph

# Threads of torch that wait for work spin by default; where other programs want the same cores, that makes training
# several times slower. Waiting quietly costs nothing noticeable elsewhere. Must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

app = typer.Typer(
    name="tokenphormer",
    help="Classify the nodes of a graph: random walks, hops and a pre-trained graph language model as tokens.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

GraphArgument = Annotated[
    str, typer.Argument(metavar="GRAPH", help="A dataset's name, a folder with nodes and edges tables, or an .npz.")
]
DirectedOption = Annotated[bool, typer.Option(help="Keep the direction of edges.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is one.")]


def _version(wanted: bool) -> None:
    if wanted:
        from tokenphormer import __version__

        typer.echo(f"tokenphormer {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    del version


@app.command()
def datasets(as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a list of objects.")] = False) -> None:
    """List the datasets known by name, measured here, beside the paper's table."""
    from tokenphormer.graph.listing import dataset_rows

    rows = dataset_rows()
    if as_json:
        typer.echo(json.dumps(rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", title="Datasets; in brackets the paper's figure where it differs", title_justify="left")
    columns = ("nodes", "edges", "classes", "features", "components", "homophily", "diameter", "radius")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("split", no_wrap=True)
    table.add_column("status", overflow="fold")
    for row in rows:
        cells = [_cell(row[column], row.get(f"paper_{column}")) for column in columns]
        table.add_row(str(row["name"]), *cells, str(row["protocol"]), str(row["status"]))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _cell(value: object, paper: object) -> str:
    def show(number: object) -> str:
        return (
            f"{number:,}" if isinstance(number, int) else f"{number:.3f}" if isinstance(number, float) else str(number)
        )

    if value is None:
        return "?" if paper is None else f"? ({show(paper)})"
    return show(value) if paper is None or paper == value else f"{show(value)} ({show(paper)})"


@app.command()
def walks(
    graph: GraphArgument,
    kind: Annotated[str, typer.Option(help="uniform, non_backtracking, jump or non_backtracking_jump.")] = "uniform",
    out: Annotated[Path | None, typer.Option(help="Write to FILE.npy, or FILE.txt: one walk a line.")] = None,
    num_walks: Annotated[int, typer.Option(help="Walks from each node.")] = 10,
    length: Annotated[int, typer.Option(help="Steps of each walk.")] = 4,
    nodes: Annotated[Path | None, typer.Option(help="Only from the nodes in FILE, one id a line.")] = None,
    jump_radius: Annotated[int, typer.Option(help="How many hops a jump may span.")] = 3,
    seed: Annotated[int, typer.Option(help="The same seed draws the same walks anywhere.")] = 0,
    device: DeviceOption = "auto",
    directed: DirectedOption = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Draw random walks: to a file, or as statistics on the screen."""
    from tokenphormer.graph.datasets import load_graph
    from tokenphormer.graph.tables import read_node_list
    from tokenphormer.walks.export import write_walks
    from tokenphormer.walks.reference import Kind
    from tokenphormer.walks.sampling import choose_device
    from tokenphormer.walks.statistics import walk_statistics

    which = cast("Kind", kind)
    loaded = load_graph(graph, directed=directed)
    _say_notes(loaded)
    chosen = None if nodes is None else read_node_list(nodes, loaded)
    where = choose_device(device)
    if out is None:
        for name, value in walk_statistics(loaded, which, num_walks, length, chosen, jump_radius, seed, where).items():
            typer.echo(f"{name:28} {value}")
        return
    starts = loaded.num_nodes if chosen is None else len(chosen)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("walks", total=starts)
        count = write_walks(
            out,
            loaded,
            which,
            num_walks,
            length,
            chosen,
            jump_radius,
            seed,
            where,
            overwrite=force,
            progress=lambda done: bar.update(task, completed=done),
        )
    typer.echo(f"{out}: {count:,} walks of {length} steps from {starts:,} nodes")


@app.command()
def pretrain(
    graph: GraphArgument,
    out: Annotated[Path | None, typer.Option(help="The folder to write; default: runs/NAME-sgpm.")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting.")] = None,
    document: Annotated[
        Path | None, typer.Option(help="Only write the training sentences to FILE, one a line, and stop.")
    ] = None,
    device: DeviceOption = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a pre-training that was stopped.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log for TensorBoard too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
    directed: DirectedOption = False,
) -> None:
    """Pre-train SGPM on a graph's walks, without labels; `train --sgpm DIR` reads what it learned."""
    import torch

    from tokenphormer.evaluation.live import LiveProgress
    from tokenphormer.evaluation.plots import pretraining_curves, save_figure
    from tokenphormer.evaluation.runs import free_folder
    from tokenphormer.graph.datasets import load_graph
    from tokenphormer.sgpm import GraphDocument, write_document
    from tokenphormer.sgpm.pretrain_run import default_settings
    from tokenphormer.sgpm.pretrain_run import pretrain as run
    from tokenphormer.sgpm.settings import SGPMSettings
    from tokenphormer.walks.sampling import check_device, choose_device

    loaded = load_graph(graph, directed=directed)
    _say_notes(loaded)
    where: torch.device = check_device(choose_device(device))
    settings = default_settings(where, config).replace(SGPMSettings.parse_overrides(overrides or []))
    if document is not None:
        count = write_document(GraphDocument(loaded, settings), document)
        typer.echo(f"{document}: {count:,} sentences")
        return
    out = out or free_folder(Path("runs"), f"{loaded.name}-sgpm", resume)
    with LiveProgress(settings.epochs, out if tensorboard else None) as live:
        done = run(loaded, settings, out, where, resume=resume, after_chunk=live.after_chunk, say=live.say)
    history = done.meta["history"]
    save_figure(pretraining_curves(history), out / "curves.png")
    best = min(history, key=lambda row: row["val_loss"])
    found = {"folder": str(out), "graph": loaded.name, "device": str(where), **best}
    if as_json:
        typer.echo(json.dumps(found))
        return
    typer.echo(
        f"{best['val_accuracy']:.2%} of masked nodes guessed right, perplexity {best['val_perplexity']:.2f} "
        f"(validation, epoch {best['epoch']}); {history[-1]['tokens']:,} tokens in {history[-1]['seconds']:.1f} s"
    )
    typer.echo(f"{out}: use it with tokenphormer train {graph} --sgpm {out}")


@app.command()
def train(
    graph: GraphArgument,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting.")] = None,
    split: Annotated[
        str, typer.Option(help="stratified, two-stage, class-balanced, geom-gcn, given; auto: given if there is one.")
    ] = "auto",
    split_seed: Annotated[int | None, typer.Option(help="Seed of a random split, number of a fixed one.")] = None,
    seeds: Annotated[int, typer.Option(help="Train this many times, with seeds one after the other.")] = 1,
    out: Annotated[Path | None, typer.Option(help="The run folder to write; default: runs/NAME.")] = None,
    sgpm: Annotated[
        str | None, typer.Option(help="A folder of `pretrain`, or auto: pre-train if there is none for this graph yet.")
    ] = None,
    device: DeviceOption = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Logistic regression and a GCN on the same split.")
    ] = False,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Deterministic algorithms only.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log for TensorBoard too.")] = False,
    plots: Annotated[bool, typer.Option("--plots", help="Write the report's figures as PNG files too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
    directed: DirectedOption = False,
) -> None:
    """Train Tokenphormer on a graph and write a run folder with weights, predictions and a report."""
    from tokenphormer import distributed
    from tokenphormer.evaluation.live import LiveProgress
    from tokenphormer.evaluation.run_folder import write_plots
    from tokenphormer.evaluation.runs import free_folder, train_run
    from tokenphormer.graph.datasets import load_graph
    from tokenphormer.sgpm.pretrain_run import default_settings, find_or_pretrain, load_pretrained
    from tokenphormer.training.presets import config_for, split_for
    from tokenphormer.training.settings import Config
    from tokenphormer.walks.sampling import check_device, choose_device

    loaded = load_graph(graph, directed=directed)
    values = Config.parse_overrides(overrides or []) | ({"deterministic": "true"} if deterministic else {})
    command = "tokenphormer " + " ".join(map(shlex.quote, sys.argv[1:]))
    with distributed.joined(check_device(choose_device(device))) as where:
        _say_notes(loaded)
        settings = config_for(loaded, where, config).replace(values)
        chosen = split_for(loaded, split, split_seed)
        folder = out or free_folder(Path("runs"), loaded.name, resume)
        with LiveProgress(settings.max_epochs, folder if tensorboard else None) as live:
            pretrained = None
            if sgpm == "auto":
                pretrained = find_or_pretrain(
                    loaded, default_settings(where), where, after_chunk=live.after_chunk, say=live.say
                )
            elif sgpm is not None:
                pretrained = load_pretrained(Path(sgpm), loaded, where)
            summary = train_run(
                loaded,
                graph,
                chosen,
                settings,
                folder,
                where,
                seeds=seeds,
                resume=resume,
                compare=compare,
                command=command,
                sgpm=pretrained,
                after_epoch=live.after_epoch,
                say=live.say,
            )
        if not distributed.is_first():
            return
    if plots:
        write_plots(folder, loaded)
    if as_json:
        typer.echo(json.dumps(summary.to_json() | {"graph": loaded.name, "split": chosen.name, "device": str(where)}))
        return
    typer.echo(f"{'Tokenphormer':32} {summary.accuracy_text()}")
    for name, accuracy in summary.comparison:
        typer.echo(f"{name:32} {accuracy:.2%} test accuracy on the same split")
    typer.echo(f"{sum(summary.epochs)} epochs, {summary.seconds:.1f} s; report: {folder / 'report.html'}")


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that `train` wrote.")],
    graph: Annotated[str | None, typer.Argument(metavar="GRAPH", help="Another graph; default: the run's own.")] = None,
    out: Annotated[Path, typer.Option(help="Write to FILE.csv or FILE.parquet.")] = Path("predictions.csv"),
    nodes: Annotated[Path | None, typer.Option(help="Only the nodes in FILE, one id a line.")] = None,
    device: DeviceOption = "auto",
    directed: DirectedOption = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Predict classes with a trained run, on its own graph or on a new one with the same features."""
    from tokenphormer import distributed
    from tokenphormer.evaluation.runs import predict_run
    from tokenphormer.walks.sampling import check_device, choose_device

    with distributed.joined(check_device(choose_device(device))) as where:
        count, name = predict_run(run, graph, out, nodes, str(where), directed, force)
        if not distributed.is_first():
            return
    typer.echo(f"{out}: predictions for {count:,} nodes of {name}")


@app.command()
def benchmark(
    out: Annotated[Path, typer.Option(help="The folder of rows; what is in it already is not run again.")],
    models: Annotated[str, typer.Option(help="Names with commas between, or all.")] = "all",
    datasets: Annotated[str, typer.Option(help="Names with commas between.")] = "debian",
    splits: Annotated[int, typer.Option(help="Reported splits: 0, 1, …")] = 10,
    budget: Annotated[int, typer.Option(help="Trials of each method's search on each dataset.")] = 10,
    protocol: Annotated[
        str, typer.Option(help="Split protocol; auto: geom-gcn where it is usual, else stratified.")
    ] = "auto",
    workers: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    minutes: Annotated[float, typer.Option(help="Begin no run after so many minutes; 0: no limit.")] = 0.0,
    merge: Annotated[list[Path] | None, typer.Option(help="Rows from elsewhere that count as done.")] = None,
    device: DeviceOption = "auto",
) -> None:
    """Search and run methods on the same splits; every run becomes a row. Stop it and go on whenever you like."""
    from tokenphormer.benchmark.grid import Plan, fill
    from tokenphormer.benchmark.methods import METHODS
    from tokenphormer.walks.sampling import check_device, choose_device

    chosen = METHODS if models == "all" else _names(models)
    plan = Plan(chosen, _names(datasets), splits, budget, protocol)
    where = check_device(choose_device(device))
    limit = minutes or float("inf")
    done = fill(
        plan,
        out,
        where,
        workers=workers,
        minutes=limit,
        merge=tuple(merge or []),
        say=lambda text: typer.echo(text, err=True),
    )
    typer.echo(f"{out / 'rows.jsonl'}: {done} runs added; tables: tokenphormer tables {out} --out TABLES")


@app.command()
def tables(
    rows: Annotated[list[Path], typer.Argument(metavar="ROWS", help="Files of rows, or folders of them.")],
    out: Annotated[Path, typer.Option(help="The folder to write main.md, .tex, .csv and .html to.")],
    datasets: Annotated[str, typer.Option(help="Names with commas between; default: all that have rows.")] = "",
    models: Annotated[str, typer.Option(help="Names with commas between, or all.")] = "all",
    budget: Annotated[int, typer.Option(help="Trials that count; 0: as many as every method has had.")] = 0,
) -> None:
    """Make tables and a page from rows, with paired differences and the paper's figures beside ours."""
    from tokenphormer.benchmark.methods import METHODS
    from tokenphormer.benchmark.rows import read_rows
    from tokenphormer.benchmark.tables import cell_results, write_tables

    read = read_rows(rows, lambda text: typer.echo(text, err=True))
    found = _names(datasets) if datasets else tuple(dict.fromkeys(row["dataset"] for row in read))
    if not found:
        raise InputError("there are no rows to make a table of")
    cells = cell_results(read, found, METHODS if models == "all" else _names(models), budget or None)
    for path in write_tables(cells, out):
        typer.echo(str(path))


@app.command()
def leaks(
    datasets: Annotated[
        str, typer.Option(help="Names with commas between; default: every dataset on disk.")
    ] = "debian",
    splits: Annotated[int, typer.Option(help="How many of the reported splits to look at.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a line a split.")] = False,
) -> None:
    """Look for what could tell a method test labels: nodes in two parts, doubles, labels among features."""
    import dataclasses

    from tokenphormer.benchmark.grid import Plan
    from tokenphormer.benchmark.leaks import find_leaks
    from tokenphormer.benchmark.running import dataset, split_of

    plan, fine = Plan((), _names(datasets), splits), True
    for name in plan.datasets:
        graph = dataset(name)
        for number in range(splits):
            found = find_leaks(graph, split_of(graph, plan.protocol_of(name), number))
            fine = fine and found.fine
            values = dataclasses.asdict(found)
            typer.echo(json.dumps(values) if as_json else "  ".join(f"{key} {value}" for key, value in values.items()))
    if not fine:
        raise typer.Exit(1)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _say_notes(graph: Graph) -> None:
    """One line on what was done to a user's own graph; the named ones are described elsewhere."""
    from tokenphormer import distributed
    from tokenphormer.graph.datasets import DATASETS

    if graph.notes and graph.name not in DATASETS and distributed.is_first():
        typer.echo(f"{graph.name}: {'; '.join(graph.notes)}", err=True)


def main() -> None:
    """Run the command line; errors of the user end with one line and exit code 2, of the machine with 3."""
    try:
        app(standalone_mode=True)
    except InterruptedTrainingError as stop:
        typer.echo(f"tokenphormer: {stop}", err=True)
        raise SystemExit(128 + stop.signal) from None
    except OtherRankError:
        raise SystemExit(3) from None
    except TokenphormerError as error:
        typer.echo(f"tokenphormer: error: {error}", err=True)
        raise SystemExit(2 if isinstance(error, InputError) else 3) from None
    except (OSError, MemoryError) as error:
        typer.echo(f"tokenphormer: error: {str(error) or 'not enough memory'}", err=True)
        raise SystemExit(3) from None
    except KeyboardInterrupt:
        typer.echo("tokenphormer: stopped", err=True)
        raise SystemExit(130) from None
