"""What a version has of a job: the large state and the small one, the script's own, its data.

    the whole       engine_state; recast, of another number of ranks; small_state, by value;
                    model_parts, which there were at first
    the script's    script_state <- keepsakes, unsaid; surroundings, what is found unnamed
    its data        loaders <- data_generators, data_values; positions; inputs, what an iteration
                    begins with
    not kept, told  script_watch says it <- bystanders, weights and metrics; unkept, what is carried
                    by hand; liveness and own_code, which variables these are, and whose;
                    digests, whether a value has changed; readers, what reads a loader and
                    counts; stray_loaders, which loaders are read and were not handed over

`unkept` and `bystanders` look twice, and what has changed in between is named.
"""
