import assert from "node:assert/strict";
import { test } from "node:test";

import { COLLECTIVE, EXPOSED, ITERATION, RESTORE, TRANSFER }
  from "../../../widgets/gemini_lab_widgets/js/kinds.js";
import { toldMarks } from "../../../widgets/gemini_lab_widgets/js/marks.js";
import { Run } from "../../../widgets/gemini_lab_widgets/js/run.js";
import { barLabel, barWords, basis, sharedBytes, lag, summary }
  from "../../../widgets/gemini_lab_widgets/js/words.js";
import { packed, runOf } from "./packed.js";

const NODES = ["node-0", "node-1"];
const BARS = [
  { kind: ITERATION, start: 0, duration: 10 },
  { kind: TRANSFER, start: 1, duration: 4, size: 2 ** 20, peer: 1, part: 2, number: 7 },
  { kind: TRANSFER, start: 2, duration: 1, size: 2 ** 20, peer: 1, number: 8 },
  { kind: EXPOSED, start: 2, duration: 0.5, size: 100 },
  { kind: COLLECTIVE, start: 2, duration: 1 },
  { kind: RESTORE, start: 8, duration: 1, lane: 1, number: 8, peer: 0 },
];

test("under a point lies the shortest bar of that half lane", () => {
  const run = runOf(NODES, BARS);
  assert.deepEqual(run.find(0, false, 2.2, 0.01), { bar: 2, exposed: 3 });
  assert.deepEqual(run.find(0, false, 4, 0.01), { bar: 1, exposed: -1 });
  assert.equal(run.find(0, true, 2.5, 0.01).bar, 4);
});

test("where no bar lies the iteration does, and beyond it nothing", () => {
  const run = runOf(NODES, BARS);
  assert.equal(run.find(0, true, 6, 0.01).bar, 0);
  assert.equal(run.find(1, false, 6, 0.01).bar, -1);
});

test("a bar beside the point is found within the slack", () => {
  assert.equal(runOf(NODES, BARS).find(0, false, 5.02, 0.05).bar, 1);
});

test("stepping goes from copy to copy of a lane, and back", () => {
  const run = runOf(NODES, BARS);
  const first = run.next(-1, -1, 1), second = run.next(first, run.bars.start[first], 1);
  assert.deepEqual([first, second], [1, 2]);
  assert.equal(run.next(second, run.bars.start[second], 1), -1);
  assert.equal(run.next(second, run.bars.start[second], -1), first);
});

test("a message without reset adds to the run, one with reset begins anew", () => {
  const run = runOf(NODES, BARS);
  assert.equal(run.take({ count: 1, newest_s: 20 }, packed([BARS[1]])), false);
  assert.equal(run.bars.length, 7);
  assert.equal(run.newest, 20);
  assert.equal(run.take({ reset: true, limit: 10, lanes: ["a"], names: [], count: 0 }), true);
  assert.deepEqual([run.bars.length, run.rows.lanes], [0, ["a"]]);
});

test("a bar says who sent what to whom, and how fast", () => {
  const run = runOf(NODES, BARS);
  assert.deepEqual(barWords(run, 1), ["version 7 to node-1", "rank 0 on node-0",
    "1.0 MiB in 4.0 s: 256.0 KiB/s", "chunks of idle span 2"]);
  assert.equal(barWords(run, 2)[3], "in the background");
  assert.equal(barWords(run, 4)[0], "all gather into tensor");
  assert.equal(barWords(run, 5)[1], "from node-1 to node-0");
});

test("a bar's label gets shorter before it goes", () => {
  const run = runOf(NODES, BARS);
  assert.deepEqual(barLabel(run, 1), ["v7 · 1.0 MiB", "v7"]);
  assert.equal(barLabel(run, 4)[0], "all gather");
});

test("the share of bytes that shared the link is rounded, and never nothing", () => {
  const share = (hidden, exposed) =>
    sharedBytes(runOf(NODES, BARS, { hidden_bytes: hidden, exposed_bytes: exposed }));
  assert.equal(share(93, 7), "7 % of checkpoint bytes shared the link with training");
  assert.equal(share(9996, 4), "0 % of checkpoint bytes shared the link with training");
  assert.equal(share(998, 2), "0.2 % of checkpoint bytes shared the link with training");
  assert.equal(sharedBytes(runOf(NODES, BARS)), "no checkpoint traffic judged yet");
  assert.equal(sharedBytes(runOf(NODES, [])), "no traffic yet");
  assert.equal(sharedBytes(new Run()), "the traffic is loading …");
});

test("how far the viewer is behind is told until the run is over", () => {
  assert.equal(lag(runOf(NODES, BARS, { behind_s: 0.25 })), "250 ms behind");
  assert.equal(lag(runOf(NODES, BARS, { is_over: true })), "run is over");
  assert.equal(lag(runOf(NODES, BARS, { is_recorded: true })), "saved while it ran");
  assert.equal(lag(runOf(NODES, BARS, { is_over: true, more: true })), "loading …");
});

test("who cannot see the picture is told what it shows", () => {
  const marks = [{ kind: "injected", start_s: 3, end_s: null, text: "node loss" }];
  const run = runOf(NODES, BARS, { newest_s: 10, marks, hidden_bytes: 1, exposed_bytes: 1 });
  assert.equal(summary(run), "Traffic timeline: 2 nodes, 6 bars in 10.0 s. 50 % of "
    + "checkpoint bytes shared the link with training. 1 failure injected, 0 recoveries.");
});

test("it is said on what the share rests", () => {
  const meta = { basis: "waits", hidden_bytes: 1, is_simulated: true };
  assert.equal(basis(runOf(NODES, BARS, meta)),
    "counted by waits alone, because the log has no collectives · simulated");
});

test("a loss is told in words only where nothing near it says more", () => {
  const mark = (kind, start_s) => ({ kind, start_s });
  const told = toldMarks([mark("lost", 10), mark("injected", 8), mark("lost", 30)]);
  assert.deepEqual(told.map((one) => one.start_s), [8, 30]);
});

test("a node that lives at the moment that is looked at has a lane of its own then", () => {
  const nodes = Array.from({ length: 9 }, (_, n) => `node-${n}`);
  const run = runOf(nodes, BARS);
  const comings = [...nodes.slice(0, 6).map((node, n) => [10 + n, node, false]), [30, "node-0", true]];
  assert.equal(run.take({ comings, newest_s: 40 }), true);
  const labels = () => run.rows.list.map((row) => row.label);
  assert.deepEqual(labels(), ["node-0", "node-6", "node-7", "node-8", "5 gone nodes"]);
  assert.equal(run.take({ moment_s: 12.5 }), true);
  assert.deepEqual(labels(), nodes);
  run.take({ moment_s: 20 });
  assert.deepEqual(labels(), ["node-6", "node-7", "node-8", "6 gone nodes"]);
  run.lookBack(5);
  assert.deepEqual(labels(), nodes);
  run.lookBack(null);
  assert.equal(labels().at(-1), "5 gone nodes");
});
