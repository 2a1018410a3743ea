"""The commands of researchers: fill the benchmark's grid, make its tables, look for leaks, run a study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tokenphormer.cli.options import DeviceOption, names, say, some_names
from tokenphormer.errors import InputError


def benchmark(
    out: Annotated[Path, typer.Option(help="The folder of rows; what is in it already is not run again.")],
    models: Annotated[str, typer.Option(help="Names with commas between, or all.")] = "all",
    datasets: Annotated[str, typer.Option(help="Names or paths of graphs, with commas between.")] = "debian",
    splits: Annotated[int, typer.Option(help="Reported splits: 0, 1, …")] = 10,
    budget: Annotated[int, typer.Option(help="Trials of each method's search on each dataset.")] = 10,
    search_splits: Annotated[
        int,
        typer.Option(
            help="Splits that each trial is judged on, by the mean of their validation accuracies. A search whose "
            "choice is over 3 points lower in the final runs was lucky: all its trials are judged again on 5."
        ),
    ] = 1,
    held_out: Annotated[
        bool,
        typer.Option("--held-out", help="One half of a trial's validation nodes stops it, the other one judges it."),
    ] = False,
    protocol: Annotated[
        str, typer.Option(help="Split protocol; auto: geom-gcn where usual, given with your graph, else stratified.")
    ] = "auto",
    workers: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    minutes: Annotated[float, typer.Option(help="Begin no run after so many minutes; 0: no limit.")] = 0.0,
    merge: Annotated[list[Path] | None, typer.Option(help="Rows from elsewhere that count as done.")] = None,
    study: Annotated[
        str,
        typer.Option(help="main: methods and searches; or ablation, tokens, sgpm, inputs, additions, defaults, votes."),
    ] = "main",
    sgpm: Annotated[
        bool, typer.Option("--sgpm", help="With an SGPM-token in the ablation and tokens; pre-trains what is missing.")
    ] = False,
    vectors: Annotated[
        Path | None, typer.Option(help="Where a study keeps the vectors of its SGPMs; default: vectors in --out.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting of a study's SGPMs.")
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Search and run methods on the same splits; every run becomes a row. Stop it and go on whenever you like."""
    from tokenphormer.benchmark.workers import Workers

    with Workers(workers) as pool:  # the first begins to import while this process does
        from tokenphormer.benchmark.grid import Plan, fill, find_graphs
        from tokenphormer.benchmark.methods import METHODS
        from tokenphormer.benchmark.variants import check_study, run_study
        from tokenphormer.sgpm.pretrain_run import default_settings
        from tokenphormer.sgpm.settings import SGPMSettings
        from tokenphormer.walks.sampling import check_device, choose_device

        check_study(study)
        if not minutes >= 0:
            raise InputError(f"--minutes {minutes:g}: expected 0, which is no limit, or more")
        where = check_device(choose_device(device))
        limit, elsewhere = minutes or float("inf"), tuple(merge or [])
        graphs, own = find_graphs(some_names(datasets, "--datasets"), say)
        if study == "main":
            if sgpm or vectors or overrides:
                raise InputError("--sgpm, --vectors, --set: are for the studies ablation, tokens, sgpm and inputs")
            chosen = METHODS if models == "all" else some_names(models, "--models")
            plan = Plan(chosen, graphs, splits, budget, search_splits, protocol, "held-out" if held_out else "", own)
            done = fill(plan, out, where, workers=workers, minutes=limit, merge=elsewhere, pool=pool, say=say)
        else:
            if budget != 10 or search_splits != 1 or held_out:
                raise InputError(f"--budget, --search-splits, --held-out: the study '{study}' searches nothing")
            chosen = () if models == "all" else some_names(models, "--models")
            plan = Plan(chosen, graphs, splits, protocol=protocol, own=own)
            pretraining = None
            if sgpm or study in ("sgpm", "inputs"):
                pretraining = default_settings(where).replace(SGPMSettings.parse_overrides(overrides or []))
            elif vectors or overrides:
                raise InputError("--vectors, --set: are about SGPMs; say --sgpm too")
            done = run_study(
                study,
                plan,
                out,
                where,
                workers=workers,
                minutes=limit,
                merge=elsewhere,
                sgpm=pretraining,
                vectors=vectors,
                pool=pool,
                say=say,
            )
    typer.echo(f"{out / 'rows.jsonl'}: {done} runs added; tables: tokenphormer tables {out} --out TABLES")


def tables(
    rows: Annotated[list[Path], typer.Argument(metavar="ROWS", help="Files of rows, or folders of them.")],
    out: Annotated[Path, typer.Option(help="The folder to write main.md, .tex, .csv and .html to, and the studies'.")],
    datasets: Annotated[
        str, typer.Option(help="Names with commas between; default: all that the main study has rows of.")
    ] = "",
    models: Annotated[str, typer.Option(help="Names with commas between, or all.")] = "all",
    budget: Annotated[
        int, typer.Option(help="Trials that count; 0: as many as most methods of a dataset have had.")
    ] = 0,
) -> None:
    """Make tables and a page from rows, with paired differences and the paper's figures beside ours."""
    from tokenphormer.benchmark.methods import METHODS
    from tokenphormer.benchmark.rows import read_rows
    from tokenphormer.benchmark.study_tables import write_studies
    from tokenphormer.benchmark.tables import cell_results, main_datasets, write_tables

    read = read_rows(rows, say)
    found = names(datasets) or main_datasets(read)
    methods = METHODS if models == "all" else some_names(models, "--models")
    cells = cell_results(read, found, methods, budget or None)
    wanted = [row for row in read if not datasets or row["dataset"] in found]
    written = [*(write_tables(cells, out) if cells else ()), *write_studies(wanted, out, say)]
    if not written:
        raise InputError("there are no rows to make a table of")
    for path in written:
        typer.echo(str(path))


def leaks(
    datasets: Annotated[
        str, typer.Option(help="Names or paths with commas between; default: every dataset whose files are here.")
    ] = "",
    splits: Annotated[int, typer.Option(help="How many of the reported splits to look at.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a line a split.")] = False,
) -> None:
    """Look for what could tell a method test labels: nodes in two parts, doubles, labels among features."""
    import dataclasses

    from tokenphormer.benchmark.grid import Plan, check_data, find_graphs
    from tokenphormer.benchmark.leaks import find_leaks
    from tokenphormer.benchmark.running import dataset, split_of
    from tokenphormer.graph.datasets import DATASETS
    from tokenphormer.graph.raw_files import data_root, missing_files

    here = tuple(name for name in DATASETS if not missing_files(DATASETS[name], data_root()))
    graphs, own = find_graphs(names(datasets) or here, say)
    plan, fine = Plan((), graphs, splits, own=own), True
    check_data(plan, range(splits))
    for name in plan.datasets:
        graph = dataset(own.get(name, name))
        for number in range(splits):
            found = find_leaks(graph, split_of(graph, plan.protocol_of(name), number))
            fine = fine and found.fine
            values = dataclasses.asdict(found)
            typer.echo(json.dumps(values) if as_json else "  ".join(f"{key} {value}" for key, value in values.items()))
    if not fine:
        raise typer.Exit(1)


def study(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which one; `tokenphormer study list` lists them.")],
    out: Annotated[Path | None, typer.Option(help="The folder to write; default: experiments/studies/NAME.")] = None,
) -> None:
    """Run one of the studies of the paper's appendix: tables as CSV, figures as PNG and SVG."""
    from tokenphormer.studies.registry import STUDIES, find_study

    if name == "list":
        for known, each in STUDIES.items():
            typer.echo(f"{known:14} {each.question}")
        return
    chosen, folder = find_study(name), out or Path("experiments") / "studies" / name
    for what, value in chosen.run(folder).items():
        typer.echo(f"{what}: {value:.4g}" if isinstance(value, float) else f"{what}: {value}")
    typer.echo(f"{folder}: tables and figures")
