import assert from "node:assert/strict";
import { test } from "node:test";

import { Bars } from "../../../widgets/gemini_lab_widgets/js/bars.js";
import { packed } from "./packed.js";

const row = (start) => ({ start, duration: 0.5 });

function filled(count, limit) {
  const bars = new Bars();
  bars.clear(limit, 0);
  for (let at = 0; at < count; at += 500) {
    const some = Math.min(500, count - at);
    bars.append(some, packed(Array.from({ length: some }, (_, n) => row(at + n))), 0);
  }
  return bars;
}

test("times become seconds since the origin", () => {
  const bars = new Bars();
  bars.append(2, packed([row(1000), row(1002.5)]), 1000);
  assert.deepEqual([...bars.start.subarray(0, 2)], [0, 2.5]);
  assert.deepEqual([bars.first, bars.last], [0, 3]);
});

test("columns grow and keep what they hold", () => {
  const bars = filled(10_000, 1_000_000);
  assert.equal(bars.length, 10_000);
  assert.ok(bars.start.length >= 10_000);
  assert.deepEqual([bars.start[0], bars.start[4999], bars.start[9999]], [0, 4999, 9999]);
});

test("when it is full the oldest quarter goes, and numbers go on", () => {
  const bars = filled(1500, 1000);
  assert.ok(bars.length <= 1000);
  assert.equal(bars.base + bars.length, 1500);
  assert.equal(bars.start[0], bars.base);
  assert.equal(bars.first, bars.base);
  assert.equal(bars.gone, bars.base - 0.5);
});

test("a search visits every bar of its window, and few others", () => {
  const bars = filled(20_000, 1_000_000);
  const visited = new Set();
  bars.blocksIn(9000, 9010, (from, to) => { for (let i = from; i < to; i++) visited.add(i); });
  for (let i = 9000; i <= 9010; i++) assert.ok(visited.has(i));
  assert.ok(visited.size < 5000);
});
