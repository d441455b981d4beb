"""Ownership of a persistent tier: two runs in one tier would load each other's versions."""

import json
from typing import Final

from gemini_lab.errors import ConfigError, UnreadError
from gemini_lab.storage.manifest import Survey
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
        """Return the run whose store this is; `None` if it is nobody's."""
        with self._files.explained("read the owner of"):
            text = self._files.record(_OWNER)
        if not text:
            return None
        try:
            return int(json.loads(text)["run"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise UnreadError(
                f"the persistent tier {self._files.url} says in {_OWNER} whose it is, and that "
                f"cannot be read: {len(text)} bytes, {text[:40]!r}; try again, or name another "
                "folder"
            ) from None

    def take(self, run: int) -> None:
        """Make it `run`'s."""
        with self._files.explained("write to"):
            self._files.make_folder()
            self._files.put(_OWNER, [json.dumps({"run": run}).encode()])

    def require(self, run: int | None, survey: Survey) -> None:
        """Refuse a store that is another run's than `run`, or anybody's for a run to come.

        Args:
            run: The run's identity; `None`: it has none yet.
            survey: What the store has.
        """
        owner, stored = self.owner(), survey.stored
        is_ours = owner in {None, run} and {one.lineage.run for one in stored} <= {run}
        if is_ours and (owner is not None or not survey.unclear):
            return
        versions = [one.version for one in stored]
        has = f"it has its versions {versions}" if versions else "it has no version yet"
        if survey.unclear:
            has += f", and some that cannot be read now ({survey.unclear[-1].seen})"
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
