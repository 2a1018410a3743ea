"""Print docs/settings.md: every setting, its defaults and what it means, as the source has them.

    python scripts/settings_table.py > docs/settings.md

Meanings are the strings below the fields of the settings' dataclasses. A test compares page and source.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import typing
from typing import Any

import yaml

from tokenphormer import sgpm
from tokenphormer.model import ModelSettings
from tokenphormer.tokens import TokenSettings
from tokenphormer.training import Config, TrainingSettings
from tokenphormer.training.presets import CONFIGS, CPU_CHANGES, CPU_SIZE, RECIPES, SMALL

GROUPS: dict[str, type] = {"Tokens": TokenSettings, "Model": ModelSettings, "Training": TrainingSettings}

HEAD = """\
# Settings

<!-- Written by scripts/settings_table.py from the source; change it there. -->

Every setting of `tokenphormer train`, of a YAML file for `--config`, and of `TokenphormerClassifier`. The values that
a run had are in its `config.yaml`.

```bash
tokenphormer train debian --out run --set max_epochs=1 --set hidden_channels=16 --set num_walks=2
```

A value comes from the first of these that gives one:

1. `--set name=value`
2. `--config FILE`: the file; `--config paper`: what the paper gives for its datasets, loaded by name (below)
3. without `--config`: the recipe that suits the graph (below)
4. the default, which is the paper's or its authors' wherever they give one

From Python, `TokenphormerClassifier.for_graph(graph, split)` has the recipe, and what you add to it; `Config()` and
`TokenphormerClassifier()` have the defaults on any graph and device. A name that is no setting is an
error, and so is a value of the wrong kind.
"""

SGPM = """\
## Pre-training

Every setting of `tokenphormer pretrain` and of a YAML file for its `--config` ([SGPM](sgpm.md)). `train --sgpm auto`
has the defaults, on a CPU those of the column.

```bash
tokenphormer pretrain debian --set train_sentences=1 --set val_sentences=1 --set epochs=1 --set hidden_channels=16
```
"""

RECIPE = """\
## Recipes

Without `--config`, `tokenphormer train` looks at the edges between training nodes: how much more often their ends are
of one class than chance would have it (adjusted homophily, 1 is always, 0 as by chance). From 0.4 on, or with hardly
any such edge, the recipe is *near scores* where nodes have fewer than three neighbours on average, else *agreeing*
where features are like words (less than 5 % of them are not 0) and nodes have at least four, *many hops* where they
have fewer, or, on a GPU, ten neighbours or more, else *deep scores*. From 0.05 on, by two standard errors, it is
*alike*; below that *unlike*, or, with fewer than 1,000 training nodes, *own features*, which reads no neighbour at
all. The others are tried by [`tokenphormer tune`](tune.md) and the [benchmark](benchmark.md), which says where they
come from.
On a CPU all of them are made smaller, and *agreeing* and *near scores* do without `consistency`, which takes twice the
time.
Graphs of more than 200,000 nodes are read in batches instead: on a CPU with the last line, on a GPU with
the defaults.
Where a recipe differs from the defaults:
"""

PAPER = """\
## The paper's datasets

One file each in `src/tokenphormer/training/configs/`, with the published result, and a remark on every line that the
paper does not give. Where a file differs from the defaults:
"""


def meanings(settings: type) -> dict[str, str]:
    """What the source says of each field: the string that follows it, or else its name in words."""
    (definition,) = ast.parse(inspect.getsource(settings)).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    name = ""
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
            found[name] = f"{name.replace('_', ' ').capitalize()}."
        elif name and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            found[name] = " ".join(str(statement.value.value).split())
            name = ""
        else:
            name = ""
    return found


def show(value: object) -> str:
    """A value as YAML has it."""
    if isinstance(value, list | tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def rows(settings: type, small: dict[str, Any] | None = None) -> list[str]:
    """The lines of a group's table; `small` are the values on a CPU."""
    kinds, said = typing.get_type_hints(settings), meanings(settings)
    lines = (
        ["| setting | default | on a CPU | |", "|---|---|---|---|"]
        if small
        else ["| setting | default | |", "|---|---|---|"]
    )
    for field in dataclasses.fields(settings):
        choices = typing.get_args(kinds[field.name]) if typing.get_origin(kinds[field.name]) is typing.Literal else ()
        unsaid = [f"`{choice}`" for choice in choices if f"`{choice}`" not in said[field.name]]
        meaning = said[field.name] + (f" One of {', '.join(f'`{choice}`' for choice in choices)}." if unsaid else "")
        here = ""
        if small:
            other = small.get(field.name, field.default) != field.default
            here = f" {show(small[field.name])} |" if other else "  |"
        lines.append(f"| `{field.name}` | {show(field.default)} |{here} {meaning} |")
    return lines


def recipes() -> list[str]:
    """How the recipes differ from the defaults."""
    usual = Config().to_dict()
    lines = ["| recipe | settings |", "|---|---|"]
    small = {"on a CPU, besides": CPU_SIZE} | {f"*{name}* on a CPU": values for name, values in CPU_CHANGES.items()}
    for name, values in (RECIPES | small | {"large, on a CPU": SMALL}).items():
        other = {key: value for key, value in values.items() if usual[key] != value or name in small}
        lines.append(f"| {name} | {', '.join(f'`{key}` {show(value)}' for key, value in other.items())} |")
    return lines


def differences() -> list[str]:
    """How the shipped files differ from the defaults."""
    usual = Config().to_dict()
    lines = ["| dataset | settings |", "|---|---|"]
    for path in sorted(CONFIGS.glob("*.yaml")):
        values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        own = Config.from_yaml(path).to_dict()
        # A width of 1,024 and one of "twice the hidden channels" are the same.
        other = [name for name in values if own[name] != usual[name] and name != "ffn_channels"]
        lines.append(f"| {path.stem} | {', '.join(f'`{name}` {show(own[name])}' for name in other) or 'none'} |")
    return lines


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, settings in GROUPS.items():
        parts.append("\n".join([f"## {title}", "", *rows(settings), ""]))
    parts.append("\n".join([RECIPE, *recipes(), ""]))
    parts.append("\n".join([SGPM, *rows(sgpm.SGPMSettings, sgpm.SMALL), ""]))
    parts.append("\n".join([PAPER, *differences(), ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
