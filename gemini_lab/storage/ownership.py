"""Whose a persistent tier is: two runs in one would take each other's versions for their own."""

import json
from collections.abc import Sequence
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.recovery.plan import Stored
from gemini_lab.storage.store_files import StoreFiles

_OWNER: Final = "owner.json"


class Ownership:
    """The word in a store of the run that owns it. Every call may raise `GeminiError`.

    Args:
        files: The store's.
    """

    def __init__(self, files: StoreFiles) -> None:
        self._files = files

    def owner(self) -> int | None:
        """The run whose store this is; `None` if it is nobody's."""
        with self._files.explained("read the owner of"):
            text = self._files.read(_OWNER)
        try:
            return int(json.loads(text)["run"])
        except (ValueError, TypeError, KeyError):
            return None  # not there, or torn while it was written: nobody has begun

    def take(self, run: int) -> None:
        """Make it `run`'s."""
        with self._files.explained("write to"):
            self._files.make_folder()
            self._files.put(_OWNER, [json.dumps({"run": run}).encode()])

    def require(self, run: int | None, stored: Sequence[Stored]) -> None:
        """Refuse a store that is another run's than `run`, or anybody's for a run to come.

        Args:
            run: The run's identity; `None`: it has none yet.
            stored: The versions that the store has.
        """
        if self.owner() in {None, run} and {one.lineage.run for one in stored} <= {run}:
            return
        versions = [one.version for one in stored]
        has = f"it has its versions {versions}" if versions else "it has no version yet"
        raise ConfigError(
            f"the persistent tier {self._files.url} belongs to another run, and {has}; name "
            "another folder, or go on from that run with --resume (resume=True)"
        )

    def require_kept(self, run: int) -> None:
        """Refuse a store that `run` had, and has lost to another: it writes no more into it."""
        if self.owner() not in {None, run}:
            raise ConfigError(
                f"the persistent tier {self._files.url} was taken over by another run; this one's "
                "versions are in memory alone now"
            )
