"""The key that signs cookies: a secret of this user's on this machine, made once and kept."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

KEY_BYTES: Final = 32
OWNERS: Final = 0o600


def state_folder() -> Path:
    """Where a user's programs keep what lasts (XDG Base Directory Specification)."""
    told = os.environ.get("XDG_STATE_HOME")
    return (Path(told) if told else Path.home() / ".local" / "state") / "gemini_lab"


def kept_key(folder: Path | None = None) -> bytes:
    """The user's key, the same at every start; a new one each time where none can be kept.

    Args:
        folder: Where it is; the user's own one if None.
    """
    with suppress(OSError, RuntimeError):  # nowhere to write, or no home
        path = (folder or state_folder()) / "cookies.key"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = path.with_suffix(f".{secrets.token_hex(4)}")
        unfinished.touch(mode=OWNERS)
        unfinished.write_bytes(secrets.token_bytes(KEY_BYTES))
        with suppress(FileExistsError):
            os.link(unfinished, path)  # whole from the start, and of two at once the first
        unfinished.unlink()
        found = path.stat()
        is_own = found.st_uid == os.getuid() and not found.st_mode & 0o077
        key = path.read_bytes()
        if is_own and len(key) == KEY_BYTES:
            return key
    return secrets.token_bytes(KEY_BYTES)
