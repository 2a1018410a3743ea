"""Hyper-parameter search with Optuna: on validation of splits that are never reported, one budget for every method.

A study lives in its rows: what is tried next is a function of the rows and the trial's number alone, so a search can be
stopped and gone on with anywhere.
"""

from __future__ import annotations

import hashlib
from typing import Any

from tokenphormer.benchmark.methods import FIRST_TRIALS, complete, entry, unnamed_values
from tokenphormer.benchmark.rows import Row
from tokenphormer.benchmark.running import SEARCH_SPLITS
from tokenphormer.errors import InputError

L2_TRIALS = (2e-2, 5e-4, 5e-3)
"""What `l2` is in the next trials, whose other values are those of the best before them; 0 where it has this one."""

RANDOM_TRIALS = 8
"""Trials inside the space that are drawn at random before the search begins to learn from them."""

LUCKY = 3.0
"""Points of validation accuracy that a chosen trial may have more than the final runs before its search was lucky."""

AGAIN = 5
"""Splits on which all trials of a lucky search are judged again."""

DRAWS = 20
"""How often values are drawn anew that were tried before; a small space may have no others."""


def find_optuna() -> Any:
    """The package that searches, or what to do if it is not there."""
    try:
        import optuna
    except ImportError as error:
        raise InputError("a search needs Optuna: pip install 'tokenphormer[benchmark]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Search:
    """The search of one method on one dataset; each trial is judged on `splits` splits."""

    def __init__(self, model: str, dataset: str, rows: list[Row], splits: int = 1) -> None:
        self._optuna = optuna = find_optuna()
        self._name, self._entry = f"{model} {dataset}", entry(model)
        self.space, self.starts, self._unnamed = self._entry.space, self._entry.starts, unnamed_values(model)
        # Optuna takes plain values alone, so a choice is known by its place.
        self._distributions = {
            key: optuna.distributions.IntDistribution(0, len(choices) - 1)
            if _ordered(choices)
            else optuna.distributions.CategoricalDistribution(list(range(len(choices))))
            for key, choices in self.space.items()
        }
        self._rows, self._splits = list(rows), splits

    def ask(self, trial: int) -> dict[str, Any]:
        """The values of a trial, given those before it: defaults, starts, random points, `l2` on the best, then TPE."""
        if trial <= len(self.starts):
            return dict(self.starts[trial - 1] if trial else self._entry.first)
        if "l2" in self.space and FIRST_TRIALS <= trial < FIRST_TRIALS + len(L2_TRIALS):
            best = best_values(self._rows, FIRST_TRIALS, self._splits)
            if best is not None:
                l2 = L2_TRIALS[trial - FIRST_TRIALS]
                return best | {"l2": 0.0 if best.get("l2") == l2 else l2}
        seed = int.from_bytes(hashlib.sha256(f"{self._name} {trial}".encode()).digest()[:4], "little")
        sampler = self._optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS, multivariate=True)
        study = self._optuna.create_study(direction="maximize", sampler=sampler)
        told, tried = trials_by_number(self._rows, self._splits), []
        for number in range(trial):
            if number not in told:
                tried += [self._places(complete(self._entry, self.ask(number)))] if trial < FIRST_TRIALS else []
            elif (places := self._places(told[number]["config"])) is not None:
                value = _result(told[number])
                study.add_trial(self._optuna.trial.create_trial(
                    params=places, distributions=self._distributions, value=value
                ))  # fmt: skip
                tried.append(places)
        for _ in range(DRAWS):
            params = study.ask(self._distributions).params
            if trial < FIRST_TRIALS and "l2" in params:
                params["l2"] = 0  # the first trials have none
            if params not in tried:
                break
        values = {key: choices[params[key]] for key, choices in self.space.items()}
        return values if trial >= FIRST_TRIALS else {key: value for key, value in values.items() if key != "l2"}

    def ready(self, trial: int) -> bool:
        """Whether the values of a trial are settled, whatever those give that are not over; else it has to wait."""
        if trial < FIRST_TRIALS or trial <= len(self.starts):
            return True
        on_the_best = "l2" in self.space and trial < FIRST_TRIALS + len(L2_TRIALS)
        told = trials_by_number(self._rows, self._splits)
        return all(number in told for number in range(FIRST_TRIALS if on_the_best else trial))

    def tell(self, row: Row) -> None:
        """Learn from a finished trial."""
        self._rows.append(row)

    def _places(self, config: dict[str, Any]) -> dict[str, int] | None:
        """Where the values of a run lie in the space; None if they lie outside, as the defaults may."""
        places = {}
        for key, choices in self.space.items():
            plain = [list(c) if isinstance(c, tuple) else c for c in choices]
            value = config[key] if key in config else self._unnamed[key]
            value = list(value) if isinstance(value, tuple) else value
            if value not in plain:
                return None
            places[key] = plain.index(value)
        return places


def _result(row: Row) -> float:
    """What a search is to make high; a trial that could not run counts as the worst."""
    return float(row["val_accuracy"]) if row["status"] == "done" else 0.0


def _ordered(choices: tuple[object, ...]) -> bool:
    """Whether the choices are numbers in rising order, whose places a search may interpolate between."""
    numbers = [c for c in choices if isinstance(c, int | float) and not isinstance(c, bool)]
    return len(numbers) == len(choices) > 2 and numbers == sorted(numbers)


def trials_by_number(rows: list[Row], splits: int = 1) -> dict[int, Row]:
    """One row for each trial that was run on all of the first `splits` search splits: accuracy and loss are the means.

    A trial that could not run on one of its splits did not run.
    """
    wanted = range(SEARCH_SPLITS, SEARCH_SPLITS + splits)
    return {
        number: _mean([here[split] for split in wanted])
        for number, here in rows_by_trial(rows).items()
        if all(split in here for split in wanted)
    }


def rows_by_trial(rows: list[Row]) -> dict[int, dict[int, Row]]:
    """The row that counts of each trial and search split.

    Where several machines did the same trial, perhaps with other values, the earliest counts that is done on the first
    split, and on the others only rows of its values: merging gives no method more than its budget.
    """
    found: dict[int, dict[int, Row]] = {}
    for row in sorted(rows, key=_counts_first):
        here = found.setdefault(int(row["trial"]), {})
        if all(row["config_hash"] == other["config_hash"] for other in here.values()):
            here.setdefault(int(row["split"]), row)
    return found


def _counts_first(row: Row) -> tuple[bool, bool, float, str]:
    return row["split"] != SEARCH_SPLITS, row["status"] != "done", row.get("time", 0.0), row["config_hash"]


def _mean(rows: list[Row]) -> Row:
    """Rows of one trial on several splits as one."""
    failed = [row for row in rows if row["status"] != "done"]
    if failed or len(rows) == 1:
        return (failed or rows)[0]
    # Rounded, or equal means of other splits would differ in the last bit, and that would decide in place of the loss.
    means = {key: round(sum(row[key] or 0.0 for row in rows) / len(rows), 12) for key in ("val_accuracy", "val_loss")}
    return rows[0] | means


def best_trial(rows: list[Row], budget: int, splits: int = 1) -> Row | None:
    """The best of the first `budget` trials: by validation accuracy, then loss, then number; None if none ran."""
    first = [row for number, row in trials_by_number(rows, splits).items() if 0 <= number < budget]
    done = [row for row in first if row["status"] == "done"]
    if not done:
        return None
    return max(done, key=lambda row: (row["val_accuracy"], -(row["val_loss"] or 0.0), -int(row["trial"])))


def best_values(rows: list[Row], budget: int, splits: int = 1) -> dict[str, Any] | None:
    """What the best of the first `budget` trials changes of the method's defaults; None if none ran."""
    best = best_trial(rows, budget, splits)
    return None if best is None else values_of(best)


def luck(rows: list[Row], finals: list[Row], budget: int, splits: int = 1) -> float | None:
    """How many points of validation accuracy the best trial has more than the final runs, on the mean."""
    best = best_trial(rows, budget, splits)
    done = [row["val_accuracy"] for row in finals if row["status"] == "done" and row.get("val_accuracy") is not None]
    return None if best is None or not done else 100 * float(best["val_accuracy"] - sum(done) / len(done))


def values_of(row: Row) -> dict[str, Any]:
    """What a row's settings change of its method's defaults."""
    defaults = entry(row["model"]).defaults
    return {key: value for key, value in row["config"].items() if defaults.get(key, object()) != value}
