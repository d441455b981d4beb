"""The persistent tier of a campaign's runs: it can be away, full, flipped and torn."""

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Final, Self

from gemini_lab.errors import ConfigError
from gemini_lab.storage.persistent import MANIFEST

DISK_BYTES: Final = 1 << 26
BLOCK: Final = b"x" * (1 << 20)


def can_be_full() -> bool:
    """Whether a disk of its own can be had: that needs root."""
    return os.geteuid() == 0


class BreakableTier:
    """A folder on a way that can be closed; on a small disk of its own where root is given.

    Args:
        folder: Where it is to be; it is made.

    Attributes:
        url: What to tell the run.
    """

    def __init__(self, folder: Path) -> None:
        self._way = folder / "way"
        self.url = self._way / "tier"
        self._disk = folder / "disk"
        self._data = self._disk / "tier"
        self._is_mounted = False

    def __enter__(self) -> Self:
        self._disk.mkdir(parents=True, exist_ok=True)
        if can_be_full():
            options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "gemini_lab-chaos"]
            done = subprocess.run(["mount", *options, self._disk], capture_output=True, check=False)
            self._is_mounted = done.returncode == 0
        self._data.mkdir(exist_ok=True)
        self._lead_to(self._disk)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_mounted:
            subprocess.run(["umount", "--lazy", self._disk], capture_output=True, check=False)

    def go_away(self) -> None:
        """From now on whoever comes here gets an error of the system's, never an empty folder."""
        self._lead_to(self._way)  # to itself

    def come_back(self) -> None:
        """All is there again."""
        self._lead_to(self._disk)

    def fill(self) -> None:
        """Leave no byte free.

        Raises:
            ConfigError: It has no disk of its own.
        """
        if not self._is_mounted:
            raise ConfigError("the tier has no disk of its own to fill: that needs root")
        with self._ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(BLOCK) == len(BLOCK):
                pass

    def empty(self) -> None:
        """Give the space back."""
        self._ballast.unlink(missing_ok=True)

    def flip(self, bit: int) -> str:
        """Turn one bit in a shard of the newest version; says where.

        Raises:
            ConfigError: Nothing is there yet.
        """
        file = max(self._newest().glob("shard-*"), default=None, key=lambda path: path.name)
        if file is None:
            raise ConfigError("the newest version in the tier has no shard yet")
        with file.open("r+b", buffering=0) as opened:
            at = bit // 8 % file.stat().st_size
            opened.seek(at)
            byte = opened.read(1)[0]
            opened.seek(at)
            opened.write(bytes([byte ^ 1 << bit % 8]))
        return f"byte {at} of {file.parent.name}/{file.name}"

    def tear(self) -> str:
        """Cut the newest manifest in half; says which.

        Raises:
            ConfigError: Nothing is there yet.
        """
        file = self._newest() / MANIFEST
        os.truncate(file, file.stat().st_size // 2)
        return f"{file.parent.name}/{file.name}"

    @property
    def _ballast(self) -> Path:
        return self._disk / "ballast"

    def _newest(self) -> Path:
        found = sorted(path.parent for path in self._data.glob(f"version-*/{MANIFEST}"))
        if not found:
            raise ConfigError("no version is in the tier yet")
        return found[-1]

    def _lead_to(self, target: Path) -> None:
        made = self._way.with_name("way-new")
        made.unlink(missing_ok=True)
        made.symlink_to(target)
        made.replace(self._way)  # in one step: nobody finds nothing here
