"""The persistent tier, for when no memory has a whole version."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemini_lab.storage.persistent import PersistentTier


def persistent_tier(url: str, *, keep: int = 2) -> "PersistentTier":
    """The persistent tier at `url`; its drivers are loaded when it is first used."""
    from gemini_lab.storage.persistent import PersistentTier  # noqa: PLC0415

    return PersistentTier(url, keep=keep)
