"""What a person holds: a lab, its runs, and how they are shown and stopped.

    the handle      lab, by config and submission (checked at the door, within a limit), earlier
                    and known_machines (what earlier runs left); run and runs; followed, a run as
                    its log tells it; said_once, what a log is told again and tells once
    its nodes       cluster, the contract; agents fulfils it, by starting, connections, loop;
                    announcement is the lab's key in the store, roster says who is there, alone,
                    when nobody is, and bringing asks for machines
    from elsewhere  control and attached, by attach and access; detached starts a run that outlives
                    its launcher, owner keeps its log; notice ends one that was told to,
                    interrupts says what Ctrl-C ended; at_end closes what is open when a program
                    ends
    what is seen    progress and bars, output; pages finds what
                    draws
    metrics         metrics, served; sinks and otlp, sent
    trying a script check, beside under_torchrun; profile_script, by profile_runner, on a network of
                    namespaces

What is asked of nodes here is carried out in `node`.
"""
