"""A folder of pre-training: what `tokenphormer pretrain` writes and `tokenphormer train --sgpm` reads.

sgpm.json           the manifest, written last: its presence says "whole"
sgpm.safetensors    the weights, the settings, the graph's fingerprint
config.yaml         every setting
history.jsonl       a line an epoch, written as it ends
model_card.md       what it is and what it has seen
checkpoint.safetensors   while it runs, and after it was stopped
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import torch

from tokenphormer import distributed
from tokenphormer.errors import InputError, InterruptedTrainingError, ResourceError
from tokenphormer.files import LOCK, atomic_path, is_partial, only_process, parse_json
from tokenphormer.graph import Graph
from tokenphormer.graph.raw_files import user_cache
from tokenphormer.sgpm.pretrained import SGPM_FILE, PretrainedSGPM, document_fingerprint
from tokenphormer.sgpm.pretraining import Pretrainer, PretrainProgress, kept_epoch, run_with_checkpoints
from tokenphormer.sgpm.settings import SMALL, SGPMSettings

MANIFEST = "sgpm.json"
CONFIG = "config.yaml"
HISTORY = "history.jsonl"
CHECKPOINT = "checkpoint.safetensors"
FORMAT = 1
NO_MEMORY = "can't allocate memory"
"""How torch words it on a CPU, where it raises nothing more exact than RuntimeError."""


def default_settings(device: torch.device, path: Path | None = None) -> SGPMSettings:
    """The settings of a file; else the paper's on a GPU, a small size on a CPU."""
    if path is not None:
        return SGPMSettings.from_yaml(path)
    return SGPMSettings() if device.type == "cuda" else SGPMSettings().replace(SMALL)


def pretrain(
    graph: Graph,
    settings: SGPMSettings,
    out: Path,
    device: torch.device,
    *,
    resume: bool = False,
    after_chunk: Callable[[Pretrainer], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    how_to_go_on: str = "the same command with --resume goes on",
) -> PretrainedSGPM:
    """Pre-train into the folder `out`; no label is looked at. A run that was stopped goes on with `resume`.

    Of several processes (torchrun) all train and the first writes. Where torchrun may start them again, a pre-training
    that is there already is gone on with.
    """
    identity = {"graph": document_fingerprint(graph), "settings": settings.hash}
    resume = resume or distributed.may_restart()
    with ExitStack() as held:
        distributed.on_first(lambda: held.enter_context(only_process(out)), device)
        distributed.on_first(lambda: _claim(out, settings, resume), device)
        return _pretrain(graph, settings, out, device, identity, after_chunk, say, how_to_go_on)


def _pretrain(
    graph: Graph,
    settings: SGPMSettings,
    out: Path,
    device: torch.device,
    identity: dict[str, str],
    after_chunk: Callable[[Pretrainer], None],
    say: Callable[[str], None],
    how_to_go_on: str,
) -> PretrainedSGPM:
    """Pre-train into a folder that is claimed."""
    logged = 0

    def after(trainer: Pretrainer) -> None:
        """Log new epochs as lines of JSON; the first time, also those that a resumed run had before."""
        nonlocal logged
        if not distributed.is_first():
            return
        lines = [json.dumps(row) + "\n" for row in trainer.progress.history]
        if len(lines) > logged:
            with (out / HISTORY).open("a" if logged else "w", encoding="utf-8") as file:
                file.writelines(lines[logged:])
            logged = len(lines)
        after_chunk(trainer)

    try:
        trainer = Pretrainer(graph, settings, device)
        progress = run_with_checkpoints(trainer, out / CHECKPOINT, identity, after, say)
    except InterruptedTrainingError as stop:
        raise InterruptedTrainingError(f"{stop}; {how_to_go_on}", stop.signal) from stop
    except InputError:
        # Where nothing is lost, the mended command can have the folder.
        if distributed.is_first() and not (out / CHECKPOINT).exists():
            _let_go(out)
        raise
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or NO_MEMORY in str(error):
            first = str(error).splitlines()[0]
            raise ResourceError(f"not enough memory: {first}; use a smaller batch_size or hidden_channels") from error
        raise
    from tokenphormer import __version__

    done = PretrainedSGPM.of(trainer, __version__)

    def write() -> None:
        done.save(out / SGPM_FILE)
        _write(out / HISTORY, "".join(json.dumps(row) + "\n" for row in progress.history))
        _write(out / "model_card.md", model_card(graph, settings, progress))
        weights = hashlib.sha256((out / SGPM_FILE).read_bytes()).hexdigest()
        manifest = {"format": FORMAT, "version": __version__, **identity, "graph_name": graph.name, "sha256": weights}
        _write(out / MANIFEST, json.dumps(manifest, indent=1))
        (out / CHECKPOINT).unlink(missing_ok=True)

    distributed.on_first(write, device)
    return done


def _claim(out: Path, settings: SGPMSettings, resume: bool) -> None:
    """Take the folder, or go on in it; a folder with anything else in it is left alone."""
    half_written = set(filter(is_partial, out.iterdir()))  # what a kill left
    if set(out.iterdir()) - {out / LOCK} == half_written:
        _write(out / CONFIG, settings.to_yaml())
    else:
        if (out / MANIFEST).exists():
            raise InputError(f"{out}: holds a finished pre-training; choose another folder")
        if not (out / CONFIG).exists():
            raise InputError(f"{out}: is not empty and holds no pre-training; choose another folder")
        if not resume:
            raise InputError(f"{out}: holds a pre-training that was stopped; add --resume to go on")
        begun = SGPMSettings.from_yaml(out / CONFIG).to_dict()
        other = [name for name, value in settings.to_dict().items() if begun[name] != value]
        if other:
            raise InputError(f"{out}: was begun with another {', '.join(other)}; its {CONFIG} has all settings")
    for left in half_written:
        left.unlink(missing_ok=True)


def _let_go(out: Path) -> None:
    """Give the folder back, so that the mended command can have it."""
    for name in (CONFIG, HISTORY):
        (out / name).unlink(missing_ok=True)
    with suppress(OSError):  # there may be something of somebody else's in it
        out.rmdir()


def load_pretrained(
    folder: Path, graph: Graph, device: torch.device, sent: tuple[bytes, bytes | None] | None = None
) -> PretrainedSGPM:
    """The SGPM of a finished folder, if it is of this graph.

    `sent` is what manifest and weights hold (None: they are missing) where the folder is another host's.
    """
    path = folder / MANIFEST
    try:
        manifest = parse_json(sent[0] if sent else path.read_bytes())
        known, expected = manifest["format"], manifest["sha256"]
    except FileNotFoundError as error:
        stopped = "; its pre-training was stopped" if (folder / CHECKPOINT).exists() else ""
        raise InputError(f"{folder}: holds no finished pre-training ({MANIFEST} is missing){stopped}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not the manifest of a pre-training ({error})") from error
    if known != FORMAT:
        raise InputError(f"{path}: a pre-training of format {known}; this version reads format {FORMAT}")
    weights = folder / SGPM_FILE
    if _sha256(weights, sent) != expected:
        raise InputError(f"{weights}: is missing or not the file that pre-training wrote (its SHA-256 is another)")
    pretrained = PretrainedSGPM.load(weights, device, sent[1] if sent else None)
    pretrained.check(graph)
    return pretrained


def _sha256(weights: Path, sent: tuple[bytes, bytes | None] | None) -> str | None:
    """Of the weights, read or sent; None if there are none."""
    content = sent[1] if sent else weights.read_bytes() if weights.is_file() else None
    return None if content is None else hashlib.sha256(content).hexdigest()


def find_or_pretrain(
    graph: Graph,
    settings: SGPMSettings,
    device: torch.device,
    *,
    root: Path | None = None,
    after_chunk: Callable[[Pretrainer], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> PretrainedSGPM:
    """The SGPM of this graph and these settings from the per-user cache, pre-trained now if there is none.

    Of several processes the first one's cache counts.
    """
    key = hashlib.sha256(f"{FORMAT} {document_fingerprint(graph)} {settings.hash}".encode()).hexdigest()[:16]
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in graph.name)[:40]
    folder = (root or user_cache() / "sgpm") / f"{safe}-{key}"
    (there,) = distributed.highest([int(distributed.is_first() and (folder / MANIFEST).exists())], device)
    if there:
        say(f"SGPM: using {folder}")
        return _load_alike(folder, graph, device)
    say(f"SGPM: none for this graph and these settings yet; pre-training into {folder}")
    again = "the same command goes on"
    return pretrain(graph, settings, folder, device, resume=True, after_chunk=after_chunk, say=say, how_to_go_on=again)


def _load_alike(folder: Path, graph: Graph, device: torch.device) -> PretrainedSGPM:
    """The SGPM of a folder that the first rank has, the same on all: it is sent if one of them has another or none.

    Hosts without a common home folder have a cache each, and only the first rank writes.
    """
    if distributed.alone():
        return load_pretrained(folder, graph, device)
    manifest, own = distributed.file_of_first(folder / MANIFEST, device), None
    with suppress(OSError):
        own = (folder / MANIFEST).read_bytes()
    (sending,) = distributed.highest([int(own != manifest)], device)
    if manifest is None or not sending:  # None: somebody has removed it in this moment
        return load_pretrained(folder, graph, device)
    return load_pretrained(folder, graph, device, (manifest, distributed.file_of_first(folder / SGPM_FILE, device)))


def model_card(graph: Graph, settings: SGPMSettings, progress: PretrainProgress) -> str:
    """What a reader should know before using the weights."""
    best = kept_epoch(progress.history)
    effort = f"{progress.epoch} epochs, {progress.tokens:,} tokens, {progress.seconds:.0f} s; {progress.stopped}"
    lines = [
        f"# SGPM on {graph.name}",
        "",
        f"- Graph: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {graph.num_features} features.",
        f"- Pre-training: {effort}.",
        f"- Validation: loss {best['val_loss']:.4f}, masked nodes guessed right {best['val_accuracy']:.2%}.",
        "",
        "Masked-node modelling on non-backtracking walks, the paper's graph document. **No label was used.** All nodes",
        "were, those of any test set too: their edges and features shaped the weights. A classifier that reads these",
        "vectors is transductive, and its test accuracy is that of nodes known beforehand.",
    ]
    lines += ["", "## Settings", "", "```yaml", settings.to_yaml().rstrip(), "```", ""]
    return "\n".join(lines)


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace")  # a graph's name may be no UTF-8
