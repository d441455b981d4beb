"""Kept processes: ranks that are not lost keep their process through a recovery.

The setting `keep_processes` asks for it. No other room knows how it is done:

    process     the worker's interface, `KeptProcess`: session and training's loop call it whether
                the process is kept or not
    workers     the agent's interface, `KeptWorkers`: stops a node's workers, and lets them go on
    groups      process groups that outlive a lost rank; `works` has their collectives' handles
    record      the results of a set-up, which are played to a rank that starts later

To remove the feature, remove this room, `engine/rejoining.py` (restores a version in the process)
and `recovery/kept_ranks.py` (the root agent's decision).
"""
