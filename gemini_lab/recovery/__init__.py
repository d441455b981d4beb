"""Stage 5: who notices a failure, and what is loaded from where.

    the root agent  root > attending > watching > phases > ending > steps, layers of one state
                    machine; guided asks a function of the user's own, in the words of deciding
    its words       protocol, what it hears and has done; messages, those between all processes;
                    log_events, what it knows as the log has it
    the plan        plan <- planning, seating (who sits where), recutting (other numbers of ranks),
                    stakes (whether progress would be thrown away), learning (how machines fail)
    its parts       stop, drains, resizes, replicas (all ranks stop for these); ahead and keeping
                    (processes that start early, or stay); saver and disowning (what the tier
                    has, and what of it counts no more); rewinds; roll_call
    its judgements  faults, hangs, ends, progress; repeats, finite, guard (what was computed);
                    wrong_sums and distrust (a machine that computes wrong)
    for people      wasted_time, by the paper's equation

`model` plays all of this on a modelled world, where an attack looks for what breaks it.
"""
