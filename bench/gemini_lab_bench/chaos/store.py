"""A store that can be broken: a persistent tier behind WebHDFS, which fsspec's own driver reaches.

The server is a process of its own, so that it can stand still as the disk below it does. It is told
what to break by lines on its input, and ends when that ends. Requests must carry the campaign's
token, which the run's processes have in their environment.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from gemini_lab.errors import GeminiError
from gemini_lab.job import python_command
from gemini_lab.storage.manifest import MANIFEST

API: Final = "/webhdfs/v1"
OLD: Final = "before"
"""The folder beside the tier in which a store that answers late finds what it says."""
PAGE: Final = b"<!DOCTYPE html><html><body><h1>502 Bad Gateway</h1></body></html>\n"
CALLS: Final = ("LISTSTATUS", "OPEN", "CREATE")
"""Which call is slow, where one is."""
_SHARD: Final = "shard-"
READS: Final = frozenset({"OPEN", "GETFILESTATUS"})
WRITES: Final = frozenset({"CREATE", "APPEND", "MKDIRS", "DELETE"})
LONGEST_S: Final = 60.0
"""A call that nobody releases: its campaign is gone, too."""


def why_not() -> str | None:
    """Return why no store of this kind can be reached from here; `None` if one can."""
    if find_spec("requests") is None:
        return "a store that can be broken needs the package requests; pip install requests"
    return None


class BreakableStore:
    """A store that serves a folder, from entering the `with` block to leaving it.

    Args:
        folder: What it serves; may be a path that leads nowhere for a while.
        host: The address on which it listens.
    """

    def __init__(self, folder: Path, *, host: str = "127.0.0.1") -> None:
        self._folder, self._host = folder, host
        self._token = secrets.token_hex(16)
        self.url = ""  # what to tell the run
        # What the run's processes must have in theirs.
        self.environment: Mapping[str, str] = {"FSSPEC_WEBHDFS_TOKEN": self._token}

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            python_command(__name__, self._folder.parent, self._host),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        port = self._tell(self._token)
        self.url = f"webhdfs://{self._host}:{port}/{self._folder.name}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        self._server.communicate()

    def strike(self, how: str, number: int = 0) -> None:
        """Break its answers from now on.

        Args:
            how: As the half of the kind's name after `tier_`.
            number: Which call is slow, how many versions old its answers are, and whether it is for
                shards alone (odd) or for manifests, too.

        Raises:
            GeminiError: The store is gone.
        """
        self._tell(json.dumps({"how": how, "number": number, "folder": self._folder.name}))

    def mend(self, how: str) -> None:
        """Mend its answers; do nothing if the store is gone."""
        with suppress(GeminiError):
            self._tell(json.dumps({"how": how, "over": True}))

    def _tell(self, line: str) -> str:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with suppress(OSError, ValueError):
            self._server.stdin.write(f"{line}\n")
            self._server.stdin.flush()
        is_there = self._server.poll() is None
        if not (is_there and (answer := self._server.stdout.readline().strip())):
            raise GeminiError("the campaign's store is gone; see what it printed above")
        return answer


class _Broken:
    """What is broken of the store just now.

    Args:
        root: The folder that it serves.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._now: dict[str, int] = {}
        self._slow: str | None = None  # the call that is slow, until one came
        self._go_on = threading.Event()

    def breaks(self, how: str, path: str = "") -> bool:
        """Return whether it is broken in a way, and for this path: one in two is for shards alone.

        A store that is asked for all shards at once may give each manifest.
        """
        number = self._now.get(how)
        return number is not None and (number % 2 == 0 or _SHARD in path)

    @property
    def is_unlisted(self) -> bool:
        return "unlisted" in self._now

    def begin(self, how: str, number: int, folder: str) -> None:
        if how in ("late", "stale") and not self._remember(how, folder, 1 + number % 3):
            return
        if how == "slow_call":
            self._slow = CALLS[number % len(CALLS)]
            self._go_on.clear()
        self._now[how] = number

    def end(self, how: str) -> None:
        self._now.pop(how, None)
        if how == "slow_call":
            self._slow = None
            self._go_on.set()

    def wait(self, call: str) -> None:
        """Stand still where this is the one call that is slow."""
        if call == self._slow:
            self._slow = None
            self._go_on.wait(LONGEST_S)

    def path(self, path: str, *, how: str) -> Path:
        """Return where a path of the store lies: in what it was before, where it answers late."""
        is_old = how == "late" and how in self._now  # a list has no shards of its own
        is_old |= how == "stale" and self.breaks(how, path)
        return self._root / (f"{OLD}-{how}/{path}" if is_old else path)

    def _remember(self, how: str, folder: str, versions: int) -> bool:
        """Keep the store as it is, without its newest versions: files are replaced, never changed.

        Where the way to it is closed just now, nothing can be kept.
        """
        kept = self._root / f"{OLD}-{how}"
        shutil.rmtree(kept, ignore_errors=True)
        try:
            shutil.copytree(self._root / folder, kept / folder, copy_function=os.link)
            newest = sorted(path.parent for path in (kept / folder).glob(f"*/{MANIFEST}"))
            for version in newest[-versions:]:
                shutil.rmtree(version)
        except OSError:
            return False
        return True


class _Requests(BaseHTTPRequestHandler):
    """One request of a run's process."""

    broken: _Broken
    token: str
    fresh: set[Path]
    """Files that were created, and have no bytes yet: what was there is there until they do."""

    def do_GET(self) -> None:
        self._answer()

    do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - as `http.server` calls them

    def _answer(self) -> None:
        asked = urlsplit(self.path)
        words = dict(parse_qsl(asked.query))
        path = unquote(asked.path.removeprefix(API)).strip("/")
        op = words.get("op", "")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            if not secrets.compare_digest(words.get("delegation", ""), self.token):
                self._refuse(HTTPStatus.UNAUTHORIZED, "SecurityException", "not the token")
            elif ".." in path.split("/"):
                self._refuse(HTTPStatus.BAD_REQUEST, "IllegalArgumentException", path)
            elif op in READS | WRITES and self.broken.breaks("denied", path):
                self._refuse(HTTPStatus.FORBIDDEN, "AccessControlException", "permission denied")
            else:
                self.broken.wait(op)
                self._do(op, path, words, body)
        except FileNotFoundError:
            self._refuse(HTTPStatus.NOT_FOUND, "FileNotFoundException", path)
        except OSError as error:
            with suppress(OSError):  # it may be the asker who is gone
                self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "IOException", str(error))

    def _do(self, op: str, path: str, words: Mapping[str, str], body: bytes) -> None:
        there = self.broken.path(path, how="")
        match op:
            case "LISTSTATUS":
                self._list(self.broken.path(path, how="late"))
            case "GETFILESTATUS":
                told = _status(self.broken.path(path, how="stale"))
                self._say({"FileStatus": told})
            case "OPEN":
                self._read(self.broken.path(path, how="stale"), words)
            case "CREATE" | "APPEND" if "at" not in words:
                where = f"http://{self.headers['Host']}{quote(API + '/' + path)}"
                self.send_response(HTTPStatus.TEMPORARY_REDIRECT)
                self.send_header("Location", f"{where}?op={op}&at=0&delegation={self.token}")
                self.send_header("Content-Length", "0")
                self.end_headers()
            case "CREATE":
                there.parent.mkdir(parents=True, exist_ok=True)
                self.fresh.add(there)
                self._say({}, HTTPStatus.CREATED)
            case "APPEND":
                self._write(there, body)
                self._say({})
            case "MKDIRS":
                there.mkdir(parents=True, exist_ok=True)
                self._say({"boolean": True})
            case "DELETE":
                if there.is_dir():
                    shutil.rmtree(there)
                else:
                    there.unlink()
                self._say({"boolean": True})
            case _:
                self._refuse(HTTPStatus.BAD_REQUEST, "UnsupportedOperationException", op)

    def _list(self, folder: Path) -> None:
        found = [] if self.broken.is_unlisted else [*map(_status, sorted(folder.iterdir()))]
        self._say({"FileStatuses": {"FileStatus": [one for one in found if one]}})

    def _read(self, file: Path, words: Mapping[str, str]) -> None:
        if self.broken.breaks("unread", file.name):
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, b"Please reduce your request rate.\n")
            return
        with file.open("rb") as opened:
            opened.seek(int(words.get("offset", 0)))
            data = opened.read(int(words["length"]) if "length" in words else -1)
        if self.broken.breaks("html", file.name):
            data = PAGE
        if self.broken.breaks("cut", file.name):
            data = data[: len(data) // 2]
        self._send(HTTPStatus.OK, data)

    def _write(self, file: Path, body: bytes) -> None:
        """Add to a file; the first bytes of a new one take the place of the old one in one step."""
        if file not in self.fresh:
            with file.open("ab") as opened:
                opened.write(body)
            return
        self.fresh.discard(file)
        part = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
        try:
            part.write_bytes(body)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)

    def _refuse(self, status: HTTPStatus, kind: str, text: str) -> None:
        self._say({"RemoteException": {"exception": kind, "message": text}}, status)

    def _say(self, value: object, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(status, json.dumps(value).encode())

    def _send(self, status: HTTPStatus, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing of each request."""


def _status(path: Path) -> dict[str, object]:
    """Return the store's words on a file or folder; none on one that is being written or gone."""
    if path.name.startswith(".") and not path.name.startswith(".probe"):
        return {}
    found = path.stat()
    return {
        "pathSuffix": path.name,
        "type": "DIRECTORY" if path.is_dir() else "FILE",
        "length": 0 if path.is_dir() else found.st_size,
        "modificationTime": int(found.st_mtime * 1000),
    }


def serve(root: Path, host: str, orders: IO[str], answers: IO[str]) -> None:
    """Serve a folder until there are no more orders."""
    broken = _Broken(root)
    told = {"broken": broken, "token": orders.readline().strip(), "fresh": set[Path]()}
    server = ThreadingHTTPServer((host, 0), type("Requests", (_Requests,), told))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, file=answers, flush=True)
    for line in orders:
        order = json.loads(line)
        if order.get("over"):
            broken.end(order["how"])
        else:
            broken.begin(order["how"], order["number"], order["folder"])
        print("done", file=answers, flush=True)
    os._exit(0)  # a request may stand still for as long as the disk does


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], sys.stdin, sys.stdout)
