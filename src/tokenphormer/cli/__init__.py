"""The command line: parsing and printing only; every command is one function elsewhere.

Imports of the heavy libraries stand inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tokenphormer.cli.benchmarks import benchmark, leaks, study, tables
from tokenphormer.cli.options import (
    DeviceOption,
    DirectedAgainOption,
    DirectedOption,
    GraphArgument,
    HalfOption,
    MemoryOption,
    VerifyOption,
    load_and_tell,
    say,
    say_notes,
    say_once,
    say_passed_over,
)
from tokenphormer.errors import (
    InputError,
    InterruptedTrainingError,
    OtherRankError,
    TokenphormerError,
    exit_code,
    gpu_is_full,
)

if TYPE_CHECKING:
    import torch

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


def _version(wanted: bool) -> None:
    if wanted:
        from tokenphormer import __version__

        typer.echo(f"tokenphormer {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    del version
    command = context.invoked_subcommand
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and command not in ("pretrain", "train", "predict"):
        if os.environ.get("RANK", "0") == "0":
            raise InputError(
                f"torchrun: `{command}` works in one process; pretrain, train and predict share their work"
            )
        raise typer.Exit(2)


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
    from tokenphormer.graph.tables import read_node_list
    from tokenphormer.walks.export import write_walks
    from tokenphormer.walks.reference import Kind
    from tokenphormer.walks.sampling import choose_device
    from tokenphormer.walks.statistics import walk_statistics

    which = cast("Kind", kind)
    loaded = load_and_tell(graph, directed)
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
def convert(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A folder with nodes and edges tables of any size, or another graph."),
    ],
    out: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="The folder to write; left out, SOURCE is only verified.")
    ] = None,
    memory: MemoryOption = "2GB",
    half: HalfOption = False,
    verify: VerifyOption = False,
    directed: DirectedOption = False,
) -> None:
    """Write a graph as memory-mapped arrays on disk: it then opens at once, and need not fit into memory."""
    from tokenphormer.graph.disk import is_graph_folder, open_graph
    from tokenphormer.graph.external import convert as run
    from tokenphormer.graph.external import parse_memory

    if out is None and not verify:
        raise InputError("OUT: name the folder to write, or say --verify to check one that is there")
    if verify and (out is None or is_graph_folder(Path(source))):
        open_graph(source, verify=True)
    if out is None:
        typer.echo(f"{source}: every array is as it was written")
        return
    say_passed_over(source)
    written = run(
        source,
        out,
        memory=parse_memory(memory),
        directed=directed,
        half=half,
        say=say,
    )
    say_notes(written, source)
    if verify:
        open_graph(out, verify=True)
    typer.echo(f"{out}: {written.num_nodes:,} nodes, {written.num_edges:,} edges, {written.num_features:,} features")


@app.command()
def generate(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    nodes: Annotated[int, typer.Option(help="Nodes.")] = 1_000_000,
    degree: Annotated[int, typer.Option(help="Mean degree; an odd one counts as the even one below.")] = 20,
    features: Annotated[int, typer.Option(help="Features of a node.")] = 64,
    classes: Annotated[int, typer.Option(help="Classes.")] = 10,
    seed: Annotated[int, typer.Option(help="The same seed draws the same graph anywhere.")] = 0,
    homophily: Annotated[float, typer.Option(help="Share of the edges that stay within a class.")] = 0.7,
    train: Annotated[int, typer.Option(help="Nodes for training; at most a quarter of all.")] = 10_000,
    val: Annotated[int | None, typer.Option(help="Nodes for validation; default: as many as for training.")] = None,
    test: Annotated[int | None, typer.Option(help="Nodes for test; default: as many as for training.")] = None,
    memory: MemoryOption = "2GB",
    half: HalfOption = False,
    device: Annotated[str, typer.Option(help="cpu, or cuda: draw and sort on a GPU; the graph is the same.")] = "cpu",
) -> None:
    """Draw a random graph of any size to disk, with classes that only features and edges together tell."""
    from tokenphormer.graph.external import check_memory, parse_memory
    from tokenphormer.graph.generators import BlockModel
    from tokenphormer.graph.generators import generate as run

    model = BlockModel(nodes, degree, features, classes, seed, homophily, train, val, test)
    size = parse_memory(memory)
    check_memory(size)
    where = None
    if device != "cpu":
        from tokenphormer.walks.sampling import check_device, choose_device

        chosen = check_device(choose_device(device))
        where = None if chosen.type == "cpu" else chosen
    drawn = run(model, out, memory=size, half=half, device=where, say=say)
    typer.echo(f"{out}: {drawn.num_nodes:,} nodes, {drawn.num_edges:,} edges, {drawn.num_features:,} features")


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
    from tokenphormer import distributed
    from tokenphormer.evaluation.live import LiveProgress
    from tokenphormer.evaluation.plots import pretraining_curves, save_figure
    from tokenphormer.sgpm import GraphDocument, write_document
    from tokenphormer.sgpm.pretrain_run import default_settings
    from tokenphormer.sgpm.pretrain_run import pretrain as run
    from tokenphormer.sgpm.pretraining import kept_epoch
    from tokenphormer.sgpm.settings import SGPMSettings
    from tokenphormer.walks.sampling import check_device, choose_device

    with distributed.joined(choose_device(device)) as own:
        where = check_device(own)
        loaded = load_and_tell(graph, directed)
        settings = default_settings(where, config).replace(SGPMSettings.parse_overrides(overrides or []))
        if document is not None:
            if distributed.is_first():
                count = write_document(GraphDocument(loaded, settings), document)
                typer.echo(f"{document}: {count:,} sentences")
            return
        folder = _folder(out, f"{loaded.name}-sgpm", resume, where)
        with LiveProgress(settings.epochs, folder if tensorboard else None) as live:
            done = run(loaded, settings, folder, where, resume=resume, after_chunk=live.after_chunk, say=live.say)
        if not distributed.is_first():
            return
    history = done.meta["history"]
    save_figure(pretraining_curves(history), folder / "curves.png")
    best = kept_epoch(history)
    found = {"folder": str(folder), "graph": loaded.name, "device": str(where), **best}
    if as_json:
        typer.echo(json.dumps(found))
        return
    typer.echo(
        f"{best['val_accuracy']:.2%} of masked nodes guessed right, perplexity {best['val_perplexity']:.2f} "
        f"(validation, epoch {best['epoch']}); {history[-1]['tokens']:,} tokens in {history[-1]['seconds']:.1f} s"
    )
    words = ["tokenphormer", "train", graph, "--sgpm", str(folder)]
    typer.echo(f"{folder}: use it with {shlex.join([*words, '--directed'] if directed else words)}")


@app.command()
def train(
    graph: GraphArgument,
    config: Annotated[
        Path | None, typer.Option(help="A YAML file of settings; or: paper, for the paper's on its datasets.")
    ] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting.")] = None,
    split: Annotated[
        str,
        typer.Option(
            help="stratified, two-stage, class-balanced, geom-gcn, given; auto: a dataset's own, else given if there "
            "is one, else stratified."
        ),
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
    plots: Annotated[bool, typer.Option("--plots", help="Write three figures of the report as PNG files too.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what memory, disk and time it would take.")
    ] = False,
    verify: VerifyOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
    directed: DirectedOption = False,
) -> None:
    """Train Tokenphormer on a graph and write a run folder with weights, predictions and a report."""
    from tokenphormer import distributed
    from tokenphormer.evaluation.live import LiveProgress
    from tokenphormer.evaluation.run_folder import write_plots
    from tokenphormer.evaluation.runs import train_run
    from tokenphormer.graph.datasets import find_dataset
    from tokenphormer.sgpm.pretrain_run import default_settings, find_or_pretrain, load_pretrained
    from tokenphormer.training.presets import config_for, note_on, split_for
    from tokenphormer.training.settings import Config
    from tokenphormer.walks.sampling import check_device, choose_device

    with distributed.joined(choose_device(device)) as own:
        where = check_device(own)
        loaded = load_and_tell(graph, directed, verify)
        values = Config.parse_overrides(overrides or []) | ({"deterministic": "true"} if deterministic else {})
        command = "tokenphormer " + " ".join(map(shlex.quote, sys.argv[1:]))
        if distributed.size() > 1:
            command += f"  # in {distributed.size()} processes"
        chosen = split_for(loaded, split, split_seed)
        settings = config_for(loaded, chosen, where, config, find_dataset(graph)).replace(values)
        if config is None and distributed.is_first() and (note := note_on(settings)):
            say(note)
        if dry_run:
            from tokenphormer.training.estimate import estimate
            from tokenphormer.training.fit import check_trainable

            check_trainable(loaded, chosen, settings, say_once)
            guess = estimate(loaded, chosen, settings, where)
            about = {"graph": loaded.name, "split": chosen.name, "device": str(where)}
            for line in [json.dumps(guess.to_json() | about)] if as_json else guess.lines():
                if distributed.is_first():
                    typer.echo(line)
            return
        folder = _folder(out, loaded.name, resume, where)
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
    if summary.calibration is not None:
        typer.echo(summary.calibration_text())
    for name, accuracy in summary.comparison:
        typer.echo(f"{name:32} {accuracy:.2%} test accuracy on the same split")
    typer.echo(f"{sum(summary.epochs)} epochs, {summary.seconds:.1f} s; report: {folder / 'report.html'}")


@app.command()
def tune(
    graph: GraphArgument,
    trials: Annotated[int, typer.Option(help="Settings to try in all, those of earlier calls included.")] = 20,
    timeout: Annotated[float, typer.Option(help="Begin no trial after so many seconds; 0: no limit.")] = 0.0,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write, or to go on in; default: runs/NAME-tune.")
    ] = None,
    split: Annotated[
        str,
        typer.Option(
            help="stratified, two-stage, class-balanced, geom-gcn, given; auto: a dataset's own, else given if there "
            "is one, else stratified."
        ),
    ] = "auto",
    split_seed: Annotated[int | None, typer.Option(help="Seed of a random split, number of a fixed one.")] = None,
    sgpm: Annotated[
        str | None, typer.Option(help="A folder of `pretrain`, or auto: pre-train if there is none for this graph yet.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting that is not searched.")
    ] = None,
    device: DeviceOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
    directed: DirectedOption = False,
) -> None:
    """Search settings for a graph on its validation nodes; the best become a file for `train --config`."""
    from tokenphormer.evaluation.runs import free_folder
    from tokenphormer.sgpm.pretrain_run import default_settings, find_or_pretrain, load_pretrained
    from tokenphormer.training.presets import config_for, split_for
    from tokenphormer.training.settings import Config
    from tokenphormer.tuning import BEST, with_fixed
    from tokenphormer.tuning import tune as run
    from tokenphormer.walks.sampling import check_device, choose_device

    if not timeout >= 0:
        raise InputError(f"--timeout {timeout:g}: expected 0, which is no limit, or more")
    where = check_device(choose_device(device))
    loaded = load_and_tell(graph, directed)
    fixed = Config.parse_overrides(overrides or [])
    chosen = split_for(loaded, split, split_seed)
    settings = with_fixed(config_for(loaded, chosen, where), fixed)
    pretrained = None
    if sgpm == "auto":
        pretrained = find_or_pretrain(loaded, default_settings(where), where, say=say)
    elif sgpm is not None:
        pretrained = load_pretrained(Path(sgpm), loaded, where)
    found = run(
        loaded,
        chosen,
        settings,
        out or free_folder(Path("runs"), f"{loaded.name}-tune", resume=True),
        where,
        trials=trials,
        timeout=timeout or float("inf"),
        fixed=fixed,
        sgpm=pretrained,
        say=say,
    )
    best = found.best
    if best is None:
        reason = found.rows[0]["reason"] if found.rows else "the time was up before the first"
        raise InputError(f"{found.folder}: no trial could be run: {reason}")
    if as_json:
        about = {"folder": str(found.folder), "graph": loaded.name, "split": chosen.name, "device": str(where)}
        result = {"trials": len(found.rows), "best": best, "default_val_accuracy": found.defaults}
        typer.echo(json.dumps(about | result))
        return
    if len(found.rows) < trials:
        say(f"the time is up after {len(found.rows)} of {trials} trials; the same command goes on")
    before = "did not run" if found.defaults is None else f"{found.defaults:.2%}"
    typer.echo(f"{best['val_accuracy']:.2%} validation accuracy in trial {best['trial']}; the defaults: {before}")
    words = ["tokenphormer", "train", graph, "--config", str(found.folder / BEST)]
    words += ["--split", split] if split != "auto" else []
    words += ["--split-seed", str(split_seed)] if split_seed is not None else []
    words += ["--sgpm", sgpm] if sgpm is not None else []
    typer.echo(f"use it with {shlex.join([*words, '--directed'] if directed else words)}")


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that `train` wrote.")],
    graph: Annotated[str | None, typer.Argument(metavar="GRAPH", help="Another graph; default: the run's own.")] = None,
    out: Annotated[Path, typer.Option(help="Write to FILE.csv or FILE.parquet.")] = Path("predictions.csv"),
    nodes: Annotated[Path | None, typer.Option(help="Only the nodes in FILE, one id a line.")] = None,
    device: DeviceOption = "auto",
    directed: DirectedAgainOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Predict classes with a trained run, on its own graph or on a new one with the same features."""
    from tokenphormer import distributed
    from tokenphormer.evaluation.runs import predict_run
    from tokenphormer.walks.sampling import choose_device

    with distributed.joined(choose_device(device)) as own:
        say_passed_over(graph)
        count, name = predict_run(run, graph, out, nodes, own, directed, force, say_once)
        if not distributed.is_first():
            return
    typer.echo(f"{out}: predictions for {count:,} nodes of {name}")


@app.command()
def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that `train` wrote.")],
    node: Annotated[str | None, typer.Option(metavar="ID", help="The node; default: attention over all nodes.")] = None,
    graph: Annotated[str | None, typer.Option(metavar="GRAPH", help="Another graph; default: the run's own.")] = None,
    method: Annotated[str, typer.Option(help="auto, attention, rollout or occlusion.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Write to FILE.png, FILE.html or FILE.json too.")] = None,
    device: DeviceOption = "auto",
    directed: DirectedAgainOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Say which walks, hops, nodes and edges the prediction of a node rests on."""
    from tokenphormer.evaluation.explanations.run import explain_run

    say_passed_over(graph)
    typer.echo(explain_run(run, node, graph, method, out, device, directed, force, say_once))


@app.command()
def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that `train` wrote.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond this machine it takes a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 is any that is free.")] = 8000,
    token: Annotated[
        str, typer.Option(envvar="TOKENPHORMER_TOKEN", help="What clients must send; other users can see an option.")
    ] = "",
    rate: Annotated[float, typer.Option(help="Requests a second that one address may make.")] = 1000.0,
    graph: Annotated[str | None, typer.Option(help="Where the run's own graph is now, if it was moved.")] = None,
    device: DeviceOption = "auto",
) -> None:
    """Explore a trained run on a local page, with a JSON API behind it."""
    from tokenphormer.serve import ServeSettings
    from tokenphormer.serve import serve as run_server

    say_passed_over(graph)
    settings = ServeSettings(host=host, port=port, token=token, rate=rate)
    try:
        run_server(run, settings, device=device, source=graph, say=say)
    except KeyboardInterrupt as stop:
        typer.echo("tokenphormer: stopped", err=True)
        code = exit_code(stop)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    else:
        return
    # A thread may still be making the map, in native code that Python cannot end without a crash.
    sys.stderr.flush()
    os._exit(code)


for command in (benchmark, tables, leaks, study):
    app.command()(command)


def _folder(out: Path | None, name: str, resume: bool, device: torch.device) -> Path:
    """The folder to write: the one that was named, or a free one of this name, the same in all processes."""
    from tokenphormer import distributed
    from tokenphormer.evaluation.runs import free_folder

    if out is None and distributed.may_restart():
        raise InputError("--out: with --max-restarts the folder needs a name, by which it is found again")
    return out or Path(distributed.text_of_first(str(free_folder(Path("runs"), name, resume)), device))


def _stop(number: int, _: object) -> None:
    """End on SIGTERM as on an error, so that half-written files are taken away; longer work has handlers of its own."""
    raise SystemExit(128 + number)


def main() -> None:
    """Run the command line; errors of the user end with one line and exit code 2, of the machine with 3."""
    signal.signal(signal.SIGTERM, _stop)
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a terminal cannot show is shown by its number
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(standalone_mode=True)
    except OtherRankError as error:  # of several processes one has said why already
        raise SystemExit(exit_code(error)) from None
    except InterruptedTrainingError as stop:
        typer.echo(f"tokenphormer: {stop}", err=True)
        raise SystemExit(exit_code(stop)) from None
    except (TokenphormerError, OSError, MemoryError) as error:
        typer.echo(f"tokenphormer: error: {str(error) or 'not enough memory'}", err=True)
        raise SystemExit(exit_code(error)) from None
    except KeyboardInterrupt as stop:
        typer.echo("tokenphormer: stopped", err=True)
        raise SystemExit(exit_code(stop)) from None
    except RuntimeError as error:
        if not gpu_is_full(error):
            raise
        typer.echo(f"tokenphormer: error: not enough memory: {str(error).splitlines()[0]}", err=True)
        raise SystemExit(exit_code(error)) from None
