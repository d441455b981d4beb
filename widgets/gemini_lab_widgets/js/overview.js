// The whole run on a fixed number of columns, for the strip below the lanes.

import { COLLECTIVE, EXPOSED, TRANSFER, VERSION, WAIT } from "./kinds.js";

export const OVERVIEW = 1024;

// What a kind adds to: training, checkpoints, or what training felt; -1 for nothing.
function sumOf(kind) {
  if (kind === COLLECTIVE) return 0;
  if (kind === TRANSFER || kind === VERSION) return 1;
  return kind === EXPOSED || kind === WAIT ? 2 : -1;
}

// The same for the layers of cells: iterations and replicas read back stand in no sum.
const SUM_OF_LAYER = [-1, 0, 2, 1, 2, -1];

// Add to each column the part of what lies from `x0` to `x1` that is in it, and `least` of it.
function spread(sums, x0, x1, weight, least = 0) {
  for (let c = Math.max(0, Math.floor(x0)); c <= Math.min(OVERVIEW - 1, x1); c++) {
    sums[c] += weight * (Math.min(c + 1, x1) - Math.max(c, x0)) + least;
  }
}

// Every bar is added once, all again only when time outgrows the columns.
export class Overview {
  constructor() {
    this.reset();
  }

  reset() {
    Object.assign(this, { taken: 0, t0: 0, t1: 0, shown: null });
    this.sums = [0, 1, 2].map(() => new Float32Array(OVERVIEW));
  }

  // Take the sums of cells whose one line is all `lanes`.
  show(cells, lanes) {
    if (this.shown === cells) return;
    this.reset();
    this.shown = cells;
    this.t0 = cells.from;
    this.t1 = cells.from + cells.width * cells.bins;
    const scale = OVERVIEW / cells.bins;
    for (let line = 0; line < cells.lines; line++) {
      const share = (cells.isByLane ? 1 : lanes) / 255;
      for (let layer = 0; layer < cells.layers; layer++) {
        const sums = this.sums[SUM_OF_LAYER[layer]];
        const at = (line * cells.layers + layer) * cells.bins;
        if (!sums) continue;
        for (let bin = 0; bin < cells.bins; bin++) {
          spread(sums, bin * scale, (bin + 1) * scale, cells.shades[at + bin] * share);
        }
      }
    }
  }

  update(bars) {
    this.shown = null;
    const end = bars.base + bars.length;
    if (!bars.length) return;
    if (bars.last > this.t1 || bars.first < this.t0 || this.taken < bars.base || !this.taken) {
      this.reset();
      this.t0 = bars.first;
      this.t1 = bars.first + Math.max(1, (bars.last - bars.first) * 1.3);
      this.taken = bars.base;
    }
    const scale = OVERVIEW / (this.t1 - this.t0);
    for (let i = this.taken - bars.base; i < bars.length; i++) {
      const which = sumOf(bars.kind[i]);
      if (which < 0) continue;
      const x0 = (bars.start[i] - this.t0) * scale;
      spread(this.sums[which], x0, x0 + bars.duration[i] * scale, 1, 1e-3);
    }
    this.taken = end;
  }
}
