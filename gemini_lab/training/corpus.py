"""The text a model reads, and the order in which it reads it.

The default text is the source and documentation of the running Python, which every machine has.
"""

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from torch import Tensor

from gemini_lab.errors import ConfigError
from gemini_lab.log.file import user_cache
from gemini_lab.units import MIB

_LEFT_OUT: Final = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
WIKIPEDIA: Final = "wikipedia"
HUGGING_FACE: Final = "hf:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A text as bytes."""

    name: str  # where it comes from, for people
    text: bytes = field(repr=False)  # the bytes, in an order that is the same on every node

    def digest(self) -> str:
        """Return a fingerprint: equal for equal texts, so that nodes and restarts can compare."""
        return hashlib.blake2b(self.text, digest_size=16).hexdigest()


def load_corpus(source: str | None = None) -> Corpus:
    """Return the corpus meant by a `--corpus` option.

    Args:
        source: A file, a folder (all files below it), `"wikipedia"` for English Wikipedia,
            `"hf:PATH"` for another Hugging Face data set with a `text` column; None for Python's
            own source and documentation.

    Raises:
        ConfigError: There is no such text, or it cannot be reached.
    """
    if source is None:
        return python_corpus()
    if source == WIKIPEDIA:
        return hugging_face_corpus("wikimedia/wikipedia", subset="20231101.en")
    if source.startswith(HUGGING_FACE):
        return hugging_face_corpus(source.removeprefix(HUGGING_FACE))
    return folder_corpus(Path(source))


def python_corpus() -> Corpus:
    """Return Python's standard library (source and `pydoc_data` topics), without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    files = (
        file for file in _files(root, is_left_out=_LEFT_OUT.__contains__) if file.suffix == ".py"
    )
    version = sysconfig.get_python_version()
    return Corpus(name=f"the source and documentation of Python {version}", text=_joined(files))


def require_text(source: str) -> None:
    """Refuse a `--corpus` that names a missing place, without reading.

    Raises:
        ConfigError: It does.
    """
    if source != WIKIPEDIA and not source.startswith(HUGGING_FACE) and not Path(source).exists():
        raise ConfigError(f"no text is at {source}; give --corpus a file or a folder that exists")


def folder_corpus(path: Path) -> Corpus:
    """Return the file at `path`, or all files in the folder at `path`, hidden ones left out.

    Raises:
        ConfigError: Nothing is there, or nothing to read is in it.
    """
    require_text(str(path))
    files: Iterator[Path] = iter([path])
    if path.is_dir():
        files = _files(path, is_left_out=lambda name: name.startswith("."))
    text = _joined(files)
    if not text:
        raise ConfigError(f"{path} holds no text (0 bytes); give --corpus a folder with files")
    return Corpus(name=str(path), text=text)


def hugging_face_corpus(
    path: str, *, subset: str | None = None, limit_bytes: int = 64 * MIB, cache: Path | None = None
) -> Corpus:
    """Stream the first `limit_bytes` of a data set's `text` column, and cache them on disk.

    It is kept because a worker that starts again after a failure must read the same bytes, at once
    and without the network.

    Args:
        path: A data set's name on the Hub, or a local folder of one.
        subset: Its configuration, where it has several.
        limit_bytes: How much of it to read.
        cache: Folder in which the text is kept; by default one in the user's cache folder.

    Raises:
        ConfigError: `datasets` is not installed, or the data set cannot be read.
    """
    folder = cache or user_cache() / "gemini-lab"
    key = hashlib.blake2b(f"{path}|{subset}|{limit_bytes}".encode(), digest_size=8).hexdigest()
    kept = folder / f"{key}.txt"
    if not kept.exists():
        text = _streamed(path, subset, limit_bytes)
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{key}.{os.getpid()}.part"
        partial.write_bytes(text)
        partial.replace(kept)
    return Corpus(name=f"{path} ({subset})" if subset else path, text=kept.read_bytes())


class TokenBatches:
    """Endless batches of a corpus for one rank, with a position that can be saved and restored.

    The corpus is cut into blocks that do not overlap. Each epoch deals all of them to the ranks in
    a new order drawn from `seed`; which blocks batch number n has depends on nothing but n.
    Follows the protocol of `torchdata`'s stateful data sets.
    """

    def __init__(
        self,
        corpus: Corpus,
        batch_size: int,
        block_size: int,
        seed: int = 0,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Start before the first batch.

        Raises:
            ConfigError: A size is below 1, or the corpus has too few bytes for one batch.
        """
        if min(batch_size, block_size, world_size) < 1 or not 0 <= rank < world_size:
            raise ConfigError(
                f"batch size, block size and world size must be at least 1 and the rank below the "
                f"world size (got {batch_size}, {block_size}, {world_size}, rank {rank})"
            )
        needed = batch_size * world_size * block_size + 1
        if len(corpus.text) < needed:
            raise ConfigError(
                f"a batch of {batch_size} blocks of {block_size} bytes for {world_size} ranks "
                f"needs {needed} bytes and {corpus.name} has {len(corpus.text)}; "
                "give more text or make batch or block smaller"
            )
        self._tokens = torch.frombuffer(bytearray(corpus.text), dtype=torch.uint8)
        self._blocks = (len(corpus.text) - 1) // block_size
        self._batch_size, self._block_size = batch_size, block_size
        self._rank, self._world_size, self._seed = rank, world_size, seed
        self._identity = {
            "corpus": corpus.digest(),
            "batch_size": batch_size,
            "block_size": block_size,
            "seed": seed,
            "rank": rank,
            "world_size": world_size,
        }
        self._order: tuple[int, np.ndarray[Any, np.dtype[np.int64]]] = (-1, np.empty(0, np.int64))
        self.position = 0
        """Return the number of batches given out so far."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        """Return the next inputs and targets: int64, both of shape (batch_size, block_size)."""
        first = (self.position * self._world_size + self._rank) * self._batch_size
        starts = [self._block(first + i) * self._block_size for i in range(self._batch_size)]
        rows = [self._tokens[start : start + self._block_size + 1] for start in starts]
        batch = torch.stack(rows).long()  # batch_size, block_size + 1
        self.position += 1
        return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and what it is a position in."""
        return {"position": self.position, **self._identity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a position that `state_dict` gave.

        Raises:
            ConfigError: It is a position in another text or another way to read it.
        """
        for name, here in self._identity.items():
            if state.get(name) != here:
                raise ConfigError(
                    f"the saved position in the data has {name}={state.get(name)!r} and this run "
                    f"has {here!r}; start it with the same corpus and settings, or start afresh"
                )
        self.position = int(state["position"])

    def reshard_state_dict(
        self, states: Sequence[Mapping[str, Any]], *, rank: int, world_size: int
    ) -> dict[str, Any]:
        """Return this rank's position after the blocks that another world size had read.

        Raises:
            ConfigError: They had not read a whole number of this rank's batches, or stood apart.
        """
        then = states[0]
        blocks = then["position"] * then["batch_size"] * then["world_size"]
        position, left = divmod(blocks, self._batch_size * world_size)
        if left or any(one["position"] != then["position"] for one in states):
            raise ConfigError(
                f"{then['world_size']} ranks have read {blocks} blocks, which {world_size} ranks "
                f"do not with batches of {self._batch_size}; keep ranks x batch x accumulation "
                "what it was"
            )
        here = {"batch_size": self._batch_size, "rank": rank, "world_size": world_size}
        return {**then, **here, "position": position}

    def _block(self, number: int) -> int:
        """Return the block at place `number` in the endless order of all epochs."""
        epoch, place = divmod(number, self._blocks)
        if self._order[0] != epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._order = (epoch, generator.permutation(self._blocks))
        return int(self._order[1][place])


def _files(root: Path, *, is_left_out: Callable[[str], bool]) -> Iterator[Path]:
    """Yield all files below `root`, except in folders whose names are left out.

    Beside Python's own text lie the packages that are installed, which are many more files.
    """
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if not is_left_out(name)]
        yield from (Path(folder, name) for name in names if not is_left_out(name))


def _joined(paths: Iterator[Path]) -> bytes:
    """Return the bytes of all files among `paths`, in the order of their names."""
    files = sorted((path for path in paths if path.is_file()), key=lambda path: path.as_posix())
    return b"\n".join(path.read_bytes() for path in files)


def _streamed(path: str, subset: str | None, limit_bytes: int) -> bytes:
    try:
        import datasets  # noqa: PLC0415 - optional and slow to import
    except ImportError as error:
        raise ConfigError(
            f"reading {path} needs the `datasets` package, which is not installed; "
            "run: pip install 'gemini-lab[data]'"
        ) from error
    parts: list[bytes] = []
    size_bytes = 0
    try:
        for record in datasets.load_dataset(path, subset, split="train", streaming=True):
            parts.append(record["text"].encode() + b"\n")
            size_bytes += len(parts[-1])
            if size_bytes >= limit_bytes:
                break
    except KeyError as error:
        raise ConfigError(
            f"the data set {path} has no column `text`; choose one that has"
        ) from error
    except Exception as error:  # its readers raise errors of many libraries
        raise ConfigError(
            f"the data set {path} cannot be read ({type(error).__name__}: {error}); "
            "check its name and the network, or give --corpus a folder"
        ) from error
    if not parts:
        raise ConfigError(f"the data set {path} is empty; choose another")
    return b"".join(parts)[:limit_bytes]
