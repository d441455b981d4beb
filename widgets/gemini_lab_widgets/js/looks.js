// Windows that the bars at hand do not reach: asked of whoever keeps all, and kept until a better
// one comes.

import { Bars } from "./bars.js";
import { COLUMNS } from "./kinds.js";

const MARGIN = 0.25, AGAIN_MS = 1000, PATIENCE_MS = 20_000, WIDEST = 3, BINS = 768;
const numbers = { last: 0 };

export class Looks {
  constructor() {
    this.ask = null; // asks for a look, if somebody answers
    this.forget();
  }

  forget() {
    this.scene = this.asked = null;
  }

  // The best scene there is of a window, null for none yet; asks for a better one if that helps.
  // `now_ms` is the time, `total` how many bars there are, `key` of what arrangement the rows are.
  want({ from, to, total, key, rows, bars, extent, origin }, now_ms) {
    const { scene } = this;
    const isSame = scene !== null && (scene.bars !== null || scene.isByLane || scene.key === key);
    const covers = isSame && scene.from <= from && scene.to >= to;
    const isSharp = covers && (scene.bars !== null || scene.isAll
      || scene.to - scene.from <= WIDEST * (to - from));
    const isOld = covers && scene.upto < total && to > scene.newest
      && now_ms - scene.at > AGAIN_MS;
    const isWaiting = this.asked !== null && now_ms - this.asked.at < PATIENCE_MS;
    if (this.ask && !isWaiting && (!isSharp || isOld)) {
      const margin = (to - from) * MARGIN, number = ++numbers.last;
      this.asked = { number, key, at: now_ms, newest: extent[1], origin };
      this.ask({ number, bars, rows, bins: BINS,
        from_s: Math.max(from - margin, extent[0] - 1) + origin, to_s: to + margin + origin });
    }
    return isSame ? scene : null;
  }

  // Take in the answer to a look; false if it is somebody else's.
  take(answer, buffer) {
    const { asked } = this;
    if (asked === null || answer.number !== asked.number) return false;
    this.asked = null;
    const { origin } = asked;
    this.scene = { from: answer.from_s - origin, to: answer.to_s - origin, upto: answer.upto,
      newest: asked.newest, at: asked.at, key: asked.key, isByLane: Boolean(answer.is_by_lane),
      isAll: Boolean(answer.is_all), bars: null, cells: null };
    if (answer.bars === undefined) this.scene.cells = new Cells(answer, buffer, this.scene);
    else this.scene.bars = barsOf(answer.bars, buffer, origin);
    return true;
  }
}

// Bars that do not follow one another: each brings its number.
function barsOf(count, buffer, origin) {
  const bars = new Bars();
  bars.clear(Math.max(1, count), 0);
  bars.numbers = new Float64Array(buffer, 0, count);
  bars.append(count, buffer.slice(8 * count), origin);
  return bars;
}

// How much of each bin is covered: a byte for each line, layer and bin. A line is a row of the
// viewer's, or a lane where the scene is by lane.
export class Cells {
  constructor({ rows, bins }, buffer, { from, to, isByLane }) {
    Object.assign(this, { lines: rows, bins, from, isByLane });
    this.width = (to - from) / bins;
    this.shades = new Uint8Array(buffer);
    this.layers = this.shades.length / (rows * bins);
  }

  // How much of a layer lanes covered at a moment: for each layer a share from 0 to 1.
  at(line, t) {
    const bin = Math.floor((t - this.from) / this.width), { layers, bins, shades } = this;
    const isIn = bin >= 0 && bin < bins && line >= 0 && line < this.lines;
    return Array.from({ length: layers }, (_, layer) =>
      (isIn ? shades[(line * layers + layer) * bins + bin] / 255 : 0));
  }

  // The lines that make up a row.
  of(row, rows) {
    if (!this.isByLane) return [row];
    return [...rows.of.keys()].filter((lane) => rows.of[lane] === row && lane < this.lines);
  }
}

// Answers looks from what a saved page brings: the coverage of the whole run by lane.
export function savedLooks(answer, buffer, take) {
  return (look) => queueMicrotask(() =>
    take({ ...answer, number: look.number, is_by_lane: true, is_all: true }, buffer));
}

export const ROW_BYTES = COLUMNS.reduce((sum, [, Type]) => sum + Type.BYTES_PER_ELEMENT, 0);
