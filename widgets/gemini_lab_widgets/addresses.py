"""Under which addresses browsers reach a server: this machine's, a proxy's, a hub's."""

import os
import socket
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

import psutil

from gemini_lab.errors import ConfigError

LOOPBACK: Final = "127.0.0.1"
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - refused unless asked for twice
TEMPLATE: Final = "GEMINI_LAB_DASHBOARD_LINK"
"""The variable that names where pages are reached, for whoever sets up a server of notebooks."""
BEHIND_A_HUB: Final = "{JUPYTERHUB_SERVICE_PREFIX}/proxy/{port}/"
"""Through jupyter-server-proxy."""
FAR: Final = ("192.0.2.1", 9)
"""An address of nobody (RFC 5737): nothing is sent, but the system says which way it would go."""


def link_of(address: str, port: int, template: str | None = None) -> str:
    """Where the page of a server is, for browsers; it ends with a slash.

    Args:
        address: Where the server listens.
        port: Likewise.
        template: Where it is reached, with `{host}`, `{port}` and variables of the environment in
            braces; by default what `$GEMINI_LAB_DASHBOARD_LINK` says, the hub's proxy in a notebook
            that a JupyterHub started, or else the server itself.

    Raises:
        ConfigError: The template names something that is not known here.
    """
    if template is None:
        behind_a_hub = BEHIND_A_HUB if os.environ.get("JUPYTERHUB_SERVICE_PREFIX") else ""
        template = os.environ.get(TEMPLATE) or behind_a_hub or "http://{host}:{port}/"
    host = next(iter(reached_at()), socket.gethostname()) if address == EVERYWHERE else address
    known = {name: value.rstrip("/") for name, value in os.environ.items()}
    try:
        link = template.format_map(known | {"host": host, "port": str(port)})
    except (LookupError, ValueError) as error:
        raise ConfigError(
            f"the link {template!r} names {error}, which is not known here; it may have {{host}}, "
            "{port}, and variables of the environment in braces"
        ) from error
    return f"{link.rstrip('/')}/"


def reached_at() -> list[str]:
    """This machine's addresses for other machines, the one of its default route first."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(FAR)
        return list(dict.fromkeys([probe.getsockname()[0], *_own_addresses()]))
    return _own_addresses()


def origins_of(address: str, port: int) -> list[str]:
    """Which `host[:port]`s a browser may say it has a page from.

    Further names, a proxy's for example, become known when somebody with the password comes there.
    """
    names = {address, "localhost"}
    if address == EVERYWHERE:
        names = {"localhost", socket.gethostname(), LOOPBACK, *_own_addresses()}
    hub = (os.environ.get(name, "") for name in ("JUPYTERHUB_PUBLIC_URL", "JUPYTERHUB_HOST"))
    behind = {urlsplit(url).netloc for url in hub} - {""}
    return [*(f"{name}:{port}" for name in sorted(names)), *sorted(behind)]


def _own_addresses() -> list[str]:
    """Of all interfaces that are up, but those that are this machine's alone."""
    up = {name for name, told in psutil.net_if_stats().items() if told.isup}
    return [
        each.address
        for name, interface in psutil.net_if_addrs().items()
        for each in interface
        if name in up and each.family == socket.AF_INET and not each.address.startswith("127.")
    ]
