"""The `gemini-lab` command and its sub-commands.

    commands        main has the table of all, some of which live in other rooms; here:
                    run_command (with dry_run), torchrun, check_command, node, doctor,
                    report_command, metrics_command, folder_commands (list, logs),
                    follow_commands (attach, status, top, stop), request_commands (drain, resize,
                    rewind, give-up, inject)
    shared          exits (exit codes, signals), screen

A command's work lives in the room that it concerns; here are its options and its output.
"""
