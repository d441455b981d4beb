# %% [markdown]
# # 07 What comes after
#
# **Goal.** Ask the paper's questions about a cluster of your own, see what later ideas change, and
# change a job that really runs: its size, its past, its machines.
#
# **Time.** One to two minutes to run, 50 minutes to read, predict and try. A laptop is enough.
# Sections 1 to 4 are models and simulations.
#
# **Read first.** The paper's sections 6.2 and 8, and labs 01, 03 and 06.

# %%
from dataclasses import replace

import matplotlib.pyplot as plt

from gemini_lab import plan
from gemini_lab.simulator import FailureRate, poisson_failures, simulate
from gemini_lab.simulator.peers import shrink
from gemini_lab.simulator.policy import gemini
from gemini_lab_bench.figures import time_use
from gemini_lab_course.predictions import predict

# %%
plt.style.use("gemini_lab_widgets.labs")  # readable on light and on dark

# %% [markdown]
# Your cluster. Replace these by your own, here or with `papermill ... -p params 13B -p nodes 32`.

# %% tags=["parameters"]
params = "70B"
nodes = 64
network = "400 Gbit/s"  # of a machine
store = "20 Gbit/s"  # of all machines together
failures = 15  # a day, of 1,000 machines

# %% [markdown]
# ## 1. Your cluster in one cell
# How large is a checkpoint? Does its traffic fit into the network's idle time?

# %%
in_memory = predict(
    f"{params} parameters on {nodes} machines, two copies in two buffers: GiB of memory a machine?"
)
in_memory

# %%
yours = {"params": params, "nodes": nodes, "network": network, "store": store}
answer = plan(**yours, failures_per_node_per_day=failures / 1000)

# %%
in_memory.came_out(f"{answer.memory_needed_bytes / 2**30:.0f}")

# %% [markdown]
# **Compared with the paper.** What makes it free is that checkpoint traffic takes less than the
# idle time.

# %%
share = answer.checkpoint_s / answer.workload.idle_s
print("paper, Fig. 8, 100 B on 16 p4d: 25 % of the idle time (2.5 s of 10.0 s)")
print(f"your cluster, model:           {share:3.0%} of the idle time")

# %% [markdown]
# ## 2. Later ideas, on the same failures
# - *CheckFreq* snapshots into the machine's own memory, then persists during training.
# - *LowDiff* writes compressed gradients as differences.
# - *Checkmate* lets switches copy the gradients to shadow machines that keep the model up to date.
# - *Odyssey* takes the cheapest of three ways: other machines take over the work, the model is
#   divided again, or the job waits.

# %%
best = predict("Which gains most?", "CheckFreq", "LowDiff", "Checkmate", "Odyssey")
best

# %%
paper_and_ours = ("Strawman", "HighFreq", "Gemini", "gemini_lab")
shown = (*paper_and_ours, "CheckFreq", "LowDiff", "Checkmate", "Odyssey")
outcomes = [forecast.outcome for forecast in answer.forecasts if forecast.policy.name in shown]
later = [each for each in answer.forecasts if each.policy.name in shown[4:]]
best.came_out(max(later, key=lambda each: each.outcome.effective_ratio).policy.name)

# %%
answer

# %% [markdown]
# The first table is the plan, the second what to expect. What they assume is folded below them.

# %%
title = f"{params} on {nodes} machines, {failures} of 1,000 fail a day"
time_use.figure(outcomes, title=title, losses_only=True)

# %%
for forecast in answer.forecasts:
    print(f"{forecast.policy.name:20} {forecast.policy.source}")

# %% [markdown]
# <details><summary><b>Why? Say it first, then compare.</b></summary>
#
# Each is simulated from what its authors report (folded below the tables), so these assumptions
# decide. LowDiff pays for each iteration, Checkmate needs switches and machines that others do not
# have, and Odyssey keeps whole copies in GPU memory. A comparison of systems is a comparison of
# such lists.
#
# </details>

# %% [markdown]
# ## 3. When it stops being free

# %%
begins = predict("With a slower and slower network, the overhead begins", "gently", "at once")
begins

# %%
job = answer.workload


# %%
from gemini_lab.simulator.traffic import chunk_schedule


def delay_s(gbit_per_s, replicas=2):
    """How much longer an iteration takes when it sends a version."""
    nominal = gbit_per_s * 1e9 / 8
    rates = {"network_bytes_per_s": 0.6 * nominal, "copy_bytes_per_s": nominal}
    return chunk_schedule(replace(job, **rates), replicas=replicas).delay_s


# %%
links = [10 * 1.1**i for i in range(34)]
begins.came_out("at once")

# %%
_, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
for replicas, colour in ((2, "C0"), (3, "C1"), (4, "C2")):
    slower = [100 * delay_s(link, replicas) / job.iteration_s for link in links]
    axes.semilogx(links, slower, color=colour, label=f"m = {replicas} (model)")
axes.set(xlabel="a machine's link, Gbit/s", ylabel="iteration longer by, %")
axes.set_xticks([10, 20, 50, 100, 200], ["10", "20", "50", "100", "200"])
axes.legend(frameon=False)

# %% [markdown]
# <details><summary><b>Why? Say it first, then compare.</b></summary>
#
# It costs nothing until the idle spans are full; from there on every byte is paid.
#
# </details>

# %% [markdown]
# The paper's way out is to send fewer versions. `plan` does that by itself, up to `max_overhead`.

# %%
slow = plan(**{**yours, "network": "10 Gbit/s"}).schedule
print(f"at 10 Gbit/s a version every {slow.every_iterations} iterations, ", end="")
print(f"{slow.mean_iteration_s / slow.iteration_s - 1:.1%} slower on average (model)")

# %% [markdown]
# ## Exercise 1
# Find the slowest link, in Gbit/s, that sends **three** copies of every version for free (less than
# a thousandth of an iteration), to within a tenth.


# %%
def third_copy_s(gbit_per_s):
    return delay_s(gbit_per_s, replicas=3)


# %% tags=["exercise"]
# Your answer: a number of Gbit/s. `third_copy_s(400)` tries one.
slowest = None
### BEGIN SOLUTION
low, high = 0.1, 1e5
while high / low > 1.01:
    middle = (low * high) ** 0.5
    is_free = third_copy_s(middle) < job.iteration_s / 1000
    low, high = (low, middle) if is_free else (middle, high)
slowest = high
### END SOLUTION

# %% tags=["check"]
from gemini_lab_course import Verdict, lab_07

with Verdict() as say:
    say(lab_07.exercise_1(slowest, delay_s=third_copy_s, free_s=job.iteration_s / 1000))

# %% [markdown]
# ## 4. Wait, or go on with fewer?
# The paper waits for a machine; Odyssey waits only if that costs least.

# %%
waits = predict(
    "No standby, a new machine after four hours: what share of a year is training, in %?"
)
waits

# %%
rate = FailureRate(per_node_per_day=failures / 1000)
quiet = poisson_failures(nodes=nodes, days=365, rate=rate)


# %%
def ratio(policy, hours, standbys=0):
    """The effective ratio of a simulated year in which a new machine takes so many hours."""
    slow = replace(job, standbys=standbys, replacement_s=(hours * 3600, hours * 3600))
    return simulate(slow, policy(slow), quiet, days=365).effective_ratio


# %%
hours = (0.1, 0.5, 1, 2, 4, 8)
ways = {"no standby": (gemini, 0), "one standby": (gemini, 1), "going on with fewer": (shrink, 0)}
waits.came_out(f"{ratio(gemini, 4):.0%}")

# %%
_, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
for label, (policy, standbys) in ways.items():
    share = [100 * ratio(policy, each, standbys) for each in hours]
    axes.plot(hours, share, "o-", label=f"{label} (simulation)")
axes.set(xlabel="hours until a new machine is there", ylabel="effective ratio, %")
axes.legend(frameon=False)

# %% [markdown]
# <details><summary><b>Why? Say it first, then compare.</b></summary>
#
# In-memory checkpoints bring back what was lost; they do not bring a machine. A standby does, while
# failures are further apart than deliveries.
#
# </details>

# %% [markdown]
# ## 5. For real
# Four nodes and a standby on this machine train a small GPT. It stops four times until you act:
#
# - *resize* it to three nodes: shards are cut again from memory,
# - *rewind* two iterations, without their batches: no process starts,
# - *drain* a node, as if a spot machine had been given notice: its ranks move to a standby,
# - kill a worker, while all other ranks keep their process.

# %%
slowest_pause = predict("Which of the four pauses is longest?", "resize", "rewind", "drain", "kill")
slowest_pause

# %% tags=["nodes"]
from gemini_lab import Lab, WorkerCrash
from gemini_lab.training.quickstart import gpt_job

lab = Lab(nodes=4, standbys=1)
lab.wait_until_ready()
lab.dashboard()

# %% [markdown]
# The global batch stays twelve samples, dealt to as many ranks as there are.

# %% tags=["nodes"]
small = gpt_job(size="tiny", iterations=80, global_batch=12)
kept = {"keep_in_memory": 3, "keep_processes": True, "persistent_url": None}
run = lab.train(small, name="what-comes-after", hold_at=(10, 25, 35, 55), **kept)
run.progress(80)

# %% tags=["nodes"]
run.wait(until=10)
run.resize(3)
run.wait(until=25)

# %% tags=["nodes"]
run.rewind(2)
run.wait(until=35)

# %% tags=["nodes"]
run.drain(run.members[1])
run.wait(until=55)

# %% tags=["nodes"]
run.inject(WorkerCrash("rank-2"))
report = run.wait().report()


# %% tags=["nodes"]
def word_of(cause):
    """Return what you asked for; a killed worker has one of several causes."""
    return next((word for word in ("resize", "drain") if word in cause), "kill")


# %% tags=["nodes"]
pauses_s = {"rewind": max(each.duration_s for each in report.rewinds)}
pauses_s |= {word_of(each.cause): each.duration_s for each in report.recoveries}
shown = [f"{word:7} {pause_s:5.2f} s (measured)" for word, pause_s in pauses_s.items()]
started = {word_of(one.cause): report.ranks - len(one.kept) for one in report.recoveries}
shown += [f"{word}: {count} of {report.ranks} processes started" for word, count in started.items()]
slowest_pause.came_out(max(pauses_s, key=pauses_s.get), *shown)

# %% [markdown]
# <details><summary><b>Why? Say it first, then compare.</b></summary>
#
# A resize starts all ranks again, because each has another part of the model. A drain and a killed
# worker start one process; the others go on in theirs, with new process groups. A rewind starts
# none. (If other ranks noticed the killed worker before its node did, the log calls it `link_cut`.)
#
# </details>

# %% [markdown]
# Now ask for something yourself, or break something, and see in the dashboard how long each pause
# is. The job trains until you press *Stop*.

# %% tags=["nodes"]
endless = gpt_job(size="tiny", iterations=10_000, global_batch=12, layer_s=0.05)
lab.controls(endless, **kept)

# %% [markdown]
# **Further reading.** Mohan, Phanishayee, Chidambaram, *CheckFreq* (FAST 2021). Yao and others,
# *LowDiff* (arXiv 2509.04084). Bhardwaj and others, *Checkmate* (arXiv 2507.13522). Zhou and
# others, *Odyssey* (arXiv 2508.21613). To go further here: `read_trace` takes your own cluster's
# failures from a CSV file, and any `Policy` can be compared on them.
