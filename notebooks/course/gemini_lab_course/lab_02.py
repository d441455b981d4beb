"""Lab 02: what an iteration sends, and what makes a profile another one."""

from collections.abc import Callable

from gemini_lab import Job
from gemini_lab.profiler import Profile
from gemini_lab_course.verdict import given, need, number


def exercise_1(bytes_per_parameter: object, *, profile: Profile, parameters: int) -> str:
    """Judge the bytes on the wire for each parameter by a profile.

    Raises:
        WrongAnswerError: It is no positive number, or two hundredths off.
    """
    name = "bytes_per_parameter"
    value = number(bytes_per_parameter, name=name, words="a number of bytes")
    need(value > 0, f"an iteration sends something, and `{name}` is {value:g}")
    share = profile.traffic_bytes / (value * parameters)
    said = "more" if share > 1 else "less"
    need(
        0.98 < share < 1.02,
        f"the profile has {said} than {value:g}",
        hint="How often is each parameter sent in an iteration, and how many bytes has it?",
    )
    found = profile.traffic_bytes / parameters
    return f"right: {found:.2f} bytes for each of {parameters}, as many as a checkpoint has"


def exercise_2(
    other_job: object, *, job: Job, profile: Profile, profile_of: Callable[[Job], Profile]
) -> str:
    """Judge a job with the same model: its profile has another fingerprint.

    Raises:
        WrongAnswerError: It is none, has another model, or the same collectives.
    """
    other = given(other_job, Job, name="other_job", words="a job, made with gpt_job")
    same_model = (other.script, tuple(other.args[:2])) == (job.script, tuple(job.args[:2]))
    need(
        same_model and other.args.count("--size") == 1,
        "`other_job` has another model; keep size='tiny'",
    )
    found = profile_of(other)
    need(
        found.fingerprint != profile.fingerprint,
        "the profile of `other_job` has the same collectives in the same order",
        hint="Which settings of ZeRO say what is sent together? The raster shows where it begins.",
    )
    return f"right: {len(found.collectives)} collectives instead of {len(profile.collectives)}"
