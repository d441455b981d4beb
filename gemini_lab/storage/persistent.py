"""The persistent tier: whole versions in any store that fsspec reaches, for when memory is lost.

    URL/version-000000000012/shard-0000-<digest>.safetensors    one for each rank
    URL/version-000000000012/manifest.json                      last: all checksums, and its own
    URL/left-<run>.json                                         what that run went back behind

A version exists when its manifest is whole and every shard file that it names is there. One with a
manifest that cannot be parsed, or without a file that this names, is *unclear*: it was saved, and a
store that is slow, stale or behind a proxy may show it again. File names
carry the digest, so writing a version once more never touches the files of one that exists. A
manifest also says which versions training had gone back behind by then: these count no more. As a
run may end before its next version is there, a file says so, too, as soon as training goes back.
"""

import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import xxhash

from gemini_lab.errors import (
    CapacityError,
    ConfigError,
    GeminiError,
    IntegrityError,
    UnreadError,
)
from gemini_lab.recovery.plan import Stored, Unclear, VersionId, joined
from gemini_lab.seats import listed
from gemini_lab.shard.layout import ShardLayout, ShardRecord
from gemini_lab.storage.manifest import (
    MANIFEST,
    Content,
    Survey,
    counting,
    left_by,
    left_in,
    left_text,
    lineage_of,
    manifest_of,
    sealed,
    unsealed,
)
from gemini_lab.storage.shard_file import pack_header, unpack
from gemini_lab.storage.store_files import Ownership, StoreFiles
from gemini_lab.storage.stored_shard import CHUNK_BYTES, StoredShard, digest_chunks, verified
from gemini_lab.units import MIB, format_bytes

_FOLDER: Final = "version-"
_READ_BYTES: Final = 16 * MIB
_LEFT: Final = re.compile(r"left-(\d+)\.json", re.ASCII)


class PersistentTier:
    """A store of whole versions.

    Args:
        url: A folder, or any fsspec URL (`s3://bucket/run`, `gs://...`); the drivers are the
            user's own.
        keep: How many versions stay; of more, those written first are removed.
        storage_options: What the driver needs to know, such as credentials or an endpoint.

    Raises:
        ConfigError: There is no driver for the URL, or `keep` is below 1.
    """

    def __init__(self, url: str, *, keep: int = 2, storage_options: Content | None = None) -> None:
        if keep < 1:
            raise ConfigError(f"keep={keep} versions would keep none; keep 1 or more")
        self.url = url
        self.keep = keep
        self._files = StoreFiles(url, storage_options or {})
        self._ownership = Ownership(self._files)

    # -- whose it is -----------------------------------------------------------------------------

    def claim(self, run: int, *, is_resumed: bool = False) -> None:
        """Make the folder `run`'s: two runs in one would take each other's versions for their own.

        If `is_resumed`, the run goes on from what another run left here.

        Raises:
            ConfigError: It is another run's.
            GeminiError: The store failed.
        """
        if not is_resumed:
            self._ownership.require(run, self.survey())
        self._ownership.take(run)

    def look(self, *, is_resumed: bool = False) -> None:
        """Refuse what `check` and a new run's `claim` would, as far as it shows without writing.

        Raises:
            ConfigError: It is another run's, or a folder in which nobody here may write.
            GeminiError: The store failed.
        """
        if not is_resumed:
            self._ownership.require(None, self.survey())
        with self._files.explained("write to"):
            self._files.require_writable()

    def owner(self) -> int | None:
        """Return the run that owns this folder, or `None`.

        Raises:
            GeminiError: The store failed.
        """
        return self._ownership.owner()

    # -- writing -------------------------------------------------------------------------------

    def check(self, size_bytes: int = 0) -> None:
        """Refuse a store that cannot be written to, or says that it has no room for `size_bytes`.

        Raises:
            ConfigError: It cannot be written to.
            CapacityError: It is full, or too small.
        """
        with self._files.explained("write to"):
            self._files.try_to_write()
        free_bytes = self._files.free_bytes()
        if free_bytes is not None and free_bytes < size_bytes:
            raise CapacityError(
                f"the persistent tier {self.url} needs {format_bytes(size_bytes)}, but "
                f"{format_bytes(free_bytes)} are free; free space, keep fewer versions or "
                "name another store"
            )

    def write_shard(
        self,
        version: int,  # its version
        shard: int,  # its rank
        payload: bytes | bytearray | memoryview,  # as it lies in a slab
        layout: ShardLayout,  # what lies where in it; it goes into the file
    ) -> ShardRecord:
        """Write one shard of a version that does not exist yet.

        Returns:
            Its record for `commit`.

        Raises:
            GeminiError: The store failed, is full or read-only; nothing is lost but this version.
        """
        header = pack_header(memoryview(payload).nbytes, layout)
        hasher = xxhash.xxh3_128(header)
        hasher.update(payload)
        chunk_digests = digest_chunks(header, payload)
        folder = _folder(version)
        name = f"shard-{shard:04}-{hasher.hexdigest()}.safetensors"
        size_bytes = len(header) + memoryview(payload).nbytes
        with self._files.explained(f"write {format_bytes(size_bytes)} of version {version} to"):
            self._files.make_folder(folder)
            self._files.put(f"{folder}/{name}", [header, payload])
            stored_bytes = self._files.size_bytes(f"{folder}/{name}")
        if stored_bytes != size_bytes:
            raise IntegrityError(
                f"of shard {shard} of version {version}, {stored_bytes} of {size_bytes} bytes "
                f"reached {self.url}; check the store"
            )
        self._read_back(f"{folder}/{name}", [header, payload], shard=shard, version=version)
        return ShardRecord(
            shard=shard,
            file=name,
            size_bytes=size_bytes,
            digest=hasher.hexdigest(),
            chunk_bytes=CHUNK_BYTES,
            chunk_digests=chunk_digests,
        )

    def _read_back(
        self,
        path: str,
        parts: Sequence[bytes | bytearray | memoryview],
        *,
        shard: int,
        version: int,
    ) -> None:
        """Refuse a file that the store does not return as it was written: it keeps nothing then."""
        at = 0
        for part in parts:
            view = memoryview(part).cast("B")
            for start in range(0, len(view), _READ_BYTES):
                wanted = view[start : start + _READ_BYTES]
                with self._files.explained(f"read back shard {shard} of version {version} from"):
                    found = self._files.read(path, at, at + len(wanted))
                if found != wanted:
                    raise IntegrityError(
                        f"shard {shard} of version {version} was written to {self.url}, but bytes "
                        f"{at} to {at + len(wanted)} were not read back as they were written "
                        f"({len(found)} came); check the store"
                    )
                at += len(wanted)

    def commit(self, version: int, records: Sequence[ShardRecord], meta: Content) -> None:
        """Make a version exist; once its manifest was read back, remove the oldest beyond `keep`.

        `records` are what `write_shard` returned for every shard; `meta` holds plain JSON values.

        Raises:
            IntegrityError: A shard is missing, or this machine does not see what others wrote.
            GeminiError: The store failed, is full or read-only; nothing was removed then.
        """
        shards = sorted(record.shard for record in records)
        if not shards or shards != list(range(len(shards))):
            raise IntegrityError(
                f"version {version} has shards {shards}; every rank's shard is needed once"
            )
        if (told := meta.get("lineage")) is not None:
            self._ownership.require_kept(told["run"])
        self._require_seen(version, records)
        manifests, _ = self._manifests()
        order = 1 + max((one["order"] for one in manifests.values()), default=0)
        content = manifest_of(version, records, meta, order=order)
        with self._files.explained(f"write the manifest of version {version} to"):
            self._files.put(f"{_folder(version)}/{MANIFEST}", [sealed(content)])
        if self.manifest(version) != content:
            raise UnreadError(
                f"version {version} was written to {self.url}, and another manifest of it was read "
                "back; check the store"
            )
        self._clean(version, content)

    def _require_seen(self, version: int, records: Sequence[ShardRecord]) -> None:
        """Refuse where each machine has written to a disk of its own, as without a shared mount."""
        folder = _folder(version)
        sizes = self._files.listing(folder)
        with self._files.explained("look into"):
            away = [
                one.shard
                for one in records
                if one.size_bytes != sizes.get(one.file)  # a listing may be old
                and one.size_bytes != self._files.size_bytes(f"{folder}/{one.file}")
            ]
        if away:
            raise IntegrityError(
                f"shard {listed(away)} of version {version} was written, but not into {self.url} "
                "as this machine sees it; name a store that is one and the same on all machines"
            )

    def disown(self, left: Sequence[VersionId]) -> None:
        """Discard versions that training has gone back behind.

        Raises:
            GeminiError: The store failed, is full or read-only: they still count.
        """
        of_run: dict[int, list[VersionId]] = {}
        for one in left:
            of_run.setdefault(one.lineage.run, []).append(one)
        known = self._left()
        for run, more in of_run.items():
            before = [one for one in known if one.lineage.run == run]
            with self._files.explained("write what was left behind into"):
                self._files.make_folder()
                self._files.put(f"left-{run}.json", [left_text(joined(before, more))])

    def _left(self) -> list[VersionId]:
        """Return what the files say that were written when training went back.

        Raises:
            UnreadError: One cannot be read: versions that it names must not count meanwhile.
        """
        found: list[VersionId] = []
        for name in filter(_LEFT.fullmatch, self._files.listing()):
            with self._files.explained("read what was left behind in"):
                text = self._files.record(name)
            if (left := left_in(text)) is None:
                raise UnreadError(
                    f"{self.url} has {name}, which says which versions no longer count, and it "
                    f"cannot be read: {len(text)} bytes, {text[:40]!r}; read it again, or remove "
                    "it if all versions there count"
                )
            found += left
        return found

    def _clean(self, written: int, manifest: Content) -> None:
        """Remove versions beyond `keep`, those that were left, and what never became a version."""
        try:
            # Read again: whoever was held up before this may find what others wrote meanwhile.
            manifests, unclear = self._manifests()
            manifests[written] = dict(manifest)
            good = counting(manifests, self._left())
            by_age = sorted(good, key=lambda version: good[version]["order"])
            # What another history has beyond this version stays until this one has passed it.
            kept = {*by_age[-self.keep :], *(version for version in good if version > written)}
            # A version that is unclear now may be whole tomorrow: all that are kept must be newer.
            kept |= {version for version in unclear if version > min(kept)}
            with self._files.explained("remove old versions from"):
                for version in self._versions_begun():
                    is_known = version in manifests or version in unclear or version < written
                    if version not in kept and is_known:
                        with suppress(FileNotFoundError):
                            self._files.remove(f"{_folder(version)}/{MANIFEST}")
                        self._files.remove_folder(_folder(version))
                names = {record["file"] for record in manifest["shards"]}
                for name in self._files.listing(_folder(written)).keys() - names - {MANIFEST}:
                    self._files.remove(f"{_folder(written)}/{name}")
                runs = {lineage_of(manifests[v]).run for v in kept if v in manifests}
                for name in self._files.listing():
                    told = _LEFT.fullmatch(name)
                    if told and int(told[1]) not in runs and not unclear:
                        self._files.remove(name)
        except GeminiError as error:
            warnings.warn(f"version {written} is whole, but {error}", stacklevel=3)

    # -- reading -------------------------------------------------------------------------------

    def versions(self) -> list[int]:
        """Return the versions that count, oldest first; shards' sizes are checked, not their bytes.

        Raises:
            GeminiError: The store cannot be read.
        """
        return [one.version for one in self.survey().stored]

    def survey(self) -> Survey:
        """Read what is here; shards' sizes are checked, not their bytes.

        Raises:
            GeminiError: The store cannot be read.
        """
        manifests, unclear = self._manifests()
        left = self._left()
        return Survey(
            stored=[
                Stored(version=version, lineage=lineage_of(manifest))
                for version, manifest in sorted(counting(manifests, left).items())
            ],
            unclear=[Unclear(version=version, seen=seen) for version, seen in unclear.items()],
            disowned=[*joined(left, left_by(manifests))],
        )

    def manifest(self, version: int) -> dict[str, Any]:
        """Return a version's manifest: `version`, `shards` (the records), `meta`, `order`.

        Raises:
            UnreadError: There is none, or what is there is none of this version.
        """
        with self._files.explained(f"read version {version} from"):
            text = self._files.record(f"{_folder(version)}/{MANIFEST}")
        content = unsealed(text)
        if content is not None and content.get("version") == version:
            return content
        seen = f"cannot be parsed: {len(text)} bytes, {text[:40]!r}" if text else "is not there"
        raise UnreadError(
            f"version {version} cannot be read from {self.url}: its manifest {seen}; read it "
            "again, or use another version"
        )

    def read_file(self, version: int, shard: int) -> tuple[memoryview, ShardLayout]:
        """Return a shard's payload as it lay in the slab, and the layout that was stored with it.

        Every bit is verified.

        Raises:
            IntegrityError: A bit is wrong, or the version has no such shard.
            UnreadError: The store does not return it now.
        """
        records = self._records(version)
        if shard not in range(len(records)):
            raise IntegrityError(
                f"version {version} has shards {[one.shard for one in records]}, not {shard}; read "
                "it with as many ranks as wrote it"
            )
        record = records[shard]
        data = verified(
            lambda: self._read(version, record),
            lambda data: xxhash.xxh3_128_hexdigest(data) == record.digest,
            size_bytes=record.size_bytes,
            where=f"shard {shard} of version {version} in {self.url}",
        )
        return unpack(data)

    def shards(self, version: int) -> int:
        """Return how many shards make a version.

        Raises:
            UnreadError: Its manifest cannot be read.
        """
        return len(self._records(version))

    def open_shards(self, version: int) -> list[StoredShard]:
        """Open all shards of a version to read parts of them; each part read is verified.

        Raises:
            IntegrityError: The beginning of a shard is damaged.
            UnreadError: It cannot be read now.
        """
        return [
            StoredShard(
                record,
                partial(self._read, version, record),
                where=f"shard {record.shard} of version {version} in {self.url}",
            )
            for record in self._records(version)
        ]

    def _records(self, version: int) -> list[ShardRecord]:
        return [ShardRecord(**record) for record in self.manifest(version)["shards"]]

    def _read(
        self, version: int, record: ShardRecord, start: int | None = None, end: int | None = None
    ) -> bytes:
        """Read a shard's file, or a part of it; return nothing if it is gone."""
        with self._files.explained(f"read shard {record.shard} of version {version} from"):
            return self._files.read(f"{_folder(version)}/{record.file}", start, end)

    def _manifests(self) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
        """Read the manifests of existing versions; for unclear ones return what was seen."""
        found, unclear = dict[int, dict[str, Any]](), dict[int, str]()
        for version in self._versions_begun():
            sizes = self._files.listing(_folder(version))
            try:
                manifest = self.manifest(version)
            except UnreadError as error:
                if MANIFEST in sizes:  # without one it never was a version, as far as it shows
                    unclear[version] = str(error)
                continue
            wrong = [
                r["file"] for r in manifest["shards"] if sizes.get(r["file"]) != r["size_bytes"]
            ]
            if wrong:
                some = ", ".join(f"{sizes.get(name, 'no')} bytes of {name}" for name in wrong[:2])
                unclear[version] = f"version {version} is not whole in {self.url}: it shows {some}"
            else:
                found[version] = manifest
        return found, unclear

    def _versions_begun(self) -> list[int]:
        """Return the versions that have a folder, incomplete ones included."""
        names = self._files.listing().keys()
        numbers = [name.removeprefix(_FOLDER) for name in names if name.startswith(_FOLDER)]
        return sorted(int(number) for number in numbers if number.isdecimal())


def _folder(version: int) -> str:
    return f"{_FOLDER}{version:012}"
