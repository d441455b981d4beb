"""nbgrader's settings of the course; `make solutions` puts them beside the labs' solutions."""

c = get_config()  # noqa: F821 - nbgrader gives it

c.CourseDirectory.course_id = "gemini_lab"
# An answer cell without an answer is no error: its check says what is missing.
c.ClearSolutions.code_stub = {"python": "# YOUR CODE HERE"}
# A lab that starts nodes takes minutes, and so may one of its cells.
c.ExecutePreprocessor.timeout = 900
# A copied cell, or marks of another version, are its owner's affair alone.
c.Autograde.sanitize_preprocessors = [
    "nbgrader.preprocessors.ClearOutput",
    "gemini_lab_course.grading.step.MarkAnew",
    "nbgrader.preprocessors.OverwriteKernelspec",
    "nbgrader.preprocessors.OverwriteCells",
    "nbgrader.preprocessors.CheckCellMetadata",
]
# What is handed in is judged in a process that runs none of its code.
c.Autograde.autograde_preprocessors = [
    "gemini_lab_course.grading.step.JudgeApart",
    "nbgrader.preprocessors.IgnorePattern",
    "nbgrader.preprocessors.LimitOutput",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]
