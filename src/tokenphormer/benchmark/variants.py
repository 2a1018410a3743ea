"""`tokenphormer benchmark --study`: the paper's ablation, accuracy against the number of tokens, the SGPM-token, what
Tokenphormer+ adds, what `train` begins with, and what several trainings give that vote.

Runs of a study differ from one another in one thing: all on a dataset start from the same values, those that the main
study's search settled on, or `BASE` before that. A study that has begun keeps what it started from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tokenphormer.benchmark.grid import STUDY as MAIN
from tokenphormer.benchmark.grid import Plan, check_data, check_rows, only_writer, work_off
from tokenphormer.benchmark.methods import COMPILE, complete, current_rows, entry, unnamed_values
from tokenphormer.benchmark.rows import Row, append_row, read_rows, row_key
from tokenphormer.benchmark.running import Job, dataset, split_of, values_tuple
from tokenphormer.benchmark.search import best_values
from tokenphormer.benchmark.sgpm_study import Pretraining, pretrain_for_study
from tokenphormer.benchmark.tables import main_search
from tokenphormer.benchmark.workers import check_workers
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph, Split
from tokenphormer.sgpm import SGPMSettings
from tokenphormer.sgpm.pretrained import VECTOR_KINDS
from tokenphormer.training.presets import config_for
from tokenphormer.training.settings import Config

FOUR_WALKS: dict[str, object] = {"walk_ratios": (0.25, 0.25, 0.25, 0.25)}
ABLATION: dict[str, dict[str, object]] = {
    "all tokens": FOUR_WALKS,
    "without SGPM-token": FOUR_WALKS,
    "without walk-tokens": FOUR_WALKS | {"num_walks": 0},
    "without hop-tokens": FOUR_WALKS | {"num_hops": 0},
    "only uniform walks": {"walk_ratios": (1.0, 0.0, 0.0, 0.0)},
    "only non-backtracking walks": {"walk_ratios": (0.0, 1.0, 0.0, 0.0)},
    "only jump walks": {"walk_ratios": (0.0, 0.0, 1.0, 0.0)},
    "only non-backtracking jump walks": {"walk_ratios": (0.0, 0.0, 0.0, 1.0)},
}
"""The paper's rows: all four walks where it is not they that are studied, whichever the search has settled on. Where no
SGPM is trained the second is left out, for the first has no SGPM-token either."""
WALK_TOKENS = tuple(range(10, 150, 10))
"""Numbers of walk-tokens in the paper's figure."""
DIAMETER = {"cora": 19, "citeseer": 28, "flickr": 4, "photo": 11, "dblp": 34, "pubmed": 18}
"""Where NAGphormer's steps of one hop end, as the paper prints it; then ten at a time, to 140."""
ADDITIONS: dict[str, dict[str, object]] = {
    "without activated rows": {"row_activation": False},
    "without activated tokens": {"token_activation": False},
    "with own features in every token": {"include_own": True},
    "without scores passed on": {"score_hops": 0},
    "without learned weights of scores": {"score_learned": False},
    "without edges left out": {"score_dropout": 0.0},
    "without dropout of features": {"feature_dropout": 0.0},
    "without agreement": {"consistency": 0.0},
    "without fresh walks": {"fresh_walks": False},
    "without smoothed labels": {"label_smoothing": 0.0},
    "without a last norm": {"final_norm": False},
    "without Adam's decay": {"l2": 0.0},
    "without a running mean of the weights": {"weight_average": 0.0},
}
"""What Tokenphormer+ adds to the paper's model, each taken away. What its settings on a dataset lack is not run."""
VOTERS = 5
VOTING = ("tokenphormer+", "appnp", "gprgnn", "sage")
"""Tokenphormer+ and, on equal terms, the three baselines that are most often its nearest rival."""
STUDIES = ("ablation", "tokens", "sgpm", "inputs", "additions", "defaults", "votes")
INPUTS = ("tokens", "positions", "features", "centrality")
"""The parts of SGPM's input, each of which can be left out."""
BASE: dict[str, object] = {
    "num_walks": 30,
    "hidden_channels": 128,
    "dropout": 0.5,
    "warmup_updates": 20,
    "decay_updates": 300,
}
"""Tokenphormer's settings in a study if no search is among the rows that it is given."""


@dataclass(frozen=True)
class Variant:
    """One line of a study."""

    name: str
    model: str
    values: dict[str, object]
    sgpm: str = ""
    """Which kind of vector its SGPM-token is; empty: it has none."""
    place: int = 0
    """Where it stands in a figure: its number of tokens."""
    left_out: str = ""
    """Which part of its SGPM's input is left out."""
    default: str = ""
    """`cpu` or `cuda`: its values are those that `train` would take there. `main`: its runs are the main study's."""
    voters: int = 1
    """How many are trained for each of its runs."""

    def study(self, study: str) -> str:
        """What its rows have for `study`."""
        return f"{study}: {self.name}"


def check_study(study: str) -> None:
    """Raise unless `--study` has this name, and list those that there are."""
    if study not in (MAIN, *STUDIES):
        raise _no_study(study)


def _no_study(study: str) -> InputError:
    known = f"{', '.join((MAIN, *STUDIES[:-1]))} or {STUDIES[-1]}"
    return InputError(f"--study {study}: there is no such study; expected {known}")


def check_models(study: str, plan: Plan) -> None:
    """Raise if a plan names methods that the study has not."""
    known = dict.fromkeys(variant.model for name in plan.datasets for variant in variants(study, name, with_sgpm=True))
    if missing := [model for model in plan.models if model not in known]:
        raise InputError(f"--models {','.join(missing)}: the study '{study}' compares {', '.join(known)}, no others")


def variants(study: str, dataset: str, with_sgpm: bool) -> list[Variant]:
    """What a study compares on a dataset, with or without its protocol behind a comma.

    `with_sgpm` gives Tokenphormer the SGPM-token that the paper's has.
    """
    token = "static" if with_sgpm else ""
    if study == "ablation":
        names = [name for name in ABLATION if with_sgpm or name != "without SGPM-token"]
        return [
            Variant(name, "tokenphormer", ABLATION[name], "" if name == "without SGPM-token" else token)
            for name in names
        ]
    if study == "tokens":
        walks = [
            Variant(f"{count} walk-tokens", "tokenphormer", {"num_walks": count, "num_hops": 3}, token, count)
            for count in WALK_TOKENS
        ]
        end = DIAMETER.get(dataset.partition(",")[0], 10)
        hops = [*range(1, end + 1), *range(end + 10 - end % 10, 141, 10)]
        return walks + [Variant(f"{count} hops", "nagphormer", {"num_hops": count}, place=count) for count in hops]
    if study == "sgpm":
        kinds = VECTOR_KINDS if with_sgpm else ()
        return [Variant("without", "tokenphormer", {}), *(Variant(kind, "tokenphormer", {}, kind) for kind in kinds)]
    if study == "inputs":
        if not with_sgpm:
            return []
        parts = [Variant(f"without {part}", "tokenphormer", {}, "contextual", left_out=part) for part in INPUTS]
        return [Variant("all inputs", "tokenphormer", {}, "contextual"), *parts]
    if study == "additions":
        return [Variant("all of it", "tokenphormer+", {})] + [
            Variant(name, "tokenphormer+", values) for name, values in ADDITIONS.items()
        ]
    if study == "defaults":
        return [
            Variant("tuned", "tokenphormer+", {}, default="main"),
            Variant("without settings, on a CPU", "tokenphormer+", {}, default="cpu"),
            Variant("without settings, on a GPU", "tokenphormer+", {}, default="cuda"),
        ]
    if study == "votes":
        return [
            variant
            for title, model in ((entry(model).title, model) for model in VOTING)
            for variant in (
                Variant(f"{title}, one", model, {}, default="main"),
                Variant(f"{title}, five that vote", model, {}, voters=VOTERS),
            )
        ]
    raise _no_study(study)


def start_values(rows: list[Row], study: str, model: str, dataset: str, protocol: str) -> dict[str, Any]:
    """What the study's own rows started from; else what the main study's search settled on; else `BASE`."""
    here = current_rows(
        row for row in rows if (row["model"], row["dataset"], row.get("protocol")) == (model, dataset, protocol)
    )
    # Where something is left out, what it was cannot be told from the row.
    whole = {"ablation": "all tokens", "additions": "all of it"}
    prefix = f"{study}: {whole.get(study, '')}"
    own = [row for row in here if row["kind"] == "final" and str(row["study"]).startswith(prefix)]
    if own:
        config = min(own, key=lambda row: (row.get("time", 0.0), row["config_hash"]))["config"]
        return {key: value for key, value in config.items() if entry(model).defaults.get(key, object()) != value}
    main, trials, splits = main_search(rows, dataset, protocol, model)
    tried = [row for row in main if row["kind"] == "trial"]
    # As the main table chooses; before it has any cell, the best of all trials.
    found = best_values(tried, trials or 1 + max((int(row["trial"]) for row in tried), default=0), splits)
    if found is not None:
        return found
    return dict(BASE) if model == "tokenphormer" else {}


def default_values(graph: Graph, split: Split, device: str) -> dict[str, Any]:
    """What turns Tokenphormer+'s defaults into what `train` takes for a graph if it is given no settings."""
    method, plain = entry("tokenphormer+"), Config()
    taken = config_for(graph, split, torch.device(device)).replace(COMPILE)
    values = {key: getattr(taken, key) for key in Config.__dataclass_fields__ if key != "seed"}
    differs = {key: value for key, value in values.items() if value != getattr(plain, key) or key in method.defaults}
    return {key: value for key, value in differs.items() if method.defaults.get(key, object()) != value}


def _config(values: dict[str, Any]) -> Config:
    """All settings of a run of Tokenphormer+."""
    return Config().replace(complete(entry("tokenphormer+"), values))


def jobs_of(
    study: str,
    plan: Plan,
    rows: list[Row],
    pretrainings: Sequence[Pretraining] = (),
    device: torch.device | None = None,
) -> list[Job]:
    """Every run of a study, or of those of its methods that the plan names, the first split of all variants first."""
    check_models(study, plan)
    of = {(each.dataset, each.left_out): each for each in pretrainings}
    with_sgpm = {each.dataset for each in pretrainings}
    starts = {
        (model, name): start_values(rows, study, model, name, plan.protocol_of(name))
        for name in plan.datasets
        for model in {variant.model for variant in variants(study, name, name in with_sgpm)}
    }
    jobs = []
    for split in range(plan.splits):
        for name in plan.datasets:
            for variant in variants(study, name, name in with_sgpm):
                if plan.models and variant.model not in plan.models:
                    continue
                start = starts[variant.model, name]
                if variant.default:
                    if variant.default not in ("cpu", "cpu" if device is None else device.type):
                        continue  # what is meant for GPUs takes one
                    graph = dataset(plan.own.get(name, name))
                    start = default_values(graph, split_of(graph, plan.protocol_of(name), split), variant.default)
                values = start | variant.values
                if study == "additions" and variant.values and _config(values) == _config(start):
                    continue
                sgpm = of[name, variant.left_out].token(variant.sgpm) if variant.sgpm else ""
                jobs.append(
                    Job(
                        "final", variant.model, name, plan.protocol_of(name), split, values_tuple(values),
                        split, variant.study(study), sgpm=sgpm, own=plan.own.get(name), voters=variant.voters,
                    )
                )  # fmt: skip
    return jobs


@dataclass
class Jobs:
    """A list of jobs, worked off in order."""

    jobs: list[Any]

    def next_job(self) -> Any:
        """The next one."""
        return self.jobs.pop(0) if self.jobs else None

    def take(self, row: Row) -> None:
        """There is nothing to learn from a row here."""


def take_over(jobs: list[Job], rows: list[Row], path: Path) -> list[Job]:
    """The jobs that have to be run; of those that the main study has run already, its rows are added for this study."""

    def what(row: Row) -> str:
        settings = unnamed_values(row["model"]) | row["config"]
        names = ("model", "dataset", "protocol", "split", "seed", "graph")
        return json.dumps([*(row.get(name) for name in names), settings], sort_keys=True, default=list)

    finals = [row for row in rows if (row["study"], row["kind"], row["status"]) == (MAIN, "final", "done")]
    run = {what(row): row for row in current_rows(finals)}
    left = []
    for job in jobs:
        known = None if job.sgpm or job.voters > 1 else run.get(what(job.row()))
        if known is None:
            left.append(job)
        else:
            append_row(path, known | job.row())
    return left


def run_study(
    study: str,
    plan: Plan,
    out: Path,
    device: torch.device,
    *,
    workers: int = 1,
    minutes: float = float("inf"),
    merge: tuple[Path, ...] = (),
    sgpm: SGPMSettings | None = None,
    vectors: Path | None = None,
    pool: Executor | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Run what is missing of a study; how many runs were added to `out`/rows.jsonl.

    With `sgpm`, SGPMs whose vectors are not in the folder `vectors` (default: `out`/vectors) are pre-trained first.
    """
    check_workers(workers)
    check_data(plan, range(plan.splits))
    end = time.monotonic() + 60 * minutes
    folder = (vectors or out / "vectors").resolve()
    pretrainings = (
        [
            Pretraining(name, sgpm, folder, part, plan.own.get(name))
            for name in plan.datasets
            for part in dict.fromkeys(variant.left_out for variant in variants(study, name, True) if variant.sgpm)
        ]
        if sgpm
        else []
    )
    path, elsewhere = out / "rows.jsonl", read_rows(merge, say)
    check_rows(plan, elsewhere)
    jobs_of(study, plan, elsewhere, pretrainings, device)  # refuses a study that there is not, before a file is made
    with only_writer(path):
        known = [*read_rows([path], say), *elsewhere]
        check_rows(plan, known)
        done = {row_key(row) for row in known}
        jobs = jobs_of(study, plan, known, pretrainings, device)
        missing = [job for job in jobs if row_key(job.row()) not in done]
        before = len(missing)
        missing = take_over(missing, known, path)
        if len(missing) < before:
            say(f"{before - len(missing)} runs are the main study's: their rows are taken")
        asked = {job.sgpm.partition("|")[0] for job in missing if job.sgpm}
        needed: list[Any] = [each for each in pretrainings if not each.done and asked & each.files]
        added = work_off(
            [Jobs(needed)], path, device, workers=workers, minutes=minutes, do=pretrain_for_study, pool=pool, say=say
        )
        ready: list[Any] = [job for job in missing if not job.sgpm or Path(job.sgpm.partition("|")[0]).exists()]
        left = max(0.0, end - time.monotonic()) / 60
        added += before - len(missing)
        return added + work_off([Jobs(ready)], path, device, workers=workers, minutes=left, pool=pool, say=say)
