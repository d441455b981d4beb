"""What no version has and a script would miss after a failure: it is looked for, and said.

    said            script_watch, from the first versions on, each thing once
    weights         bystanders, beside the engine's: averages, second models, metrics
    values          script_values, which the script carries from one iteration to the next;
                    liveness, which variables these are
    loaders         stray_loaders, read and not handed over; readers, what counts or keeps batches
                    on the way to the script's loop

Nobody can say beforehand what training changes. So whoever looks does so twice, and what has
changed in between is named; what only stands there, as a teacher's weights do, is not.
"""
