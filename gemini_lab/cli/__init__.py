"""The `gemini-lab` command and its sub-commands.

    commands        main has the table of all, some of which live in other rooms; here: run (with
                    dry_run), torchrun, check, node, doctor, report, metrics, runs (list, attach,
                    status, top, stop), requests (drain, resize, rewind, inject)
    shared          exits (exit codes, signals), screen

A command's work lives in the room that it concerns; here are its options and its output.
"""
