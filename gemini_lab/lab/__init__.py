"""Lab and Run, the handles that a user holds, and how runs are shown and stopped.

    the handle      lab, by lab_config and submission, which check what a user asks for and read
                    what earlier runs left; run and lab_runs; followed, a run as its log shows it
    its nodes       node_contracts; agent_cluster keeps them, by starting, connections, loop;
                    announcement is the lab's key in the store, roster lists living nodes
    from elsewhere  control and attached, by run_locator; detached starts a run that outlives its
                    launcher, owner keeps its log
    what is seen    progress_bars; made_with, the versions that a log has; pages loads the
                    dashboards of gemini_lab_widgets
    metrics         metric_sinks, served or sent, the latter also by otlp
    trying a script check, with hints by script_source, beside under_torchrun; profile_script, by
                    profile_runner

What a lab asks of its nodes is carried out in `node`.
"""
