# %% [markdown]
# # 02 When is the network idle?
#
# **Goal.** Profile a training job that really runs, and find the spans of time in which its network
# carries nothing. Judge whether they are regular enough to plan with.
#
# **Time.** About a minute to run on a laptop with two cores, forty to read and try. No GPU is
# needed.
#
# A checkpoint of every iteration travels over the network that training uses. It costs training
# nothing only while that network is *idle*. So GEMINI first watches for some iterations (paper,
# section 5.4). It records when each collective starts and ends, and keeps the mean. That is the
# job's *profile*. The times between the collectives are its *idle spans*.

# %%
from statistics import median

import matplotlib.pyplot as plt
from gemini_lab_widgets.pictures.palette import IDLE, REPLICAS, TRAINING

from gemini_lab import Lab
from gemini_lab.training.gpt import named_size, parameter_count
from gemini_lab.training.quickstart import gpt_job
from gemini_lab_bench.benches.timed_runs import AS_IF_LARGE

# %%
from gemini_lab_course.play import play_spans
from gemini_lab_course.predictions import predict

plt.style.use("gemini_lab_widgets.labs")  # readable on light and on dark

# %% [markdown]
# The paper's profile takes 20 iterations; eight are enough here. For other values: `papermill
# 02_profiling.ipynb out.ipynb -p profile_iterations 20 -p link "20 MB/s"`.

# %% tags=["parameters"]
profile_iterations = 8
layer_ms = 20
link = "40 MB/s"

# %% [markdown]
# ## 1. A job on a machine that is slow enough
# Two nodes train a GPT of half a million parameters with ZeRO-3. On one machine, "network" is a
# memory copy, and it competes with computing for the same cores. So three things are emulated:
#
# - each node's **link** is paced to 40 MB/s, for training and checkpoints alike;
# - each block of the model **sleeps** 20 ms in the forward pass and 40 ms in the backward pass, as
#   if an accelerator computed meanwhile;
# - ZeRO-3's thresholds, made for billions of parameters, are **scaled down**. With the usual ones
#   so small a model would stay in one piece.

# %%
lab = Lab(nodes=2, standbys=0)
emulated = {"layer_s": layer_ms / 1000, "zero": AS_IF_LARGE}
job = gpt_job(size="tiny", iterations=1000, **emulated)
AS_IF_LARGE

# %% [markdown]
# The dashboard shows the lab live: you are about to profile the grey bars of its timeline.

# %%
lab.dashboard()

# %% [markdown]
# ## 2. Profile it
# ZeRO-3 gathers the weights of each layer before it is used, in the forward and again in the
# backward pass. In the backward pass it also adds up gradients over all nodes. The model has two
# blocks. Draw it on paper: when is the network idle?

# %%
long_spans = predict("How many idle spans are at least half as long as the longest?")
long_spans

# %% [markdown]
# `lab.profile` trains until all ranks agree on the mean of what they saw, and stops the job.

# %%
profile = lab.profile(job, link_bytes_per_s=link, profile_iterations=profile_iterations)
profiled = lab.run
profile

# %%
idle_s = [span.duration_s for span in profile.idle_spans]
long_spans.came_out(sum(each >= max(idle_s) / 2 for each in idle_s))

# %% [markdown]
# Find the two forward and the two backward passes. Does a checkpoint, a rank's weights and moments,
# fit between them? Move the sliders until it does not.

# %%
shard_bytes = profiled.events("protected")[0].event.shard_bytes
play_spans(profile, shard_bytes=shard_bytes, link_bytes_per_s=40e6)

# %% [markdown]
# `gemini-lab profile train.py` makes such a profile of any DeepSpeed script, without a lab.
#
# ## 3. Does it repeat?
# A mean can lie. Here is every iteration of the same run from its event log: one line an iteration,
# a bar while training held the network. The lab still sent every second version in the background,
# as fast as the link took it.

# %%
longer = predict("Do iterations take longer while a version travels?", "yes", "no")
longer

# %%
calls = [e.event for e in profiled.events("collectives") if e.event.rank == 0]
sent = {e.event.version for e in profiled.events("version_complete")}

# %%
_, axes = plt.subplots(figsize=(9, 4), layout="constrained")
axes.set(xlabel="ms since the iteration began (on blue: a version travels)", ylabel="iteration")
axes.yaxis.get_major_locator().set_params(integer=True)
for each in calls:
    bars = [(1000 * c.start_s, 1000 * (c.end_s - c.start_s)) for c in each.calls()]
    axes.broken_barh(bars, (each.iteration - 0.4, 0.8), color=TRAINING)
    if each.iteration - 1 in sent:
        row = each.iteration - 0.5, each.iteration + 0.5
        axes.axhspan(*row, color=REPLICAS[0], alpha=0.3, zorder=0)

# %%
ends = {each.iteration: max(call.end_s for call in each.calls()) for each in calls}
shared, alone = ([s for n, s in ends.items() if (n - 1 in sent) == is_one] for is_one in (1, 0))
longer.came_out("yes" if median(shared) > median(alone) else "no")

# %% [markdown]
# <details><summary><b>Why? Say it first, then compare.</b></summary>
#
# The profile is made of the lines on plain ground. Those on blue show why a checkpoint should not
# leave at any time: it shares the link with training's traffic, so both take longer. (The first
# iterations do not count, because the job settles down there.)
#
# </details>

# %% [markdown]
# How regular is regular enough? The paper saw a standard deviation below 10 % of the mean, and a
# profile here counts as steady up to that. If yours says "unsteady", the figure above shows which
# iterations your machine disturbed: profile again.

# %%
print(profile.verdict)

# %% [markdown]
# The longest spans, with their standard deviations. Short ones vary most in proportion, but there
# is little to lose in them.

# %%
_, axes = plt.subplots(figsize=(9, 2.6), layout="constrained")
axes.set(xlabel="idle span: ms since the iteration began", ylabel="length, ms")
longest = sorted(profile.idle_spans, key=lambda span: -span.duration_s)[:12]
names = [f"at {1000 * span.start_s:.0f}" for span in longest]
lengths_ms, stds_ms = zip(*((1e3 * s.duration_s, 1e3 * s.std_s) for s in longest), strict=True)
bars = axes.bar(names, lengths_ms, yerr=stds_ms, capsize=3, color=IDLE, ecolor=TRAINING)

# %% [markdown]
# **Compared with the paper.** Figs. 7 and 8 give 10.0 s of idle network in an iteration of 64.9 s
# for GPT-2 100B on 16 p4d machines (read off the bars). The share is larger here, because we chose
# the link and the layers so.

# %%
share = profile.idle_s / profile.iteration_s
print(f"paper, GPT-2 100B, measured: {10.0 / 64.9:4.0%} of an iteration is idle network")
print(f"here, {link}, measured:    {share:4.0%}, with the emulations above")

# %% [markdown]
# ## 4. What changes with the batch?
# With four times the batch, an accelerator computes about four times as long.

# %%
times = predict("Bytes on the wire with four times the batch: how many times as many?")
times

# %%
four_times = {**emulated, "layer_s": 4 * emulated["layer_s"]}
large_batch = gpt_job(size="tiny", iterations=1000, batch=8, **four_times)
wide = lab.profile(large_batch, link_bytes_per_s=link, profile_iterations=3)
wide


# %%
def described(name, one):
    idle = f"idle {1000 * one.idle_s:.0f} ms = {one.idle_s / one.iteration_s:.0%}"
    collectives = f"{one.traffic_bytes} B in {len(one.collectives)} collectives"
    return f"{name}: {collectives}, {idle}, fingerprint {one.fingerprint}"


# %%
lines = described("batch of 2", profile), described("batch of 8", wide)
times.came_out(f"{wide.traffic_bytes / profile.traffic_bytes:g}", *lines)

# %% [markdown]
# <details><summary><b>Why? Say it first, then compare.</b></summary>
#
# The sequence of collectives, their names and bytes, follows from the model and from ZeRO's
# settings; the batch only moves them apart. So the fingerprint, a hash of that sequence, is the
# same. A schedule made for the small batch would leave idle time unused with the large one. When
# the *sequence* changes in the middle of a run, the job is profiled again.
#
# </details>

# %% [markdown]
# ## Exercise 1
# How many bytes does one iteration put on the wire **for each parameter**, counting the full size
# of every collective as the profile does? Numbers are fp32 here.

# %%
parameters = parameter_count(named_size("tiny"))
print(f"{parameters} parameters")

# %% tags=["exercise"]
# Your answer: a number of bytes.
bytes_per_parameter = None
### BEGIN SOLUTION
# Weights are gathered twice, gradients reduced once: three times four bytes.
bytes_per_parameter = 3 * 4
### END SOLUTION

# %% tags=["check"]
from gemini_lab_course import Verdict, lab_02

with Verdict() as say:
    say(lab_02.exercise_1(bytes_per_parameter, profile=profile, parameters=parameters))

# %% [markdown]
# The paper's models train in 16 bit, so it is half as much there. A checkpoint has as many bytes as
# this, but each rank sends only its part.
#
# ## Exercise 2
# A profile is good for the job it was made with. Write a job **with the same tiny model** whose
# profile has another fingerprint. (Which of `AS_IF_LARGE` would you change?) The check profiles it.


# %%
def again(other):
    return lab.profile(other, link_bytes_per_s=link, profile_iterations=3)


# %% tags=["exercise"]
# Your answer: a job, gpt_job(size="tiny", iterations=1000, ...).
other_job = None
### BEGIN SOLUTION
# Another rule for what is sent when: gradients all at once.
buckets = {**AS_IF_LARGE, "reduce_bucket_size": 10_000_000}
other_job = gpt_job(size="tiny", iterations=1000, zero=buckets)
### END SOLUTION

# %% tags=["check"]
from gemini_lab_course import Verdict, lab_02

with Verdict() as say:
    say(lab_02.exercise_2(other_job, job=job, profile=profile, profile_of=again))

# %% [markdown]
# ## Further
# Train the job with versions in the spans that you saw. Press *Start*, look at an iteration, and
# break something. The job trains until you press *Stop*. Is it profiled again after a recovery?

# %%
endless = gpt_job(size="tiny", iterations=10_000, **emulated)
lab.controls(endless, link_bytes_per_s=link, profile_iterations=profile_iterations)

# %% [markdown]
# - What does `lab.profile(job, profile_iterations=20)` without a link to pace say? How many idle
#   spans are left, and would you trust them?
# - Lab 04 fills these spans with chunks.
# - Paper: section 5.4 on profiling, Figs. 7 and 8 on idle time.
