"""Hyper-parameter search with Optuna: on validation of splits that are never reported, one budget for every method.

A study lives in its rows: it is built again from them each time, so a search can be stopped and gone on with anywhere.
"""

from __future__ import annotations

from typing import Any

from tokenphormer.benchmark.methods import entry
from tokenphormer.benchmark.rows import Row
from tokenphormer.errors import InputError
from tokenphormer.hashing import mix64


class Search:
    """The search of one method on one dataset."""

    def __init__(self, model: str, dataset: str, rows: list[Row]) -> None:
        try:
            import optuna
        except ImportError as error:
            raise InputError("a search needs Optuna: pip install 'tokenphormer[benchmark]'") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna: Any = optuna
        self.space = entry(model).space
        # Optuna takes plain values alone, so a choice is known by its place.
        self._distributions = {
            key: optuna.distributions.IntDistribution(0, len(choices) - 1)
            if _ordered(choices)
            else optuna.distributions.CategoricalDistribution(list(range(len(choices))))
            for key, choices in self.space.items()
        }
        seed = mix64(int.from_bytes(f"{model} {dataset}".encode(), "little") & (2**64 - 1)) >> 33
        sampler = optuna.samplers.TPESampler(seed=seed + len(rows), n_startup_trials=8, multivariate=True)
        self._study: Any = optuna.create_study(direction="maximize", sampler=sampler)
        for row in sorted(rows, key=lambda row: int(row["trial"])):
            self.tell(row)

    def ask(self, trial: int) -> dict[str, Any]:
        """The values of the next trial; the first is the method's defaults."""
        if trial == 0:
            return {}
        asked = self._study.ask(self._distributions)
        return {key: choices[asked.params[key]] for key, choices in self.space.items()}

    def tell(self, row: Row) -> None:
        """Learn from a finished trial; one that could not run counts as the worst."""
        config = row["config"]
        if not all(key in config for key in self.space):
            return  # the defaults need not lie in the space
        places = {}
        for key, choices in self.space.items():
            plain = [list(c) if isinstance(c, tuple) else c for c in choices]
            value = list(config[key]) if isinstance(config[key], tuple) else config[key]
            if value not in plain:
                return
            places[key] = plain.index(value)
        result = float(row["val_accuracy"]) if row.get("status") == "done" else 0.0
        self._study.add_trial(
            self._optuna.trial.create_trial(params=places, distributions=self._distributions, value=result)
        )


def _ordered(choices: tuple[object, ...]) -> bool:
    """Whether the choices are numbers in rising order, whose places a search may interpolate between."""
    numbers = [c for c in choices if isinstance(c, int | float) and not isinstance(c, bool)]
    return len(numbers) == len(choices) > 2 and numbers == sorted(numbers)


def best_values(model: str, rows: list[Row], budget: int) -> dict[str, Any] | None:
    """The values of the best of the first `budget` trials, by validation accuracy, then loss; None if none ran."""
    done = [row for row in rows if row.get("status") == "done" and 0 <= int(row["trial"]) < budget]
    if not done:
        return None
    best = max(done, key=lambda row: (row["val_accuracy"], -(row["val_loss"] or 0.0), -int(row["trial"])))
    defaults = entry(model).defaults
    return {key: value for key, value in best["config"].items() if defaults.get(key, object()) != value}
