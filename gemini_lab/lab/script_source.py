"""Hints from a script's source, for `gemini-lab check`: names that the script keeps by itself.

Only source is read, and never in a process that trains. So a hint is a guess; runs show its weight.
"""

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

from gemini_lab.job import Job
from gemini_lab.limits import read_bytes

_CHANGES: Final = {"add", "append", "appendleft", "extend", "insert", "pop", "popleft", "update"}
_GENERATORS: Final = {"Generator", "Random", "RandomState", "default_rng"}
_TRAINS: Final = {"backward", "step", "train_batch", "steps", "epochs"}
_NEVER_AGAIN: Final = (
    "only an earlier loop makes this, and it is read after that loop. That loop does not run again "
    "after a failure in a later one, so reading it fails; give it a value before the loop"
)
_AS_AT_START: Final = (
    "the script seems to keep this by itself. After a failure it is as at the script's start; if "
    "training needs it, hand it over in client_state or also"
)
_Use = tuple[Literal["read", "write", "grow", "change"], str, int]
"""How a name is used (grow: by what it was before, change: a part of it), the name, its line."""


def hints_of(job: Job, *, differs: bool) -> Iterator[str]:
    """Give what the source of a job's script tells; a module's, or compiled code, tells nothing."""
    file = Path(job.cwd) / job.script
    if job.module or file.suffix != ".py":
        return
    tree = ast.parse(read_bytes(file))
    if names := made_in_loops_alone(tree):
        yield f"{', '.join(names[:8])}: {_NEVER_AGAIN}"
    if differs and (names := carried_names(tree)):
        yield f"{', '.join(names[:8])}: {_AS_AT_START}"


def carried_names(tree: ast.Module) -> list[str]:
    """Return what training changes and reads, and the script does not hand over, with lines."""
    nodes: list[Any] = [*ast.walk(tree)]
    functions = [one for one in nodes if isinstance(one, ast.FunctionDef)]
    trains = _TRAINS | {one.name for one in functions if _called(one) & _TRAINS}
    seen: dict[str, dict[str, int]] = {"read": {}, "grow": {}, "change": {}}
    for node in nodes:
        uses, own, shared = list[_Use](), set[str](), set[str]()
        if isinstance(node, ast.FunctionDef) and node.name != "__init__":
            parts, uses = [*ast.walk(node)], [*chain(*map(_uses, node.body))]
            told = (one.names for one in parts if isinstance(one, ast.Global | ast.Nonlocal))
            shared = {*chain(*told), *(name for _, name, _ in uses if name.startswith("self."))}
            own = {name for how, name, _ in uses if how == "write"}
            own = (own | {one.arg for one in parts if isinstance(one, ast.arg)}) - shared
        elif isinstance(node, ast.For | ast.While) and (
            _called(node) & trains or any(isinstance(one, ast.Yield) for one in ast.walk(node))
        ):
            uses = [*chain(*map(_uses, [next(ast.iter_child_nodes(node)), *node.body]))]
        elif isinstance(node, ast.Assign) and _GENERATORS.intersection(_chain(node.value)):
            seen["change"] |= dict.fromkeys(map(_base, node.targets), node.lineno)
        first = {name: how for how, name, _ in reversed(uses)}
        for how, name, line in uses:
            is_made = first[name] == "write" or (name in own and how != "read")
            if not is_made or (name in shared and how in {"write", "change"}):
                seen["change" if how == "write" else how][name] = line
    changed = {name: line for name, line in seen["change"].items() if name in seen["read"]}
    known = {(one.asname or one.name).split(".")[0] for one in nodes if isinstance(one, ast.alias)}
    known |= {"", *_handed_over(nodes)}
    found = (changed | seen["grow"]).items()
    return [f"{name} (line {line})" for name, line in found if name not in known]


def made_in_loops_alone(tree: ast.Module) -> list[str]:
    """Return what only a loop's body makes, if it is read after it and another loop follows."""
    found = []
    scopes = [one for one in ast.walk(tree) if isinstance(one, ast.Module | ast.FunctionDef)]
    for body in (scope.body for scope in scopes):
        iterated = [_chain(getattr(one, "iter", one)) for one in body]
        ours = [at for at, names in enumerate(iterated) if {"steps", "epochs"} & {*names}]
        for at in ours[:-1]:
            known = {name for part in body[:at] for _, name, _ in _uses(part)}
            made = {name for how, name, _ in _uses(body[at]) if how == "write"} - known
            for how, name, line in chain(*map(_uses, body[at + 1 :])):
                if name in made:
                    made.remove(name)
                    found += [f"{name} (line {line})"] if how == "read" else []
    return found


def _uses(node: ast.AST) -> Iterator[_Use]:
    """Give the uses of names in about the order in which they run, without inner functions."""
    line, parts, own = getattr(node, "lineno", 0), [*ast.iter_child_nodes(node)], set[str]()
    match node:
        case ast.FunctionDef() | ast.Lambda() | ast.ClassDef():
            return
        case ast.Name() | ast.Attribute(value=ast.Name(id="self")):
            yield "read" if isinstance(node.ctx, ast.Load) else "write", _base(node), line
            return
        case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
            yield "change", _base(node), line
            return
        case ast.AugAssign():
            yield "grow", _base(node.target), line
            parts = [node.value]
        case ast.Assign():
            parts = [node.value, *node.targets]
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            own = {name for one in node.generators for _, name, _ in _uses(one.target)}
        case ast.Call(func=ast.Attribute(value=base, attr=method)):
            is_in_place = method.endswith("_") and not method.startswith("_")
            if is_in_place or method in _CHANGES:
                parts = [*node.args, *node.keywords]
                yield "grow" if is_in_place else "change", _base(base), line
    for part in parts:
        yield from (use for use in _uses(part) if use[1] not in own)


def _chain(node: ast.AST) -> list[str]:
    """Return the names in a chain such as `torch.Generator().manual_seed(1)`, the last first."""
    found = []
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        found += [node.attr] if isinstance(node, ast.Attribute) else []
        node = node.func if isinstance(node, ast.Call) else node.value
    return [*found, getattr(node, "id", "")]


def _base(node: ast.AST) -> str:
    """Return the variable, or the attribute of `self`, that leads to a value."""
    *_, attribute, name = "", *_chain(node)
    return f"self.{attribute}" if name == "self" else name


def _called(node: ast.AST) -> set[str]:
    return {_chain(one.func)[0] for one in ast.walk(node) if isinstance(one, ast.Call)}


def _handed_over(nodes: list[Any]) -> set[str]:
    """Return the names in calls of `protect` and its like, and in containers that are given."""
    given = set[str]()
    for one in nodes:
        if isinstance(one, ast.Call) and any(n.startswith("protect") for n in _chain(one.func)):
            given |= {name for part in ast.iter_child_nodes(one) for _, name, _ in _uses(part)}
    for node in (one for one in nodes if isinstance(one, ast.Assign)):
        names, value = {*map(_base, node.targets)}, node.value
        if names & given and isinstance(value, ast.Dict | ast.List | ast.Tuple):
            given |= {name for _, name, _ in _uses(value)}
        if isinstance(value, ast.Subscript) and _base(value) in given:
            given |= names
    return given
