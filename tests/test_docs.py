"""The pages keep their word: what README.md and docs/ tell people to type is typed here.

A page is one sitting: its blocks run from top to bottom in one folder, its Python blocks in one namespace.

- ```python: executed.
- ```bash, ```sh, ```console: lines that start with `tokenphormer`, `make` or `pip` count, others are for reading
  (in a console with prompts, only lines with `$`). `tokenphormer` commands are executed, plain ones only: no pipes,
  no variables; one that serves is asked for its page and ended. Targets of `make` must exist, `pip install` must be
  well formed, and so must be the names of scripts and benchmarks, also where a block is not run.
- `<!-- not run: reason -->` above a block spares it.
- A block that names a dataset whose files are not here is skipped, and the rest of its page with it.
"""

from __future__ import annotations

import ast
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tokenphormer.graph.datasets import DATASETS
from tokenphormer.graph.raw_files import missing_files

ROOT = Path(__file__).parents[1]
TIMEOUT = 300
"""Seconds for one block; a page should need a few."""
SHELLS = {"bash", "sh", "console"}
COMMANDS = ("tokenphormer ", "python -m tokenphormer ", "make ", "pip ", "python -m pip ")
PROGRAM = re.compile(r"\bpython (-m benchmarks\.\w+|scripts/\w+\.py)")
FENCE = re.compile(r"^ *(```+|~~~+) *(\w*)")
NOT_RUN = re.compile(r"^ *<!-- *not run: *(\S.*?) *-->$")


@dataclass(frozen=True)
class Block:
    """A fenced block: the number of its fence's line, its language and text, and why it is not run if it is not."""

    line: int
    language: str
    text: str
    not_run: str | None = None

    @property
    def commands(self) -> list[list[str]]:
        """The command lines that are checked, split into words."""
        lines = [line.strip() for line in self.text.replace("\\\n", " ").splitlines()]
        if any(line.startswith("$ ") for line in lines):
            lines = [line[2:].strip() for line in lines if line.startswith("$ ")]
        return [shlex.split(line, comments=True) for line in lines if line.startswith(COMMANDS)]

    @property
    def words(self) -> set[str]:
        """Everything in it that could be a dataset's name."""
        if self.language == "python":
            constants = (node.value for node in ast.walk(ast.parse(self.text)) if isinstance(node, ast.Constant))
            return {value.lower() for value in constants if isinstance(value, str)}
        return {word.lower() for command in self.commands for word in command}


def find_blocks(text: str) -> list[Block]:
    """The blocks of a page that are checked."""
    blocks, above, lines = [], "", iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if fence := FENCE.match(line):
            body: list[str] = []
            for _, inner in lines:
                if inner.strip() == fence[1]:
                    break
                body.append(inner)
            exempt = NOT_RUN.match(above)
            dedented = textwrap.dedent("\n".join(body))
            blocks.append(Block(number, fence[2], dedented, exempt[1] if exempt else None))
        above = line if line.strip() else above
    return [block for block in blocks if block.language == "python" or (block.language in SHELLS and block.commands)]


@dataclass
class Sitting:
    """One page while it is worked through."""

    page: Path
    folder: Path
    data: Path
    blocks: list[Block]
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    done: int = 0
    skipped: str | None = None

    def run_until(self, block: Block) -> None:
        """Run what stands above the block and has not run yet, and the block."""
        for each in self.blocks[self.done : self.blocks.index(block) + 1]:
            self.done += 1
            if each.not_run:
                continue
            absent = [name for name in sorted(each.words & DATASETS.keys()) if missing_files(DATASETS[name], self.data)]
            if absent and not self.skipped:
                self.skipped = f"the files of dataset '{absent[0]}' are not here"
            if not self.skipped:
                self._run(each)

    def _run(self, block: Block) -> None:
        with at_most(TIMEOUT):
            if block.language == "python":
                code = "\n" * block.line + block.text  # so that errors name the page's own lines
                exec(compile(code, str(self.page), "exec"), self.namespace)
            for command in block.commands if block.language in SHELLS else []:
                check_command(command, self.folder)


def check_command(command: list[str], folder: Path) -> None:
    name = command[2] if command[:2] == ["python", "-m"] else command[0]
    arguments = command[command.index(name) + 1 :]
    if name == "make":
        check_make(arguments)
    elif name == "pip":
        check_pip(arguments)
    else:
        for word in arguments:
            assert not re.search(r"^[|&;<>]|[$`]", word), f"{word!r}: write a plain command, without the shell's signs"
        line = [sys.executable, "-m", "tokenphormer", *arguments]
        if arguments[0] == "serve":
            check_serving([*line, "--port", "0"], folder)
            return
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert done.returncode == 0, f"{shlex.join(command)} ended with {done.returncode}\n{done.stderr}"


def check_serving(line: list[str], folder: Path) -> None:
    """Start a server, ask for its page, and end it."""
    with subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            said = [next(server.stdout, ""), next(server.stdout, "")]
            assert said[1] == "ready\n", "".join(said)
            address = re.search(r"http://\S+", said[0])
            assert address, said[0]
            with urllib.request.urlopen(address[0], timeout=30) as answer:
                assert b"<title>" in answer.read()
        finally:
            server.kill()


def check_make(arguments: list[str]) -> None:
    targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for word in arguments:
        assert word in targets or re.match(r"-|\w+=", word), f"make {word}: the Makefile has no such target"


def check_pip(arguments: list[str]) -> None:
    """An installation of things that look like requirements; extras of ours and files must be there."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert arguments[0] == "install"
    words = iter(arguments[1:])
    for word in words:
        if word in ("-c", "-r"):
            assert (ROOT / (file := next(words))).is_file(), f"pip install {word} {file}: no such file"
        elif not word.startswith("-"):
            form = re.fullmatch(r"(\.|[A-Za-z][\w.-]*)(?:\[([\w,-]+)\])?(?:[=<>~!]=?[\w.*]+)?", word)
            assert form, f"pip install {word}: not a requirement"
            ours = form[1] in (".", "tokenphormer") and form[2]
            assert not ours or set(form[2].split(",")) <= extras.keys(), f"pip install {word}: no such extra"


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the block's midst, on systems that can."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def stop(_signal: int, _frame: object) -> None:
        raise TimeoutError(f"ran for more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# ---------------------------------------------------------------- the pages

PAGES = {
    str(path.relative_to(ROOT)): find_blocks(path.read_text(encoding="utf-8"))
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "_build" not in path.parts
}
BLOCKS = [(page, block) for page, blocks in PAGES.items() for block in blocks]


@pytest.fixture(scope="module")
def sittings() -> dict[str, Sitting]:
    return {}


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[f"{page}:{block.line}" for page, block in BLOCKS])
def test_block(
    page: str,
    block: Block,
    sittings: dict[str, Sitting],
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if page not in sittings:
        folder = tmp_path_factory.mktemp("page")
        try:
            data = request.getfixturevalue("raw_datasets")
        except pytest.skip.Exception:
            data = folder / "no-data"
        sittings[page] = Sitting(ROOT / page, folder, data, PAGES[page])
    sitting = sittings[page]
    monkeypatch.chdir(sitting.folder)
    monkeypatch.setenv("TOKENPHORMER_DATA", str(sitting.data))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    sitting.run_until(block)
    if reason := block.not_run or sitting.skipped:
        pytest.skip(reason)


@pytest.mark.parametrize("page", PAGES)
def test_scripts_and_benchmarks_are_there(page: str) -> None:
    for name in PROGRAM.findall((ROOT / page).read_text(encoding="utf-8")):
        path = name.removeprefix("-m ").replace(".", "/") + ".py" if name.startswith("-m ") else name
        assert (ROOT / path).is_file(), f"python {name}"


def test_the_pages_have_blocks() -> None:
    assert {"README.md", "docs/walks.md"} <= PAGES.keys()
    assert {"python", "bash"} <= {block.language for block in PAGES["docs/walks.md"]}


# ---------------------------------------------------------------- the checks themselves

PAGE = """\
Text with `code`.
```python
x = 1
```
<!-- not run: needs a GPU -->

```bash
tokenphormer walks debian \\
    --out x.npy  # a file
cat x.npy
make test
```
- in a list
  ```console
  $ tokenphormer --version
  tokenphormer 9.9.9
  ```
<!-- not run: -->
```sh
pip install '.[dev]'
```
```text
tokenphormer no
```
"""


def test_blocks_are_found() -> None:
    assert [(block.line, block.language, block.not_run) for block in find_blocks(PAGE)] == [
        (2, "python", None),
        (7, "bash", "needs a GPU"),
        (14, "console", None),
        (19, "sh", None),
    ]
    _, bash, console, sh = find_blocks(PAGE)
    assert bash.commands == [["tokenphormer", "walks", "debian", "--out", "x.npy"], ["make", "test"]]
    assert console.commands == [["tokenphormer", "--version"]]
    assert sh.commands == [["pip", "install", ".[dev]"]]


@pytest.mark.parametrize(
    "command",
    [
        "make tset",
        "pip install .[devv]",
        "pip install -c constraint.txt tokenphormer",
        "pip instal tokenphormer",
        "pip install tokenphormer==",
        "tokenphormer datasets > list.txt",
        "tokenphormer walks $GRAPH",
        "tokenphormer walks debian --kind random",
        "tokenphormer serve no-such-run",
    ],
)
def test_wrong_commands_are_found(command: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check_command(shlex.split(command), tmp_path)


def test_right_commands_pass(tmp_path: Path) -> None:
    for command in ("make test", "make PYTHON=python3.12 lint", "pip install -c constraints.txt -e '.[dev]'"):
        check_command(shlex.split(command), tmp_path)
    check_command(shlex.split("pip install 'tokenphormer[tensorboard]>=0.1' torch"), tmp_path)


def sit(text: str, folder: Path) -> Sitting:
    return Sitting(Path("page.md"), folder, folder / "no-data", find_blocks(text))


def test_a_page_is_one_sitting(tmp_path: Path) -> None:
    page = sit("```python\nx = 1\n```\n```python\ny = x + 1\n```\n```python\nx / 0\n```", tmp_path)
    page.run_until(page.blocks[1])
    page.run_until(page.blocks[1])
    assert page.namespace["y"] == 2
    with pytest.raises(ZeroDivisionError) as error:
        page.run_until(page.blocks[2])
    assert error.traceback[-1].lineno == 7  # counted from 0: the page's line 8


def test_absent_datasets_are_not_asked_for(tmp_path: Path) -> None:
    page = sit("```python\nx = 1\n```\n```python\nload_graph('Cora')\n```\n```python\nx = 2\n```", tmp_path)
    page.run_until(page.blocks[2])
    assert page.namespace["x"] == 1
    assert page.skipped == "the files of dataset 'cora' are not here"


def test_slow_blocks_are_stopped() -> None:
    with pytest.raises(TimeoutError), at_most(1):
        time.sleep(10)
