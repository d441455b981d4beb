# %% [markdown]
# # 06 The paper at scale
#
# **Goal.** Know how much of a month a thousand machines train, and what takes the rest: by the
# paper's formulas, and by a simulation of the same planners.
#
# **Time.** Half a minute to run, 50 minutes to read, predict and try. A laptop is enough.
#
# **Read first.** The paper's section 7. Lab 01 has its Eq. (1), lab 03 Fig. 9, lab 05 Fig. 14 for
# real.
#
# In all pictures, **hollow or hatched is the paper, full is a model, dots and pale bars are
# simulations** (with 95 % intervals). The values, with the source of each, are folded under them.

# %%
from dataclasses import replace

from gemini_lab.simulator import compare, opt_175b, paper_workload, poisson_failures, simulate
from gemini_lab.simulator.policy import gemini, highfreq, strawman
from gemini_lab_bench.figures import fig10, fig15a, fig15b, time_use
from gemini_lab_bench.figures.command import make
from gemini_lab_course.play import play_chances
from gemini_lab_course.predictions import predict

# %% [markdown]
# The settings of the simulations: `seeds` histories of failures for each point of Fig. 15, then a
# run of its own. Larger, in a few minutes: `papermill 06_at_scale.ipynb out.ipynb -p nodes 3000 -p
# standbys 30`.

# %% tags=["parameters"]
seeds = 3
nodes = 1000
standbys = 10
days = 30

# %% [markdown]
# ## 1. What does a failure cost? Figs. 10 and 14
# The job is GPT-2 100B on 16 machines of 8 GPUs. `gemini-lab figures` draws the paper's other
# figures.

# %%
faster = predict("How many times less does a failure waste with Gemini than with HighFreq?")
faster

# %%
make("fig10")

# %%
make("fig14")

# %% [markdown]
# **Compared with the paper.** Its abstract says "more than 13 times faster failure recovery". That
# is the ratio of two bars of Fig. 10, so Eq. (1) gives it, too.

# %%
fig10_min = {point.series: point.y for point in fig10.figure().of("model")}
ratio = fig10_min["HighFreq"] / fig10_min["Gemini"]
shown = f"one machine replaced: paper {23.1 / 1.6:.1f} (Fig. 10), model {ratio:.1f} (Eq. 1)"
faster.came_out(f"{ratio:.1f}", shown)

# %% [markdown]
# Wasted time is 1.6 minutes, but the whole recovery takes seven, or twelve if a machine has to be
# found first. Serialisation and warm-up are the long steps. Eq. (1) has neither; from here on both
# count.
#
# ## 2. How much of the day is left? Fig. 15

# %%
trains = predict("Eight failures a day with Gemini: what share of the day is training, in %?")
trains

# %%
trains.came_out(f"{1 - 9 * 8 / 1440:.0%}")
fig15a.figure(days=30, seeds=seeds)

# %% [markdown]
# <details><summary><b>Why? Say it first, then compare.</b></summary>
#
# The paper's lines are a formula, 1 - 9 F / 1440 for Gemini: each failure costs nine minutes,
# whenever it comes. The simulation draws failures at random. One can strike during a recovery,
# which then starts again, and none can take more than was trained since the last checkpoint.
#
# </details>

# %% [markdown]
# Now the cluster grows, and with it the number of failures.

# %%
fig15b.figure(days=5, seeds=seeds, nodes=(16, 300, 600, 1000))

# %% [markdown]
# Formula and simulation agree while failures are rare. The Strawman's line reaches zero at 857
# machines, but its simulation does not: a cluster that fails every two hours has at most two hours
# to lose.
#
# ## 3. A month of a thousand machines
# One history of failures at the rate of OPT-175B's training, 1.48 % of the machines a day, for each
# policy in turn. The placement, chunk schedule and recovery plans in it are those of real runs.

# %%
counts = predict("Gemini in that month: which share of the time counts, in %?")
counts

# %%
cluster = paper_workload(nodes=nodes, standbys=standbys)
history = poisson_failures(nodes=nodes, days=days, rate=opt_175b())
print(f"{len(history)} failures in {days} days")

# %%
outcomes = compare(cluster, history, days=days, policies=(strawman, highfreq, gemini))
counts.came_out(f"{outcomes[-1].effective_ratio:.0%}")
time_use.figure(outcomes, title=f"{days} simulated days of {nodes:,} machines")

# %% [markdown]
# <details><summary><b>Why? Say it first, then compare.</b></summary>
#
# All policies wait for detection and warm-up, some 14 times a day; the Strawman repeats most of
# what it does. Gemini's ratio lies near the 91 % that the paper's formula gives for a thousand
# machines (section 7.3). What is left to gain there is the time to recover, not the progress lost.
#
# </details>

# %%
for outcome in outcomes:
    print(outcome)

# %% [markdown]
# Memory suffices most of the time, but not always. Move the sliders: when does one more copy help,
# and when only other racks?

# %%
play_chances()

# %% [markdown]
# ## Exercise 1
# Buy HighFreq, on a thousand machines, a store ten times as fast. Its rule now checkpoints every
# iteration, and every checkpoint makes training stand still for 81 s of serialisation: it gets
# *worse*. Find the number of iterations between checkpoints that makes the most of the fast store
# in 15 simulated days. Within one point of the best effective ratio is enough.

# %%
fast = replace(paper_workload(nodes=1000, standbys=10), store_bytes_per_s=200e9 / 8)
weeks = poisson_failures(nodes=1000, days=15, rate=opt_175b())


# %%
def every(iterations):
    """Simulate 15 days with a checkpoint after every so many iterations."""
    by_rule = highfreq(fast)
    stream = replace(by_rule.persistent, every=iterations)
    return simulate(fast, replace(by_rule, persistent=stream), weeks, days=15)


# %%
print("by its rule:", simulate(fast, highfreq(fast), weeks, days=15))

# %% tags=["exercise"]
# Your answer: a whole number. `every(100)` tries one.
iterations = None
### BEGIN SOLUTION
# Young's rule: the square root of 2 x stall x mean time between failures.
between_s = 15 * 86400 / len(weeks)
best_s = (2 * fast.serialise_s * between_s) ** 0.5
iterations = round(best_s / fast.iteration_s)
### END SOLUTION

# %% tags=["check"]
from gemini_lab_course import Verdict, lab_06

with Verdict() as say:
    say(lab_06.exercise_1(iterations, every=every))

# %% [markdown]
# ## Exercise 2
# A machine that died is replaced in four to seven minutes, unless a standby waits. What is the
# *smallest* number of standbys with which a thousand machines spend less than 0.1 % of their time
# waiting for machines?


# %%
def waiting(standbys):
    """Return the share of the time that Gemini waits for machines, with so many standbys."""
    cluster = paper_workload(nodes=1000, standbys=standbys)
    outcome = simulate(cluster, gemini(cluster), weeks, days=15)
    return outcome.down_s.get("reserve", 0.0) / outcome.wall_s


# %% tags=["exercise"]
# Your answer: a whole number. `waiting(0)` tries one.
enough = None
### BEGIN SOLUTION
enough = next(count for count in range(10) if waiting(count) < 0.001)
### END SOLUTION

# %% tags=["check"]
from gemini_lab_course import Verdict, lab_06

with Verdict() as say:
    say(lab_06.exercise_2(enough, waiting=waiting))

# %% [markdown]
# What counts is how many machines die within the same minutes, because a machine is ordered as soon
# as one is lost. They die *independently* in this model.
#
# **Further reading.** *The Llama 3 Herd of
# Models* (2024), section 3.3.4, counts 419 unexpected interruptions in 54 days on 16,384 GPUs;
# `simulator.llama_3()` has them by cause: try it in place of `opt_175b()`. Kokolis and others,
# *Revisiting Reliability in Large-Scale Machine Learning Research Clusters* (2024), define and
# measure effective training time ratios.
