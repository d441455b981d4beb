# %% [markdown]
# # 03 Who keeps whose replica
#
# **Goal.** Choose the machines that keep the copies of each shard, and know the chance that memory
# is enough when several machines die at once.
#
# **Time.** A quarter of a minute to run, fifty minutes to read, predict and play. It needs no
# cluster: the planner here is the one that real runs use.
#
# **Read first.** The paper's section 4; its appendices A and B if you like proofs.

# %%
from itertools import combinations

import matplotlib.pyplot as plt

from gemini_lab import Placement, attack, plan_placement
from gemini_lab import placement as chances
from gemini_lab_bench.figures import fig09

# %%
from gemini_lab_course.play import play_placement
from gemini_lab_course.predictions import predict

plt.style.use("gemini_lab_widgets.labs")  # readable on light and on dark

# %% [markdown]
# The settings. N machines, m copies of each shard (the owner's own among them), and racks of equal
# size.

# %% tags=["parameters"]
nodes = 16
replicas = 2
racks = 4
trials = 20000  # of the Monte Carlo

# %% [markdown]
# ## 1. Four machines, two copies
# Every machine keeps its own shard, so that software failures need no network. Who takes the other
# copy? In *groups*, two machines keep each other's. In a *ring*, each sends to the next one.
#
# A set of machines is *fatal* if its loss takes every copy of some shard. Two of the four die at
# once: there are six pairs. Predict before you go on: an answer, and why.

# %%
fatal = predict("How many of the six pairs are fatal in groups, and in the ring (such as: 1, 3)?")
fatal

# %% [markdown]
# Now find them. Click machines to kill them, change the placement, count. Can you lose a shard with
# one machine? With which placement is it hardest?

# %%
play_placement(nodes=4, replicas=2)

# %%
groups = plan_placement(nodes=4, replicas=2)
ring = plan_placement(nodes=4, replicas=2, strategy="ring")


# %%
def fatal_sets(placement, lost):
    every = combinations(range(placement.nodes), lost)
    return [gone for gone in every if not placement.survives(gone)]


# %%
pairs = {"groups": fatal_sets(groups, 2), "ring": fatal_sets(ring, 2)}
counts = ", ".join(str(len(sets)) for sets in pairs.values())
fatal.came_out(counts, *(f"{name:6} {sets}" for name, sets in pairs.items()))

# %% [markdown]
# <details><summary><b>Why? Say it first, then compare.</b></summary>
#
# When m machines die, memory fails exactly if they are all the holders of some shard. So what
# counts is the number of *different* sets of holders: a group of m machines has one for all its
# members, a ring has one for each machine. Fewer sets, fewer ways to lose.
#
# </details>

# %% [markdown]
# ## 2. When m does not divide N
# Algorithm 1 lets the machines left over join the last group, which becomes a ring.

# %%
mixed = plan_placement(nodes=5, replicas=2)
for shard, holders in enumerate(mixed.holders):
    print(f"shard {shard} is kept by nodes {holders}")
mixed

# %% [markdown]
# Theorem 1 says how far this can be from the best: for m lost machines within (2m-3) / C(N, m) of
# an upper bound.

# %%
best, ours = chances.best_possible(5, 2), chances.recovery_probability(mixed, 2)
print(f"upper bound {best}, Algorithm 1 {ours}, gap {best - ours}")
print(f"Theorem 1 allows a gap of {chances.theorem_gap(5, 2)}")

# %% [markdown]
# ## Exercise 1
# The gap is not zero, so something may be better. Write a placement of five shards, two copies
# each, with only **three** fatal pairs. `holders` says for each shard who keeps it, owner first.

# %% tags=["exercise"]
# Your answer: a Placement.
# Placement(nodes=5, replicas=2, strategy="mine", groups=(), holders=((0, 1), ...))
five = None
### BEGIN SOLUTION
# The fifth machine's shard is a guest of one of the groups.
holders = ((0, 1), (1, 0), (2, 3), (3, 2), (4, 0))
five = Placement(nodes=5, replicas=2, strategy="mine", groups=(), holders=holders)
### END SOLUTION

# %% tags=["check"]
from gemini_lab_course import Verdict, lab_03

with Verdict() as say:
    say(lab_03.exercise_1(five))

# %% [markdown]
# Such a placement has a price, which the check names: in every iteration a machine receives over
# its link what it keeps for others. That is why Algorithm 1 prefers the ring.
#
# ## 3. The chance at any size: Fig. 9

# %%
grows = predict("Two machines die. As the cluster grows, the chance to survive", "rises", "falls")
grows

# %%
growing = [float(chances.recovery_probability(plan_placement(nodes=n), 2)) for n in (8, 128)]
grows.came_out("rises" if growing[1] > growing[0] else "falls")

# %%
fig09.figure()

# %% [markdown]
# <details><summary><b>Why? Say it first, then compare.</b></summary>
#
# Two given machines are less likely to be partners in a large cluster. But in a large cluster more
# machines fail in the same hour; lab 06 counts both.
#
# </details>

# %% [markdown]
# The paper's ring curve for k = 3 is a *union bound*. It subtracts each fatal pair by itself, so it
# counts three lost neighbours twice: they are two fatal pairs. The other curves are exact.
#
# ## 4. Three ways to know a chance
# A closed form, the paper's bound (Corollary 1), and trying it out.

# %%
exact_to = predict(f"N = {nodes}, m = {replicas}: up to which k is the bound exact?")
exact_to

# %%
placement = plan_placement(nodes=nodes, replicas=replicas)
lost = range(1, min(nodes, 4 * replicas) + 1)
exact = [float(chances.recovery_probability(placement, k)) for k in lost]
bound = [float(chances.recovery_bound(placement, k)) for k in lost]
tried = [chances.sampled_probability(placement, k, trials=trials, seed=k) for k in lost]

# %%
exact_to.came_out(max(k for k, one, other in zip(lost, exact, bound, strict=True) if one == other))

# %%
_, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
axes.plot(lost, exact, color="C0", label="exact (model)")
axes.plot(lost, bound, "--", color="C1", label="Corollary 1, a bound (model)")
spread = [[t.value - t.low for t in tried], [t.high - t.value for t in tried]]
label = f"{trials} random losses each (simulation)"
axes.errorbar(lost, [t.value for t in tried], spread, fmt="o", color="C2", label=label)
axes.set(xlabel="machines lost at once, k", ylabel="chance that memory is enough", xticks=lost)
axes.set_title(f"N = {nodes}, m = {replicas}", loc="left", fontsize=11)
axes.legend(frameon=False)
axes.grid(alpha=0.3)

# %% [markdown]
# <details><summary><b>Why? Say it first, then compare.</b></summary>
#
# From k = 2m on, one loss can take two whole groups, and the bound counts it twice.
#
# </details>

# %% [markdown]
# **Compared with the paper.** Section 7.2 prints two chances for N = 16 and m = 2.

# %%
sixteen = plan_placement(nodes=16)
for k, printed in ((2, "93.3 %"), (3, "80.0 %")):
    chance = float(chances.recovery_probability(sixteen, k))
    print(f"k = {k}: paper {printed}, model {chance:.1%} (exact)")

# %% [markdown]
# ## Exercise 2
# Fig. 9's note says what the union bound does to the ring for k = 3. Go one further, with N = 16, m
# = 2 and **four** lost machines. The two bounds are 0.600 for groups and 0.200 for a ring. By them
# the ring would be 66.7 % worse. How much worse is it in truth? Give a share, such as 0.667.

# %% tags=["exercise"]
# Your answer: a number between 0 and 1.
deficit = None
### BEGIN SOLUTION
circle = plan_placement(nodes=16, strategy="ring")
in_ring, in_groups = (chances.recovery_probability(each, 4) for each in (circle, sixteen))
deficit = float(1 - in_ring / in_groups)
### END SOLUTION

# %% tags=["check"]
from gemini_lab_course import Verdict, lab_03

with Verdict() as say:
    say(lab_03.exercise_2(deficit))

# %% [markdown]
# ## 5. Racks
# So far machines died independently. But the machines of a rack share a switch and a power line,
# and they are usually neighbours in the list of hosts.

# %%
one_rack = predict("The chance that Algorithm 1's groups survive the loss of one rack, in %?")
one_rack

# %%
rack_of = [f"rack-{node * racks // nodes}" for node in range(nodes)]
print(*rack_of)
survives = chances.rack_recovery_probability(placement, rack_of)
one_rack.came_out(f"{float(survives):.0%}")

# %% [markdown]
# See it: lose a rack, then choose *groups across racks* and lose one again. The paper does not
# treat such failures.

# %%
play_placement(nodes=nodes, replicas=replicas, racks=racks)

# %% [markdown]
# A planner that knows the racks takes each group's members from different ones.

# %%
spread_out = plan_placement(nodes=nodes, replicas=replicas, racks=rack_of)
print("one rack lost:", float(chances.rack_recovery_probability(spread_out, rack_of)))
spread_out

# %% [markdown]
# If there are too few racks, `notes` says what could not be had. Independent losses cost the same
# as before, because there are as many groups. In a window of time, each machine and each rack may
# die:

# %%
rack_chances = [10 ** (i / 4 - 6) for i in range(17)]
_, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
for where, name in ((placement, "groups as listed"), (spread_out, "groups across racks")):
    risk = {"node_chance": 1e-4, "racks": rack_of}
    lose = [chances.loss_probability(where, rack_chance=chance, **risk) for chance in rack_chances]
    axes.loglog(rack_chances, lose, label=f"{name} (model, exact)")
axes.set(xlabel="chance that a given rack dies in the window", ylabel="chance of a loss")
axes.set_title("each machine dies with chance 0.0001", loc="left", fontsize=11)
axes.legend(frameon=False)
axes.grid(alpha=0.3)

# %% [markdown]
# ## Exercise 3
# Sixteen machines stand in four racks of four: the first four in one, the next four in another, and
# so on. Find a placement that survives the loss of **any two racks** at once, with as few copies as
# possible.

# %% tags=["exercise"]
# Your answer: a Placement of 16 nodes, made with plan_placement or by hand.
tough = None
### BEGIN SOLUTION
# Two copies sit in two racks, and those two can go. Three copies in three racks it must be.
tough = plan_placement(nodes=16, replicas=3, racks=[f"rack-{node // 4}" for node in range(16)])
### END SOLUTION

# %% tags=["check"]
from gemini_lab_course import Verdict, lab_03

with Verdict() as say:
    say(lab_03.exercise_3(tough))

# %% [markdown]
# ## Exercise 4
# Now **write the planner**. It gets `nodes` and `replicas`, and returns for each shard the machines
# that keep it, owner first, such as `[(0, 1), (1, 0)]`: exactly `replicas` copies. It must not have
# more fatal sets of `replicas` machines than Theorem 1 allows. `attack` tries all small clusters,
# the smallest first, and draws the first in which a planner loses too much. The ring fares so:


# %%
def ring_planner(nodes, replicas):
    return plan_placement(nodes=nodes, replicas=replicas, strategy="ring")


attack(ring_planner)


# %% tags=["exercise"]
def planner(nodes, replicas):
    """For each shard the nodes that keep it; attack(planner) below this draws what breaks it."""
    ### BEGIN SOLUTION
    # Algorithm 1: groups of m, and the last one takes in who is left over, as a ring.
    last = max(nodes // replicas - 1, 0) * replicas
    groups = [range(i, i + replicas) for i in range(0, last, replicas)] + [range(last, nodes)]
    ring = [(group, place) for group in groups for place in range(len(group))]
    return [[group[(place + k) % len(group)] for k in range(replicas)] for group, place in ring]
    ### END SOLUTION


# %% tags=["check"]
from gemini_lab_course import Verdict, lab_03

with Verdict() as say:
    say(lab_03.exercise_4(planner))

# %% [markdown]
# A planner that withstands gets its figures: how often it survives and what its nodes keep,
# compared with the package's planner and with a bound that none can beat. `attack` takes a
# `Placement`, too, and lab 05 trains with one of yours.
#
# **Further reading.** Cidon and others, *Copysets: Reducing the Frequency of Data Loss in Cloud
# Storage* (USENIX ATC 2013), found the same trade for file systems: fewer different sets of holders
# make a loss rarer, and larger when it comes. NVIDIA's resiliency extension keeps local checkpoints
# in cliques whose members can be set apart (`replication_jump` in its documentation).
