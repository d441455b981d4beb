"""The root agent: one class that is made of parts.

    agent      `RootAgent`: gives each happening to the part that answers it
    known_run  `KnownRun`: what is known of the run, with the parts that all others use
    lifecycle  from each phase of a restart to the next, up to training
    workers    what workers report, how they fail, and which of them hang
    agents     agents that join and are lost; the start of a newly elected root agent
    ending     the last save, and the end of the run

A part uses the parts that its constructor names. The state is in `recovery.root_state`.
"""
