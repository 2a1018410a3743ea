"""docs/settings.md is what the source says."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tokenphormer.settings import Settings
from tokenphormer.sgpm import SMALL, SGPMSettings
from tokenphormer.training import Config, presets

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "scripts" / "settings_table.py"
    spec = importlib.util.spec_from_file_location("settings_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_script_prints(script: ModuleType) -> None:
    written = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert written == script.page(), "run: python scripts/settings_table.py > docs/settings.md"


@pytest.mark.parametrize("settings", [Config, SGPMSettings])
def test_every_setting_stands_in_it_once(script: ModuleType, settings: type[Settings]) -> None:
    training, pretraining = script.page().split("## Pre-training")
    lines = (training if settings is Config else pretraining).splitlines()
    for field in dataclasses.fields(settings):
        assert sum(line.startswith(f"| `{field.name}` |") for line in lines) == 1, field.name


def test_values_on_a_cpu(script: ModuleType) -> None:
    _, pretraining = script.page().split("## Pre-training")
    defaults = SGPMSettings()
    for name, value in SMALL.items():
        (line,) = [line for line in pretraining.splitlines() if line.startswith(f"| `{name}` |")]
        cells = [cell.strip() for cell in line.split("|")]
        assert cells[2] == script.show(getattr(defaults, name))
        assert cells[3] == (script.show(value) if value != getattr(defaults, name) else "")


def test_recipes(script: ModuleType) -> None:
    lines = {line.split("|")[1].strip(): line for line in script.recipes()[2:]}
    on_cpu = [f"*{name}* on a CPU" for name in presets.CPU_CHANGES]
    assert list(lines) == [*presets.RECIPES, "on a CPU, besides", *on_cpu, "large, on a CPU"]
    for name, recipe in presets.RECIPES.items():
        for key, value in recipe.items():
            told = f"`{key}` {script.show(value)}" in lines[name]
            assert told == (getattr(Config(), key) != value), (name, key)


def test_meanings_are_read_from_the_source(script: ModuleType) -> None:
    from tokenphormer.tokens import TokenSettings
    from tokenphormer.training import TrainingSettings

    assert script.meanings(TokenSettings)["jump_radius"] == "k of the neighbourhood jump walk."
    found = script.meanings(TrainingSettings)
    assert found["class_weights"].startswith("`balanced` weighs each class")
    assert list(found) == [field.name for field in dataclasses.fields(TrainingSettings)]
