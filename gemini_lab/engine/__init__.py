"""What a worker protects: a DeepSpeed engine's state out and in, and the tie to its agent.

    protect         protection <- ready_engine, arguments, contract, job_settings, unprotected;
                    surroundings, what is found that the script has not named, and
                    made_objects, which knows what it has made
    in the loop     live: a version is sealed, sent and waited for; script_loops: of which loop it
                    is; update_watch: whether what is protected trains; iterations and monitor say
                    how it goes, inputs with what an iteration begins, carried what goes along with
                    a version, ends where its data or loop is over
    put back        restore, from memory, peers or the persistent tier; old_shards, of another
                    number of ranks; rewinding, without a restart
    kept processes  standing stands still in a recovery, rejoining goes on with other ranks
    its code        executed_code, digests of what was executed; same_code, compared among ranks
    the agent       session; pulse says once a second what training does; shard_memory; cut_link
    a check         witness, which places a script comes to, and what its state is there
    small things    ranks, random_states, digests, idleness, process_exit, shared_memory;
                    own_code, what of all code is the script's, and imports, which
                    modules are installed; private_names, what is read of other packages
                    and may be gone

Five folders, from below: `frameworks` has ZeRO and plain PyTorch, `state` what a version has of a
job, `unkept` looks for what none has, `verify` and `gradients` are a setting each.
"""
