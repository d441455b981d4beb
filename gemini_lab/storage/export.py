"""Full fp32 weights out of the persistent tier, in a file that loads without this package."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from gemini_lab.display import tell
from gemini_lab.errors import ConfigError, IntegrityError, UnreadError
from gemini_lab.limits import whole
from gemini_lab.log.events import PersistStarted
from gemini_lab.log.file import FOLDER_HELP, LATEST, LOG_FILE, RUNS_FOLDER, find_run, read_log
from gemini_lab.shard.codec import decode_framed
from gemini_lab.shard.layout import ShardLayout
from gemini_lab.storage.persistent import PersistentTier
from gemini_lab.units import format_bytes

_SUFFIXES: Final = (".safetensors", ".pt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Result of an export."""

    path: Path  # the file
    version: int  # the version that it holds
    tensors: int  # how many weights and buffers, by their names in the model
    size_bytes: int  # of them all
    skipped: Mapping[int, str]  # newer versions that were damaged, and why each was stepped over


def export_weights(
    source: str | Path,  # A run's folder or name, or the URL of a persistent tier
    *,
    to: str | Path,  # A `.safetensors` file, or a `.pt` file for `torch.load`
    version: int | None = None,  # by default the newest whose bytes are all right
    # A safetensors file with the weights that were frozen in training.
    base: str | Path | None = None,
    trained_only: bool = False,  # leave frozen weights out
    storage_options: Mapping[str, Any] | None = None,  # for the driver of the URL
    below: Path = RUNS_FOLDER,  # where runs keep their logs: a run's name is looked for there
) -> Exported:
    """Write the full fp32 weights of a version, for `load_state_dict`.

    Tied weights are written under each of their names; buffers keep their type.

    Raises:
        ConfigError: There is no persistent tier, the file's name has another suffix, or frozen
            weights are wanted and `base` has them not, or the file cannot be written.
        IntegrityError: The version, or every version, is damaged or does not exist.
    """
    path = Path(to)
    if path.suffix not in _SUFFIXES:
        raise ConfigError(
            f"cannot export to {str(path)!r}; end its name in {' or '.join(_SUFFIXES)}"
        )
    tier = PersistentTier(tier_url(source, below=below), storage_options=storage_options)
    wanted = [version] if version is not None else tier.versions()[::-1]
    skipped: dict[int, str] = {}
    for candidate in wanted:
        try:
            tensors, layout = _assemble(tier, candidate)
        except (IntegrityError, UnreadError) as error:
            skipped[candidate] = str(error)
            continue
        if layout.frozen and not trained_only:
            tensors |= _frozen_from(base, layout.frozen)
        tensors |= {a: tensors[name] for a, name in layout.aliases.items() if name in tensors}
        size_bytes = sum(tensor.nbytes for tensor in tensors.values())
        _save(tensors, path)
        return Exported(
            path=path,
            version=candidate,
            tensors=len(tensors),
            size_bytes=size_bytes,
            skipped=skipped,
        )
    raise IntegrityError(
        "; ".join(skipped.values())
        or f"{tier.url} has no whole version yet; wait for the first persist_finished event"
    )


def tier_url(source: str | Path, *, below: Path = RUNS_FOLDER) -> str:
    """Return the URL of a run's persistent tier; `source` itself if it is a tier.

    Raises:
        ConfigError: It is a folder with neither, or no run's name.
    """
    if "://" in str(source) or any(Path(source).glob("version-*")):
        return str(source)
    folder = Path(source) if Path(source).is_dir() else find_run(str(source), below=below)
    if (folder / "persistent").is_dir():
        return str(folder / "persistent")
    if (folder / LOG_FILE).is_file():
        for entry in read_log(folder / LOG_FILE):
            if isinstance(entry.event, PersistStarted):
                return entry.event.url
    raise ConfigError(
        f"{source} has no persistent tier: no folder 'persistent', no version and no log that "
        "names one; give the run's folder or the tier's URL"
    )


def _assemble(tier: PersistentTier, version: int) -> tuple[dict[str, torch.Tensor], ShardLayout]:
    """Return the version's trained weights and buffers by name, and the last shard's layout."""
    tensors: dict[str, torch.Tensor] = {}
    filled: dict[str, list[tuple[int, int]]] = {}
    payload, layout = tier.read_file(version, 0)
    if layout.uneven:
        raise ConfigError(
            f"version {version} is not one model that could be exported: {layout.uneven}; start "
            "the script with --resume, and have it save what each rank has"
        )
    buffers = decode_framed(payload)["buffers"]
    for shard in range(layout.world_size):
        if shard:
            payload, layout = tier.read_file(version, shard)
        for name, offset, elements in _pieces(payload, layout):
            if name not in tensors:
                tensors[name] = torch.empty(layout.weights[name], dtype=torch.float32)
            tensors[name].view(-1)[offset : offset + len(elements)] = elements
            filled.setdefault(name, []).append((offset, offset + len(elements)))
    missing = [
        name
        for name, shape in layout.weights.items()
        if not _covers(filled.get(name, []), torch.Size(shape).numel())
    ]
    if missing:
        raise IntegrityError(
            f"the shards of version {version} do not cover {missing[:5]}; use another version"
        )
    return tensors | buffers, layout


def _covers(runs: Sequence[tuple[int, int]], numel: int) -> bool:
    """Return whether these runs of elements, which several ranks may have, are the whole weight."""
    at = 0
    for start, end in sorted(runs):
        if start > at:
            return False
        at = max(at, end)
    return at == numel


def _pieces(payload: memoryview, layout: ShardLayout) -> Iterator[tuple[str, int, torch.Tensor]]:
    """Yield each run of a weight's elements in a shard: weight, first element, elements."""
    for piece in layout.pieces:
        if piece.state or piece.weight not in layout.weights:
            continue
        spec = layout.tensors[piece.tensor]
        dtype = getattr(torch, spec.dtype)
        start_bytes = spec.offset_bytes + piece.tensor_offset * dtype.itemsize
        raw = bytearray(payload[start_bytes : start_bytes + piece.numel * dtype.itemsize])
        yield piece.weight, piece.weight_offset, torch.frombuffer(raw, dtype=dtype)


def _frozen_from(base: str | Path | None, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Read the frozen weights, which no checkpoint has, from the file where training began."""
    try:
        known = {} if base is None else load_file(Path(base))
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"no weights can be read from {base} ({error}); give the safetensors file with the "
            "weights that were frozen in training by --base"
        ) from error
    if missing := [name for name in names if name not in known]:
        raise ConfigError(
            f"{len(missing)} weights were frozen in training and are in no checkpoint "
            f"({', '.join(missing[:3])}...); give the file that has them with --base, or leave "
            "them out with --trained-only"
        )
    return {name: known[name].float() for name in names}


def _save(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write all tensors; the file is there whole or not at all."""
    unfinished = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".pt":
            torch.save(dict(tensors), unfinished)
        else:
            apart = {name: tensor.clone() for name, tensor in tensors.items()}  # the format's rule
            save_file(apart, unfinished, metadata={"format": "pt"})
        unfinished.replace(path)
    except (OSError, RuntimeError, SafetensorError) as error:  # each library has its own
        raise ConfigError(
            f"the weights cannot be written to {path} ({error}); make room there, or name another "
            "file by --to"
        ) from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


def parser() -> argparse.ArgumentParser:
    """Return the parser of `gemini-lab export`."""
    options = argparse.ArgumentParser(
        prog="gemini-lab export",
        description="Write a run's full fp32 weights to a file that loads without gemini_lab.",
    )
    options.add_argument(
        "run",
        nargs="?",
        default=LATEST,
        help="a run's folder, its name below --folder, 'latest', or the URL of a persistent tier "
        "(default: latest)",
    )
    options.add_argument("--folder", type=Path, default=RUNS_FOLDER, help=FOLDER_HELP)
    options.add_argument(
        "--to",
        required=True,
        type=Path,
        metavar="FILE",
        help="file to write: model.safetensors or model.pt",
    )
    options.add_argument(
        "--version",
        type=whole("version"),
        metavar="N",
        help="version to write (default: the newest good one)",
    )
    options.add_argument(
        "--base", type=Path, metavar="FILE", help="take frozen weights from this safetensors file"
    )
    options.add_argument("--trained-only", action="store_true", help="leave frozen weights out")
    return options


def command(arguments: list[str]) -> int:
    """Run `gemini-lab export [RUN] --to FILE`."""
    options = parser().parse_args(arguments)
    done = export_weights(
        options.run,
        to=options.to,
        version=options.version,
        base=options.base,
        trained_only=options.trained_only,
        below=options.folder,
    )
    for reason in done.skipped.values():
        tell(f"stepped over: {reason}")
    tell(
        f"version {done.version}: {done.tensors} tensors, {format_bytes(done.size_bytes)} "
        f"-> {done.path}"
    )
    return 0
