"""The labs' exercises: for each an answer in, and a verdict in a sentence out.

`lab_NN.exercise_K(answer, ...)` returns why an answer is right, and raises `WrongAnswerError` with
a sentence otherwise: one that never gives the right answer away. In a notebook a `Verdict` around
it keeps tracebacks out:

    with Verdict() as say:
        say(lab_03.exercise_1(five))
"""

from gemini_lab_course.verdict import Verdict, WrongAnswerError

__all__ = ["Verdict", "WrongAnswerError"]
