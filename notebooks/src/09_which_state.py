# %% [markdown]
# # 09 Which state lives where
#
# **Goal.** Know which rank holds which part of a job's state under seven kinds of parallelism, and
# what a lost rank takes with it.
#
# **Time.** Three to four minutes to run on a laptop with two cores, 40 minutes to read and draw. No
# GPU is needed, but PyTorch and DeepSpeed are.
#
# A job comes back bit-identical only if four kinds of state come back. These are the *weights*, the
# optimizer's *moments*, the *generator* that draws dropout, and the position in the *data*.
# Parallelism decides which rank has what.

# %%
import matplotlib.pyplot as plt

from gemini_lab import Lab, NodeLoss, Scenario, attack
from gemini_lab_course import holdings
from gemini_lab_course.holdings import KINDS, MARKS, WAYS
from gemini_lab_course.predictions import draw, predict

plt.style.use("gemini_lab_widgets.labs")  # readable on light and on dark

# %% [markdown]
# Each run has four ranks, one on each node. Halfway through, the node of rank `lost` dies.

# %% tags=["parameters"]
iterations = 12
lost = 3  # a rank from 0 to 3

# %% [markdown]
# ## 1. Draw it
# One small language model trains under seven kinds of parallelism:
#
# - *DP*, data parallel: each rank has the model, and reads samples of its own.
# - *ZeRO-1, 2, 3*: data parallel too. ZeRO-1 divides the moments among the ranks, ZeRO-2 also the
#   gradients, ZeRO-3 also the weights.
# - *TP*, tensor parallel: each matrix is cut in four, and all ranks read the same samples.
# - *PP*, pipeline parallel: each rank has some layers. Only the first and the last read samples.
# - *EP*, expert parallel, under ZeRO-1: every second layer has four experts, one on each rank.
#
# Look at the state between two iterations. Click a cell until it says how the four ranks compare:
# *same* on all, *own* on each, or *mixed*.

# %%
drawn = draw("Which state lives where?", rows=WAYS, columns=KINDS, marks=MARKS)
drawn

# %% [markdown]
# ## 2. Measure it
# Now the jobs run for real. After its second update each rank logs a checksum and the size of every
# tensor that it holds. Equal checksums are equal state. The loss of a node comes later in each run.

# %%
lab = Lab(nodes=4, standbys=1)
lab.dashboard()


# %%
def train(way):
    lab.wait_until_ready(timeout_s=300)  # until the standby is there again
    dies = Scenario().add(NodeLoss(f"rank-{lost}"), iteration=iterations // 2)
    job = holdings.job_of(way, steps=iterations)
    run = lab.train(job, scenario=dies, name=job.name, persistent_url=None)
    run.progress(iterations)
    return run.wait()


# %%
runs = {way: train(way) for way in WAYS}

# %%
held = {way: holdings.held_in(run) for way, run in runs.items()}
drawn.came_out(holdings.as_drawn(held))

# %% [markdown]
# One bar a rank, with its bytes: green is the same on all four, blue on this rank alone.

# %%
holdings.show_held(held)

# %% [markdown]
# <details><summary><b>Why? Say it first, then compare.</b></summary>
#
# Data parallel ranks drop out different values and read different samples, so two kinds of state
# differ even there. ZeRO-1 and ZeRO-2 look alike: what ZeRO-2 divides are gradients, and these are
# gone between two iterations. Tensor parallel ranks compute one sample together. They have to drop
# out the same values, so their generators are the same. In a pipeline two ranks read, and two do
# not. Under EP the layers without experts are ordinary ZeRO-1 layers.
#
# </details>

# %% [markdown]
# ## 3. Break it
# A rank dies with its node. Could the others give back what it had, without any checkpoint?

# %%
alone = predict(
    "Where do the survivors still hold all four kinds of the lost rank's state?",
    *("DP", "TP", "DP and TP", "none"),
)
alone

# %%
left = {way: holdings.left_shares(held[way], lost=lost) for way in WAYS}
shown = {way: "   ".join(f"{k} {left[way][k]:4.0%}" for k in left[way]) for way in left}
whole = [way for way, shares in left.items() if min(shares.values()) == 1]
alone.came_out(" and ".join(whole) or "none", *(f"{way:7} {shown[way]}" for way in left))

# %% [markdown]
# Even under DP the lost rank takes a generator of 5 KB that nobody else has. Without it the next
# dropout differs, and so does every loss after it.
#
# So each rank's shard is in memory twice: on its own node, and on a peer's. How large is a shard?

# %%
parts = {"all": 1, "a half": 1 / 2, "a quarter": 1 / 4, "nothing": 0}
fetched = predict("DP: how much of what the lost rank held comes from a peer's memory?", *parts)
fetched

# %% [markdown]
# The logs have a receipt for every shard that was loaded.

# %%
recovered = {way: run.report().recoveries[-1] for way, run in runs.items()}
for way, recovery in recovered.items():
    shards = (f"{each.tier} {each.size_bytes / 1e6:4.1f} MB" for each in recovery.receipts)
    print(f"{way:7}", *shards, sep="  ")

# %%
had_bytes = sum(holdings.pieces_of(held["DP"], "weights", "moments")[lost].values())
part = recovered["DP"].receipts[lost].size_bytes / had_bytes
fetched.came_out(min(parts, key=lambda name: abs(parts[name] - part)))

# %% [markdown]
# <details><summary><b>Why? Say it first, then compare.</b></summary>
#
# A version has each piece of state **once**. What several ranks hold alike is divided among them,
# and what a rank holds alone stays whole. So the sum is the same under all seven: twelve bytes a
# parameter, for weights and two moments. The new rank fetches its shard from the peer. Under DP it
# then gets the other three quarters from the ranks that live: each sends its own.
#
# </details>

# %% [markdown]
# Did it come back exactly? The lab compares what ranks do again with what they did before the loss.

# %%
for way, recovery in recovered.items():
    counts = f"{recovery.compared} iterations compared, {len(recovery.divergences)} different"
    print(f"{way:7} loaded version {recovery.version}; summed over ranks, {counts}")

# %% [markdown]
# ## Exercise 1
# Real jobs combine axes. Ranks 0 and 1 are a *row* of tensor parallel ranks, ranks 2 and 3 are
# another one. FSDP2 shards the weights over the two rows. Give each rank a letter for each kind of
# state, where the same letter is the same state. The check trains it.


# %%
def train_two_axes():
    return holdings.held_in(train("TP+FSDP"))


# %% tags=["exercise"]
# Your answer: {"weights": "????", "moments": "????", "generator": "????", "data": "????"}
layout = None
### BEGIN SOLUTION
# Both axes cut the weights; the ranks of a row read and drop out the same.
layout = {"weights": "ABCD", "moments": "ABCD", "generator": "AABB", "data": "AABB"}
### END SOLUTION

# %% tags=["check"]
from gemini_lab_course import Verdict, lab_09

with Verdict() as say:
    say(lab_09.exercise_1(layout, train=train_two_axes))

# %% [markdown]
# ## Exercise 2
# Now **write the division**. `held` is a list with a dictionary for each rank, from its pieces to
# their bytes. A piece that several ranks have is the same there. Return such a list of what a
# version keeps on each rank:
#
# - every byte of every piece once, and only where the piece is held;
# - the parts of a piece differ by one byte at most.
#
# `attack` tries small cases, the smallest first. It breaks a version of all that each rank holds:


# %%
def keep_all(held):
    return held


attack(keep_all)


# %% tags=["exercise"]
def divide(held):
    """For each rank, the bytes of each piece; attack(divide) below this shows what breaks it."""
    ### BEGIN SOLUTION
    kept = [{} for _ in held]
    for piece in {piece for pieces in held for piece in pieces}:
        holders = [rank for rank, pieces in enumerate(held) if piece in pieces]
        size = held[holders[0]][piece]
        for place, rank in enumerate(holders):
            kept[rank][piece] = (size + place) // len(holders)
    return kept
    ### END SOLUTION


# %% tags=["check"]
from gemini_lab_course import Verdict, lab_09

with Verdict() as say:
    say(lab_09.exercise_2(divide, held=held, recovered=recovered))

# %% [markdown]
# ## Further
# Kill other ranks of the pipeline: set `lost` above. Which stage costs most? Press *Start* to break
# the two-axes job by hand; it trains until you press *Stop*.

# %%
endless = holdings.job_of("TP+FSDP", steps=10_000)
lab.controls(endless, persistent_url=None)

# %% [markdown]
# - `gemini-lab report tp` prints a run. The dashboard's replica map names each rank's place.
# - *Protect tensor, pipeline and sharded jobs* in the docs has what is kept for each library.
# - Rajbhandari and others, *ZeRO* (SC 2020), section 5, for the three stages. Narayanan and others,
#   *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM* (SC 2021), for
#   how axes combine.
