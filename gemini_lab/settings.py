"""A protected job's settings: the `"gemini"` block of `ds_config.json`, checked at the door."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from gemini_lab.errors import ConfigError
from gemini_lab.units import MIB, parse_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a job's checkpoints are kept.

    Attributes:
        replicas: Copies of each shard in CPU memory, the owner's own included (the paper's m).
        strategy: Placement: `"auto"` (group where replicas divides nodes, else mixed), `"group"`,
            `"ring"` or `"mixed"`.
        chunk_bytes: What one checksum covers and one message carries.
        persistent_url: Where the persistent tier lies (any fsspec URL); `None` switches it off.
        persist_every_s: A version goes to the persistent tier this often (the paper: 3 hours).
        persist_every_iterations: The same counted in iterations; whichever comes first.
        keep_versions: Persistent versions that are kept; older ones are deleted.
        min_progress_s: A worker that finishes no iteration for this long, or for ten times the
            median iteration if that is longer, counts as hung.
        start_s: A worker that has not finished its first iteration by then counts as hung.
    """

    replicas: int = 2
    strategy: str = "auto"
    chunk_bytes: int = 4 * MIB
    persistent_url: str | None = None
    persist_every_s: float | None = 3 * 3600.0
    persist_every_iterations: int | None = None
    keep_versions: int = 2
    min_progress_s: float = 30.0
    start_s: float = 900.0

    def __post_init__(self) -> None:
        for name in ("replicas", "chunk_bytes", "keep_versions", "min_progress_s", "start_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above zero (got {getattr(self, name)})")
        for name in ("persist_every_s", "persist_every_iterations"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be above zero, or null for never (got {value})")

    @classmethod
    def parse(cls, block: Mapping[str, Any]) -> "Settings":
        """The settings in a `"gemini"` block; sizes may be written like `"4 MiB"`.

        Raises:
            ConfigError: A name is unknown or a value impossible.
        """
        return cls().updated(block)

    def updated(self, changes: Mapping[str, Any]) -> "Settings":
        """These settings with some replaced."""
        known = [field.name for field in fields(self)]
        unknown = sorted(set(changes) - set(known))
        if unknown:
            raise ConfigError(
                f"the gemini settings have no {', '.join(map(repr, unknown))}; "
                f"they are {', '.join(known)}"
            )
        values = dict(changes)
        if "chunk_bytes" in values:
            values["chunk_bytes"] = parse_bytes(values["chunk_bytes"])
        try:
            return replace(self, **values)
        except TypeError as error:
            raise ConfigError(f"a gemini setting has the wrong type: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """The settings as plain JSON values; `parse` reads them."""
        return asdict(self)
