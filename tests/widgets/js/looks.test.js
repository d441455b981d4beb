import assert from "node:assert/strict";
import { test } from "node:test";

import { Looks, savedLooks } from "../../../widgets/gemini_lab_widgets/js/looks.js";
import { Coverage } from "../../../widgets/gemini_lab_widgets/js/raster.js";
import { cellWords } from "../../../widgets/gemini_lab_widgets/js/words.js";
import { packed, runOf } from "./packed.js";

const WANTED = { from: 100, to: 200, total: 10, key: "0,1", rows: [0, 1], bars: true,
  extent: [0, 1000], origin: 5000 };

function looking() {
  const looks = new Looks(), asked = [];
  looks.ask = (look) => asked.push(look);
  return { looks, asked };
}

// Cells of one layer, or of two: each line's shades, bin by bin.
const cells = (...lines) => new Uint8Array(lines.flat()).buffer;

test("a window is asked for with room at its sides, once", () => {
  const { looks, asked } = looking();
  assert.equal(looks.want(WANTED, 0), null);
  assert.equal(looks.want(WANTED, 10), null);
  assert.deepEqual(asked.map(({ from_s, to_s }) => [from_s, to_s]), [[5075, 5225]]);
});

test("what came is shown while it reaches, and for a nearer look a new one is asked", () => {
  const { looks, asked } = looking();
  looks.want(WANTED, 0);
  const answer = { number: asked[0].number, from_s: 5075, to_s: 5225, rows: 2, bins: 3, upto: 10 };
  assert.equal(looks.take({ ...answer, number: -1 }, cells([0, 0, 0])), false);
  assert.equal(looks.take(answer, cells([0, 0, 0], [255, 0, 0])), true);
  assert.equal(looks.want(WANTED, 20).cells.bins, 3);
  assert.equal(asked.length, 1);
  assert.equal(looks.want({ ...WANTED, from: 120, to: 130 }, 30).cells.bins, 3);
  assert.equal(asked.length, 2);
  assert.equal(looks.want({ ...WANTED, key: "1,0" }, 40), null);
});

test("a window into a run under way is asked for again, not too often", () => {
  const { looks, asked } = looking();
  const open = { ...WANTED, to: 1001 };
  looks.want(open, 0);
  looks.take({ number: asked[0].number, from_s: 5000, to_s: 6300, rows: 2, bins: 1, upto: 10 },
    cells([0], [0]));
  for (const now_ms of [100, 900, 1100]) looks.want({ ...open, total: 20 }, now_ms);
  assert.equal(asked.length, 2);
});

test("an answer that never comes is asked for again", () => {
  const { looks, asked } = looking();
  looks.want(WANTED, 0);
  looks.want(WANTED, 60_000);
  assert.equal(asked.length, 2);
});

test("bars that were asked for keep their numbers", () => {
  const { looks, asked } = looking();
  looks.want(WANTED, 0);
  const columns = packed([{ start: 5100, duration: 1 }, { start: 5150, duration: 1 }]);
  const buffer = new Uint8Array(16 + columns.byteLength);
  buffer.set(new Uint8Array(new Float64Array([7, 90]).buffer));
  buffer.set(new Uint8Array(columns), 16);
  looks.take({ number: asked[0].number, from_s: 5075, to_s: 5225, bars: 2, upto: 91 },
    buffer.buffer);
  const { bars } = looks.scene;
  assert.deepEqual([...bars.start.subarray(0, 2)], [100, 150]);
  assert.deepEqual([bars.numberOf(1), bars.placeOf(90), bars.placeOf(8)], [90, 1, -1]);
});

test("cells cover as the bars in them did, also by lane", async () => {
  const run = runOf(["a", "b"], []), coverage = new Coverage();
  const answer = { from_s: 0, to_s: 10, rows: 2, bins: 10, upto: 0 };
  const shades = cells(Array(60).fill(0).fill(255, 10, 20), Array(60).fill(0).fill(51, 30, 40));
  const looks = new Looks();
  looks.ask = savedLooks(answer, shades, (look, buffer) => looks.take(look, buffer));
  const wanted = { ...WANTED, from: 2, to: 4, origin: 0 };
  looks.want(wanted, 0);
  await Promise.resolve();
  const found = looks.want(wanted, 1);
  coverage.coverCells(found.cells, run.rows, 4, 2, 4);
  assert.deepEqual([...coverage.sums.subarray(4, 8)], [1, 1, 1, 1]);
  const lower = (1 * 6 + 3) * 4;
  assert.ok(Math.abs(coverage.sums[lower] - 0.2) < 1e-6);
  assert.deepEqual(cellWords(run, found.cells, 1, 3.5).slice(1, 2), ["checkpoint chunks 20 %"]);
  assert.deepEqual(cellWords(run, found.cells, 1, 30), []);
});
