"""Versions on their way beside training: the acting half of profiler and pipeliner.

    the whole       replicator sends versions, on a thread beside training (own_thread); assembly
                    makes it from the settings; version is what it sends, group its connections
    the way         route, in the background, and a whole copy in a recovery; scheduled_route, in
                    idle spans on CPUs; device_route, on GPUs, by device_queues; local_copy, into
                    the own slab; differences, what made the version in its place
    the order       schedule_controller calibrates, and executes the planned schedule
    training's      comm_hook sees training's collectives (collective_calls); link emulates a
                    network
    connections     sockets ends waits on connections of other libraries

`pipeliner` decides when each chunk leaves, from what `profiler` saw.
"""
