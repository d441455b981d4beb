// How much of each pixel column every layer covers, and in which colours that is seen.
//
// The cost of a picture hardly depends on how bars lie: each is added to the columns that it
// covers, and the sums become the pixels of an image with one line a half lane.

import { rgb } from "./theme.js";

// The layer of each kind; a version being whole is a tick, which is drawn apart.
const LAYER = Int8Array.of(0, 1, 2, 3, 3, 4, -1, 5);
const LAYERS = 6;
// What lies over the tint of iterations in either half of a lane: layer, colour, and how strongly
// the briefest bar is seen, so that none is lost between two pixels. The last is for a lane that
// has one in every column, where none could be lost, and so strong a colour would lie.
const HALVES = [
  [[1, "collective", 0.16, 0.16], [2, "exposed", 0.6, 0.08]],
  [[3, "checkpoint", 0.35, 0.35], [4, "exposed", 0.6, 0.08], [5, "restore", 0.6, 0.6]],
];

export class Coverage {
  constructor() {
    this.columns = this.rows = 0;
    this.sums = new Float32Array(0);
  }

  // Add up the bars between `t0` and `t1`; returns how many there were.
  cover(bars, rows, columns, t0, t1) {
    this.clear(rows, columns);
    let seen = 0;
    bars.blocksIn(t0, t1, (from, to) => { seen += this.add(bars, rows, from, to, t0, t1); });
    return seen;
  }

  // Add up cells between `t0` and `t1`.
  coverCells(cells, rows, columns, t0, t1) {
    this.clear(rows, columns);
    const { bins, layers, from, width, shades } = cells, scale = columns / (t1 - t0);
    const first = Math.max(0, Math.floor((t0 - from) / width));
    const end = Math.min(bins, Math.ceil((t1 - from) / width));
    for (let line = 0; line < cells.lines; line++) {
      const row = cells.isByLane ? rows.of[line] : line;
      if (row === undefined || row < 0 || row >= this.rows) continue;
      const weight = (cells.isByLane ? 1 : rows.list[row].size) / 255;
      for (let layer = 0; layer < layers; layer++) {
        const place = (row * LAYERS + layer) * columns, at = (line * layers + layer) * bins;
        for (let bin = first; bin < end; bin++) {
          if (!shades[at + bin]) continue;
          const x0 = (from + bin * width - t0) * scale;
          this.spread(place, Math.max(0, x0), Math.min(columns, x0 + width * scale),
            shades[at + bin] * weight);
        }
      }
    }
  }

  clear(rows, columns) {
    this.columns = columns;
    this.rows = rows.list.length;
    const cells = this.rows * LAYERS * columns;
    if (this.sums.length < cells) this.sums = new Float32Array(cells);
    else this.sums.fill(0, 0, cells);
  }

  add(bars, rows, from, to, t0, t1) {
    const { start, duration, lane, kind } = bars, { columns } = this;
    const scale = columns / (t1 - t0), rowOf = rows.of;
    let seen = 0;
    for (let i = from; i < to; i++) {
      const layer = LAYER[kind[i]];
      const end = start[i] + duration[i], row = rowOf[lane[i]];
      if (layer < 0 || start[i] > t1 || end < t0 || row < 0) continue;
      seen++;
      // What one rank told twice for the same time counts once.
      const begin = end - bars.new[i];
      if ((begin === end && duration[i] > 0) || begin > t1) continue;
      const place = row * LAYERS + layer;
      const x0 = Math.max(0, (begin - t0) * scale), x1 = Math.min(columns, (end - t0) * scale);
      this.spread(place * columns, x0, x1);
    }
    return seen;
  }

  // Add a bar from column `x0` to `x1`, both fractions, to the line that begins at `line`.
  spread(line, x0, x1, weight = 1) {
    const { sums, columns } = this;
    const c0 = Math.min(columns - 1, x0 | 0), c1 = Math.min(columns - 1, x1 | 0);
    if (c0 === c1) {
      sums[line + c0] += weight * Math.max(x1 - x0, 1e-4);
      return;
    }
    sums[line + c0] += weight * (c0 + 1 - x0);
    for (let c = c0 + 1; c < c1; c++) sums[line + c] += weight;
    sums[line + c1] += weight * (x1 - c1);
  }

  // Which share of the columns is touched at all in the line that begins at `line`.
  spreadOf(line) {
    let touched = 0;
    for (let c = 0; c < this.columns; c++) touched += this.sums[line + c] > 0;
    return touched / Math.max(1, this.columns);
  }

  // The sums as colours, into RGBA `pixels`: line 2r is the upper half of row r, 2r+1 the lower.
  colour(pixels, theme, rows) {
    const surface = rgb(theme.surface), training = rgb(theme.training);
    const halves = HALVES.map((half) => half.map(([layer, name, alone, everywhere]) =>
      ({ layer, shade: rgb(theme[name]), alone, everywhere })));
    for (let row = 0; row < this.rows; row++) {
      halves.forEach((half, lower) => {
        this.colourLine(pixels, 2 * row + lower, row, 1 / rows.list[row].size, half, surface,
          training);
      });
    }
  }

  colourLine(pixels, line, row, share, half, surface, training) {
    const { columns, sums } = this, at = (layer) => (row * LAYERS + layer) * columns;
    const tint = at(0), layers = half.map(({ layer, shade, alone, everywhere }) => {
      const from = at(layer), least = alone + (everywhere - alone) * this.spreadOf(from);
      return { from, shade, least };
    });
    for (let c = 0; c < columns; c++) {
      const tinted = Math.min(1, sums[tint + c] * share);
      let r = surface[0] + (training[0] - surface[0]) * tinted;
      let g = surface[1] + (training[1] - surface[1]) * tinted;
      let b = surface[2] + (training[2] - surface[2]) * tinted;
      for (const { from, shade, least } of layers) {
        const sum = sums[from + c];
        if (sum === 0) continue;
        const alpha = Math.min(1, Math.max(sum * share, least));
        r += (shade[0] - r) * alpha;
        g += (shade[1] - g) * alpha;
        b += (shade[2] - b) * alpha;
      }
      pixels[line * columns + c] = 0xff000000 | (b << 16) | (g << 8) | r;
    }
  }
}

// A coverage as a small image that a canvas stretches over its lanes.
export class Raster extends Coverage {
  constructor() {
    super();
    this.canvas = document.createElement("canvas");
  }

  paint(theme, rows) {
    const { columns, canvas } = this, lines = Math.max(1, 2 * this.rows);
    if (canvas.width !== columns || canvas.height !== lines || !this.image) {
      canvas.width = columns;
      canvas.height = lines;
      this.context = canvas.getContext("2d");
      this.image = this.context.createImageData(columns, lines);
    }
    this.colour(new Uint32Array(this.image.data.buffer), theme, rows);
    this.context.putImageData(this.image, 0, 0);
  }
}
