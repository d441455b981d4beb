"""Which variables a piece of code reads further on before it writes them: what a loop carries.

At a loop's top these hold what one iteration hands to the next; all others are written anew in it.
What is only read when the loop is over does not count, nor what is only added to a history.
"""

import dis
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from itertools import pairwise
from types import CodeType
from typing import Final

_VARIABLE: Final = re.compile(r"(LOAD|STORE|DELETE)_(?:FAST|NAME|GLOBAL|DEREF)")
_TWO: Final = re.compile(r"(LOAD|STORE)_FAST(?:_BORROW)?_(LOAD|STORE)_FAST(?:_BORROW)?")
"""How instructions are named that are two of the others; since Python 3.13."""
_IDLE: Final = "NOT_TAKEN"
_ENDS: Final = ("RETURN", "RAISE", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD", "INTERPRETER_EXIT")
"""How the names of instructions begin after which the next one is not carried out."""
_STORES_ITEM: Final = "STORE_SUBSCR"
_GETS_ITEM: Final = "BINARY_SUBSCR"
_GETS: Final = ("LOAD_ATTR", "LOAD_METHOD")
_EXPRESSIONS: Final = frozenset({"<dictcomp>", "<genexpr>", "<lambda>", "<listcomp>", "<setcomp>"})
"""How code is named that is written within other code, and is carried out there."""
_ADDERS: Final = frozenset({"add", "append", "appendleft", "extend", "setdefault"})
_LOADS: Final = frozenset({"LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME"})
_TAKES: Final = {
    "LOAD_ATTR": 1,
    "FORMAT_VALUE": 1,
    "FORMAT_SIMPLE": 1,
    "BINARY_OP": 2,
    _GETS_ITEM: 2,
}
"""How many values such an instruction takes off the stack."""
_TAKERS: Final = frozenset({"pop", "popleft", "popitem"})

Item = tuple[str, object]
"""A variable, and the item of it that code names; `None` for whichever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """What code does to attributes, of whatever object, and to variables of others.

    Attributes:
        read: Names that it reads.
        changed: Names that it reads and writes.
        outer: Variables of the functions around it, or of its module, that it writes, or whose
            items it reads and changes.
        items_read: Variables whose items it reads, its own included, and which items if it says so.
        items_added: Those to which it adds items, in the same way.
    """

    read: frozenset[str]
    changed: frozenset[str]
    outer: frozenset[str]
    items_read: frozenset[Item]
    items_added: frozenset[Item]


def live_names(code: CodeType, at: int) -> frozenset[str]:
    """Variables that are read before they are written, on a way from the instruction at `at` to it.

    Handlers of exceptions are not followed, and an inner `for` counts as one of a pass at least:
    what it writes in each is written when it is over, such as the last micro-batch's loss.

    Args:
        code: Of a function or a module.
        at: As a frame's `f_lasti`; where that begins a loop's pass, what follows is the pass.
    """
    steps, ways = _graph(code)
    _have_passes(steps, ways)
    returning = _returning(steps, ways, at)
    effects = [_effect(steps, n, is_read=n in returning) for n in range(len(steps))]
    live: list[frozenset[str]] = [frozenset()] * (len(steps) + 1)
    is_settled = False
    while not is_settled:
        is_settled = True
        for number in reversed(range(len(steps))):
            after = frozenset[str]().union(*(live[way] for way in ways[number]))
            read, written = effects[number]
            before = read | (after - written)
            if before != live[number]:
                live[number], is_settled = before, False
    following = [number for number, step in enumerate(steps) if step.offset > at]
    return live[min(following, default=len(steps))]


def expressions_in(code: CodeType) -> Iterator[CodeType]:
    """The code of comprehensions and lambdas within a piece of code."""
    for one in code.co_consts:
        if isinstance(one, CodeType) and one.co_name in _EXPRESSIONS:
            yield one
            yield from expressions_in(one)


def counted_by(code: CodeType, at: int) -> str | None:
    """What a `for` that asks for its next value counts in, as in `for i, batch in enumerate(...)`.

    None where `at` stands elsewhere, and for a count that is only told, or taken by a remainder as
    in `i % 100`: where an update is made of four micro-batches, the rest of four stays what it was.
    """
    steps = [*_instructions(code)]
    number = next((n for n, step in enumerate(steps) if step.offset == at), len(steps) - 1)
    if steps[number].opname != "FOR_ITER":
        return None
    unpacks, stores, *_ = _following(steps, number)
    name = stores.argval
    if (unpacks.opname, unpacks.argval) != ("UNPACK_SEQUENCE", 2) or "STORE" not in stores.opname:
        return None
    decides = any(
        name in _effect(steps, n, is_read=True)[0] and not _is_told(steps, n)
        for n in range(len(steps))
    )
    return name if decides and isinstance(name, str) else None


def _is_told(steps: Sequence[dis.Instruction], number: int) -> bool:
    """Whether a number that is loaded is made a text, or its remainder is taken."""
    for step in steps[number + 1 :]:
        if step.opname.startswith("FORMAT_") or "%" in step.argrepr:
            return True
        is_on_the_way = step.opname.startswith("LOAD_") or "+" in step.argrepr
        if not is_on_the_way or step.opname in _GETS[1:]:
            return False
    return False


def loop_targets(code: CodeType) -> frozenset[str]:
    """Variables that a `for` of this code gives its next value."""
    names = (then.argval for one, then in pairwise(_instructions(code)) if one.opname == "FOR_ITER")
    return frozenset(name for name in names if isinstance(name, str))


def given_arguments(code: CodeType) -> frozenset[str]:
    """A function's parameters that its code leaves as they are: who calls it has their values."""
    count = code.co_argcount + code.co_kwonlyargcount
    steps = [*_instructions(code)]
    effects = (_effect(steps, number, is_read=False) for number in range(len(steps)))
    written = frozenset[str]().union(*(names for _, names in effects))
    return frozenset(code.co_varnames[:count]) - written - {*code.co_cellvars}


def attributes_in(code: CodeType, at: int | None = None) -> Attributes:
    """What code does to attributes.

    Args:
        code: Of a function or a module.
        at: Where it stands, if it is being carried out: then what cannot come there again does not
            count.
    """
    steps, ways = _graph(code)
    counted: Container[int] = range(len(steps)) if at is None else _returning(steps, ways, at)
    outer, read, written = set[str](), set[str](), set[str]()
    for number, step in enumerate(steps):
        is_outer = step.opname == "STORE_GLOBAL" or (
            step.opname == "STORE_DEREF" and step.argval in code.co_freevars
        )
        if number not in counted:
            continue
        if is_outer:
            outer.add(step.argval)
        elif step.opname == "STORE_ATTR":
            written.add(step.argval)
        elif step.opname in _GETS and not _only_adds(steps, number):
            read.add(step.argval)
    items_read, items_added = _items(steps, counted)
    inner = {name for name, _ in items_read & items_added} - {*code.co_varnames, *code.co_cellvars}
    if code.co_flags & CO_OPTIMIZED:  # a module's own variables are all its own
        outer |= inner
    return Attributes(
        read=frozenset(read),
        changed=frozenset(read & written),
        outer=frozenset(outer),
        items_read=frozenset(items_read),
        items_added=frozenset(items_added),
    )


def _items(
    steps: Sequence[dis.Instruction], counted: Container[int]
) -> tuple[set[Item], set[Item]]:
    """Variables whose items code reads, and those to which it adds; what it takes out is both."""
    read, added = set[Item](), set[Item]()
    for number, step in enumerate(steps):
        if number not in counted:
            continue
        if step.opname == "LOAD_CONST" and getattr(step.argval, "co_name", "") in _EXPRESSIONS:
            read |= {(name, None) for name in _reads_outside(step.argval)}
        if step.opname not in _LOADS:
            continue
        name, following = step.argval, _following(steps, number)
        first, *others = following
        if [one.opname for one in others] == ["COPY", "COPY", _GETS_ITEM]:
            both = (name, None)  # as in `counts[0] += 1`
            read, added = read | {both}, added | {both}
        elif first.opname == "LOAD_CONST" and others[0].opname == _STORES_ITEM:
            added.add((name, first.argval))
        elif first.opname == "LOAD_CONST" and others[0].opname == _GETS_ITEM:
            read |= {(name, None), (name, first.argval)}
        elif first.opname in _GETS and first.argval in _TAKERS:
            read, added = read | {(name, None)}, added | {(name, None)}
        elif _adds_plainly(first, others[0]):
            added.add((name, None))
        elif not _only_adds(steps, number):  # where an item's name is worked out it may be a memo
            read.add((name, None))
    return read, added


def _following(steps: Sequence[dis.Instruction], number: int) -> list[dis.Instruction]:
    """The next four instructions; a code's last one stands for those after it."""
    following = [*steps[number + 1 : number + 5]]
    return following + [steps[-1]] * (4 - len(following))


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """A code's instructions as Python 3.11 names them, each for one variable; without idle ones."""
    for step in dis.get_instructions(code):
        if two := _TWO.fullmatch(step.opname):
            for verb, name in zip(two.groups(), step.argval, strict=True):
                yield step._replace(opname=f"{verb}_FAST", argval=name)
        elif step.opname == "LOAD_SMALL_INT":  # since Python 3.14, as the next
            yield step._replace(opname="LOAD_CONST")
        elif step.opname == "BINARY_OP" and step.argrepr == "[]":
            yield step._replace(opname=_GETS_ITEM)
        elif step.opname != _IDLE:
            yield step


def _graph(code: CodeType) -> tuple[list[dis.Instruction], list[list[int]]]:
    """A code's instructions, and the numbers of those that may follow each."""
    steps = [*_instructions(code)]
    numbers: dict[int, int] = {}
    for number, step in enumerate(steps):
        numbers.setdefault(step.offset, number)  # of two in one the first
    return steps, [[*_ways(step, number, numbers)] for number, step in enumerate(steps)]


def _have_passes(steps: Sequence[dis.Instruction], ways: list[list[int]]) -> None:
    """Have each `for` that begins come to its first pass, and be over after a pass."""
    for number, (one, then) in enumerate(pairwise(steps)):
        if one.opname == "GET_ITER" and then.opname == "FOR_ITER":
            ways[number] = [number + 2]


def _ways(step: dis.Instruction, number: int, numbers: Mapping[int, int]) -> Iterator[int]:
    if step.opcode in (*dis.hasjrel, *dis.hasjabs) and step.argval in numbers:
        yield numbers[step.argval]
    if not step.opname.startswith(_ENDS):
        yield number + 1


def _returning(
    steps: Sequence[dis.Instruction], ways: Sequence[Sequence[int]], at: int
) -> set[int]:
    """The instructions after which the one at `at` may come."""
    sources: dict[int, list[int]] = {}
    for number, following in enumerate(ways):
        for way in following:
            sources.setdefault(way, []).append(number)
    waiting = [number for number, step in enumerate(steps) if step.offset <= at][-1:]
    found = set[int]()
    while waiting:
        for source in sources.get(waiting.pop(), ()):
            if source not in found:
                found.add(source)
                waiting.append(source)
    return found


def _effect(
    steps: Sequence[dis.Instruction], number: int, *, is_read: bool
) -> tuple[frozenset[str], frozenset[str]]:
    """Variables that an instruction reads first, and those that it writes."""
    step = steps[number]
    if step.opname == "LOAD_CONST" and getattr(step.argval, "co_name", "") in _EXPRESSIONS:
        return frozenset(_reads_outside(step.argval)) if is_read else frozenset(), frozenset()
    if "CLEAR" in step.opname:  # a comprehension puts a variable of this name aside
        return frozenset(), frozenset()
    if (variable := _VARIABLE.match(step.opname)) is None:
        return frozenset(), frozenset()
    if variable[1] != "LOAD":
        return frozenset(), frozenset({step.argval})
    is_read = is_read and not _only_adds(steps, number)
    return frozenset({step.argval} if is_read else ()), frozenset()


def _reads_outside(code: CodeType) -> Iterator[str]:
    """Variables that a comprehension or a lambda reads of the code around it."""
    for one in (code, *expressions_in(code)):
        steps = [*_instructions(one)]
        for number, step in enumerate(steps):
            is_outside = (
                step.opname in {"LOAD_GLOBAL", "LOAD_NAME"} or step.argval in one.co_freevars
            )
            if is_outside and step.opname.startswith("LOAD_") and not _only_adds(steps, number):
                yield step.argval


def _only_adds(steps: Sequence[dis.Instruction], number: int) -> bool:
    """Whether what is loaded is added to, as in `losses.append(loss)` or `losses[step] = loss`."""
    first, *_ = _following(steps, number)
    if first.opname in _GETS:
        return first.argval in _ADDERS
    above = 0  # values on the stack above what is loaded, while the item's name is worked out
    for step in steps[number + 1 :]:
        if step.opname == _STORES_ITEM:
            return above == 1
        taken = _taken(step)
        if taken is None or taken > above:
            return False
        above += 1 - taken
    return False


def _adds_plainly(first: dis.Instruction, then: dis.Instruction) -> bool:
    """Whether two instructions add to what is loaded before them, by a name that is there."""
    if first.opname in _GETS:
        return first.argval in _ADDERS
    return first.opname.startswith("LOAD_") and then.opname == _STORES_ITEM


def _taken(step: dis.Instruction) -> int | None:
    """How many values an instruction takes off the stack, which puts one there; None for others."""
    if step.opname.startswith(("LOAD_CONST", "LOAD_FAST", *_LOADS)):
        return 0
    if step.opname in {"BUILD_STRING", "BUILD_TUPLE"}:
        return step.arg
    return _TAKES.get(step.opname)
