"""`protect` in a worker: an engine's state out and in, and the tie to the node's agent.

    protect         protection <- setup (memory, settings, restore), arguments, contract; discovery
                    finds what the script has not named, made_objects notes what it made
    in the loop     live has the script's loops and the hook in the engine; sealing seals versions
                    and sends them; script_loops knows which loop runs, and where loops and data
                    end; iteration_log reports iterations and what they begin with, also to
                    DeepSpeed's monitor; unsaved_state warns of what no version has
    put back        restore, from memory, peers or the persistent tier; reshard_sources, after
                    another world size; rewinding, without a restart
    kept processes  rejoining puts a version in place in a process that outlives a recovery
    script's code   own_code digests what is executed, tells it from installed packages, and
                    compares it among ranks
    the agent       session; heartbeat reports once a second; holding_points waits for a lab's user
    a check         witness notes the places that a script reaches, and its state there
    small things    rank_agreement, random_states, process_exit, private_names

Four folders, from below: `frameworks` has ZeRO and plain PyTorch, `state` a version's content,
`verify` and `gradients` are one setting each.
"""
