"""The persistent tier of a campaign's runs: it can be away, full, slow, hung, flipped and torn."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from gemini_lab.errors import ConfigError
from gemini_lab.storage.manifest import MANIFEST
from gemini_lab_bench.chaos.means import why_no_disk

DISK_BYTES: Final = 1 << 28
"""Room for what is not removed while lists are late, or empty; most of it is a hole at first."""

HANG: Final = 'fsfreeze -f "$0" && echo frozen && read -r _; fsfreeze -u "$0"'
CRAWL: Final = """
while fsfreeze -f "$0" && echo frozen; do
  read -r -t 0.4 _; ended=$?
  fsfreeze -u "$0"
  [ $ended -gt 128 ] || exit
  sleep 0.04
done
"""
"""Programs that freeze the disk until their input ends: so it thaws however a campaign ends."""


class BreakableTier:
    """A folder on a way that can be closed; on a small disk of its own where root is given.

    Args:
        folder: Where it is to be; it is made.
    """

    def __init__(self, folder: Path) -> None:
        self._way = folder / "way"
        self.url = self._way / "tier"  # what to tell the run
        self._disk = folder / "disk"
        self.data = self._disk / "tier"  # where its files are, whatever the way there leads to
        self.spoilt: set[int] = set()  # the versions of which a bit was turned, or a file cut
        self._is_mounted = False
        self._is_to_empty = False
        self._freezers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._disk.mkdir(parents=True, exist_ok=True)
        if why_no_disk() is None:
            self._is_mounted = self._mount()
        self.data.mkdir(exist_ok=True)
        self._lead_to(self._disk)
        return self

    def __exit__(self, *_: object) -> None:
        self.thaw()
        if self._is_mounted:
            subprocess.run(["umount", "--lazy", self._disk], capture_output=True, check=False)

    def _mount(self) -> bool:
        """Make and mount a small disk, which can be full and frozen; return whether that worked."""
        image = self._disk.with_name("disk.img")
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        make = ["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal"]
        mount = ["mount", "-o", "loop,noatime", str(image)]
        return all(
            subprocess.run(command, capture_output=True, check=False).returncode == 0
            for command in ([*make, str(image)], [*mount, str(self._disk)])
        )

    def go_away(self) -> None:
        """Answer with an error of the system's from now on, never with an empty folder."""
        self._lead_to(self._way)  # to itself

    def come_back(self) -> None:
        self._lead_to(self._disk)

    def fill(self) -> None:
        """Leave no byte free.

        Raises:
            ConfigError: It has no disk of its own, or is frozen.
        """
        self._check_disk()
        with self._ballast.open("wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(self._disk).free)
            file.seek(0, os.SEEK_END)
            for block_bytes in (1 << 20, 1 << 12):  # the last ones singly
                with contextlib.suppress(OSError):
                    while file.write(bytes(block_bytes)):
                        pass

    def empty(self) -> None:
        """Give the space back: of a disk that is frozen, where that thaws.

        Whoever removes a file there now would stand still, too, and could not let it thaw.
        """
        self._is_to_empty = bool(self._freezers)
        if not self._is_to_empty:
            self._ballast.unlink(missing_ok=True)

    def freeze(self, *, now_and_then: bool) -> Callable[[], None]:
        """Stop writers in the kernel; return what ends that.

        Args:
            now_and_then: Let writes through for a moment twice a second, so that they crawl.

        Raises:
            ConfigError: It has no disk of its own, or is frozen.
        """
        self._check_disk()
        freezer = subprocess.Popen(
            ["bash", "-c", CRAWL if now_and_then else HANG, str(self._disk)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert freezer.stdout is not None
        freezer.stdout.readline()
        self._freezers.append(freezer)
        return self.thaw

    def thaw(self) -> None:
        for freezer in self._freezers:
            freezer.communicate()
        self._freezers.clear()
        if self._is_to_empty:
            self.empty()

    def flip(self, bit: int) -> str:
        """Turn one bit in a shard of the newest version; says where.

        Raises:
            ConfigError: Nothing is there yet, or it is frozen.
        """
        self._check_thawed()
        file = max(self._to_spoil().glob("shard-*"), default=None, key=lambda path: path.name)
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
            ConfigError: Nothing is there yet, or it is frozen.
        """
        self._check_thawed()
        file = self._to_spoil() / MANIFEST
        os.truncate(file, file.stat().st_size // 2)
        return f"{file.parent.name}/{file.name}"

    def _check_disk(self) -> None:
        if not self._is_mounted:
            raise ConfigError(why_no_disk() or "the tier's own disk could not be mounted")
        self._check_thawed()

    def _check_thawed(self) -> None:
        """Refuse a disk on which the campaign itself could stand still."""
        if self._freezers:
            raise ConfigError("the tier's disk is frozen just now")

    @property
    def _ballast(self) -> Path:
        return self._disk / "ballast"

    def _to_spoil(self) -> Path:
        """Return the folder of the newest version, which counts as spoilt from now on."""
        found = sorted(path.parent for path in self.data.glob(f"version-*/{MANIFEST}"))
        if not found:
            raise ConfigError("no version is in the tier yet")
        self.spoilt.add(int(found[-1].name.removeprefix("version-")))
        return found[-1]

    def _lead_to(self, target: Path) -> None:
        made = self._way.with_name("way-new")
        made.unlink(missing_ok=True)
        made.symlink_to(target)
        made.replace(self._way)  # in one step: nobody finds nothing here
