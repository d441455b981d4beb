"""Manifests: sealed JSON that describes the versions in a persistent tier."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import xxhash

from gemini_lab.recovery.plan import Stored, Unclear, VersionId, is_left
from gemini_lab.shard.layout import ShardRecord
from gemini_lab.shard.lineage import NO_LINEAGE, Lineage

MANIFEST: Final = "manifest.json"
Content = Mapping[str, Any]
"""The JSON values of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Contents of a persistent tier at one moment."""

    stored: list[Stored]  # the versions that exist and count, oldest first
    # Those that were saved and are not whole as this machine sees them, oldest first.
    unclear: list[Unclear]
    disowned: list[VersionId]  # what training went back behind, as the store was told: of any runs


def manifest_of(
    version: int, records: Sequence[ShardRecord], meta: Content, *, order: int
) -> dict[str, Any]:
    """Return a version's manifest.

    `order` is its place among the versions that were written.
    """
    return {
        "version": version,
        "order": order,
        "shards": [asdict(record) for record in sorted(records, key=lambda r: r.shard)],
        "meta": dict(meta),
    }


def sealed(content: Content) -> bytes:
    """Return a file's text, with the checksum of what it says."""
    return json.dumps({**content, "checksum": _checksum(content)}, sort_keys=True).encode()


def unsealed(text: bytes) -> dict[str, Any] | None:
    """Return a file's content; `None` if it is torn or its checksum does not match."""
    try:
        content: dict[str, Any] = json.loads(text)
        return content if content.pop("checksum") == _checksum(content) else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def lineage_of(manifest: Content) -> Lineage:
    """Return the history that a manifest's version is of."""
    told = manifest["meta"].get("lineage")
    return NO_LINEAGE if told is None else Lineage(**told)


def left_text(left: Sequence[VersionId]) -> bytes:
    """Return the file of what a run went back behind."""
    return sealed({"left": [asdict(one) for one in left]})


def left_in(text: bytes) -> list[VersionId] | None:
    """Return what such a file says; `None` if it cannot be read."""
    content = unsealed(text)
    if content is None:
        return None
    try:
        return [*map(_version_id, content["left"])]
    except (TypeError, KeyError):
        return None


def left_by(manifests: Mapping[int, Content]) -> list[VersionId]:
    """Return the versions that manifests mark as discarded after a rewind."""
    said = [one for manifest in manifests.values() for one in manifest["meta"].get("left", ())]
    return [*map(_version_id, said)]


def counting(manifests: Mapping[int, Content], told: Sequence[VersionId]) -> dict[int, Content]:
    """Return the versions that no manifest marks as discarded."""
    left = [*told, *left_by(manifests)]
    return {
        version: manifest
        for version, manifest in manifests.items()
        if not is_left(version, lineage_of(manifest), left)
    }


def _version_id(told: Content) -> VersionId:
    lineage, skips = Lineage(**told["lineage"]), told.get("skips", False)
    return VersionId(version=told["version"], lineage=lineage, skips=skips)


def _checksum(content: Content) -> str:
    """Return the checksum of what a file says, however its JSON is spaced."""
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())
