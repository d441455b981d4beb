"""A version's content: the large and the small state, the script's own, its data.

the whole       engine_state; small_state, by value, also from another world size; rehearsal
                compares what was put back
the script's    script_state <- user_state, what `also` names
its data        loaders <- data_values, what data sets and samplers change by themselves;
                data_rehearsal tries in processes of its own whether positions come back
"""
