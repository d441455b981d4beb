"""Grading of a class: a student's hand-in, and a teacher's table of what nbgrader has graded.

nbgrader runs a hand-in with its checks in one process, so a teacher runs it in a container: the
notebooks' README has the command. `hand_in` writes what students give away, and `grade` tells a
class's verdicts.
"""
