"""Checks for state that versions lack and a script would lose in a failure.

    remarks         script_watch, during the first versions, each thing once
    weights         bystanders, beside the engine's: averages, second models, metrics
    loaders         stray_loaders, read and not handed over

Nobody can say beforehand what training changes. So each check looks twice, and names what has
changed in between; what only stands there, as a teacher's weights do, is not named. What a script
keeps in variables and objects of its own is not looked at: a training process is never searched.
"""
