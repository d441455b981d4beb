"""The processes of one node: agent, warm parent, workers, and the root agent's shell.

    the agent       agent joins and watches; supervisor has workers and memory, and does what is
                    ordered; lab_link has the ways out, tasks the work beside; start_config;
                    agent_machine is what they use of the outside, this_machine names it,
                    health tells of its faults: link_speed measures its link, gpu_speed its GPUs
    workers         host starts and ends them, through warm and preload, or cold; worker is one;
                    listener receives, judges and keeps what they send; stacks shows what their
                    threads do; build_locks removes what killed ones held
    memory          memory_manager, by bulk: bulk_process touches every byte
    root agent      root_role, while this node has it: root_shell acts, by agent_links
    the store       etcd_client asks etcd, at an etcd_address; control_store has its errors;
                    sealed_store believes only what the lab wrote; membership keeps the lease and
                    says when to read; orphan_etcd ends the etcds that labs have left here
    failures        strike does them, freeze_guard ends a node that is stopped; processes finds
                    a lab's processes; locked_tempdir removes the files of killed ones

Room `recovery` decides what is done here.
"""
