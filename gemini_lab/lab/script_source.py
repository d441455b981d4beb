"""Hints from a script's source, for `gemini-lab check`: names that the script keeps by itself.

Only source is read, and never in a process that trains. So a hint is a guess; runs show its weight.
"""

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from gemini_lab.job import Job
from gemini_lab.limits import read_bytes

_CHANGES: Final = {"add", "append", "appendleft", "extend", "insert", "pop", "popleft", "update"}
_GENERATORS: Final = {"Generator", "Random", "RandomState", "default_rng"}
_TRAINS: Final = {"backward", "step", "train_batch", "steps", "epochs"}
_NEVER_AGAIN: Final = (
    "an earlier loop alone makes this, and it is read after that loop. After a failure in a later "
    "loop no pass of the earlier one runs, so reading it fails; give it a value before the loop"
)
_AS_AT_START: Final = (
    "the script seems to keep this by itself. After a failure it is as at the script's start; if "
    "training needs it, hand it over in client_state or also"
)
_MOST: Final = 8  # names in a hint


class _Use(NamedTuple):
    how: str  # "read", "write", "grow" (by what it was before) or "change" (a part of it)
    name: str
    line: int


def hints_of(job: Job, *, differs: bool) -> Iterator[str]:
    """Give what the source of a job's script tells; a module's, or compiled code, tells nothing."""
    file = Path(job.cwd) / job.script
    if job.module or file.suffix != ".py":
        return
    tree = ast.parse(read_bytes(file))
    if names := made_in_loops_alone(tree):
        yield f"{', '.join(names[:_MOST])}: {_NEVER_AGAIN}"
    if differs and (names := carried_names(tree)):
        yield f"{', '.join(names[:_MOST])}: {_AS_AT_START}"


def carried_names(tree: ast.Module) -> list[str]:
    """Return what training changes and reads, and the script does not hand over, with lines."""
    nodes = [*ast.walk(tree)]
    functions = [one for one in nodes if isinstance(one, ast.FunctionDef)]
    trains = _TRAINS | {one.name for one in functions if _called(one) & _TRAINS}
    nothing: set[str] = set()
    regions = [  # uses, the first of each name, names of its own, names that others share
        (*_within(loop), nothing, nothing)
        for loop in nodes
        if isinstance(loop, ast.For | ast.While)
        and (_called(loop) & trains or any(isinstance(one, ast.Yield) for one in ast.walk(loop)))
    ]
    for function in functions:
        (uses, first), parts = _within(function), [*ast.walk(function)]
        told = (one.names for one in parts if isinstance(one, ast.Global | ast.Nonlocal))
        shared = {*chain(*told), *(use.name for use in uses if use.name.startswith("self."))}
        own = {use.name for use in uses if use.how == "write"}
        own |= {one.arg for one in parts if isinstance(one, ast.arg)}
        if function.name != "__init__":
            regions.append((uses, first, own - shared, shared))
    used = ((use, first) for uses, first, _, _ in regions for use in uses)
    read = {use.name for use, first in used if use.how == "read" and first[use.name] != "write"}
    found = {}
    for uses, first, own, shared in regions:
        for how, name, line in uses:
            is_read = name in read and (name in shared or first[name] != "write")
            is_kept = first[name] != "write" if how == "grow" else how != "read" and is_read
            if is_kept and name not in own:
                found[name] = line
    for node in nodes:
        if isinstance(node, ast.Assign) and _chain(node.value) & _GENERATORS:
            found |= {name: node.lineno for name in map(_base, node.targets) if name in read}
    imports = (one.names for one in nodes if isinstance(one, ast.Import | ast.ImportFrom))
    known = {(one.asname or one.name).split(".")[0] for one in chain(*imports)} | {""}
    known |= _handed_over(nodes)
    return [f"{name} (line {line})" for name, line in found.items() if name not in known]


def made_in_loops_alone(tree: ast.Module) -> list[str]:
    """Return what only a loop's body makes, if it is read after it and another loop follows.

    Once the later loop has made a version, no pass of the earlier loop runs again.
    """
    found = []
    scopes: list[Any] = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]
    for scope in (tree, *scopes):
        loops = [(at, one) for at, one in enumerate(scope.body) if isinstance(one, ast.For)]
        ours = [at for at, one in loops if _chain(one.iter) & {"steps", "epochs"}]
        for at in ours[:-1]:
            known = {use.name for part in scope.body[:at] for use in _uses(part)}
            made = {use.name for use in _within(scope.body[at])[0] if use.how == "write"} - known
            for how, name, line in chain(*map(_uses, scope.body[at + 1 :])):
                if name in made:
                    made.remove(name)
                    found += [f"{name} (line {line})"] if how == "read" else []
    return found


def _within(node: Any) -> tuple[list[_Use], dict[str, str]]:
    """Return the uses in the body of a loop or a function, and how each name is first used."""
    parts = (getattr(node, "target", None), getattr(node, "test", None), *node.body)
    uses = [use for part in parts if part is not None for use in _uses(part)]
    return uses, {use.name: use.how for use in reversed(uses)}


def _uses(node: ast.AST) -> Iterator[_Use]:
    """Give the uses of names in about the order in which they run, without inner functions."""
    line, parts = getattr(node, "lineno", 0), [*ast.iter_child_nodes(node)]
    match node:
        case ast.FunctionDef() | ast.Lambda() | ast.ClassDef():
            parts = []
        case ast.Name() | ast.Attribute(value=ast.Name(id="self")):
            yield _Use("read" if isinstance(node.ctx, ast.Load) else "write", _base(node), line)
            parts = []
        case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
            yield _Use("change", _base(node), line)
            parts = []
        case ast.AugAssign():
            yield _Use("grow", _base(node.target), line)
            parts = [node.value]
        case ast.Assign():
            parts = [node.value, *node.targets]
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            inside = [use for part in parts for use in _uses(part)]
            own = {use.name for use in inside if use.how == "write"}
            yield from (use for use in inside if use.name not in own)
            parts = []
        case ast.Call(func=ast.Attribute(value=base, attr=method)):
            is_in_place = method.endswith("_") and not method.startswith("_")
            if is_in_place or method in _CHANGES:
                parts = [*node.args, *node.keywords]
                yield _Use("grow" if is_in_place else "change", _base(base), line)
    for part in parts:
        yield from _uses(part)


def _chain(node: ast.AST) -> set[str]:
    """Return the names in a chain such as `torch.Generator().manual_seed(1)`."""
    found = set()
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        found.add(getattr(node, "attr", ""))
        node = node.func if isinstance(node, ast.Call) else node.value
    return found | {getattr(node, "id", "")}


def _base(node: ast.AST) -> str:
    """Return the variable, or the attribute of `self`, that leads to a value."""
    attribute = ""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        attribute = getattr(node, "attr", "")
        node = node.func if isinstance(node, ast.Call) else node.value
    name = getattr(node, "id", "")
    return f"self.{attribute}" if name == "self" else str(name)


def _called(node: ast.AST) -> set[str]:
    calls = (one.func for one in ast.walk(node) if isinstance(one, ast.Call))
    return {getattr(one, "attr", getattr(one, "id", "")) for one in calls}


def _handed_over(nodes: list[ast.AST]) -> set[str]:
    """Return the names in calls of `protect` and its like, and in containers that are given."""
    given: set[str] = set()
    for call in (one for one in nodes if isinstance(one, ast.Call)):
        if any(name.startswith("protect") for name in _chain(call.func)):
            given |= {use.name for one in ast.iter_child_nodes(call) for use in _uses(one)}
    for node in (one for one in nodes if isinstance(one, ast.Assign)):
        names, value = {*map(_base, node.targets)}, node.value
        if names & given and isinstance(value, ast.Dict | ast.List | ast.Tuple):
            given |= {use.name for use in _uses(value)}
        if isinstance(value, ast.Subscript) and _base(value) in given:
            given |= names
    return given
