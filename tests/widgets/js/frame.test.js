import assert from "node:assert/strict";
import { test } from "node:test";

import { Frame } from "../../../widgets/gemini_lab_widgets/js/frame.js";
import { COLLECTIVE, TRANSFER } from "../../../widgets/gemini_lab_widgets/js/kinds.js";

const RUN = [0, 100];

function frameOf(rows = 4) {
  const frame = new Frame();
  frame.fit(900, Array(rows).fill(40));
  frame.settle(RUN);
  return frame;
}

test("a moment and its pixel lead to one another", () => {
  const frame = frameOf();
  for (const t of [0, 12.5, 99]) assert.ok(Math.abs(frame.time(frame.x(t)) - t) < 1e-9);
  for (const t of [0, 12.5, 99]) {
    assert.ok(Math.abs(frame.stripTime(frame.stripX(t, RUN), RUN) - t) < 1e-9);
  }
});

test("the halves of a lane lie in its row, one below the other", () => {
  for (const rows of [1, 8, 64]) {
    const frame = frameOf(rows);
    for (let row = 0; row < rows; row++) {
      const [upperTop, upper] = frame.half(row, COLLECTIVE);
      const [top, lower] = frame.half(row, TRANSFER);
      assert.equal(top, upperTop + upper);
      assert.equal(frame.rowAt(upperTop), row);
      assert.equal(frame.rowAt(top + lower - 1), row);
    }
  }
});

test("zooming keeps the moment under the pointer where it is", () => {
  const frame = frameOf(), x = frame.x(30);
  frame.zoom(0.5, 30);
  frame.settle(RUN);
  assert.ok(Math.abs(frame.x(30) - x) < 1e-6);
  assert.equal(frame.mode, "free");
});

test("a free window stays near the run and is never empty", () => {
  const frame = frameOf();
  frame.look(5000, 5001);
  frame.settle(RUN);
  assert.ok(frame.window[0] <= 100);
  frame.look(50, 50);
  frame.settle(RUN);
  assert.ok(frame.span > 0);
  frame.look(-1e6, 1e6);
  frame.settle(RUN);
  assert.equal(frame.span, 150);
});

test("following goes on while zooming by keys, and stops by the pointer", () => {
  const frame = frameOf();
  frame.startWith(90, false);
  frame.settle(RUN);
  frame.zoom(0.5);
  frame.settle(RUN);
  assert.equal(frame.mode, "follow");
  assert.ok(frame.span < 11);
  frame.zoom(0.5, 95);
  assert.equal(frame.mode, "free");
});

test("a run that is over, or has just begun, is shown whole at first", () => {
  for (const [newest, isOver] of [[500, true], [5, false]]) {
    const frame = frameOf();
    frame.startWith(newest, isOver);
    assert.equal(frame.mode, "all");
  }
});
