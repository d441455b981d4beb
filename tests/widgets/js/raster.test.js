import assert from "node:assert/strict";
import { test } from "node:test";

import { COLLECTIVE, ITERATION, TRANSFER, WAIT } from "../../../widgets/gemini_lab_widgets/js/kinds.js";
import { Coverage } from "../../../widgets/gemini_lab_widgets/js/raster.js";
import { LIGHT, rgb } from "../../../widgets/gemini_lab_widgets/js/theme.js";
import { runOf } from "./packed.js";

const LAYERS = 6, COLUMNS = 10;

// What a layer of row 0 covers of ten columns of one second each.
function covered(run, layer, [t0, t1] = [0, 10]) {
  const coverage = new Coverage();
  const seen = coverage.cover(run.bars, run.rows, COLUMNS, t0, t1);
  const from = layer * COLUMNS;
  return { coverage, seen, sums: [...coverage.sums.subarray(from, from + COLUMNS)] };
}

test("a bar covers the share of each column that it reaches", () => {
  const run = runOf(["node-0"], [{ kind: COLLECTIVE, start: 1.5, duration: 2 }]);
  assert.deepEqual(covered(run, 1).sums, [0, 0.5, 1, 0.5, 0, 0, 0, 0, 0, 0]);
});

test("a bar is cut at the window's edges, and one outside is not seen", () => {
  const run = runOf(["node-0"], [{ kind: TRANSFER, start: -5, duration: 6 },
    { kind: TRANSFER, start: 20, duration: 1 }]);
  const { seen, sums } = covered(run, 3);
  assert.equal(seen, 1);
  assert.deepEqual(sums.slice(0, 2), [1, 0]);
});

test("what is not new in a bar covers nothing a second time", () => {
  const bar = { kind: COLLECTIVE, start: 2, duration: 1 };
  assert.equal(covered(runOf(["node-0"], [bar, { ...bar, new: 0 }]), 1).sums[2], 1);
  assert.equal(covered(runOf(["node-0"], [bar, { ...bar, new: 0.5 }]), 1).sums[2], 1.5);
});

test("the briefest bar is still seen", () => {
  const run = runOf(["node-0"], [{ kind: TRANSFER, start: 4.5, duration: 0 }]);
  const { coverage, sums } = covered(run, 3);
  assert.ok(sums[4] > 0);
  const pixels = new Uint32Array(2 * COLUMNS);
  coverage.colour(pixels, LIGHT, run.rows);
  assert.notEqual(pixels[COLUMNS + 4], pixels[COLUMNS + 3]);
});

test("brief waits in every column do not fill a lane with their colour, one alone is seen", () => {
  const wait = (start) => ({ kind: WAIT, start, duration: 0.01 });
  const redness = (bars) => {
    const { coverage } = covered(runOf(["node-0"], bars), 2);
    const pixels = new Uint32Array(2 * COLUMNS);
    coverage.colour(pixels, LIGHT, runOf(["node-0"], bars).rows);
    return 255 - ((pixels[4] >> 16) & 255); // how much of its blue the surface has lost
  };
  const alone = redness([wait(4.5)]), everywhere = redness([...Array(10).keys()].map(wait));
  assert.ok(alone > 120);
  assert.ok(everywhere > 0);
  assert.ok(everywhere < 40);
});

test("a full column has its layer's colour, an empty one the surface's", () => {
  const run = runOf(["node-0"], [{ kind: COLLECTIVE, start: 0, duration: 1 },
    { kind: ITERATION, start: 2, duration: 1 }]);
  const { coverage } = covered(run, 1), pixels = new Uint32Array(2 * COLUMNS);
  coverage.colour(pixels, LIGHT, run.rows);
  const colour = (n) => [n & 255, (n >> 8) & 255, (n >> 16) & 255];
  assert.deepEqual(colour(pixels[0]), rgb(LIGHT.collective));
  assert.deepEqual(colour(pixels[1]), rgb(LIGHT.surface));
  assert.deepEqual(colour(pixels[2]), rgb(LIGHT.training));
  assert.deepEqual(colour(pixels[COLUMNS]), rgb(LIGHT.surface));
});

test("the sums of two windows do not mix", () => {
  const run = runOf(["node-0"], [{ kind: TRANSFER, start: 1, duration: 1 }]);
  const coverage = new Coverage();
  coverage.cover(run.bars, run.rows, COLUMNS, 0, 10);
  coverage.cover(run.bars, run.rows, COLUMNS, 5, 15);
  assert.equal(coverage.sums.slice(0, LAYERS * COLUMNS).reduce((a, b) => a + b), 0);
});
