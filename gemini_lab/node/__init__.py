"""The processes of one node: agent, warm parent, workers, and the root agent's shell.

    the agent       agent joins and watches; supervisor has workers and memory, and does what is
                    ordered, inventory says what is there; lab_link and root_link are the ways out,
                    tasks what goes on beside; config, machine, network
    workers         host starts and ends them, through warm, next_parent and preload, or cold;
                    worker is one, with a held_folder and semaphores, and script_end, what it
                    does at its end; kept_workers keep their process; listener hears them,
                    watch has what is seen of them, remembered, what they said; build_locks and
                    cpu_facts, what a library would have them wait for
    memory          keeper and shard_writer, by bulk: bulk_process touches every byte
    root agent      reign, while this node is it: root_shell acts, by agent_links, unless it is
                    cut_off; own_root, a function of the user's in its
                    process; words, what the owner
                    wants; owner_process
    the store       control_store is what is asked of one; etcd_store and etcd_streams ask it of
                    etcd, at an etcd_address; sealed_store believes only what the lab wrote;
                    membership, news (when it is read); own_stores, the etcds that labs have here
    failures        strike does them, frozen ends a node that is stopped; processes finds them

Whoever decides what is done here is in `recovery`.
"""
