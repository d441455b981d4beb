"""A simulated world in which the real agents run, and which breaks at random, from one seed.

time        virtual_loop: an event loop whose clock jumps to the next timer, and processes that
            can be stopped and killed
outside     virtual_network, virtual_store and virtual_machine: what agents use
training    virtual_rank: a model of a worker behind its agent's channel
what holds  judge: checked all along; coverage: what was reached; world puts all together
what comes  schedule: draws what befalls a world; seeds runs, shrinks and tells
"""
