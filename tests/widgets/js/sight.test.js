import assert from "node:assert/strict";
import { test } from "node:test";

import { Coverage } from "../../../widgets/gemini_lab_widgets/js/raster.js";
import { Sight } from "../../../widgets/gemini_lab_widgets/js/sight.js";
import { packed, runOf } from "./packed.js";

const HOUR_S = 3600;
const LANES = ["a", "b"];

// A viewer that holds the last minute of an hour, and what it asks for.
function looking() {
  const bars = [{ start: HOUR_S - 30, duration: 1 }];
  const run = runOf(LANES, bars, { is_deep: true, newest_s: HOUR_S, first: 99, total: 100,
    whole_s: [HOUR_S - 60, null] });
  const sight = new Sight(run, new Coverage()), asked = [];
  sight.answeredBy((look) => asked.push(look));
  return { run, sight, asked };
}

function answer(sight, { number, from_s, to_s, bars }, rows) {
  const shades = new Uint8Array(rows * 6 * 4).fill(255), look = { number, from_s, to_s, upto: 100 };
  if (!bars) return sight.take({ ...look, rows, bins: 4 }, shades.buffer);
  const columns = packed([{ start: 10, duration: 1 }]);
  const all = new Uint8Array(8 + columns.byteLength);
  all.set(new Uint8Array(new Float64Array([7]).buffer));
  all.set(new Uint8Array(columns), 8);
  return sight.take({ ...look, bars: 1 }, all.buffer);
}

test("a window within the bars at hand shows them and asks for nothing", () => {
  const { sight, asked } = looking();
  assert.equal(sight.cover(HOUR_S - 60, HOUR_S, 10, 0), 1);
  assert.deepEqual([sight.kind, sight.isWaiting, asked], ["bars", false, []]);
});

test("a window before them shows nothing until what was asked for comes, bars or cells", () => {
  const { run, sight, asked } = looking();
  assert.equal(sight.cover(5, 15, 10, 0), 0);
  assert.deepEqual([sight.kind, sight.isWaiting], ["window", true]);
  answer(sight, asked[0], LANES.length);
  assert.equal(sight.cover(5, 15, 10, 1), 1);
  assert.deepEqual([sight.kind, run.seen.numberOf(0)], ["window", 7]);
  sight.forget();
  sight.cover(5, 15, 10, 2);
  answer(sight, { ...asked[1], bars: false }, LANES.length);
  assert.equal(sight.cover(5, 15, 10, 3), Infinity);
  assert.equal(sight.kind, "cells");
  assert.equal(sight.cover(HOUR_S - 60, HOUR_S, 10, 4), 1);
  assert.equal(sight.kind, "bars");
});

test("the strip asks for the whole run, and its answer is not taken for the window's", () => {
  const { sight, asked } = looking();
  assert.equal(sight.whole(0), null);
  sight.cover(5, 15, 10, 0);
  assert.deepEqual(asked.map((look) => look.bars), [false, true]);
  answer(sight, asked[0], 1);
  assert.equal(sight.isWaiting, true);
  assert.equal(sight.whole(1).lines, 1);
});
