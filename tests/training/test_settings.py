"""Settings: what is read, what is refused and how it is said, and that nothing is offered which nothing reads."""

from __future__ import annotations

import ast
import dataclasses
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tokenphormer
from tokenphormer.errors import InputError
from tokenphormer.training.settings import Config

FIELDS = [field.name for field in dataclasses.fields(Config)]


def write(folder: Path, text: str) -> Path:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# ---------------------------------------------------------------- reading


def test_yaml_round_trip(tmp_path: Path) -> None:
    config = Config(
        num_walks=7,
        walk_ratios=(0.5, 0.0, 0.25, 0.25),
        walk_pooling="sum",
        fresh_walks=True,
        dropout=0.25,
        learning_rate=1e-7,
        compile="no",
        precision="bfloat16",
        seed=-3,
    )
    again = Config.from_yaml(write(tmp_path, config.to_yaml()))
    assert again == config
    assert again.hash == config.hash
    assert isinstance(again.walk_ratios, tuple)


def test_numbers_of_numpy_are_numbers() -> None:
    """As scikit-learn's searches take them from arrays."""
    values: dict[str, Any] = {
        "num_walks": np.arange(3)[2],
        "dropout": np.float32(0.5),
        "learning_rate": np.float64(0.25),
        "fresh_walks": np.bool_(True),
        "walk_pooling": np.str_("sum"),
        "walk_ratios": list(np.array([1, 0, 0, 0])),
    }
    config = Config(**values)
    plain = Config(
        num_walks=2,
        dropout=0.5,
        learning_rate=0.25,
        fresh_walks=True,
        walk_pooling="sum",
        walk_ratios=(1.0, 0.0, 0.0, 0.0),
    )
    assert config == Config().replace(values) == plain
    assert config.to_yaml() == plain.to_yaml()
    with pytest.raises(InputError, match=r"num_walks: 2.5; expected a value of type int"):
        Config(num_walks=np.float32(2.5))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "# nothing but a remark\n", "---\n", "null\n"])
def test_an_empty_file_is_the_defaults(tmp_path: Path, text: str) -> None:
    assert Config.from_yaml(write(tmp_path, text)) == Config()


def test_a_file_keeps_the_defaults_of_what_it_does_not_name(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufeffdropout: 0.5\r\nlearning_rate: 1e-3\r\nwalk_ratios: [1, 0, 0, 0]\r\n")
    assert Config.from_yaml(path) == Config(dropout=0.5, learning_rate=0.001, walk_ratios=(1.0, 0.0, 0.0, 0.0))


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("learning_rate=1e-3", 0.001),
        ("learning_rate=1", 1.0),
        ("num_walks=100.0", 100),
        ("num_walks= 30 ", 30),
        ("fresh_walks=true", True),
        ("fresh_walks=no", False),
        ("compile=yes", "yes"),
        ("compile=off", "no"),
        ("walk_pooling=sum", "sum"),
        ("walk_ratios=[1, 0, 0.5, 0]", (1.0, 0.0, 0.5, 0.0)),
        ("weight_decay=0", 0.0),
    ],
)
def test_values_of_the_command_line(pair: str, expected: object) -> None:
    values = Config.parse_overrides([pair])
    (key,) = values
    found = getattr(Config().replace(values), key)
    assert found == expected
    assert type(found) is type(expected)


def test_the_last_override_counts() -> None:
    assert Config().replace(Config.parse_overrides(["dropout=0.1", "dropout=0.2"])).dropout == 0.2


def test_the_hash_is_of_the_values_not_of_how_they_were_written() -> None:
    assert Config(dropout=0).hash == Config().replace({"dropout": "0.0"}).hash
    hashes = {Config().replace({name: value}).hash for name, value in (("seed", 1), ("votes", 2), ("dropout", 0.3))}
    assert len(hashes | {Config().hash}) == 4


# ---------------------------------------------------------------- refusing


def test_unknown_keys_offer_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, "num_wlks: 3\n")
    with pytest.raises(InputError, match=r"settings\.yaml: 'num_wlks' is no setting; nearest: num_walks"):
        Config.from_yaml(path)
    with pytest.raises(InputError, match="--set: 'learning-rate' is no setting; nearest: learning_rate"):
        Config.parse_overrides(["learning-rate=1"])
    with pytest.raises(InputError, match="'dropuot' is no setting; nearest: dropout"):
        Config().replace({"dropuot": 0.1})
    with pytest.raises(TypeError, match="dropuot"):
        Config(dropuot=0.1)  # type: ignore[call-arg]


def test_keys_that_stand_twice(tmp_path: Path) -> None:
    path = write(tmp_path, "dropout: 0.1\nseed: 1\ndropout: 0.5\n")
    with pytest.raises(InputError, match=r"settings\.yaml: not valid YAML: 'dropout' stands in it twice"):
        Config.from_yaml(path)


@pytest.mark.parametrize("text", ["1: 2", "null: 2", "2001-01-01: 2", "true: 2", "xyzzyx: 2"])
def test_keys_that_resemble_nothing(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"is no setting$"):
        Config.from_yaml(write(tmp_path, text))


@pytest.mark.parametrize("pair", ["num_walks", "=3", " = 3", ""])
def test_overrides_without_key_or_sign(pair: str) -> None:
    with pytest.raises(InputError, match="expected key=value"):
        Config.parse_overrides([pair])


WRONG_TYPES: list[tuple[str, object, str]] = [
    ("num_walks", "many", "num_walks: 'many'; expected a value of type int"),
    ("num_walks", 2.5, "num_walks: 2.5; expected a value of type int"),
    ("num_walks", True, "num_walks: True; expected a value of type int"),
    ("num_walks", None, "num_walks: None; expected a value of type int"),
    ("num_walks", [3], r"num_walks: \[3\]; expected a value of type int"),
    ("num_walks", 1e300, "num_walks: 1000.*; expected a whole number of at most 63 bits"),
    ("seed", 2**63, "seed: 9223372036854775808; expected a whole number of at most 63 bits"),
    ("learning_rate", "fast", "learning_rate: 'fast'; expected a value of type float"),
    ("learning_rate", True, "learning_rate: True; expected a value of type float"),
    ("learning_rate", 10**400, "learning_rate: 1000.*; expected a value of type float"),
    ("learning_rate", {"a": 1}, "learning_rate: {'a': 1}; expected a value of type float"),
    ("fresh_walks", 1, "fresh_walks: 1; expected a value of type bool"),
    ("fresh_walks", "perhaps", "fresh_walks: 'perhaps'; expected a value of type bool"),
    ("walk_ratios", [0.5, 0.5], r"walk_ratios: \[0.5, 0.5\]; expected 4 values"),
    ("walk_ratios", [1, 1, 1, 1, 1], "expected 4 values"),
    ("walk_ratios", 0.25, "walk_ratios: 0.25; expected 4 values"),
    ("walk_ratios", "1,0,0,0", "walk_ratios: '1,0,0,0'; expected 4 values, in brackets and with commas"),
    ("walk_ratios", [1, 1, 1, "x"], "walk_ratios: 'x'; expected a value of type float"),
    ("walk_pooling", "max", "walk_pooling: 'max'; expected one of mean, sum"),
    ("walk_pooling", True, "walk_pooling: True; expected one of mean, sum"),
    ("walk_pooling", ["mean"], r"walk_pooling: \['mean'\]; expected one of mean, sum"),
    ("compile", "maybe", "compile: 'maybe'; expected one of auto, yes, no"),
    ("precision", "float16", "precision: 'float16'; expected one of auto, float32, bfloat16"),
    ("class_weights", "even", "class_weights: 'even'; expected one of none, balanced"),
    ("hop_normalisation", "left", "hop_normalisation: 'left'; expected one of symmetric, row, none"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG_TYPES)
def test_wrong_types(tmp_path: Path, name: str, value: object, message: str) -> None:
    for make in (lambda: Config(**{name: value}), lambda: Config().replace({name: value})):  # type: ignore[arg-type]
        with pytest.raises(InputError, match=f"^{message}" if message.startswith(name) else message):
            make()
    path = write(tmp_path, yaml.safe_dump({name: value}))
    with pytest.raises(InputError, match=rf"settings\.yaml: .*{message}"):
        Config.from_yaml(path)


BOUNDS: dict[str, tuple[list[object], list[object]]] = {
    # name: values that are just fine, values that are just not
    "num_walks": ([0], [-1]),
    "walk_length": ([1], [0]),
    "walk_ratios": (
        [[0, 0, 0, 1e-9]],
        [[0, 0, 0, 0], [-0.1, 1, 1, 1], [float("nan"), 1, 1, 1], [1, 1, 1, float("inf")]],
    ),
    "jump_radius": ([1], [0]),
    "num_hops": ([0], [-1]),
    "laplacian_pe": ([0], [-1]),
    "walk_pe": ([0], [-1]),
    "hidden_channels": ([2], [1, 0, -8]),
    "num_layers": ([1], [0]),
    "num_heads": ([1, 512], [0, 3]),
    "ffn_channels": ([0], [-1]),
    "dropout": ([0, 0.999], [-0.001, 1, float("nan")]),
    "attention_dropout": ([0, 0.999], [-0.001, 1]),
    "feature_dropout": ([0, 0.999], [-0.001, 1]),
    "score_hops": ([0, 1, 10], [-1]),
    "score_teleport": ([0.0, 0.5], [-0.1, 1.0]),
    "score_dropout": ([0.0, 0.5], [-0.1, 1.0]),
    "consistency": ([0.0, 1.0], [-0.1, float("inf"), float("nan")]),
    "learning_rate": ([0], [-1e-9, float("inf"), float("nan")]),
    "end_learning_rate": ([0], [-1e-9, float("inf"), float("nan")]),
    "warmup_updates": ([0, 1000], [-1, 1001]),  # 1000 is the default of decay_updates
    "decay_updates": ([400], [399]),  # 400 is the default of warmup_updates
    "decay_power": ([0], [-1e-9, float("inf"), float("nan")]),
    "weight_decay": ([0], [-1e-9, float("inf"), float("nan")]),
    "l2": ([0], [-1e-9, float("inf"), float("nan")]),
    "batch_size": ([1], [0]),
    "max_epochs": ([1], [0]),
    "patience": ([1], [0]),
    "label_smoothing": ([0, 0.999], [-0.001, 1, float("nan")]),
    "weight_average": ([0, 0.999], [-0.001, 1, float("nan")]),
    "gradient_clip": ([0], [-1e-9, float("inf"), float("nan")]),
    "votes": ([1], [0]),
    "seed": ([-(2**63) + 1, 2**63 - 1], [2**63, -(2**63)]),
}


def test_every_number_has_bounds() -> None:
    numbers = {field.name for field in dataclasses.fields(Config) if field.type in ("int", "float")}
    assert numbers | {"walk_ratios"} == BOUNDS.keys()


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds(name: str) -> None:
    fine, wrong = BOUNDS[name]
    for value in fine:
        Config().replace({name: value})
    for value in wrong:
        with pytest.raises(InputError, match=name):
            Config().replace({name: value})


@pytest.mark.parametrize(
    "text", ["dropout: [1", "a: b: c", "\tdropout: 1", "!!python/object:os.system x", "dropout: \x07", "*unknown"]
)
def test_not_yaml(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"settings\.yaml: not valid YAML: \S"):
        Config.from_yaml(write(tmp_path, text))


# PyYAML answers these with ValueError, IndexError, KeyError, AttributeError and RecursionError.
@pytest.mark.parametrize("text", ["2001-99-99", "!!int ''", "!!bool x", "!!timestamp x", "[" * 5000, "1" * 5000, "[1"])
def test_values_that_break_the_parser(text: str) -> None:
    with pytest.raises(InputError, match="dropout: not valid YAML"):
        Config().replace({"dropout": text})


def test_lines_that_stand_for_gigabytes_are_not_printed(tmp_path: Path) -> None:
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [
        f"{name}: &{name} [{', '.join(['*' + before] * 9)}]"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    values = yaml.safe_load("\n".join(lines))
    with pytest.raises(InputError) as error:
        Config().replace({"num_walks": values["i"]})
    assert len(str(error.value)) < 2000


@pytest.mark.parametrize("text", ["- dropout", "dropout", "3", "[1, 2]", "2001-01-01"])
def test_yaml_that_is_no_list_of_settings(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="expected lines of 'key: value', got a "):
        Config.from_yaml(write(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("seed: 1 # für".encode("latin-1"))
    for name in ("absent.yaml", "latin.yaml", "."):
        with pytest.raises(InputError, match="cannot be read"):
            Config.from_yaml(tmp_path / name)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.one_of(
        st.text(),
        st.builds("{}: {}".format, st.sampled_from(FIELDS), st.text()),
        st.builds(
            lambda key, value: yaml.safe_dump({key: value}),
            st.sampled_from(FIELDS),
            st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5),
        ),
    )
)
def test_any_text_at_all_is_read_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with suppress(InputError):
        config = Config.from_yaml(path)
        assert config.replace({}) == config


# ---------------------------------------------------------------- nothing reads it


def read_settings() -> set[str]:
    """Attributes that some part of the package reads of a value called settings, config or s, or a property of self.

    The checks on creation read them too, which is no use of them.
    """
    found = set()
    for path in Path(tokenphormer.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found |= attributes_of(tree, {"settings", "config", "s"})
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Settings"):
                methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
                found |= {a for m in methods if m.name != "__post_init__" for a in attributes_of(m, {"self"})}
    return found


def attributes_of(tree: ast.AST, owners: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner: Any = node.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            found |= {node.attr} if name in owners else set()
    return found


def test_every_setting_is_read_by_something() -> None:
    assert set(FIELDS) - read_settings() == set()


def test_the_scan_itself() -> None:
    source = "class ASettings:\n def __post_init__(self): self.one\n\nself.settings.two\nconfig.three = 4\nmodel.five"
    assert attributes_of(ast.parse(source), {"settings", "config", "s"}) == {"two"}
