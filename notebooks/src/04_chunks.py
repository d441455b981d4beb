# %% [markdown]
# # 04 Chunks that fit the gaps
#
# **Goal.** Cut a checkpoint into chunks that fit the idle spans of a measured profile. See on a
# real job, with five schemes on one link, what that saves.
#
# **Time.** Two minutes to run on a laptop with two cores, 50 minutes to read and try. No GPU
# needed.
#
# Lab 02 found *when* a job's network is idle. Now each iteration's checkpoint has to go there. A
# large chunk makes training wait behind it, and a small one costs more to start than to send. The
# receiver must copy each chunk out of its buffer before the next one comes. Algorithm 2 of the
# paper (section 5.3) and its pipeline of sub-buffers solve this.

# %%
import matplotlib.pyplot as plt
import numpy as np
from gemini_lab_widgets.pictures import view
from gemini_lab_widgets.pictures.palette import TRAINING
from ipywidgets import interact

# %%
from gemini_lab import Lab
from gemini_lab.errors import CapacityError
from gemini_lab.pipeliner import plan_chunks
from gemini_lab.training.quickstart import gpt_job
from gemini_lab.units import KIB, format_bytes
from gemini_lab_bench.benches.timed_runs import AS_IF_LARGE
from gemini_lab_course.predictions import predict

plt.style.use("gemini_lab_widgets.labs")  # readable on light and on dark

# %% [markdown]
# Each run below has `iterations` iterations, of which the last `counted` are compared.

# %% tags=["parameters"]
iterations = 26
counted = 6
layer_ms = 20

# %% [markdown]
# ## 1. A profile, a wire and a checkpoint
# The machine is that of lab 02: two nodes, layers that take an accelerator's time, and a link paced
# to 40 MB/s. A received chunk leaves its buffer at 58 MB/s, as if over a bus from GPU to CPU
# memory. This machine is emulated; the times below are measured on it.

# %%
lab = Lab(nodes=2, standbys=0)
emulated = {"layer_s": layer_ms / 1000, "zero": AS_IF_LARGE}
job = gpt_job(size="tiny", iterations=iterations, **emulated)

# %%
machine = {"link_bytes_per_s": 40e6, "copy_bytes_per_s": 58e6}
settings = {**machine, "buffer_bytes": 512 * KIB, "profile_iterations": 6}

# %%
profile = lab.profile(job, **settings)
profiled = lab.run
profile

# %% [markdown]
# A calibration comes with the profile. Messages of several sizes were timed over the idle link: one
# of *s* bytes takes *alpha + s / B*. `shard_bytes` is a rank's part of the checkpoint.

# %%
wire = profiled.report().plans[-1].calibration
shard_bytes = profiled.events("protected")[0].event.shard_bytes
wire

# %%
filled = predict("How much of the idle time does the checkpoint take, in %?")
filled

# %%
needs_ms = 1000 * (wire.alpha_s + shard_bytes / wire.bandwidth_bytes_per_s)
idle_ms = 1000 * sum(span.duration_s for span in profile.idle_spans if span.before_update)
shown = f"{format_bytes(shard_bytes)} take {needs_ms:.0f} ms; the link is idle for {idle_ms:.0f} ms"
filled.came_out(f"{needs_ms / idle_ms:.0%}", shown)

# %% [markdown]
# ## 2. Algorithm 2
# `plan_chunks` is a pure function: it takes a profile and some numbers, and returns a schedule. For
# each idle span, in order, it fills `mu` = 80 % with chunks the size of a sub-buffer, the last one
# smaller. What fits nowhere is sent before the update, and delays it. This wrapper fills in what
# was measured, so that you can change one thing at a time.


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
# Play with it. When does the update wait? What does a tiny buffer do, and a third copy?


# %%
@interact(buffer_kib=(32, 2048, 32), link_mb_s=(10, 100, 5), replicas=(2, 4))
def look(buffer_kib=512, link_mb_s=40, replicas=2):
    changes = {"buffer_bytes": buffer_kib * KIB, "bandwidth_bytes_per_s": link_mb_s * 1e6}
    return view(plan(**changes, replicas=replicas), profile=profile)


# %% [markdown]
# ## 3. How large a buffer?
# `"interleaved"` has one buffer: a chunk has to be copied out before the next one may come.
# `"gemini"` has the same memory in four parts.

# %%
small = predict("A very small buffer delays which of the two more?", "interleaved", "gemini")
small

# %%
sizes = [32 * KIB * 2**power for power in range(8)]
_, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
axes.set(xlabel="buffer, KiB, all parts together", ylabel="delay of the update, ms (model)")
for scheme in ("interleaved", "gemini"):
    delays_ms = [1000 * plan(scheme=scheme, buffer_bytes=size).delay_s for size in sizes]
    axes.plot([str(size // KIB) for size in sizes], delays_ms, "o-", label=scheme)
legend = axes.legend(frameon=False)

# %%
tiny_s = {
    name: plan(scheme=name, buffer_bytes=sizes[0]).delay_s for name in ("interleaved", "gemini")
}
small.came_out(max(tiny_s, key=tiny_s.get))

# %% [markdown]
# <details><summary><b>Why? Say it first, then compare.</b></summary>
#
# On the right, the distance between the lines is what pipelining gains: chunk *j* is copied while
# chunk *j* + 1 arrives. On the left every chunk pays alpha, however small it is. `"gemini"` has its
# memory in four parts, so it pays four times as often.
#
# </details>

# %% [markdown]
# And the simplest way, one piece for each span? It needs a buffer as large as the piece.

# %%
try:
    plan(scheme="naive")
except CapacityError as error:
    print(error)

# %% [markdown]
# ## 4. Five schemes on one link
# Now for real: the paper's Fig. 16. `"none"` sends no checkpoint; `"blocking"` sends all of it
# while training waits; the others plan with a profile of their own run.

# %%
slower = predict("How many times as long as without checkpoints is an iteration of blocking?")
slower

# %%
runs = {}
for scheme in ("none", "blocking", "naive", "interleaved", "gemini"):
    run = lab.train(job, scheme=scheme, name=scheme, persistent_url=None, **settings)
    run.progress(iterations)
    runs[scheme] = run.wait()

# %% [markdown]
# The naive scheme was refused; in the paper it ran out of memory. Its run sent checkpoints in the
# background instead, and said so. That is not the naive scheme, so it has no bar below.


# %%
def iteration_s(run):
    durations_s = [each.duration_s for each in run.report().iterations if each.rank == 0]
    return np.median(durations_s[-counted:])


# %%
paper_s = {"none": 43.5, "blocking": 48.0, "interleaved": 45.0, "gemini": 43.5}
paper = [paper_s[name] / paper_s["none"] for name in paper_s]
here = [iteration_s(runs[name]) / iteration_s(runs["none"]) for name in paper_s]
slower.came_out(f"{here[1]:.2f}")

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
# **Compared with the paper** (Fig. 16, GPT-2 40B, bars read off). Expect the order of the bars, not
# their height: our checkpoint takes more than a third of an iteration, theirs a tenth. On a busy
# machine the bars move, because sleeping layers and paced links need a processor in time.
#
# Does it change what is learned? Losses are compared bit by bit with the run without checkpoints.

# %%
reports = {name: run.report() for name, run in runs.items()}
for name, report in reports.items():
    print(f"{name:12}", report.losses_match(reports["none"]))

# %% [markdown]
# ## Exercise 1
# Here is the paper's job, GPT-2 40B on 16 p3dn, as one GPU sees it. The naive scheme may fill spans
# **to their end** (`mu=1`). With which **smallest buffer** on a GPU is it accepted? Give it in
# bytes, to the nearest KiB; `on_p3dn` may help you.

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
# ## Exercise 2
# Now **write Algorithm 2**: cut `checkpoint_bytes` into chunks for each of `replicas - 1`
# receivers, numbered from 1.
#
# - Return chunks in the order in which they leave, each receiver's from its first byte to its last.
# - Each fits a sub-buffer: `buffer["sub_buffers"]` of them share `buffer["buffer_bytes"]`.
# - `span` is the number of a span among `profile.idle_spans`, one that is `before_update`. Each of
#   its chunks takes `alpha_s` and the time for its bytes; all end within the span's `duration_s`.
# - `span=None` is for what fits nowhere; it delays the update.
#
# `attack` tries small iterations and checkpoints, the smallest first, and draws what breaks a
# planner:

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
    say(lab_04.exercise_2(planner))

# %% [markdown]
# ## Further
# Does a schedule outlive a failure? Press *Start*, and open *Traffic* below the buttons. Kill a
# worker when the chunks lie in their spans, and look where they lie afterwards. The job trains
# until you press *Stop*.

# %%
endless = gpt_job(size="tiny", iterations=10_000, **emulated)
lab.controls(endless, persistent_url=None, **settings)

# %% [markdown]
# - What does `mu` buy? Compare `plan(mu=0.5)` and `plan(mu=1.0)`, first on paper, then in a run.
# - The printed algorithm looks at one span at a time. By default jobs plan with `"drain"`, which
#   sees that buffers drain while training has the link: compare `plan(algorithm="drain")`.
# - `max_overhead=0.15` sends every *j*-th version when a checkpoint no longer fits.
# - Paper: section 5.3 with Algorithm 2 and Fig. 5, section 7.4 with Fig. 16. The printed algorithm
#   has four slips; `gemini_lab/pipeliner/algorithm_2.py` names them.
