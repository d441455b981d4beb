"""nbgrader's settings of the course; `make solutions` puts them beside the labs' solutions."""

import os
import sys

# A reader of a notebook sees a card; nbgrader, also from a notebook's cell, has to see an error.
if {"autograde", "validate"} & {*sys.argv}:
    os.environ["GEMINI_LAB_GRADES"] = "1"

c = get_config()  # noqa: F821 - nbgrader gives it

c.CourseDirectory.course_id = "gemini_lab"
# An answer cell without an answer is no error: its check says what is missing.
c.ClearSolutions.code_stub = {"python": "# YOUR CODE HERE"}
# A lab that starts nodes takes minutes, and so may one of its cells.
c.Execute.timeout = c.ExecutePreprocessor.timeout = 900
