"""How versions travel beside training: the acting half of profiler and pipeliner.

    the whole       traffic, put together as the settings say; mover moves a version, on a thread
                    beside training; version, what is moved; group, the connections; whole_copy, in
                    a recovery; own_thread, for what goes on beside training
    the way         route, in the background; scheduled_route, in idle spans on CPUs; device_route,
                    on GPUs, by lanes; local_copy, into the own slab; differences, what made it
    the order       conductor does what the planner orders, by calibration
    training's      seam sees its collectives, by operations, calls and clocks; link and node_link
                    emulate a network
    kept processes  standing_groups and standing_works outlive a lost rank, by group_calls;
                    set_up_record, played to a rank that comes late; sockets and dead_sockets, what
                    ends a wait

What leaves when is decided in `pipeliner`, from what `profiler` saw.
"""
