# %% [markdown]
# # 01 Why checkpoints waste time
#
# **Goal.** Know what one failure costs a training job, term by term. See why the way out is to
# checkpoint more often than a remote store allows.
#
# **Time.** Half a minute to run, forty minutes to read, predict and try. Nothing is started on your
# machine: every number here is the paper's, a formula's or a simulation's, and says which.
#
# **Read first.** The paper's sections 1 and 2.

# %%
import random

import matplotlib.pyplot as plt

from gemini_lab.recovery.wasted_time import shortest_interval_s, wasted_time_s
from gemini_lab.simulator import Outage, paper_workload, simulate
from gemini_lab.simulator.catalog import model_named
from gemini_lab.simulator.policy import expected_wasted_s, gemini, highfreq, strawman
from gemini_lab.units import format_seconds, parse_bandwidth
from gemini_lab_bench.figures import eq1

# %%
from gemini_lab_course.play import play_wasted_time
from gemini_lab_course.predictions import predict

plt.style.use("gemini_lab_widgets.labs")  # readable on light and on dark

# %% [markdown]
# The settings. `model` is a name such as `"MT-NLG"`, `"PaLM"` or `"GPT-2 100B"`, or a size such as
# `"70B"`. With papermill: `papermill 01_wasted_time.ipynb out.ipynb -p model 70B`.

# %% tags=["parameters"]
model = "MT-NLG"
store = "20 Gbit/s"  # the remote store, all machines together
failures = 400  # simulated ones

# %% [markdown]
# ## 1. How large is a checkpoint?
# Mixed precision with Adam keeps, for each parameter, an fp32 weight and two fp32 moments; the fp16
# weights and gradients follow from them. Predict before each result: an answer, and why.

# %%
size = predict(f"How large is a checkpoint of {model}, in TB?")
size

# %%
job = model_named(model)
print(f"{job.name}: {job.params / 1e9:.0f} B parameters")
size.came_out(f"{job.checkpoint_bytes / 1e12:.2f}")

# %% [markdown]
# Twelve bytes a parameter. Model parallelism and ZeRO cut this into shards but do not make the sum
# smaller.
#
# ## 2. How long does it take to store one?

# %%
to_store = predict(f"To a store that takes {store} from all machines: how many minutes?")
to_store

# %%
store_s = job.checkpoint_bytes / parse_bandwidth(store)
to_store.came_out(f"{store_s / 60:.0f}")

# %% [markdown]
# The same for three models that the paper and its talk name. Hollow bars are theirs, full ones are
# the formula's; the values lie folded under the picture.

# %%
eq1.figure()

# %% [markdown]
# ## 3. What does one failure cost?
# A failure throws training back to the last checkpoint that was *whole*. The time lost is what was
# trained since, plus the time to fetch that checkpoint.
#
# A checkpoint takes 8 minutes, the next one starts when it is done, and failures strike at random.
# Draw the histogram of wasted time on paper: where does it begin, and where does it end?

# %%
shape = predict("Its shape?", "flat", "one peak in the middle", "falling")
shape

# %% [markdown]
# We simulate the paper's job, GPT-2 100B on 16 machines, with one failure a day at a random moment,
# under HighFreq: as often to the store as the store can take it.

# %%
workload = paper_workload()
policy = highfreq(workload)

# %%
draw = random.Random(1)
moments_s = [86400 * (day + 0.5 + 0.4 * draw.random()) for day in range(failures)]
outages = [Outage(at_s=at_s, kind="software", positions=(0,)) for at_s in moments_s]

# %%
outcome = simulate(workload, policy, outages, days=failures + 1)
outcome

# %% [markdown]
# Look at the waste by cause: with one failure a day, most of it is the checkpoints themselves, as
# training stands still for 81 s while shards are serialised (section 7.3). Those 81 s belong to
# t_ckpt here. Now the failures alone.

# %%
wasted_min = [recovery.wasted_s / 60 for recovery in outcome.recoveries]
mean_min = expected_wasted_s(workload, policy, replaced=False) / 60

# %%
_, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
axes.hist(wasted_min, bins=10, color="C0", label=f"simulation, {failures} failures")
axes.axvline(mean_min, color="C1", linewidth=2, label=f"Eq. (1): {mean_min:.1f} min")
axes.set(xlabel="minutes wasted by a failure", ylabel="failures", ylim=(0, None))
axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.18), ncols=2)
axes.grid(axis="y", alpha=0.3)
shape.came_out("flat")

# %% [markdown]
# <details><summary><b>Why? Say it first, then compare.</b></summary>
#
# The best case is a failure just after a checkpoint became whole. The worst one comes
# just before the next is. Between the two all moments are equally likely, and the mean is Eq. (1),
# with t_ckpt for a checkpoint's duration, 1/f for the interval from one to the next, and t_rtvl for
# fetching one:
#
#     T_wasted = t_ckpt + 1/(2f) + t_rtvl
#
# </details>

# %%
simulated_min = sum(wasted_min) / len(wasted_min)
print(f"mean wasted time: {mean_min:.2f} min by Eq. (1), {simulated_min:.2f} min simulated")

# %% [markdown]
# ## Exercise 1
# Write the best and the worst case as a function of the three times. It returns two numbers. (A
# checkpoint is of the moment at which it was begun: what does even the best case lose?)


# %% tags=["exercise"]
def cases(checkpoint_s, interval_s, retrieval_s):
    """The wasted time, in seconds, of the best and of the worst case: (best_s, worst_s)."""
    ### BEGIN SOLUTION
    best_s = checkpoint_s + retrieval_s
    return best_s, best_s + interval_s
    ### END SOLUTION


# %% tags=["check"]
from gemini_lab_course import Verdict, lab_01

with Verdict() as say:
    say(lab_01.exercise_1(cases))

# %% [markdown]
# ## 4. How often should one checkpoint?
# By Eq. (1), as often as possible. Eq. (2) says how often that is: one checkpoint at a time, and at
# most one an iteration, 1/f >= max(t_ckpt, T_iter). Move the sliders: what helps most, and from
# where on does it not help any more?

# %%
play_wasted_time(workload)

# %%
factor = predict(
    "From the shortest interval to the store, to CPU memory: how many times less waste?"
)
factor

# %%
shortest_s = shortest_interval_s(checkpoint_s=workload.store_s, iteration_s=workload.iteration_s)
print(f"Eq. (2): to the store at most every {format_seconds(shortest_s)}")

# %%
kinds = {
    "remote store": (workload.store_s, shortest_s, workload.store_s),
    "CPU memory": (workload.iteration_s, workload.iteration_s, 0.0),
}


# %%
def curve(checkpoint_s, shortest_s, retrieval_s, stop_s=3 * 3600):
    """Intervals from the shortest one to three hours, and the wasted time of each, in minutes."""
    times = {"checkpoint_s": checkpoint_s, "retrieval_s": retrieval_s}
    intervals_s = [shortest_s * (stop_s / shortest_s) ** (i / 60) for i in range(61)]
    return [(s / 60, wasted_time_s(interval_s=s, **times) / 60) for s in intervals_s]


# %%
_, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
for (name, times), colour in zip(kinds.items(), ("C1", "C0"), strict=True):
    points = curve(*times)
    axes.loglog(*zip(*points, strict=True), color=colour, label=f"{name} (model)")
    axes.plot(*points[0], "o", color=colour)
    axes.annotate(f"{points[0][1]:.1f} min", points[0], xytext=(0, 9), textcoords="offset points")
axes.set(xlabel="minutes from checkpoint to checkpoint", ylabel="minutes wasted by a failure")
axes.legend(frameon=False)
axes.grid(alpha=0.3)

# %%
least_min = [curve(*times)[0][1] for times in kinds.values()]
factor.came_out(f"{least_min[0] / least_min[1]:.0f}")

# %% [markdown]
# <details><summary><b>Why? Say it first, then compare.</b></summary>
#
# A dot is where Eq. (2) ends a curve. The store's curve is flat there: more of the
# same does not help, since t_ckpt and t_rtvl dominate. With 1/f = t_ckpt = t_rtvl, a store that
# never rests wastes 2.5 t_ckpt. Only a shorter t_ckpt moves the dot, and that is what checkpoints
# in the CPU memory of the machines are for.
#
# </details>

# %% [markdown]
# ## 5. Three policies, and the paper
# Strawman writes to the store every three hours, and HighFreq as often as it can. Gemini keeps a
# copy of each iteration in the memory of two machines. Here one machine is lost with its memory.

# %%
fig10_min = {"Strawman": 98.0, "HighFreq": 23.1, "Gemini": 1.6}
for each in (strawman(workload), highfreq(workload), gemini(workload)):
    ours = expected_wasted_s(workload, each)
    print(f"{each.name:9} Eq. (1), model: {format_seconds(ours):>13}", end="   ")
    print(f"Fig. 10, paper: {fig10_min[each.name]:5.1f} min")

# %% [markdown]
# Two of the three agree less well than they look. For the Strawman, Eq. (1) gives 8 + 90 + 8
# minutes and the stall for serialisation; the paper's bar leaves one 8 out. For HighFreq, the
# paper's bar takes t_ckpt = 9.2 min, and the checkpoint's size gives 8.0; training also stalls for
# 81 s of serialisation. Gemini's 1.5 iterations and the retrieval are the same on both sides.
#
# **Compared with the paper.** The paper prints 42 and 105 minutes for MT-NLG.

# %%
from gemini_lab.recovery.wasted_time import saturated_wasted_time_s

mt_nlg_s = model_named("MT-NLG").checkpoint_bytes / parse_bandwidth("20 Gbit/s")
print(f"t_ckpt:  paper  42 min, model {mt_nlg_s / 60:5.1f} min (12 bytes a parameter)")
print(f"wasted:  paper 105 min, model {saturated_wasted_time_s(mt_nlg_s) / 60:5.1f} min (2.5 x)")

# %% [markdown]
# ## Exercise 2
# Could one just buy a faster store? Find the *smallest* bandwidth of a store, in Gbit/s, with which
# a failure of GPT-2 100B wastes no more than Gemini's 1.5 iterations (of 62 s). Write as often as
# Eq. (2) allows, and leave serialisation aside. Mind *both* sides of its max.

# %% tags=["exercise"]
# Your answer: a number of Gbit/s. `workload.checkpoint_bytes` and `workload.iteration_s` help.
store_gbit_per_s = None
### BEGIN SOLUTION
# Here t_ckpt < T_iter, so Eq. (2) makes the interval one iteration, not t_ckpt:
# t + T/2 + t = 1.5 T, hence t = T/2. (2.5 t = 1.5 T would ask for more than one an iteration.)
target_s = workload.iteration_s / 2
store_gbit_per_s = workload.checkpoint_bytes * 8 / 1e9 / target_s
### END SOLUTION

# %% tags=["check"]
from gemini_lab_course import Verdict, lab_01

with Verdict() as say:
    say(lab_01.exercise_2(store_gbit_per_s, workload=workload))

# %% [markdown]
# ## 6. What is not in it
# Wasted time leaves out detecting the failure, replacing a machine and starting again (the paper's
# footnote 1). They count where one asks how much of a month is left for training, in lab 06.
#
# **Further reading.** J. W. Young, *A first order approximation to the optimum checkpoint interval*
# (CACM 1974), and J. T. Daly, *A higher order estimate of the optimum checkpoint interval for
# restart dumps* (FGCS 2006), for checkpoints that make training stand still: then more often is not
# always better. Zhang and others, *OPT: Open Pre-trained Transformer Language Models* (2022), for
# what failures did to a real run.
