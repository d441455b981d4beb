"""`protect` in a worker: an engine's state out and in, and the tie to the node's agent.

    protect         protection <- setup (memory, settings, restore), arguments, contract;
                    discovery finds what the script has not named, made_objects notes what it made
    in the loop     live seals, sends and awaits versions; script_loops knows of which loop each is;
                    update_watch checks that the protected weights train; iterations says how it
                    goes, also to DeepSpeed's monitor; input_fingerprints says what an iteration
                    begins with; version_extras goes along with a version; ends says where a rank's
                    data or loop is over
    put back        restore, from memory, peers or the persistent tier; reshard_sources, after
                    another world size; rewinding, without a restart
    kept processes  rejoining puts a version in place in a process that outlives a recovery
    script's code   executed_code digests it and finds installed packages; own_code tells it from
                    theirs; same_code compares it among ranks
    the agent       session; heartbeat reports once a second; shard_memory
    a check         witness notes the places that a script reaches, and its state there
    small things    ranks, random_states, digests, process_exit, private_names

Five folders, from below: `frameworks` has ZeRO and plain PyTorch, `state` a version's content,
`unsaved_state` warns of what no version has, `verify` and `gradients` are one setting each.
"""
