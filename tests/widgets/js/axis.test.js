import assert from "node:assert/strict";
import { test } from "node:test";

import { drawAxis } from "../../../widgets/gemini_lab_widgets/js/axis.js";
import { Frame } from "../../../widgets/gemini_lab_widgets/js/frame.js";

// The moments that stand below a timeline of this width, in pixels, of a run of `seconds`.
function told(width, seconds) {
  const frame = new Frame(), words = [];
  frame.fit(width, Array(4).fill(40));
  frame.settle([0, seconds]);
  drawAxis({ c: { fillRect() {}, fillText: (text) => words.push(text) }, frame, theme: {} });
  return words.filter((text) => text !== "since start");
}

test("a phone's axis tells more than one moment, whatever the run's length", () => {
  for (const seconds of [0.3, 6.5, 13.5, 19, 60, 100, 3600, 50000]) {
    assert.ok(told(340, seconds).length >= 2, `${seconds} s: ${told(340, seconds)}`);
  }
});
