"""The paper's way to fit chunks into spans (section 5.3, Algorithm 2), repaired.

A span of length t takes chunks worth mu * t, one of s bytes costing alpha + s / B. What fits no
span goes before the update and delays it. Four slips of the printed algorithm are repaired: its
line 17 takes the time of the *remaining* bytes off the span, not the chunk's; its line 21 plans m
remote replicas, not m - 1; it loops for ever when what is left of a span is no longer than alpha,
as the chunk's size is then 0; and it returns sizes without their spans.

The printed algorithm also takes any span that it meets. Here those shorter than half of the longest
are used only where the others do not suffice, then those shorter than a quarter, and so on: chunks
in short spans are mostly start-up time, and come between collectives that training calls one upon
the other.
"""

from dataclasses import replace

from gemini_lab.pipeliner.task import NumberedSpan, Send, Task, long_ones_first


def plan(task: Task, *, one_a_span: bool = False) -> list[Send]:
    """Fill mu of each span, the long ones first.

    Args:
        task: Its pipeline's bandwidth is the rate to plan with; copies are not looked at.
        one_a_span: At most one chunk a span: the naive scheme's.
    """
    sends: list[Send] = []
    for spans in long_ones_first(task.spans):
        sends = _fill(task, spans, one_a_span=one_a_span)
        if sum(size_bytes for _, size_bytes in sends) == task.total_bytes:
            break
    sent_bytes = sum(size_bytes for _, size_bytes in sends)
    return [*sends, *((None, size_bytes) for size_bytes in task.rest(sent_bytes))]


def at_the_pace_of_copies(task: Task) -> Task:
    """Return the task with chunks as slow as their copies, if a copy is slower than the wire.

    The printed algorithm knows no copy rate; where copying is slower, it is the pipeline's rate.
    """
    pipeline = task.pipeline
    rate = min(pipeline.bandwidth_bytes_per_s, pipeline.copy_bytes_per_s)
    return replace(task, pipeline=replace(pipeline, bandwidth_bytes_per_s=rate))


def _fill(task: Task, spans: list[NumberedSpan], *, one_a_span: bool) -> list[Send]:
    """Ends for every input: a turn of the inner loop takes at least one byte, or is the last."""
    sends: list[Send] = []
    sent_bytes = 0
    for number, span in spans:
        left_s = task.mu * span.duration_s
        while size_bytes := task.fitting_bytes(sent_bytes, left_s):
            sends.append((number, size_bytes))
            sent_bytes += size_bytes
            left_s -= task.pipeline.sending_s(size_bytes)
            if one_a_span:
                break
    return sends
