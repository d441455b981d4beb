"""The `gemini-lab` command and its sub-commands.

    commands        main has the table of all, some of which live with what they show; here: run (by
                    dry_run and following), torchrun, check, node, doctor, report, metrics,
                    top, runs (list, attach, status, stop)
    asked of a run  inject, drain, resize and rewind, followed by asked
    shared          exits (with what a command ends), hangup, screen, seconds, system_errors

What a command does lives with what it is about; here is how it is asked for and told.
"""
