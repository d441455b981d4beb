"""A version's content: the large and the small state, the script's own, its data.

the whole       engine_state; recast, of another number of ranks; small_state, by value;
                model_parts, which there were at first; rehearsal compares what was put back
the script's    script_state <- keepsakes, unsaid
its data        loaders <- data_generators, data_values;
                positions, where another number of ranks reads them;
                data_rehearsal, whether they come back, tried in processes of its own
"""
