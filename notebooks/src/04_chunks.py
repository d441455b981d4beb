# %% [markdown]
# # 04 Chunks that fit the gaps
#
# **Goal.** Cut a checkpoint into chunks that fit the idle spans of a measured profile, and see on a
# real job, with five schemes on one link, what that saves.
#
# **Time.** About two minutes to run on a laptop with two cores, an hour to read and try. No GPU
# is needed.
#
# Lab 02 found out *when* a job's network is idle. Now the checkpoint of each iteration has to go
# there. A chunk must not be so large that training waits behind it, nor so small that starting it
# costs more than sending it; and the receiver must get it out of the way before the next one comes.
# That is Algorithm 2 of the paper (section 5.3) and its pipeline of sub-buffers.

# %%
from textwrap import wrap

import matplotlib.pyplot as plt
import numpy as np
from gemini_lab_widgets.pictures import view
from gemini_lab_widgets.pictures.palette import REPLICAS, TRAINING

# %%
from gemini_lab import Lab
from gemini_lab.errors import CapacityError
from gemini_lab.pipeliner import plan_chunks
from gemini_lab.training.quickstart import gpt_job
from gemini_lab.units import KIB, format_bytes
from gemini_lab_bench.benches.timed_runs import AS_IF_LARGE

plt.style.use("gemini_lab_widgets.labs")  # readable on light and on dark

# %% [markdown]
# Each of the runs below has `iterations` iterations; those after the first `iterations - counted`
# are compared. With twice as many the medians are steadier, and the notebook takes twice as long.

# %% tags=["parameters"]
iterations = 26
counted = 6
layer_ms = 20

# %% [markdown]
# ## 1. A profile, a wire and a checkpoint
# The machine is that of lab 02: two nodes, layers that take an accelerator's time, each node's link
# paced to 40 MB/s, shared by training and checkpoints. One thing is added: a received chunk leaves
# its buffer at 58 MB/s, as over a bus from GPU to CPU memory. (1.45 times the link: what fits the
# paper's Fig. 16, which does not give the number.) All of it is emulated; the times below are
# measured on it.

# %%
lab = Lab(nodes=2, standbys=0)
emulated = {"layer_s": layer_ms / 1000, "zero": AS_IF_LARGE}
job = gpt_job(size="tiny", iterations=iterations, **emulated)

# %%
machine = {"link_bytes_per_s": 40e6, "copy_bytes_per_s": 58e6}
settings = {**machine, "buffer_bytes": 512 * KIB, "profile_iterations": 6}

# %%
profile = lab.profile(job, **settings)
profile

# %% [markdown]
# With the profile comes a calibration. Messages of several sizes were timed over the idle link, and
# the line *f(s) = alpha + s / B* drawn through them: alpha is what starting a message takes, B the
# bandwidth. `shard_bytes` is a rank's part of the checkpoint, the paper's C.

# %%
wire = lab.run.report().plans[-1].calibration
shard_bytes = lab.run.events("protected")[0].event.shard_bytes
wire

# %% [markdown]
# **Predict**: will it fit? And would it fit with three replicas instead of two? What you write into
# the box is kept, and stands beside what comes out.

# %%
from gemini_lab_course.predictions import predict

filled = predict("the checkpoint's share of the idle time: two replicas, three")
filled

# %%
needs_ms = 1000 * (wire.alpha_s + shard_bytes / wire.bandwidth_bytes_per_s)
idle_ms = 1000 * sum(span.duration_s for span in profile.idle_spans if span.before_update)
print(f"{format_bytes(shard_bytes)} take {needs_ms:.0f} ms; the link is idle for {idle_ms:.0f} ms")
filled.came_out(f"{needs_ms / idle_ms:.0%}, {2 * needs_ms / idle_ms:.0%}")

# %% [markdown]
# ## 2. Algorithm 2
# `plan_chunks` is a pure function: a profile and some numbers in, a schedule out. This wrapper
# fills in what was measured, so that you can change one thing at a time.


# %%
def plan(**changes):
    measured = {
        "checkpoint_bytes": shard_bytes,
        "alpha_s": wire.alpha_s,
        "bandwidth_bytes_per_s": wire.bandwidth_bytes_per_s,
        "copy_bytes_per_s": machine["copy_bytes_per_s"],
        "buffer_bytes": 512 * KIB,
        "algorithm": "paper",
    }
    return plan_chunks(profile, **{**measured, **changes})


# %%
schedule = plan()
view(schedule, profile=profile)

# %% [markdown]
# For each idle span, in order: fill `mu` = 80 % of it with chunks the size of a sub-buffer, the
# last one smaller. Whatever fits nowhere goes before the update and delays it. (Not in the paper:
# spans shorter than half of the longest stay empty here while the others suffice. Chunks in short
# ones are mostly start-up time, and the next collective is close behind them.)
#
# The algorithm looks at one span at a time, and at none but the one at hand. What it does not see:
# the sub-buffers **drain** while training has the link, so a span may begin with more room than it
# has on average; and the 20 % that `mu` keeps free are better used than a delay is suffered. That
# is what jobs plan with, unless their settings say `"algorithm": "paper"`. **Predict** which of the
# two delays the update when checkpoints grow, or when copies out of the sub-buffers are slow.

# %%
for name in ("paper", "drain"):
    slow = plan(algorithm=name, copy_bytes_per_s=20e6).delay_s
    large = plan(algorithm=name, checkpoint_bytes=shard_bytes * 3 // 2).delay_s
    print(f"{name:6} slow copies {1000 * slow:.1f} ms, half as much again {1000 * large:.1f} ms")

# %% [markdown]
# ## 3. How large a buffer?
# **Predict**: `"interleaved"` has one buffer, so a chunk has to be copied out before the next one
# may come. `"gemini"` has the same memory in four parts. For which buffer sizes does it matter?
# What happens to either when the buffer gets very small?

# %%
sizes = [32 * KIB * 2**power for power in range(8)]
_, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
axes.set(xlabel="buffer, KiB, all parts together", ylabel="delay of the update, ms (model)")
for scheme in ("interleaved", "gemini"):
    delays_ms = [1000 * plan(scheme=scheme, buffer_bytes=size).delay_s for size in sizes]
    axes.plot([str(size // KIB) for size in sizes], delays_ms, "o-", label=scheme)
legend = axes.legend(frameon=False)

# %% [markdown]
# **Explain.** These delays are a model's: chunks on one wire, one copy engine, some sub-buffers. On
# the right, a larger buffer helps nobody, and the distance between the lines is what pipelining
# gains: chunk *j* is copied while chunk *j* + 1 arrives. On the left every chunk pays alpha,
# however small it is; and as `"gemini"` has its memory in four parts, it pays four times as often.
# (The paper: 128 MB in four parts of 32 MB, on a link that is a thousand times as fast.)
#
# And the simplest way, one piece for each span? It needs a buffer as large as the piece.

# %%
try:
    plan(scheme="naive")
except CapacityError as error:
    print(error)

# %% [markdown]
# ## 4. Five schemes on one link
# Now for real: the paper's Fig. 16. `"none"` sends no checkpoint; `"blocking"` sends all of it
# while training waits; the others plan with a profile of their own run. **Predict** their order.

# %%
runs = {}
for scheme in ("none", "blocking", "naive", "interleaved", "gemini"):
    run = lab.train(job, scheme=scheme, name=scheme, persistent_url=None, **settings)
    run.progress(iterations)
    runs[scheme] = run.wait()

# %% [markdown]
# The naive scheme was refused, as it ran out of memory in the paper. Its run went on in the
# background, as fast as the link took it, and said so. That is no result of the scheme, so it has
# no bar below.

# %%
for note in runs["naive"].report().notes:
    print(*wrap(note, 100), sep="\n")


# %%
def iteration_s(run):
    durations_s = [each.duration_s for each in run.report().iterations if each.rank == 0]
    return np.median(durations_s[-counted:])


# %%
paper_s = {"none": 43.5, "blocking": 48.0, "interleaved": 45.0, "gemini": 43.5}
paper = [paper_s[name] / paper_s["none"] for name in paper_s]
here = [iteration_s(runs[name]) / iteration_s(runs["none"]) for name in paper_s]

# %%
_, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
axes.set_xticks(range(len(paper_s)), paper_s)
dashed = {"facecolor": "none", "edgecolor": TRAINING, "linestyle": "--"}
left, right = ([place + shift for place in range(len(paper_s))] for shift in (-0.2, 0.2))
axes.bar_label(axes.bar(left, paper, 0.38, **dashed, label="paper, 16 p3dn"), fmt="%.2f")
axes.bar_label(axes.bar(right, here, 0.38, color=TRAINING, label="measured here"), fmt="%.2f")
axes.set(ylabel="iteration time / none", ylim=(0.8, 1.08 * max(here)))
legend = axes.legend(frameon=False)

# %% [markdown]
# **Beside the paper** (Fig. 16, GPT-2 40B, bars read off). Expect the order of the bars, not their
# height: our checkpoint takes more than a third of an iteration where theirs takes a tenth, so that
# blocking and plain interleaving stand out after a few iterations. What the model said of this job:

# %%
for name in ("interleaved", "gemini"):
    planned = runs[name].report().plans[-1].schedule
    ratio = planned.predicted_iteration_s / planned.iteration_s
    print(f"{name:12} model {ratio:.2f}, measured {here[list(paper_s).index(name)]:.2f}")

# %% [markdown]
# **Explain** what is left between model and measurement. A busy machine is one reason: sleeping
# layers and paced links need a processor at the right millisecond, and if the machine was busier
# during the run without checkpoints, a bar can even fall below 1. (Do a run twice, and see how much
# it differs from itself.) Another is what the model leaves out: checksums, and copies that compete
# with training for the cores of this machine, as they would not with a GPU's.
#
# ## 5. Where did the bytes go?
# The dashboard has the last run: open one iteration in its timeline. (It was left out until now, as
# whoever draws it shares two cores with what was measured.) The list at its top has the other runs.

# %%
lab.dashboard()

# %% [markdown]
# And one iteration of three of the runs, from their logs, in the dashboard's colours. Above,
# training's collectives; below, the chunks.


# %%
def draw(axes, run):
    call = [e.event for e in run.events("collectives") if e.event.rank == 0][-2]
    chunks = [e.event for e in run.events("transfer") if e.event.rank == 0]
    mine = [chunk for chunk in chunks if chunk.version == call.iteration - 1]
    sent = [(chunk.start_s - call.began_s, chunk.end_s - call.began_s) for chunk in mine]
    training = [(each.start_s, each.end_s) for each in call.calls()]
    for y, colour, spans in ((1, TRAINING, training), (0, REPLICAS[0], sent)):
        bars = [(1000 * start, 1000 * (end - start)) for start, end in spans]
        axes.broken_barh(bars, (y - 0.4, 0.8), color=colour)


# %%
_, rows = plt.subplots(3, 1, figsize=(9, 4.4), sharex=True, layout="constrained")
for axes, name in zip(rows, ("blocking", "naive", "gemini"), strict=True):
    draw(axes, runs[name])
    axes.set_yticks([0, 1], ["checkpoint", "training"])
    axes.set_title("in the background" if name == "naive" else name, loc="left", fontsize=10)
label = rows[-1].set_xlabel("ms since the iteration began")

# %% [markdown]
# **Explain**: how much of the checkpoint does training feel in each of the three? What would it
# take for the second one to be as good as the third?
#
# And does it change what is learned? Losses are compared bit by bit with the run that kept no
# checkpoint at all.

# %%
reports = {name: run.report() for name, run in runs.items()}
for name, report in reports.items():
    print(f"{name:12}", report.losses_match(reports["none"]))

# %% [markdown]
# ## Exercise 1
# The naive scheme was refused for lack of memory, and ran out of it in the paper. Here is the
# paper's job, GPT-2 40B on 16 p3dn, with 1.6 s in the longest idle span, as one GPU sees it. Say
# that the naive scheme may fill spans **to their end**, so with `mu=1`: what is the **smallest
# buffer** on a GPU with which it is accepted? Give it in bytes, to the nearest KiB; `on_p3dn` may
# help you.

# %%
from gemini_lab.simulator.traffic import profile_of
from gemini_lab_bench.figures.models_p3dn import workload

papers = workload("GPT-2 40B", iteration_s=43.5, idle_s=5.7)
gpu_bytes = papers.shard_bytes // papers.gpus_per_node
print(f"{format_bytes(gpu_bytes)} a GPU (model); idle spans of", end="")
print(*(f" {span_s:.2f} s" for span_s in papers.idle_spans_s), sep=",")


# %%
def on_p3dn(buffer_bytes):
    rate = papers.network_bytes_per_s / papers.gpus_per_node
    asked = {"checkpoint_bytes": gpu_bytes, "bandwidth_bytes_per_s": rate, "mu": 1.0}
    naive = {"scheme": "naive", "buffer_bytes": int(buffer_bytes)}
    return plan_chunks(profile_of(papers), **asked, **naive)


# %%
def is_accepted(buffer_bytes):
    try:
        on_p3dn(buffer_bytes)
    except CapacityError:
        return False
    return True


# %% tags=["exercise"]
# Your answer: a number of bytes.
smallest_bytes = None
### BEGIN SOLUTION
# With room for everything it is accepted; its largest piece is what the buffer must hold.
roomy = on_p3dn(gpu_bytes)
smallest_bytes = max(chunk.size_bytes for chunk in roomy.chunks)
### END SOLUTION

# %% tags=["check"]
from gemini_lab_course import Verdict, lab_04

with Verdict() as say:
    say(lab_04.exercise_1(smallest_bytes, is_accepted=is_accepted, shard_bytes=gpu_bytes))

# %% [markdown]
# **Beside the paper**, which says "more than 2 GB" a GPU. Which rate of the link is that: the
# nominal 100 Gbit/s of a machine's eight GPUs, or the one that was taken here, which Fig. 13b
# implies?
#
# ## Exercise 2
# No schedule hides what does not fit. Make the machine so that the checkpoint **no longer fits**:
# choose a time for the layers and a rate of the link. The setting `max_overhead=0.15` then lets
# only every *j*-th version leave, so that the mean delay stays below 15 % of an iteration; the
# check looks for just that in the log. (The slower the link, the longer the run: 10 MB/s at
# least.)


# %%
def train_on(*, layer_ms, link_bytes_per_s):
    squeezed = {**emulated, "layer_s": layer_ms / 1000}
    longer = gpt_job(size="tiny", iterations=iterations + 10, **squeezed)
    rates = {**settings, "link_bytes_per_s": link_bytes_per_s, "max_overhead": 0.15}
    run = lab.train(longer, scheme="gemini", persistent_url=None, name="exercise", **rates)
    run.progress(iterations + 10)
    return run.wait()


# %% tags=["exercise"]
# Your answer: a dictionary, {"layer_ms": milliseconds, "link_bytes_per_s": bytes a second}
harder = None
### BEGIN SOLUTION
# A slower link takes longer for the checkpoint; faster layers leave it less idle time.
harder = {"layer_ms": 0, "link_bytes_per_s": 10e6}
### END SOLUTION

# %% tags=["check"]
from gemini_lab_course import Verdict, lab_04

with Verdict() as say:
    say(lab_04.exercise_2(harder, train_on=train_on))

# %% [markdown]
# What does a failure cost now, compared with a version of every iteration? Lab 01 has the formula.
#
# ## Exercise 3
# Now **write Algorithm 2**: cut `checkpoint_bytes` into chunks for each of `replicas - 1`
# receivers, which are numbered from 1. The chunks come in the order in which they leave, each
# receiver's from its first byte to its last. Each fits a sub-buffer: `buffer["buffer_bytes"]` are
# divided into `buffer["sub_buffers"]` of them. Those for a span, which is its number among
# `profile.idle_spans`, are through before its `duration_s` is over, each taking `alpha_s` and the
# time for its bytes; spans may be filled to their end, but only those that are `before_update`.
# `span=None`, which delays the update, is for what fits nowhere. `attack` tries small iterations
# and checkpoints, the smallest first, and draws what breaks a planner:

# %%
from gemini_lab import attack
from gemini_lab.pipeliner.schedule import Chunk


# %%
def in_one_piece(*, checkpoint_bytes, replicas):
    whole = {"span": None, "offset_bytes": 0, "size_bytes": checkpoint_bytes}
    return [Chunk(**whole, replica=n) for n in range(1, replicas) if checkpoint_bytes]


attack(in_one_piece, stage="chunks")


# %% tags=["exercise"]
def planner(*, profile, checkpoint_bytes, replicas, bandwidth_bytes_per_s, alpha_s, **buffer):
    """The chunks; attack(planner) below this draws what breaks it."""
    ### BEGIN SOLUTION
    part_bytes = buffer["buffer_bytes"] // buffer["sub_buffers"]
    usable = [(n, s.duration_s) for n, s in enumerate(profile.idle_spans) if s.before_update]
    chunks, replica, offset = [], 1, 0
    for span, idle_s in [*usable, (None, float("inf"))]:
        taken_s = 0
        while replica < replicas and checkpoint_bytes:
            room = (idle_s - taken_s - alpha_s) * bandwidth_bytes_per_s
            size = int(min(part_bytes, checkpoint_bytes - offset, room))
            if size < 1:  # what is left of the span is start-up time: here the printed one loops
                break
            chunk = {"span": span, "replica": replica, "offset_bytes": offset}
            chunks.append(Chunk(**chunk, size_bytes=size))
            taken_s += alpha_s + size / bandwidth_bytes_per_s
            offset += size
            if offset == checkpoint_bytes:
                replica, offset = replica + 1, 0
    return chunks
    ### END SOLUTION


# %% tags=["check"]
from gemini_lab_course import Verdict, lab_04

with Verdict() as say:
    say(lab_04.exercise_3(planner))

# %% [markdown]
# ## Further
# Does a schedule outlive a failure? Press *Start*, kill a worker when the chunks lie in their
# spans, and look in the dashboard where they lie afterwards. The job trains until you press *Stop*.

# %%
endless = gpt_job(size="tiny", iterations=10_000, **emulated)
lab.controls(endless, persistent_url=None, **settings)

# %% [markdown]
# - `plan(replicas=3)` plans for two remote copies. How much idle time does it need?
# - What does `mu` buy? Compare `plan(mu=0.5)` and `plan(mu=1.0)`, first on paper, then in a run
#   (`mu` is a setting of `lab.train`, too).
# - `gemini-lab bench schemes` repeats section 4 in the paper's proportions, with intervals.
# - Paper: section 5.3 with Algorithm 2 and Fig. 5, section 7.4 with Fig. 16. The printed algorithm
#   has four slips; `gemini_lab/pipeliner/algorithm_2.py` names them.
