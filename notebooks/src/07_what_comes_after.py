# %% [markdown]
# # 07 What comes after
#
# **Goal.** Ask the paper's questions about a cluster of your own, and see what later ideas change:
# replicas where they are needed most, differences, shadow machines, going on with fewer machines,
# and racks that die as one.
#
# **Time.** One to two minutes to run, an hour to read, predict and try. A laptop is enough.
# Sections 1 to 6 are models and simulations, and list what they assume of numbers that you do not
# give; section 7 does the same things to a job that really runs.
#
# **Read first.** The paper's sections 6.2 and 8, and labs 01, 03 and 06.

# %%
from dataclasses import replace

import matplotlib.pyplot as plt

from gemini_lab import plan, plan_placement
from gemini_lab.placement.adaptive import loss_chance, propose_placement
from gemini_lab.simulator import FailureRate, poisson_failures, simulate
from gemini_lab.simulator.peers import shrink
from gemini_lab.simulator.policy import gemini
from gemini_lab_bench.figures import time_use

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
racks = 8

# %% [markdown]
# ## 1. Your cluster in one cell
# **Predict** before you run: how large is a checkpoint, how much memory does each machine need for
# two copies in two buffers, and does the traffic fit into the network's idle time?

# %%
from gemini_lab_course.predictions import predict

in_memory = predict(f"memory a machine for two copies: {params} on {nodes}, in GB")
in_memory

# %%
yours = {"params": params, "nodes": nodes, "network": network, "store": store}
answer = plan(**yours, failures_per_node_per_day=failures / 1000)

# %%
in_memory.came_out(f"{answer.memory_needed_bytes / 1e9:.0f}")
answer

# %% [markdown]
# The first table is the plan, the second what to expect, the list what was taken for granted.
#
# **Beside the paper.** What makes it free is that checkpoint traffic takes less than the idle time.

# %%
share = answer.checkpoint_s / answer.workload.idle_s
print("paper, Fig. 8, 100 B on 16 p4d: 25 % of the idle time (2.5 s of 10.0 s)")
print(f"your cluster, model:           {share:3.0%} of the idle time")

# %% [markdown]
# ## 2. Later ideas, on the same failures
# **Predict**: which of these gains most, and what does it ask for in return?
#
# - *CheckFreq* snapshots into the machine's own memory, then persists beside training.
# - *LowDiff* writes compressed gradients as differences.
# - *Checkmate* lets switches copy the gradients to shadow machines that keep the model up to date.
# - *Odyssey* takes the cheapest of three: others do the work too, all is cut anew, or it waits.

# %%
paper_and_ours = ("Strawman", "HighFreq", "Gemini", "gemini_lab")
shown = (*paper_and_ours, "CheckFreq", "LowDiff", "Checkmate", "Odyssey")
outcomes = [forecast.outcome for forecast in answer.forecasts if forecast.policy.name in shown]

# %%
title = f"{params} on {nodes} machines, {failures} of 1,000 fail a day"
time_use.figure(outcomes, title=title, losses_only=True)

# %%
for forecast in answer.forecasts:
    print(f"{forecast.policy.name:20} {forecast.policy.source}")

# %% [markdown]
# **Explain.** Each is simulated from what its authors say of it (the list in section 1), so the
# assumptions decide. LowDiff
# pays for each iteration, Checkmate needs switches and machines that others do not have, and
# Odyssey keeps whole copies in GPU memory. A comparison of systems is a comparison of such lists.
# Standbys and shadow machines are paid for too: that is the column *cost* of section 1.
#
# Which of the inputs does the answer hang on? Each is halved and doubled on the same failures.

# %%
for one in answer.sensitivity():
    print(f"{one.name:12} half {one.halved.mean:+.2%}, double {one.doubled.mean:+.2%} (simulated)")

# %% [markdown]
# ## 3. When it stops being free
# **Predict**: with a slower network, does the overhead begin gently or at once? And where, with a
# third copy?

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

# %%
_, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
for replicas, colour in ((2, "C0"), (3, "C1"), (4, "C2")):
    slower = [100 * delay_s(link, replicas) / job.iteration_s for link in links]
    axes.semilogx(links, slower, color=colour, label=f"m = {replicas} (model)")
axes.set(xlabel="a machine's link, Gbit/s", ylabel="iteration longer by, %")
axes.set_xticks([10, 20, 50, 100, 200], ["10", "20", "50", "100", "200"])
axes.legend(frameon=False)
axes.grid(alpha=0.3)

# %% [markdown]
# **Explain.** Nothing, until the idle spans are full; from there on every byte is paid. The paper's
# way out is to send fewer versions. `plan` does that by itself, up to `max_overhead`.

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
# ## 4. Replicas where they are needed
# Four machines are flaky: they fail ten times as often. The planner tries m = 1, 2, ... and, before
# each next m, one copy more for the shards in most danger. **Predict** what it picks.

# %%
rates = [failures / 1000] * (nodes - 4) + [failures / 100] * 4
shard = job.shard_bytes

# %%
proposal = propose_placement(
    nodes=nodes,
    failures_per_node_per_day=rates,
    repair_s=430,
    memory_bytes=8 * shard,
    shard_bytes=shard,
    target=0.9999,
)

# %%
for trial in proposal.tried:
    print("-", trial.reason)

# %% [markdown]
# ## Exercise 2
# Look at the groups of the plain placement: the flaky four are one another's partners. Keep m = 2,
# the load of two shards a machine, and bring the chance that memory does not suffice in 30 days to
# **less than half**.

# %%
plain = plan_placement(nodes=nodes)
window = {"failures_per_day": rates, "repair_s": 430, "horizon_days": 30}


# %%
def loss(placement):
    return loss_chance(placement, **window)


# %%
print(f"plain: {loss(plain):.4f} (model), last groups {plain.groups[-2:]}")

# %% tags=["exercise"]
# Your answer: a Placement. Which argument of plan_placement keeps machines apart?
careful = None
### BEGIN SOLUTION
# "Do not put these together" is what `racks` says: the flaky ones are one failure domain.
flaky = ["flaky" if rate > failures / 1000 else f"node-{node}" for node, rate in enumerate(rates)]
careful = plan_placement(nodes=nodes, racks=flaky)
### END SOLUTION

# %% tags=["check"]
from gemini_lab_course import Verdict, lab_07

with Verdict() as say:
    say(lab_07.exercise_2(careful, plain=plain, loss=loss))

# %% [markdown]
# ## 5. Racks that die as one
# A year in which every rack is lost six times, on average, besides the failures of single machines.
# The same job, the same failures, two placements.

# %%
rack_of = [f"rack-{node * racks // nodes}" for node in range(nodes)]
rate = FailureRate(per_node_per_day=failures / 1000)
bad_year = poisson_failures(nodes=nodes, days=365, rate=rate, racks=rack_of, rack_per_day=6 / 365)

# %%
ready = replace(job, standbys=-(-nodes // racks))
apart = plan_placement(nodes=nodes, racks=rack_of)

# %%
year = []
for name, where in (("groups as listed", plain), ("groups across racks", apart)):
    policy = replace(gemini(ready), name=name)
    year.append(simulate(ready, policy, bad_year, days=365, placement=where))
    print(name, dict(year[-1].by_tier), f"{year[-1].wasted_s / 60:.1f} min wasted on average")

# %%
title = f"a year with {len(bad_year)} failures, racks among them"
time_use.figure(year, title=title, losses_only=True)

# %% [markdown]
# **Explain.** When a rack takes whole groups with it, all machines go back to the store's
# checkpoint of up to three hours ago. Across racks, memory was enough. The placement cost nothing.
#
# ## 6. Wait, or go on with fewer?
# The paper waits for a machine; Odyssey does so only where that costs least. **Predict**: a
# replacement takes four hours, and there is no standby. Which share of the year does Gemini train?

# %%
quiet = poisson_failures(nodes=nodes, days=365, rate=rate)


# %%
def ratio(policy, hours, standbys=0):
    """The effective ratio of a simulated year in which a new machine takes so many hours."""
    waits = replace(job, standbys=standbys, replacement_s=(hours * 3600, hours * 3600))
    return simulate(waits, policy(waits), quiet, days=365).effective_ratio


# %%
hours = (0.1, 0.5, 1, 2, 4, 8)
ways = {"no standby": (gemini, 0), "one standby": (gemini, 1), "going on with fewer": (shrink, 0)}

# %%
_, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
for label, (policy, standbys) in ways.items():
    share = [100 * ratio(policy, each, standbys) for each in hours]
    axes.plot(hours, share, "o-", label=f"{label} (simulation)")
axes.set(xlabel="hours until a new machine is there", ylabel="effective ratio, %")
axes.legend(frameon=False)
axes.grid(alpha=0.3)

# %% [markdown]
# **Explain.** In-memory checkpoints bring back what was lost; they do not bring a machine. A
# standby does, as long as failures are further apart than deliveries.
#
# ## Exercise 3
# A replacement takes eight hours. How many standbys, at least, make Gemini as good as shrinking?


# %%
def with_standbys(count):
    return ratio(gemini, 8, standbys=count)


# %%
as_shrinking = ratio(shrink, 8)
print(f"shrinking: {as_shrinking:.2%} of the year (simulated)")


# %% tags=["exercise"]
# Your answer: a whole number. `with_standbys(0)` tries one.
standbys_needed = None
### BEGIN SOLUTION
standbys_needed = next(n for n in range(nodes) if with_standbys(n) >= as_shrinking)
### END SOLUTION

# %% tags=["check"]
from gemini_lab_course import Verdict, lab_07

with Verdict() as say:
    years = {"reached": with_standbys, "wanted": as_shrinking, "nodes": nodes}
    say(lab_07.exercise_3(standbys_needed, **years))

# %% [markdown]
# ## Exercise 4
# At every failure the paper's Gemini serialises the copies with torch.save, so that torch.load can
# read them. gemini_lab's agents keep shards as raw bytes with checksums, and have nothing to
# serialise. Write that down as a `Policy`, with a name and assumptions of its own, and see what it
# is worth.


# %%
def a_year(policy):
    return simulate(job, policy, quiet, days=365)


# %% tags=["exercise"]
# Your answer: a Policy. `gemini(job)` gives one, and dataclasses.replace changes fields.
raw_bytes = None
### BEGIN SOLUTION
raw_bytes = replace(
    gemini(job),
    name="raw bytes",
    assumptions="shards lie in memory as bytes that can be read as they are",
    serialise_s=0.0,
)
### END SOLUTION

# %% tags=["check"]
from gemini_lab_course import Verdict, lab_07

with Verdict() as say:
    say(lab_07.exercise_4(raw_bytes, papers=gemini(job), simulate=a_year))

# %% [markdown]
# ## 7. The same, for real
# Four nodes and a standby on this machine train a small GPT. It holds four times for you to act:
#
# - *resize* it to three nodes: shards are cut anew from memory,
# - *rewind* two iterations, without their batches: no process starts,
# - *drain* a node, as if a spot machine had been given notice: its ranks move to a standby,
# - kill a worker, while all other ranks keep their process.
#
# **Predict**: how long does training stand still each time, and how many iterations are done again?

# %%
from gemini_lab_course.predictions import predict

slowest_pause = predict("the longest of the four pauses: resize, rewind, drain, kill")
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
for each in report.recoveries:
    anew = report.ranks - len(each.kept)
    again = f"iterations again: {each.lost_by_any}, processes started: {anew}"
    print(f"{each.cause:14} {each.duration_s:4.1f} s, {again} (measured)")
for each in report.rewinds:
    print(f"rewind         {each.duration_s:4.2f} s to version {each.version} (measured)")

# %% tags=["nodes"]
slowest_pause.came_out(f"{max(each.duration_s for each in report.recoveries):.1f} s")

# %% [markdown]
# The killed worker is `worker_exited`, or `link_cut` where the others felt their connections to it
# break half a second before its node had told of it, as on a busy machine.
#
# **Explain.** A resize starts all ranks anew, for each has another part of the model. A drain and a
# killed worker start one process; the others go on in theirs, with new process groups. A rewind
# starts none. Which of the four did section 6 simulate, and what did it leave out?

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
