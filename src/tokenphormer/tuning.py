"""`tokenphormer tune`: search settings for a graph with Optuna, on validation nodes alone.

A folder of it holds

study.db          Optuna's own storage, and all there is to know: the others are made from it
trials.jsonl      a line a trial: its settings and what they gave
best.yaml         the best settings so far, for `tokenphormer train --config`
importance.png    how much of the difference between trials each setting explains
"""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import sqlite3
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenphormer.benchmark.methods import PLUS_SPACE
from tokenphormer.benchmark.rows import origin
from tokenphormer.benchmark.search import DRAWS, RANDOM_TRIALS
from tokenphormer.errors import InputError, InterruptedTrainingError, ResourceError
from tokenphormer.evaluation import plots
from tokenphormer.evaluation.metrics import evaluate
from tokenphormer.files import LOCK, atomic_path, only_process
from tokenphormer.graph import Graph, Split
from tokenphormer.sgpm import PretrainedSGPM
from tokenphormer.sgpm.pretrained import VECTOR_KINDS
from tokenphormer.signals import put_off_signals
from tokenphormer.training.fit import fit_tokenphormer
from tokenphormer.training.loop import Trainer, predict
from tokenphormer.training.presets import RECIPES
from tokenphormer.training.settings import Config

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STORAGE, TRIALS, BEST, IMPORTANCE = "study.db", "trials.jsonl", "best.yaml", "importance.png"
FORMAT = 1
NAME = "tokenphormer"
"""Of the study in the storage."""
LOCK_SECONDS = 60.0
"""How long the storage is waited for while another program holds it."""
LEAST_TRIALS = 4
"""Trials below which nothing is said about which setting matters."""

SCHEDULE: dict[str, tuple[object, ...]] = {
    "warmup_updates": (20, 400),
    "decay_updates": (300, 1000),
    "batch_size": (2000, 1_000_000),
}
"""What the recipes of Tokenphormer+ fix and other defaults have differently."""

Row = dict[str, Any]
Space = Mapping[str, tuple[object, ...]]
Vectors = Mapping[str, NDArray[np.float32] | None]


@dataclass(frozen=True)
class Tuned:
    """What a search has found so far."""

    folder: Path
    rows: list[Row]
    """One for each trial, in order; the first is the graph's defaults."""

    @property
    def best(self) -> Row | None:
        """The best trial: by validation accuracy, then loss, then the earlier one; None if none could be run."""
        done = [row for row in self.rows if row["status"] == "done"]
        return max(done, key=lambda row: (row["val_accuracy"], -row["val_loss"], -row["trial"]), default=None)

    @property
    def defaults(self) -> float | None:
        """Validation accuracy of the defaults."""
        return self.rows[0].get("val_accuracy") if self.rows else None


def starts(base: Config) -> list[Config]:
    """What is tried before anything is drawn: the graph's defaults, then the recipes of Tokenphormer+."""
    return [base, *(Config().replace(recipe) for recipe in RECIPES.values())]


def search_space(base: Config, fixed: Mapping[str, object], with_sgpm: bool = False) -> dict[str, tuple[object, ...]]:
    """What is searched: Tokenphormer+'s space of the benchmark and more, without what is `fixed`, the starts in it."""
    wanted: dict[str, tuple[object, ...]] = PLUS_SPACE | SCHEDULE | ({"sgpm_token": VECTOR_KINDS} if with_sgpm else {})
    space = {}
    for key, choices in wanted.items():
        if key not in fixed:
            all_of_them = tuple(dict.fromkeys([*choices, *(getattr(start, key) for start in starts(base))]))
            numbers = all(isinstance(choice, int | float) for choice in choices)
            space[key] = tuple(sorted(all_of_them, key=_as_number)) if numbers else all_of_them
    if not space:
        raise InputError("--set: fixes every setting that is searched; there is nothing to tune")
    return space


def _as_number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def with_fixed(base: Config, fixed: Mapping[str, object]) -> Config:
    """The defaults with what is `fixed` in them; what must fit that, and is not fixed, is made to.

    >>> found = with_fixed(Config(hidden_channels=64, num_heads=4), {"num_heads": "3"})
    >>> found.hidden_channels, found.num_heads
    (63, 3)
    """
    values = base.to_dict() | base.read(fixed)
    return base.replace(values | _fitting(values, [key for key in values if key not in fixed]))


def _fitting(values: Row, free: Container[str]) -> Row:
    """What makes settings fit each other that would be refused together; changed are those that are `free` alone."""
    found: Row = {}
    # A decay that ended before the warm-up would be no schedule; it then begins and ends with it. If the decay is not
    # free, it is the warm-up that is shorter.
    warmup, decay = values["warmup_updates"], values["decay_updates"]
    if "decay_updates" in free:
        found["decay_updates"] = max(decay, warmup)
    elif "warmup_updates" in free:
        found["warmup_updates"] = min(decay, warmup)
    # Heads that cannot share the channels are fewer; if their number is not free, it is the channels.
    hidden, heads = values["hidden_channels"], values["num_heads"]
    if "num_heads" in free:
        found["num_heads"] = math.gcd(hidden, heads)
    elif "hidden_channels" in free and heads > 0:
        found["hidden_channels"] = max(1, hidden // heads) * heads
    return found


def without_test_labels(graph: Graph, split: Split) -> tuple[Graph, Split]:
    """The graph with the labels of training and validation nodes alone, and the split without its test nodes."""
    y = np.full(graph.num_nodes, -1, dtype=np.int64)
    for part in (split.train, split.val):
        y[part] = graph.y[part]
    return dataclasses.replace(graph, y=y, splits=()), Split(split.train, split.val, [], name=split.name)


def tune(
    graph: Graph,
    split: Split,
    base: Config,
    out: Path,
    device: torch.device,
    *,
    trials: int = 20,
    timeout: float = float("inf"),
    fixed: Mapping[str, object] | None = None,
    sgpm: PretrainedSGPM | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Tuned:
    """Search until the folder `out` holds `trials` trials, or no trial can begin within `timeout` seconds.

    The first trial is `base`, with what is `fixed` in it, which no trial changes. A folder that was begun with the same
    graph, split and space is gone on with. Test labels of the split are taken away before anything else happens.
    """
    optuna = _optuna()
    if trials < 1:
        raise InputError(f"--trials {trials}: expected at least 1")
    base = with_fixed(base, fixed or {})
    space = search_space(base, fixed or {}, sgpm is not None)
    identity = {
        "format": FORMAT,
        "graph": graph.fingerprint,
        "split": split.hash,
        "sgpm": "" if sgpm is None else sgpm.hash,
        "settings": base.to_dict(),
        "space": {key: [list(c) if isinstance(c, tuple) else c for c in choices] for key, choices in space.items()},
    }
    kinds = {base.sgpm_token, *(VECTOR_KINDS if "sgpm_token" in space else ())}
    blind, shown = without_test_labels(graph, split)
    end = time.monotonic() + timeout
    with only_process(out), _opened(optuna, out, identity) as study:
        vectors: Vectors = {kind: None if sgpm is None else sgpm.vectors(graph, kind, device) for kind in kinds}
        search = _Search(optuna, study, space, base)
        about = f"on {graph.name}, split {split.name}"
        if search.done:  # a kill, or a person, may have come between the storage and the other files
            _write(Tuned(out, search.rows), about)
        with put_off_signals(say) as signals:

            def train(config: Config) -> Row:
                return _try(blind, shown, config, device, vectors, signals, say, first=not search.done)

            while len(search.done) < trials and time.monotonic() < end and not signals:
                try:
                    row = search.run(train)
                except (InterruptedTrainingError, KeyboardInterrupt):
                    signals.append(signal.SIGINT)
                    break
                found = Tuned(out, search.rows)
                _write(found, about)
                say(_line(row, trials, found))
        _write_importance(optuna, search, out)
        if signals:
            kept = f"{len(search.done)} of {trials} trials are kept in {out}; the same command goes on"
            raise InterruptedTrainingError(f"stopped; {kept}", signals[0])
        return Tuned(out, search.rows)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise InputError("tuning needs Optuna: pip install 'tokenphormer[benchmark]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@contextmanager
def _opened(optuna: Any, out: Path, identity: Row) -> Iterator[Any]:
    """The study of a folder, begun if there is none; one that was begun with something else is refused."""
    path = out / STORAGE
    known = path.exists()
    if not known and any(other.name != LOCK for other in out.iterdir()):
        raise InputError(f"{out}: is not empty and holds no tuning; choose another folder with --out")
    try:
        if known:
            _check_storage(path)
        # Not in the address, where some characters of a path would mean something else.
        storage = optuna.storages.RDBStorage("sqlite:///study", {"creator": lambda: _connect(path)})
        others = [name for name in optuna.get_all_study_names(storage) if name != NAME]
        if others:
            raise ValueError(f"it holds another one, {others[0]!r}; choose another folder with --out")
        study = optuna.create_study(study_name=NAME, storage=storage, direction="maximize", load_if_exists=True)
        began = study.user_attrs.get("identity")
        _ = [trial.user_attrs for trial in study.get_trials()]
    except Exception as error:  # SQLAlchemy's, SQLite's and Optuna's own have nothing in common
        raise InputError(f"{path}: cannot be used as a study of Optuna ({_reason(error)})") from error
    try:
        if began is None:
            study.set_user_attr("identity", identity)
        elif differences := _differences(began, json.loads(json.dumps(identity))):
            raise InputError(f"{out}: was begun with {'; '.join(differences)}; choose another folder with --out")
        yield study
    except InputError:
        # Where nothing was tried, the mended command can have the folder.
        if not known and not any("row" in trial.user_attrs for trial in study.get_trials()):
            with suppress(OSError):
                path.unlink()
        raise
    except optuna.exceptions.StorageInternalError as error:
        raise ResourceError(f"{path}: cannot be read or written ({_reason(error.__cause__ or error)})") from error
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=LOCK_SECONDS)


def _check_storage(path: Path) -> None:
    """Raise where a database is damaged: reading some of it may work for long, until a trial that is done is lost."""
    with closing(_connect(path)) as storage:
        (found,) = storage.execute("pragma integrity_check(1)").fetchone()
    if found != "ok":
        raise ValueError(f"it is damaged: {found}")


def _reason(error: BaseException) -> str:
    """The first line of what an error says."""
    return (str(error) or type(error).__name__).splitlines()[0]


def _differences(before: Row, now: Row) -> list[str]:
    """What is not as it was, in words."""
    names = {"format": "another version", "graph": "another graph", "split": "another split", "sgpm": "another SGPM"}
    found = [words for key, words in names.items() if before.get(key) != now[key]]
    for key, words in (("settings", "other settings"), ("space", "another search space")):
        old, new = before.get(key, {}), now[key]
        changed = [name for name in (*new, *(k for k in old if k not in new)) if old.get(name) != new.get(name)]
        if changed:
            found.append(f"{words} ({', '.join(changed)})")
    return found


class _Search:
    """Trials of one study. What is tried next depends on those that are done and on their number alone."""

    def __init__(self, optuna: Any, study: Any, space: Space, base: Config) -> None:
        self._optuna, self.study, self._space, self._base = optuna, study, space, base
        self._states = optuna.trial.TrialState
        self.distributions = {key: _distribution(optuna, choices) for key, choices in space.items()}
        for trial in study.get_trials(states=(self._states.RUNNING,)):  # a kill left them
            study.tell(trial.number, state=self._states.FAIL)

    @property
    def done(self) -> list[Any]:
        """Trials that have a result, or a reason for having none; not those that were stopped."""
        trials: list[Any] = self.study.get_trials(states=(self._states.COMPLETE, self._states.PRUNED))
        return trials

    @property
    def rows(self) -> list[Row]:
        """Their rows, in order."""
        return [trial.user_attrs["row"] for trial in self.done]

    def run(self, train: Callable[[Config], Row]) -> Row:
        """One trial."""
        number = len(self.done)
        if not self.study.get_trials(states=(self._states.WAITING,)):  # a kill may have left this very one in the queue
            self.study.enqueue_trial(self._propose(number))
        trial = self.study.ask(self.distributions)
        config = self._config(trial.params)
        try:
            found = train(config)
        except BaseException:
            self.study.tell(trial, state=self._states.FAIL)
            raise
        row = {"trial": number + 1, "config": config.to_dict(), **found, **origin(), "time": time.time()}
        trial.set_user_attr("row", row)
        if row["status"] == "done":
            self.study.tell(trial, row["val_accuracy"])
        else:  # learned from as worse than all that have a result
            self.study.tell(trial, state=self._states.PRUNED)
        return row

    def _propose(self, number: int) -> dict[str, Any]:
        """The starts first, each once; then values that were not tried yet, as far as there are any."""
        known = [
            {key: _place(choices, getattr(start, key)) for key, choices in self._space.items()}
            for start in starts(self._base)
        ]
        first = [params for place, params in enumerate(known) if params not in known[:place]]
        if number < len(first):
            return first[number]
        seed = (self._base.seed + number) % 2**32
        sampler = self._optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS, multivariate=True)
        study = self._optuna.create_study(direction="maximize", sampler=sampler)
        study.add_trials(self.done)
        tried = [trial.params for trial in study.trials]
        params: dict[str, Any] = {}
        for _ in range(DRAWS):
            params = study.ask(self.distributions).params
            if params not in tried:
                break
        return params

    def _config(self, params: Mapping[str, Any]) -> Config:
        values = {
            key: choices[params[key]] if _ordered(choices) else choices[_labels(choices).index(params[key])]
            for key, choices in self._space.items()
        }
        return self._base.replace(values | _fitting(self._base.to_dict() | values, self._space))


def _ordered(choices: tuple[object, ...]) -> bool:
    """Whether choices are more than two numbers, in rising order: a search may then go from one to the next."""
    return len(choices) > 2 and all(isinstance(c, int | float) and not isinstance(c, bool) for c in choices)


def _labels(choices: tuple[object, ...]) -> list[str]:
    """Choices as Optuna can store them."""
    return [json.dumps(choice) for choice in choices]


def _place(choices: tuple[object, ...], value: object) -> int | str:
    place = choices.index(value)
    return place if _ordered(choices) else _labels(choices)[place]


def _distribution(optuna: Any, choices: tuple[object, ...]) -> Any:
    if _ordered(choices):
        return optuna.distributions.IntDistribution(0, len(choices) - 1)
    return optuna.distributions.CategoricalDistribution(_labels(choices))


def _try(
    graph: Graph,
    split: Split,
    config: Config,
    device: torch.device,
    vectors: Vectors,
    signals: list[int],
    say: Callable[[str], None],
    first: bool,
) -> Row:
    """Train with some settings and judge by validation; settings that cannot be trained with have a reason instead.

    If the `first` ones of all cannot, it is the graph or the split, and an error.
    """
    assert not len(split.test), "a search never sees the test nodes"

    def after_epoch(_: Trainer) -> None:
        if signals:
            raise InterruptedTrainingError("stopped", signals[0])

    config = config.replace({"compile": "no"}) if config.compile == "auto" else config
    try:
        fitted = fit_tokenphormer(
            graph,
            split,
            config,
            device,
            sgpm=vectors[config.sgpm_token],
            after_epoch=after_epoch,
            say=say if first else lambda _: None,
        )
        found = evaluate(predict(fitted.method, split.val, config, device), graph.y[split.val])
    except (InputError, ResourceError) as error:
        if first and isinstance(error, InputError):
            raise
        return {"status": "did not run", "reason": str(error).splitlines()[0]}
    return {
        "status": "done",
        "val_accuracy": found.accuracy,
        "val_loss": found.log_loss,
        "epochs": fitted.progress.epoch,
        "best_epoch": fitted.progress.best_epoch,
        "seconds": fitted.seconds,
        "peak_memory_bytes": fitted.peak_memory_bytes,
        "parameters": sum(p.numel() for p in fitted.method.module.parameters()),
    }


# -------------------------------------------------------------------- files and words


def _write(found: Tuned, about: str) -> None:
    with atomic_path(found.folder / TRIALS) as temporary:
        temporary.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in found.rows), encoding="utf-8")
    if (best := found.best) is not None:
        head = f"# Trial {best['trial']} of {len(found.rows)} {about}: {best['val_accuracy']:.4f} validation accuracy\n"
        text = head.replace("\r", " ").replace("\n", " ").rstrip() + "\n" + Config().replace(best["config"]).to_yaml()
        with atomic_path(found.folder / BEST) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="replace")  # a graph's name may be no UTF-8


def _line(row: Row, trials: int, found: Tuned) -> str:
    start = f"trial {row['trial']} of {trials}: "
    if row["status"] != "done":
        return f"{start}did not run: {row['reason']}"
    assert found.best is not None
    best = "the best so far" if found.best["trial"] == row["trial"] else f"best so far {found.best['val_accuracy']:.4f}"
    return f"{start}{row['val_accuracy']:.4f} validation, {row['seconds']:.1f} s; {best}"


def importances(optuna: Any, study: Any) -> dict[str, float]:
    """Share of the variance between trials that each setting explains (fANOVA), the largest first; may be empty."""
    done = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    if len(done) < LEAST_TRIALS or len({trial.value for trial in done}) < 2:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(share) for key, share in shares.items()}


def importance_plot(shares: Mapping[str, float], trials: int) -> Figure:
    """The importances as bars, the largest on top."""
    if not shares:
        return plots.message_figure(f"{trials} trials are too few, or too alike, to tell what matters")
    figure = plots.new_figure(plots.WIDTH, 1.0 + 0.26 * len(shares))
    axes = figure.subplots()
    places = np.arange(len(shares))
    axes.barh(places, list(shares.values()), color=plots.BLUE, height=0.65)
    for place, value in enumerate(shares.values()):
        text = f"{100 * value:.1f} %"
        axes.annotate(text, (value, place), (4, 0), textcoords="offset points", va="center", **plots.small_text())
    axes.invert_yaxis()
    axes.set_xlim(0, max(shares.values()) * 1.18)
    axes.xaxis.set_major_formatter(plots.percent_ticks())
    plots.style_axes(axes, "Importance of settings", f"share of the differences between {trials} trials", grid="x")
    axes.set_yticks(places, list(shares), fontsize=9)
    return figure


def _write_importance(optuna: Any, search: _Search, out: Path) -> None:
    done = sum(row["status"] == "done" for row in search.rows)  # the others have no accuracy to differ in
    plots.save_figure(importance_plot(importances(optuna, search.study), done), out / IMPORTANCE)
