import assert from "node:assert/strict";
import { test } from "node:test";

import { Cells } from "../../../widgets/gemini_lab_widgets/js/looks.js";
import { OVERVIEW, Overview } from "../../../widgets/gemini_lab_widgets/js/overview.js";

test("what is covered evenly is even on the strip, however many bins there were", () => {
  for (const bins of [500, 1024, 1502, 3000]) {
    const shades = new Uint8Array(6 * bins).fill(255, bins, 2 * bins), overview = new Overview();
    const size = { rows: 1, bins }, span = { from: 0, to: bins, isByLane: false };
    overview.show(new Cells(size, shades.buffer, span), 4);
    const [training] = overview.sums;
    for (let c = 0; c < OVERVIEW; c++) assert.ok(Math.abs(training[c] - 4) < 1e-3, `${bins}, ${c}`);
  }
});
