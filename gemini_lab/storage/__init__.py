"""The persistent tier, for when no memory has a whole version."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemini_lab.storage.persistent import PersistentTier


def absolute_url(url: str, *, cwd: str) -> str:
    """Return the URL of a persistent tier that is valid in every working folder."""
    is_folder = ":" not in url and not url.startswith("~")  # else a driver's, to read or refuse
    return str(Path(cwd) / url) if is_folder else url


def persistent_tier(url: str, *, keep: int = 2) -> "PersistentTier":
    """Open the persistent tier at `url`; its drivers are loaded when it is first used."""
    from gemini_lab.storage.persistent import PersistentTier  # noqa: PLC0415

    return PersistentTier(url, keep=keep)
