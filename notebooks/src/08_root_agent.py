# %% [markdown]
# # 08 A root agent of your own
#
# **Goal.** Write what the root agent does after a failure. Have it attacked at every moment of a
# simulated run, until nothing breaks it; then let it lead real recoveries, and compare every bit.
#
# **Time.** One to two minutes to run, an hour to read and write. No GPU is needed. Lab 05 shows
# what recoveries look like; its exercise 3, who gets which copy, is done for you here.
#
# A root agent is a state machine. Something is noticed, it decides, and others act on that. While
# it waits for answers the next failure comes, also its own: then another node is elected, which
# knows only what was stored. Most mistakes are of that kind, and no test run shows them.

# %%
from collections import defaultdict

from gemini_lab import Lab, NodeLoss, Scenario, WorkerCrash, attack
from gemini_lab.training.quickstart import gpt_job
from gemini_lab_course.own_root.deciding import Changed, Failed, Fenced, Joined, Told
from gemini_lab_course.predictions import predict

# %% tags=["parameters"]
nodes = 2
standbys = 1
iterations = 40
size = "tiny"
seconds = 100  # that an attack may take

# %% [markdown]
# ## 1. What is told, and what is answered
# `decide(state, event, cluster)` is called for each thing that happens after a failure:
#
# | event | |
# |---|---|
# | `Failed(cause, lost)` | training stands still, or what was being done about it failed |
# | `Fenced(node)` | a node has ended its workers: its memory stays as it is |
# | `Told(node, copies)` | what a node has in memory: copies, each `(shard, version, epoch)` |
# | `Joined(node)` | a node is there that was not: a new one, or one that had fallen silent |
# | `Changed()` | what is waited for will not come: a person gave it up, or it is dead |
#
# It answers one action, a list of them, or nothing:
#
# | action | |
# |---|---|
# | `Fence()` | begin again: every living node ends its workers and says `Fenced` |
# | `Ask()` | every living node says `Told` |
# | `Start(version)` | workers start on every position and load this version; `None`: the start |
# | `Wait(why)` | start nothing yet; machines that are missing are asked for |
#
# `state` is a dictionary, empty at first. It is stored after each call, as JSON, before anything is
# done: what you put there outlives the root agent, and nothing else does. `cluster` is what can be
# known without asking:
#
# | | |
# |---|---|
# | `cluster.living` | the nodes that are connected |
# | `cluster.members` | who trains on each position from now on; `None` where there is no machine |
# | `cluster.keeps` | the shards that each position keeps: what else its node has cannot be loaded |
# | `cluster.silent` | nodes that fell silent; with their memory, they may come back |
# | `cluster.newest` | the newest version known to have been whole, or 0; `None`: nobody knows |
# | `cluster.has_given_up` | a person would rather go on than wait for who is silent |
#
# ## 2. A first attempt
# The simplest one goes on from the newest version that any node has, as soon as it hears of one.

# %%
first = predict("After which single failure does a hasty root agent go wrong first?")
first

# %%
from gemini_lab_course.own_root.deciding import Ask, Fence, Start, Wait


# %%
def hasty(state, event, cluster):
    match event:
        case Failed():
            return [Fence(), Ask()]
        case Told(copies=copies) if copies:
            return Start(max(copy.version for copy in copies))


# %% [markdown]
# `attack` runs a lab without processes, on a clock of its own: the real agents, and failures at
# moments that are the same each time. All failures come one by one at many moments, then a second
# one while the first is being answered, then silence and return. The first case that breaks is made
# as small as possible.

# %%
found = attack(hasty, within_s=seconds)
first.came_out(found.case)
found

# %% [markdown]
# Read it from the top: a line for each node, and an arrow for each message. The
# same schedule can be tried again with another function: `found.replay(mine)` gives `None` where
# that one survives.

# %% [markdown]
# ## Exercise 1
# Write `decide`. Some questions that the attack will ask: who may start while somebody has not
# answered? What if a node is lost before it answers? Is a version whole if one shard of it is
# missing, or of another epoch, or on a node that now keeps others? What if there are too few
# machines? What does a newly elected root agent know? Who is worth waiting for?


# %% tags=["exercise"]
def decide(state, event, cluster):
    """What the root agent does now; attack(decide) below this draws what breaks it."""
    ### BEGIN SOLUTION
    if isinstance(event, Fenced):
        state["fenced"].append(event.node)
        return Ask() if set(state["fenced"]) >= set(cluster.living) else None
    if isinstance(event, (Failed, Joined, Changed)):
        state.update(fenced=[], told={})  # begin again, and believe nothing
        return Fence()
    state["told"][event.node] = event.copies
    if not state["told"].keys() >= set(cluster.living):
        return None
    shards = defaultdict(set)
    for node, keeps in zip(cluster.members, cluster.keeps, strict=True):
        for shard, version, epoch in state["told"].get(node, ()):
            shards[version, epoch] |= {shard} & {*keeps}
    everything = len(cluster.members)
    whole = max((v for (v, _), has in shards.items() if len(has) == everything), default=None)
    if None in cluster.members:
        return Wait("a position has no machine")
    is_newest = cluster.newest is not None and (whole or 0) >= cluster.newest
    if cluster.silent and not is_newest and not cluster.has_given_up:
        return Wait("a silent node may have something newer")
    return Start(whole)
    ### END SOLUTION


# %% tags=["check"]
from gemini_lab_course import Verdict, lab_08

with Verdict() as say:
    say(lab_08.exercise_1(decide, within_s=seconds))

# %% [markdown]
# ## 3. For real
# What withstood the simulation now leads recoveries of a job that really runs. The dashboard shows
# it. First without failures:

# %%
lab = Lab(nodes=nodes, standbys=standbys)
lab.dashboard()

# %%
job = gpt_job(size=size, iterations=iterations)
run = lab.train(job, name="quiet")
run.progress(iterations)
quiet = run.wait().report()

# %% [markdown]
# Then a worker is killed after a quarter of the iterations, and the node of rank 1 after three
# quarters. The function goes to all nodes with the job, and the root calls it.


# %%
def train_with(root):
    lab.wait_until_ready(timeout_s=300)
    crash = Scenario().add(WorkerCrash("rank-0"), iteration=iterations // 4)
    failures = crash.add(NodeLoss("rank-1"), iteration=3 * iterations // 4)
    run = lab.train(job, root=root, scenario=failures, name="with-mine")
    run.progress(iterations)
    return run.wait().report()


# %% [markdown]
# ## Exercise 2
# Which function is to lead? The check trains with it, kills, and compares every loss, bit by bit.
# One run shows few moments. A function that was not attacked yet is attacked first.

# %% tags=["exercise"]
# Your answer: a function, such as the one above
mine = None
### BEGIN SOLUTION
mine = decide
### END SOLUTION

# %% tags=["check"]
from gemini_lab_course import Verdict, lab_08

with Verdict() as say:
    told = {"undisturbed": quiet, "failures": 2, "within_s": seconds}
    say(lab_08.exercise_2(mine, train=train_with, **told))

# %% [markdown]
# ## Further
# Break it yourself, while the lab's own root agent leads; with `root=mine` in the next cell, yours
# does. The job trains until you press *Stop*.

# %%
endless = gpt_job(size=size, iterations=10_000, layer_s=0.05)
lab.controls(endless)

# %% [markdown]
# - The lab's own root agent is in `gemini_lab/recovery/root/agent.py`: `handle` takes a happening
#   and gives instructions, in phases that you will recognise. What does it wait for that yours
#   does not?
# - Kill the root agent's own node, with `RootLoss()`. Does yours go on where it stood?
# - A node that only falls silent: `NodeFreeze("rank-1")`. Which of your branches answers it?
# - Paper: section 6.2. For the whole art: Raft in MIT's course 6.5840, and Jepsen's Maelstrom.
