"""Grading apart: answers run in one process, and what judges them in another.

A notebook that is handed in may redefine whatever it likes: also the checks. So nothing of it runs
where it is judged. `student` runs its answers, and tells their values as plain data; `judge` has
imports of its own, takes all other cells from the released notebook, and asks for those values.
"""
