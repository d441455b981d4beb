"""Which files of an agent may reach the outside: all others run in a simulated world, too."""

import ast
import configparser
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from gemini_lab import node, recovery

OUT = {
    "asyncio": {"open_connection", "create_subprocess_exec", "create_subprocess_shell"},
    "os": {"kill", "killpg", "fork", "posix_spawn", "system", "urandom"},
    "socket": {"create_connection", "create_server", "socketpair"},
    "secrets": {"choice", "randbelow"},
}
"""By module, what reaches a network, a process or chance."""
ALLOWED = {
    "gemini_lab.wire.tcp": {"asyncio.open_connection"},  # by the event loop, which a world gives
    "gemini_lab.node.root_role": {"asyncio.create_subprocess_exec"},  # a detached run's owner
}
PORTS = {
    *("agent_machine", "build_locks", "bulk", "bulk_process", "cold", "control_store"),
    *("etcd_address", "etcd_client", "freeze_guard", "gpu_speed", "health", "host"),
    *("locked_tempdir", "orphan_etcd", "preload", "processes", "stacks", "start_config", "strike"),
    *("this_machine", "warm", "worker"),
}
"""Files of `node` that are the outside, or processes of their own."""


def inside() -> list[str]:
    """Return the modules that the import contract keeps from clocks, chance and processes."""
    contracts = configparser.ConfigParser()
    contracts.read(Path(node.__path__[0]).parents[1] / ".importlinter")
    listed = contracts["importlinter:contract:agent"]["source_modules"].split()
    found = [f"{recovery.__name__}.{file.stem}" for file in _files(recovery)]
    return [
        *listed,
        *found,
        *(f"{recovery.__name__}.root.{f.stem}" for f in _files(recovery, "root")),
    ]


def _files(room, *under: str) -> list[Path]:
    return sorted(Path(room.__path__[0], *under).glob("[a-z]*.py"))


def ways_out(source: str) -> Iterator[str]:
    """Yield what a file uses of the outside, by its full name."""
    for one in ast.walk(ast.parse(source)):
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
            if one.attr in OUT.get(one.value.id, ()):
                yield f"{one.value.id}.{one.attr}"
        elif isinstance(one, ast.ImportFrom) and one.module in OUT:
            yield from (f"{one.module}.{n.name}" for n in one.names if n.name in OUT[one.module])


@pytest.mark.parametrize("module", inside())
def test_an_agent_goes_out_by_its_machine_and_its_event_loop_alone(module):
    found = {*ways_out(Path(find_spec(module).origin).read_text())}
    assert found <= ALLOWED.get(module, set())


def test_each_file_of_an_agent_is_inside_or_a_port():
    """A new file is on one of the lists, or nobody would notice where it goes."""
    listed = {name.rpartition(".")[2] for name in inside() if name.startswith(node.__name__)}
    assert {file.stem for file in _files(node)} == listed | PORTS
    assert not listed & PORTS


def test_ways_out_are_seen():
    source = "import os\nfrom asyncio import open_connection\nos.kill(1, 9)\nos.close(3)"
    assert sorted(ways_out(source)) == ["asyncio.open_connection", "os.kill"]
