# %% [markdown]
# # 08 A root agent of your own
#
# **Goal.** Write what the root agent does after a failure. Attack it at many moments of a simulated
# run, until nothing breaks it. Then let it lead real recoveries, and compare every bit.
#
# **Time.** One to two minutes to run, an hour to read and write. No GPU is needed. Lab 05 shows
# what recoveries look like; its exercise 3, who gets which copy, is done for you here.
#
# A root agent is a state machine. It hears what happened, decides, and others act. While it waits
# for their answers, the next failure comes, perhaps its own. Then the nodes elect another root
# agent, which knows only what the first one stored. Most mistakes are made there, and a test run
# seldom shows them.

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
# ## 1. What it hears, and what it answers
# The lab calls `decide(state, event, cluster)` for each thing that happens after a failure:
#
# | event | |
# |---|---|
# | `Failed(cause, lost)` | training stands still, or the recovery under way failed |
# | `Fenced(node)` | a node has ended its workers: its memory stays as it is |
# | `Told(node, copies)` | what a node has in memory: copies, each `(shard, version, epoch)` |
# | `Joined(node)` | a node has joined: a new one, or one that had fallen silent |
# | `Changed()` | a silent node will not return: it is dead, or a person gave it up |
#
# It returns one action, a list of actions, or nothing:
#
# | action | |
# |---|---|
# | `Fence()` | begin again: every living node ends its workers and answers `Fenced` |
# | `Ask()` | every living node answers `Told` |
# | `Start(version)` | workers start on every position and load this version; `None`: start over |
# | `Wait(why)` | start nothing yet; the lab asks for the machines that are missing |
#
# `state` is a dictionary, empty at first. The lab stores it after each call, as JSON, before anyone
# acts: what you put there outlives the root agent, and nothing else does. `cluster` is what the
# root agent knows without asking:
#
# | | |
# |---|---|
# | `cluster.living` | the nodes that are connected |
# | `cluster.members` | the node on each position from now on; `None` if it has no machine |
# | `cluster.keeps` | the shards that each position keeps; only these can be loaded from its node |
# | `cluster.silent` | nodes that fell silent; they may come back with their memory |
# | `cluster.newest` | the newest version known to have been whole, or 0; `None`: unknown |
# | `cluster.has_given_up` | a person decided not to wait for silent nodes |
#
# ## 2. A first attempt
# The simplest one starts the newest version that any node has, as soon as it hears of one.

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
# `attack` runs the real agents without processes, on a clock of its own, so each try is the same.
# First each kind of failure comes alone, at many moments. Then a second one comes during the
# recovery. Then nodes fall silent and return. `attack` shows the first case that breaks your
# function, made as small as possible.

# %%
found = attack(hasty, within_s=seconds)
first.came_out(found.case)

# %% [markdown]
# Read the case from the top: a line for each node, and an arrow for each message. Try it with
# another function: `found.replay(mine)` returns `None` if that one survives.

# %%
found

# %% [markdown]
# ## Exercise 1
# Write `decide`. The attack will ask such questions: May you start while a node has not answered?
# What if a node is lost before it answers? Is a version whole if one shard of it is missing, or of
# another epoch, or on a node that now keeps others? What if there are too few machines? What does a
# newly elected root agent know? For which nodes do you wait?


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
# The function that survived the simulation now leads recoveries of a job that really runs. The
# dashboard shows it. First without failures:

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
# quarters. The function goes to all nodes with the job, and the root agent calls it.


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
# Which function shall lead? The check trains with it, kills, and compares every loss, bit by bit.
# One run shows few moments, so the check first attacks a function that no attack has tried.

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
# Break it yourself while the lab's own root agent leads. With `root=mine` in the next cell, yours
# leads. The job trains until you press *Stop*.

# %%
endless = gpt_job(size=size, iterations=10_000, layer_s=0.05)
lab.controls(endless)

# %% [markdown]
# - The lab's own root agent is in `gemini_lab/recovery/root/agent.py`: `handle` takes a happening
#   and returns instructions, in phases that you will recognise. What does it wait for that yours
#   does not?
# - Kill the root agent's own node: break *root loss*. Does yours go on where it stood?
# - Let a node fall silent: break *node freeze*. Which of your branches answers it?
# - Paper: section 6.2. To learn more: Raft in MIT's course 6.5840, and Jepsen's Maelstrom.
