"""Kept processes: ranks that are not lost outlive a recovery in their processes.

`keep_processes` asks for it. Nothing outside of this room knows how it is done:

    process     the worker's interface, `KeptProcess`: session and training's loop call it whether
                the process is kept or not
    workers     the agent's interface, `KeptWorkers`: stops a node's workers, and lets them go on
    groups      process groups that outlive a lost rank, by works, their collectives under way
    record      a set-up's results, replayed to a rank that comes late

To take the feature out, take this room out, `engine/rejoining.py` (the state of a version, put in
place), and the root agent's decision: `recovery/kept_ranks.py`.
"""
