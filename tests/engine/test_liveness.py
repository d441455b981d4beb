"""What a loop carries in its variables is told from what each of its passes writes anew."""

import sys

import pytest

from gemini_lab.engine.unkept.liveness import attributes_in, counted_by, live_names


class Tops:
    """An iterable that keeps, at the top of each pass, what the code that loops over it carries."""

    def __init__(self):
        self.seen = []

    def __iter__(self):
        for number in range(3):
            caller = sys._getframe(1)
            found = live_names(caller.f_code, caller.f_lasti) & {*caller.f_locals}
            self.seen.append(set(found) - {"tops"})
            yield number


def test_what_is_read_before_it_is_written_is_carried():
    def loop(tops):
        best, bad, history, shown, last = 9.0, 0, [], 0.0, 0.0
        for step in tops:
            loss = float(step)
            if loss < best:
                best = loss
            else:
                bad += 1
            history.append(loss)
            if step % 2:
                last = loss
            shown = loss + len([one for one in (1, 2) if one > step])
        return best, bad, history, shown, last

    tops = Tops()
    loop(tops)
    assert tops.seen == [{"best", "bad"}] * 3


def test_an_outer_loop_reads_what_an_inner_one_has_written():
    def loop(tops):
        total, most = 0.0, 0.0
        for _ in range(2):
            for step in tops:
                total += step
            most = max(most, total)
            total = 0.0
        return most

    tops = Tops()
    loop(tops)
    assert tops.seen == [{"total", "most"}] * 6


def test_a_history_that_is_read_in_the_loop_is_carried():
    def loop(tops):
        buffer, told = [], {}
        for step in tops:
            buffer.append(step)
            told[step] = sum(buffer[-2:])
        return told

    tops = Tops()
    loop(tops)
    assert tops.seen == [{"buffer"}] * 3


def test_what_a_comprehension_or_a_lambda_reads_is_carried():
    def loop(tops):
        scale, seen, shift, other = 1.0, [1.0], 2.0, 3.0
        for step in tops:
            known = [one * scale for one in range(step) if one in seen]
            largest = max(known, default=0.0, key=lambda one: one + shift)
            scale, shift = scale + largest, shift + 1.0
            seen.append(scale)
            other = [step + n for n in range(3)]
        return other

    tops = Tops()
    loop(tops)
    assert tops.seen == [{"scale", "seen", "shift"}] * 3


def test_what_code_does_to_attributes_and_to_variables_around_it():
    calls = 0

    def note(thing):
        nonlocal calls
        calls += 1
        thing.bad += 1
        thing.last = thing.kept
        thing.losses.append(1)

    found = attributes_in(note.__code__)
    assert found.outer == {"calls"}
    assert found.changed == {"bad"}
    assert found.read - {"append"} == {"bad", "kept"}


def test_what_gets_an_item_is_not_read_however_the_item_is_named():
    def adds(self, step, loss):
        self.plain[step] = loss
        self.by_item[self.state["step"]] = loss
        self.by_text[f"{self.split}/{step}"] = loss
        self.by_two[step, self.rank] = loss
        self.by_sum[step + self.first] = loss

    def reads(self, step, loss):
        self.sums[step] += loss
        self.seen[self.places[step]] = loss
        self.latest[step][0] = loss
        self.sizes[len(self.sizes)] = loss

    assert attributes_in(adds.__code__).read == {"state", "split", "rank", "first"}
    assert attributes_in(reads.__code__).read == {"sums", "places", "latest", "sizes"}


def test_what_an_inner_loop_writes_in_each_pass_is_not_carried():
    """As the loss of the last micro-batch, which is told when they are over."""

    def loop(tops, micro_batches):
        total = 0.0
        for step in tops:
            for micro in range(micro_batches):
                loss = float(step + micro)
                if micro > 1:
                    total += loss
            shown = loss
        return total, shown

    tops = Tops()
    loop(tops, 2)
    assert tops.seen == [{"micro_batches", "total"}] * 3


class Counted:
    """Pairs, at each of which the loop that asks for it says what it counts in."""

    def __init__(self):
        self.found = []

    def __iter__(self):
        return self

    def __next__(self):
        caller = sys._getframe(1)
        self.found.append(counted_by(caller.f_code, caller.f_lasti))
        if len(self.found) > 2:
            raise StopIteration
        return len(self.found), "batch"


def decides(pairs):
    for i, _batch in pairs:
        if i + 1 == 3:
            break


def gives_it_on(pairs):
    for number, batch in pairs:
        str((number, batch))


def tells(pairs, every=2):
    for i, batch in pairs:
        if i % every == 0 or (i + 1) % every == 0:
            str(f"{i:03} {batch}")


def has_no_count(pairs):
    for pair in pairs:
        str(pair)


@pytest.mark.parametrize(
    ("loop", "name"),
    [(decides, "i"), (gives_it_on, "number"), (tells, None), (has_no_count, None)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_count_by_which_a_loop_decides_is_found_and_one_that_it_tells_is_not(loop, name):
    pairs = Counted()
    loop(pairs)
    assert set(pairs.found) == {name}
