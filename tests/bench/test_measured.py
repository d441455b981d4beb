"""What the rows of measured comparisons say of the runs that they are made of."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import made

from gemini_lab.display import picture
from gemini_lab.errors import ConfigError
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.pipeliner.machine import Calibration
from gemini_lab.pipeliner.planning import plan_chunks
from gemini_lab.placement import plan_placement
from gemini_lab.profiler.profile import Profile
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.values import TrafficPlan
from gemini_lab.training.gpt_job import deepspeed_config, parse
from gemini_lab_bench.benches import overhead
from gemini_lab_bench.benches.baselines import Arm
from gemini_lab_bench.benches.baselines import rows_of as baselines_rows
from gemini_lab_bench.benches.contention import LINK_BYTES_PER_S, breaking_point, crossing
from gemini_lab_bench.benches.contention import rows as contention_rows
from gemini_lab_bench.benches.goodput import KILLS, STRETCH_S, Stretch
from gemini_lab_bench.benches.goodput import rows_of as goodput_rows
from gemini_lab_bench.benches.losses import Loss
from gemini_lab_bench.benches.losses import rows_of as losses_rows
from gemini_lab_bench.benches.overhead import IDLE, compare
from gemini_lab_bench.benches.reduction import LINK_BYTES_PER_S as PEERS_BYTES_PER_S
from gemini_lab_bench.benches.reduction import STORE_BYTES_PER_S, Way, WaysInTurn
from gemini_lab_bench.benches.reduction import rows_of as reduction_rows
from gemini_lab_bench.benches.schemes import SCHEMES, rows
from gemini_lab_bench.benches.store_runs import Wasted
from gemini_lab_bench.benches.timed_runs import Spent, TimedRun, idle_s, network_times
from gemini_lab_bench.figures import command, measured, provenance
from gemini_lab_bench.figures.figure import Figure
from gemini_lab_bench.rows import Row

PROFILE = Profile.synthetic(iteration_s=1.0, idle_spans_s=[0.1], world_size=2)


def plan_of(predicted_s: float, iteration_s: float, *, profile: Profile = PROFILE) -> TrafficPlan:
    """A plan whose schedule predicts these times."""
    schedule = plan_chunks(
        profile, checkpoint_bytes=1000, bandwidth_bytes_per_s=1e6, buffer_bytes=100
    )
    wire = Calibration(
        alpha_s=0.0,
        bandwidth_bytes_per_s=LINK_BYTES_PER_S,
        copy_bytes_per_s=1e10,
        hash_bytes_per_s=1e10,
        worst_error=0.0,
        conditions=(),
    )
    schedule = replace(schedule, predicted_iteration_s=predicted_s, iteration_s=iteration_s)
    return TrafficPlan(at_s=0.0, profile=profile, schedule=schedule, calibration=wire)


def took(*clock_s: float, process_s: float = 0.0) -> TimedRun:
    """A run of iterations of so many seconds."""
    each = tuple(
        Spent(clock_s=one, process_s=process_s, thread_s=0.5, ready_s=0.25) for one in clock_s
    )
    return TimedRun(iteration_s=0.0, each=each)


def test_a_ratio_is_that_of_turns_next_to_each_other() -> None:
    """The machine halves its speed between two turns of three, of which the first waited."""
    plain = took(99.0, 2.0, 2.0, 99.0, 4.0, 4.0, process_s=0.5)
    ours = took(99.0, 3.0, 3.0, 99.0, 5.0, 5.0, process_s=0.75)
    pair = overhead.PairInTurns(plain=plain, ours=ours, turn_iterations=3, waiting=0.1)
    by_name = {row.name: row for row in compare({"gemini": [pair]}, IDLE, name="here")}
    assert by_name["here, gemini / plain torchrun"].values == pytest.approx(((1.5 + 1.25) / 2,))
    assert by_name["here, plain torchrun"].values == (3.0,)
    added = "here, gemini: processor time added"
    assert by_name[f"{added}, the whole process"].values == pytest.approx((0.25,))
    assert by_name[f"{added}, its training thread"].values == (0.0,)
    assert by_name["here, in use while both wait"].values == (0.1,)
    assert by_name["here, plain torchrun"].settings["link_bytes_per_s"] == IDLE.link_bytes_per_s


def test_a_refused_scheme_is_told_from_one_that_was_used() -> None:
    turn = {
        "none": TimedRun(iteration_s=2.0),
        "naive": TimedRun(iteration_s=2.5, notes=("node-0: the scheme was refused: 1 GiB",)),
        "gemini": TimedRun(iteration_s=2.2, plan=plan_of(3.0, 2.0)),
    }
    by_name = {row.name: row for row in rows([turn])}
    assert "1 GiB" in by_name["naive"].settings["refused"]
    assert "refused" not in by_name["gemini"].settings
    assert by_name["gemini / none"].values == pytest.approx((1.1,))
    assert by_name["gemini / none, as predicted"].values == pytest.approx((1.5,))
    assert "naive / none, as predicted" not in by_name


def sent(start_s: float, end_s: float) -> events.Transfer:
    return made(events.Transfer, version=6, peer=1, sent_bytes=9, start_s=start_s, end_s=end_s)


def test_idle_time_is_what_neither_training_nor_chunks_took() -> None:
    """A collective of 2 s, chunks of 1.5 s of which 0.5 s overlap with it, in 10 s."""
    told = [
        (111.0, sent(101.5, 103.0)),
        (111.0, sent(90.0, 95.0)),
        (110.0, made(events.Iteration, iteration=7, duration_s=10.0)),
        (
            110.0,
            events.Collectives.of(
                [events.Call("x", 8, 0.0, 2.0)], rank=0, epoch=1, iteration=7, began_s=100.0
            ),
        ),
    ]
    run = RunReducer()
    for at_s, event in told[:3]:
        run.take(Entry(at_s=at_s, node="node-0", event=event))
    assert network_times(run.traffic) == (0.0, 0.0)
    run.take(Entry(at_s=110.0, node="node-0", event=told[3][1]))
    left_s, checkpoint_s = network_times(run.traffic)
    assert left_s == pytest.approx(7.0)
    assert checkpoint_s == pytest.approx(1.0)
    assert network_times(run.traffic, after=7) == (0.0, 0.0)


@given(st.lists(st.tuples(st.floats(-5, 15), st.floats(0, 5)).map(lambda p: (p[0], p[0] + p[1]))))
def test_idle_time_is_that_of_a_fine_ruler(busy) -> None:
    step_s = 0.01
    marks = [step_s * (n + 0.5) for n in range(1000)]
    free = sum(not any(start_s <= at_s < end_s for start_s, end_s in busy) for at_s in marks)
    assert idle_s(0.0, 10.0, busy) == pytest.approx(free * step_s, abs=step_s * (len(busy) + 1))


def test_a_job_of_micro_batches_trains_under_the_thresholds_of_the_comparison() -> None:
    arguments = IDLE.job(Path("times.json")).args
    options = parse(list(arguments))
    config = deepspeed_config(options, on_gpu=False)
    assert config["zero_optimization"] == {"stage": 3, **IDLE.zero}
    assert config["gradient_accumulation_steps"] == IDLE.accumulate


def paced(room: float, *, cost: float) -> dict[str, TimedRun]:
    """Runs without and with checkpoints whose idle time is `room` times their checkpoint's."""
    size_bytes = int(0.1 * LINK_BYTES_PER_S)
    profile = Profile.synthetic(iteration_s=1.0, idle_spans_s=[room * 0.1 / 2] * 2, world_size=2)
    plan = plan_of(1.0, 1.0, profile=profile)
    gemini = TimedRun(iteration_s=cost, idle_s=room * 0.1, sent_bytes=size_bytes, plan=plan)
    return {"none": TimedRun(iteration_s=1.0), "gemini": gemini}


def test_the_scheduler_predicts_where_traffic_stops_fitting() -> None:
    """Where the spans are full to their ends: what mu keeps free is spent first."""
    found = breaking_point(paced(4.0, cost=1.0)["gemini"])
    assert found == pytest.approx(1.0, rel=1e-3)
    assert breaking_point(paced(0.9, cost=1.0)["gemini"]) is None


def test_contention_is_felt_where_the_measured_line_crosses_the_threshold() -> None:
    assert crossing([(3.0, 1.0), (1.0, 1.04)], level=1.02) == pytest.approx(2.0)
    assert crossing([(3.0, 1.0), (1.0, 1.01)], level=1.02) is None
    assert crossing([(3.0, 1.5), (1.0, 1.6)], level=1.02) == 3.0


def test_the_sweep_says_both_breaking_points() -> None:
    turn = {0.02: paced(4.0, cost=1.0), 0.0: paced(1.0, cost=1.04)}
    found = {(row.name, row.settings.get("layer_s")): row for row in contention_rows([turn])}
    assert found["idle / checkpoint", 0.02].values == pytest.approx((4.0,))
    assert found["gemini / none", 0.0].values == pytest.approx((1.04,))
    assert found["felt, as measured: idle / checkpoint", None].values == pytest.approx((2.5,))
    stops = found["stops fitting, as predicted: idle / checkpoint", None]
    assert stops.values == pytest.approx((1.0,), rel=1e-3)


KEPT = Loss(positions=(0, 2), tier="memory")


def verdicts(figure: Figure) -> list[str]:
    """Of all that was measured."""
    return [one.verdict for one in figure.comparisons() if one.ours.origin == "measured"]


def recorded(path: Path, bench: str, found: list[Row]) -> Path:
    """What `gemini-lab bench NAME --json` writes."""
    machine = {"system": "here", "cores": 2, "load_1_min": 0.5}
    record = {"bench": bench, "machine": machine, "load_1_min_after": 0.7}
    path.write_text(json.dumps(record | {"rows": [row.to_json() for row in found]}))
    return path


def test_results_become_figures_beside_the_papers_and_name_what_was_emulated(tmp_path) -> None:
    times = {"plan": plan_of(2.0, 2.0), "idle_s": 0.4, "idle_left_s": 0.3, "checkpoint_s": 0.1}
    turn = {scheme: TimedRun(iteration_s=2.2) for scheme in SCHEMES} | {
        "none": TimedRun(iteration_s=2.0),
        "naive": TimedRun(iteration_s=2.5, notes=("node-0: the scheme was refused: 1 GiB",)),
        "gemini": TimedRun(iteration_s=2.02, **times),
    }
    seventh, eighth, adds, idles, sixteenth, _ = measured.figures(
        recorded(tmp_path / "a.json", "schemes", rows([turn]))
    )
    (added,) = seventh.of("measured")
    assert added.y == pytest.approx(1.0)
    assert max(point.y for point in seventh.of("paper")) == pytest.approx(0.46, abs=0.01)
    assert [point.y for point in eighth.of("measured")] == pytest.approx([20, 5, 15])
    assert [figure.name for figure in (seventh, adds)] == ["fig07-measured", "fig13a-measured"]
    assert [point.y for point in adds.of("measured")] == [added.y]
    assert added.how.startswith("one run, no interval")
    assert max(point.y for point in adds.of("paper")) == pytest.approx(1.83, abs=0.01)
    assert [point.y for point in idles.of("measured")] == pytest.approx([20, 5, 25])
    assert {point.x for point in idles.of("paper")} > {"GPT-2 40B, 16 p3dn"}
    assert verdicts(seventh) == verdicts(eighth) == ["undecided"], "one run has no spread"
    naive = next(point for point in sixteenth.of("measured") if "naive" in point.x)
    assert (naive.y, naive.text) == (None, "refused")
    assert "1 GiB" in naive.how
    for figure in (seventh, eighth, adds, idles, sixteenth):
        assert "links are paced" in figure.notes[0]
        assert picture(figure).png().startswith(b"\x89PNG")


def turn_of(gemini: dict[str, float], **others: float) -> dict[str, TimedRun]:
    """Runs of the schemes: 2 s without checkpoints, and as the paper's bars."""
    seconds = {"none": 2.0, "blocking": 2.2, "naive": 2.1, "interleaved": 2.07} | others
    turn = {scheme: TimedRun(iteration_s=seconds.get(scheme, 2.0)) for scheme in SCHEMES}
    return turn | {"gemini": TimedRun(plan=plan_of(2.0, 2.0), **gemini)}


@pytest.mark.parametrize(
    ("gemini", "others", "number", "verdict"),
    [
        ({"iteration_s": 2.01}, {}, 0, ["within"]),
        ({"iteration_s": 9.0}, {}, 0, ["OUTSIDE"]),
        ({"iteration_s": 9.0}, {}, 2, ["OUTSIDE"]),
        ({"iteration_s": 2.01}, {}, 1, ["within"]),
        ({"iteration_s": 2.01, "idle_left_s": 0.4}, {}, 1, ["OUTSIDE"]),
        ({"iteration_s": 2.01}, {}, 3, ["within"]),
        ({"iteration_s": 2.01, "checkpoint_s": 0.45}, {}, 3, ["OUTSIDE"]),
        ({"iteration_s": 2.01}, {}, 4, ["within"] * 3),
        ({"iteration_s": 9.0}, {}, 4, ["within", "within", "OUTSIDE"]),
        ({"iteration_s": 2.01}, {}, 5, ["within"] * 3),
        (
            {"iteration_s": 2.01},
            {"blocking": 2.1, "interleaved": 2.12},
            5,
            ["OUTSIDE", "within", "within"],
        ),
        ({"iteration_s": 9.0}, {}, 5, ["within", "OUTSIDE", "OUTSIDE"]),
    ],
)
def test_what_schemes_cost_is_judged_beside_the_paper(
    tmp_path: Path, gemini, others, number, verdict
) -> None:
    """Three turns: 0.4 s of idle time, of which a checkpoint takes 0.28 s."""
    times = {"idle_s": 0.4, "idle_left_s": 0.12, "checkpoint_s": 0.28} | gemini
    found = measured.figures(
        recorded(tmp_path / "a.json", "schemes", rows([turn_of(times, **others)] * 3))
    )
    assert verdicts(found[number]) == verdict
    assert any("Tolerance" in note for note in found[number].notes)


def test_a_sweep_that_is_not_as_predicted_is_outside(tmp_path: Path) -> None:
    for cost, verdict in ((1.04, "within"), (4.5, "OUTSIDE")):
        turn = {0.02: paced(4.0, cost=1.0), 0.0: paced(1.0, cost=cost)}
        [figure] = measured.figures(
            recorded(tmp_path / "a.json", "contention", contention_rows([turn] * 3))
        )
        assert verdicts(figure) == ["within", verdict]


def test_the_sweep_is_drawn_from_its_results(tmp_path) -> None:
    turn = {0.02: paced(4.0, cost=1.0), 0.0: paced(1.0, cost=1.04)}
    (figure,) = measured.figures(
        recorded(tmp_path / "a.json", "contention", contention_rows([turn]))
    )
    points = {point.x: point.y for point in figure.of("measured")}
    assert points == pytest.approx({4.0: 0.0, 1.0: 4.0})
    model = [(point.series, point.x) for point in figure.of("model")]
    assert model[:2] == [("Gemini", 4.0), ("Gemini", 1.0)]
    assert model[2][1] == model[3][1] == pytest.approx(1.0, rel=1e-3)
    assert any("felt" in note for note in figure.notes)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is no JSON"),
        ("{}", "holds no bench's results"),
        ('{"bench": [1], "rows": []}', "holds no bench's results"),
        ('{"bench": "copy", "rows": []}', "of 'copy', of which nothing is drawn"),
        ('{"bench": "schemes", "rows": []}', "lacks something of the results of 'schemes'"),
        ('{"bench": "contention", "rows": [1]}', "lacks something of the results of 'contention'"),
    ],
)
def test_a_file_without_drawable_results_is_refused(tmp_path, text, what) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    way_out = r"bench NAME --json FILE.*schemes, contention, losses, baselines, goodput, reduction"
    with pytest.raises(ConfigError, match=f"{what}.*{way_out}"):
        measured.figures(path)


def test_a_file_that_cannot_be_read_is_refused_before_a_folder_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="absent cannot be read: No such file"):
        command.command(["--measured", "absent"])
    with pytest.raises(ConfigError, match="no figure 'fig99'"):
        command.command(["fig99"])
    assert not any(tmp_path.iterdir())


def test_real_losses_stand_beside_the_exact_chance(tmp_path: Path) -> None:
    pairs = [*itertools.combinations(range(4), 2)]
    losses = [Loss(positions=p, tier="memory" if p != (0, 1) else "persistent") for p in pairs]
    [figure] = measured.figures(
        recorded(tmp_path / "losses.json", "losses", losses_rows("group", losses))
    )
    values = {(point.origin, point.series): point.y for point in figure.points}
    assert values["measured", "recovered from memory"] == pytest.approx(5 / 6)
    assert values["model", "recovered from memory"] == pytest.approx(2 / 3)
    assert values["measured", "losses otherwise than placement says"] == pytest.approx(1 / 6)
    assert verdicts(figure) == ["OUTSIDE", "OUTSIDE"]
    assert "0.44 to 0.97" in figure.of("measured")[0].how


def test_losses_as_the_placement_says_are_within_a_tolerance_of_nothing(tmp_path: Path) -> None:
    found = []
    for strategy in ("group", "ring"):
        placement = plan_placement(nodes=4, strategy=strategy)
        found += losses_rows(
            strategy,
            [
                Loss(positions=p, tier="memory" if placement.survives(p) else "persistent")
                for p in [*itertools.combinations(range(4), 2)] * 3
            ],
        )
    [figure] = measured.figures(recorded(tmp_path / "losses.json", "losses", found))
    assert verdicts(figure) == ["within"] * 4
    paper = {point.x: point.y for point in figure.of("paper")}
    assert paper == pytest.approx({"group": 4 / 6, "ring": 2 / 6})


@pytest.mark.parametrize(
    ("share", "verdict"), [(1.0, "within"), (1.2, "undecided"), (1.6, "OUTSIDE")]
)
def test_what_kills_waste_is_judged_beside_eq_1(tmp_path: Path, share: float, verdict: str) -> None:
    """101 kills, evenly over an interval of 2 s, each once in `share` of its time."""
    beyond = [share * number / 100 for number in range(101)]
    found = [
        Row("wasted by a failure, measured", tuple(2.0 * one for one in beyond)),
        Row("the same by Eq. (1)", (1.0,)),
        Row("lost beyond t_ckpt, in intervals (0.5)", tuple(beyond), unit=""),
    ]
    [figure] = measured.figures(recorded(tmp_path / "wasted.json", "wasted", found))
    assert verdicts(figure) == [verdict, verdict]
    assert figure.of("measured")[1].y == pytest.approx(share / 2)


def test_killed_baselines_are_counted_in_iterations_beside_the_papers(tmp_path: Path) -> None:
    """2 s an iteration: 46 s wasted are 23 iterations, where the paper has 23.1 min of 62 s."""
    shares = [1.0, 1.0]

    def arm(name: str, wasted_s: float, cycle_s: float) -> Arm:
        costs = [
            Wasted(lost_s=share * wasted_s, retrieval_s=0.0, restart_s=1.0, regained_s=1.0)
            for share in shares
        ]
        return Arm(
            name=name, iteration_s=2.0, checkpoint_s=1.0, cycle_s=cycle_s, failures=tuple(costs)
        )

    arms = [arm("Strawman", 190, 348), arm("HighFreq", 46, 16), arm("gemini_lab", 1.5, 2)]
    tenth, twelfth = measured.figures(
        recorded(tmp_path / "baselines.json", "baselines", baselines_rows(arms))
    )
    found = {one.ours.series: (one.ours.y, one.verdict) for one in tenth.comparisons()}
    assert found["HighFreq"] == (23.0, "within")
    assert found["Gemini"] == (0.75, "known")
    rates = {one.ours.x: one.ours.y for one in twelfth.comparisons()}
    assert rates["HighFreq, store"] == pytest.approx(1 / 8)
    assert {one.verdict for one in twelfth.comparisons()} == {"input"}


@pytest.mark.parametrize(
    ("wasted_s", "verdict"),
    [
        ([46.0] * 4, "within"),
        ([82.8, 9.2], "undecided"),  # 1.8 and 0.2 times the mean
        ([46.0], "undecided"),
        ([90.0], "OUTSIDE"),
        ([90.0, 91.0, 92.0], "OUTSIDE"),
    ],
)
def test_a_mean_is_within_only_with_its_whole_interval(tmp_path: Path, wasted_s, verdict) -> None:
    costs = tuple(
        Wasted(lost_s=one, retrieval_s=0.0, restart_s=1.0, regained_s=1.0) for one in wasted_s
    )
    arms = [
        Arm(name=name, iteration_s=2.0, checkpoint_s=1.0, cycle_s=16.0, failures=costs)
        for name in ("Strawman", "HighFreq", "gemini_lab")
    ]
    tenth, _ = measured.figures(
        recorded(tmp_path / "baselines.json", "baselines", baselines_rows(arms))
    )
    found = {one.ours.series: one.verdict for one in tenth.comparisons()}
    assert found["HighFreq"] == verdict
    if verdict == "undecided":
        assert "undecided: fig10-measured" in provenance.summary([tenth])


def stretch_of(name: str, *, iterations: int, checkpoint_s: float, cycle_s: float) -> Stretch:
    """Iterations of half a second, all of 10 s a restart."""
    cost = Wasted(lost_s=9.9, retrieval_s=checkpoint_s, restart_s=10.5, regained_s=99.0)
    arm = Arm(
        name=name, iteration_s=0.5, checkpoint_s=checkpoint_s, cycle_s=cycle_s, failures=(cost,)
    )
    return Stretch(arm=arm, iterations=iterations, bare_s=0.5)


def goodput_of(path: Path, *, highfreq: list[int], strawman: list[int]) -> dict[str, str]:
    """The verdicts on a fifteenth figure of so many iterations that counted."""
    stretches = []
    for high, straw in zip(highfreq, strawman, strict=True):
        stretches += [
            stretch_of("Strawman", iterations=straw, checkpoint_s=4.0, cycle_s=87.0),
            stretch_of("HighFreq", iterations=high, checkpoint_s=4.0, cycle_s=4.2),
            stretch_of("gemini_lab", iterations=255, checkpoint_s=0.1, cycle_s=0.5),
        ]
    [fifteenth] = measured.figures(recorded(path, "goodput", goodput_rows(stretches)))
    return {one.ours.series: one.verdict for one in fifteenth.comparisons()}


def test_a_ratio_is_judged_beside_the_formula_with_the_costs_from_here(tmp_path: Path) -> None:
    """HighFreq: 4 + 2.1 + 4 wasted and 10 s to restart, every 75 s, and 5 % at a stand.

    That leaves 0.697, which is 209 iterations. Strawman may be above its line, HighFreq may not.
    """
    stretch = stretch_of("HighFreq", iterations=209, checkpoint_s=4.0, cycle_s=4.2)
    assert STRETCH_S / KILLS == 75
    assert stretch.predicted == pytest.approx(8 * 0.5 / 4.2 * (1 - 20.1 / 75), rel=1e-6)
    assert stretch.ratio == pytest.approx(0.697, abs=1e-3)
    near, far = [208, 209, 210], [250, 251, 252]
    path = tmp_path / "goodput.json"
    found = goodput_of(path, highfreq=near, strawman=[150, 151, 152])
    assert found == {"Strawman": "known", "HighFreq": "within", "Gemini": "within"}
    found = goodput_of(path, highfreq=far, strawman=[0, 150, 300])
    assert found == {"Strawman": "undecided", "HighFreq": "OUTSIDE", "Gemini": "within"}
    found = goodput_of(path, highfreq=[209], strawman=[0])
    assert set(found.values()) == {"undecided"}, "what two kills cost Strawman may be anything"


def test_a_reduction_is_judged_beside_the_rates_that_were_set(tmp_path: Path) -> None:
    """N links beside one store; the paper's own values stand in a line of their own."""
    of_rates = PEERS_BYTES_PER_S / STORE_BYTES_PER_S
    pairs = [
        WaysInTurn(
            nodes=nodes,
            peers=Way(time_s=1.5, size_bytes=300),
            store=Way(time_s=share * nodes * of_rates, size_bytes=200),
        )
        for nodes, shares in {2: (0.9, 0.91), 4: (0.6, 0.61)}.items()
        for share in shares
    ]
    [eleventh] = measured.figures(
        recorded(tmp_path / "reduction.json", "reduction", reduction_rows(pairs))
    )
    found = {one.ours.x: (one.beside.y, one.verdict) for one in eleventh.comparisons()}
    assert found[2] == (2 * of_rates, "undecided"), "two turns spread too far"
    assert found[4] == (4 * of_rates, "OUTSIDE")
    assert [point.y for point in eleventh.of("paper")] == [17, 34, 51, 68]
    assert picture(eleventh).png().startswith(b"\x89PNG")


@pytest.mark.parametrize(("wasted_s", "verdict"), [(70.0, "undecided"), (800.0, "OUTSIDE")])
def test_one_kill_is_outside_only_where_no_moment_of_its_cycle_explains_it(
    tmp_path: Path, wasted_s, verdict
) -> None:
    """174 iterations of 2 s are a cycle: 35 may be a mean of 95, and 400 may not."""
    cost = Wasted(lost_s=wasted_s, retrieval_s=0.0, restart_s=1.0, regained_s=1.0)
    arms = [
        Arm(name=name, iteration_s=2.0, checkpoint_s=1.0, cycle_s=348.0, failures=(cost,))
        for name in ("Strawman", "HighFreq", "gemini_lab")
    ]
    tenth, _ = measured.figures(
        recorded(tmp_path / "baselines.json", "baselines", baselines_rows(arms))
    )
    assert {one.ours.series: one.verdict for one in tenth.comparisons()}["Strawman"] == verdict


def test_a_measured_figure_tells_when_and_with_what_it_was_measured(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.json", "losses", losses_rows("group", [KEPT]))
    [old] = measured.figures(path)
    assert "the file does not tell" in provenance.note(old)
    assert "seeds: not told by the file" in provenance.note(old)
    told = {"at": "2026-01-02T03:04:05+0000", "made_with": {"gemini-lab": "0.0.9"}, "seed": 7}
    path.write_text(json.dumps(json.loads(path.read_text()) | told))
    [new] = measured.figures(path)
    said = provenance.note(new)
    assert "Measured 2026-01-02T03:04:05+0000 with gemini-lab 0.0.9. Drawn with" in said
    assert "seeds: 7" in said
