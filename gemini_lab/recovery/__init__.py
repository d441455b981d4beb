"""Stage 5: the root agent, which decides what a failure's restart loads from where.

    root/               the root agent: one class, made of parts
    root_state          the state that it leaves to the next root agent
    protocol            happenings and instructions: its input and its output
    requests            what a user asks of a run, from the shell to the root agent
    messages            every message between the processes of a lab
    told_seats          who sits where and keeps what, in few words for thousands of nodes
    log_events          the root agent's decisions as events of the log

    plan                version, sources and transfers of a restart, from copies and nodes
    planning            the same from what the root agent knows, also of another world size
    seating             which node takes which empty position
    progress_at_risk    whether a plan throws progress away that waiting may save

    stop                all ranks stop at one version, for these:
    drains              a node's ranks move before its machine goes
    resizes             the run goes on with another number of nodes
    replicas            copies are placed again as failures are seen, also in earlier runs
    kept_ranks          processes that go on through a recovery, or start before it

    saver               versions on their way to the persistent tier
    discarded_versions  versions that rewinds and users left behind

    faults              whether a run starts again, leaves a node, or ends
    hangs               which worker hangs
    ailments            what is done for each fault that a machine tells of
    ends                ranks whose loop ended while others train on
    progress            how far each rank is, and its pace
    repeats             whether an iteration that is done again gives the same bits
    guard               losses that are no numbers, or too high
    wrong_sums          which machine computes wrong, and what becomes of the run
    wasted_time         the cost of a failure, by the paper's equation

A package beside the core brings a root agent of the user's own, if a run asks for one.
"""
