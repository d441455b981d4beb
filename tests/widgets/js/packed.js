// Bars as a message brings them.

import { COLUMNS } from "../../../widgets/gemini_lab_widgets/js/kinds.js";
import { Run } from "../../../widgets/gemini_lab_widgets/js/run.js";

const PLAIN = { start: 0, size: 0, duration: 0, number: 1, part: -1, rank: 0, peer: -1, lane: 0,
  name: 0, kind: 0 };

// The columns of `bars` in one aligned buffer; what a bar does not say is as in `PLAIN`.
export function packed(bars) {
  const width = COLUMNS.reduce((sum, [, Type]) => sum + Type.BYTES_PER_ELEMENT, 0);
  const buffer = new ArrayBuffer(width * bars.length);
  let at = 0;
  for (const [name, Type] of COLUMNS) {
    new Type(buffer, at, bars.length).set(bars.map((bar) =>
      ({ ...PLAIN, new: bar.duration ?? 0, ...bar })[name]));
    at += Type.BYTES_PER_ELEMENT * bars.length;
  }
  return buffer;
}

export function runOf(lanes, bars, meta = {}) {
  const run = new Run();
  run.take({ reset: true, limit: 1000, lanes, names: ["all_gather_into_tensor"], count: bars.length,
    ...meta }, packed(bars));
  return run;
}
