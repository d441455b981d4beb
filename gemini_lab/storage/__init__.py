"""The persistent tier, for when no memory has a whole version."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemini_lab.storage.persistent import PersistentTier


def absolute_url(url: str, *, cwd: str) -> str:
    """The URL of a persistent tier that is the same one for all who use it, wherever they run.

    Args:
        url: A folder may be relative.
        cwd: To which.
    """
    is_folder = ":" not in url and not url.startswith("~")  # else a driver's, to read or refuse
    return str(Path(cwd) / url) if is_folder else url


def persistent_tier(url: str, *, keep: int = 2) -> "PersistentTier":
    """The persistent tier at `url`; its drivers are loaded when it is first used."""
    from gemini_lab.storage.persistent import PersistentTier  # noqa: PLC0415

    return PersistentTier(url, keep=keep)
