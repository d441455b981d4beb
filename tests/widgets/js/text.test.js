import assert from "node:assert/strict";
import { test } from "node:test";

import { bytes, clock, niceStep, seconds } from "../../../widgets/gemini_lab_widgets/js/text.js";

test("bytes are told in the unit that leaves few digits", () => {
  assert.equal(bytes(0), "0 B");
  assert.equal(bytes(1023), "1023 B");
  assert.equal(bytes(1536), "1.5 KiB");
  assert.equal(bytes(3 * 2 ** 40), "3.0 TiB");
});

test("durations are told from microseconds to minutes", () => {
  assert.deepEqual([2e-6, 0.0123, 0.5, 3.25, 125].map(seconds),
    ["2 µs", "12.3 ms", "500 ms", "3.3 s", "2 min 5 s"]);
});

test("a moment has as many digits as the step of its axis tells apart", () => {
  assert.equal(clock(1.5, 0.5), "1.5 s");
  assert.equal(clock(2, 1), "2 s");
  assert.equal(clock(125, 5), "2:05");
  assert.equal(clock(3725.25, 0.25), "1:02:05.3");
  assert.equal(clock(-130, 5), "−2:10");
});

test("an axis never gets more ticks than it has room for", () => {
  for (const span of [1e-4, 0.03, 1, 7, 59, 600, 86400, 1e6]) {
    for (const room of [1, 4, 9.5, 20]) {
      const step = niceStep(span, room);
      assert.ok(span / step <= room * (1 + 1e-9), `${span} s, room ${room}: step ${step}`);
    }
  }
});

test("the steps of an axis are round", () => {
  assert.equal(niceStep(1, 10), 0.1);
  assert.equal(niceStep(100, 10), 10);
  assert.equal(niceStep(600, 10), 60);
});
