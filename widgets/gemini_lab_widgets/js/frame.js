// Where things lie: pixels and moments, lanes and rows, and the window of time that is shown.

import { isUpper } from "./kinds.js";

export const TOP = 20, AXIS = 20, STRIP = 34, GAP = 10;
const FOLLOW_S = 20, NARROWEST_S = 2e-5, MARGIN = 6;
const NAMES = 78; // pixels: "since start" and "whole run" have room, whatever the lanes are called

export class Frame {
  constructor() {
    Object.assign(this, { width: 320, height: 0, gutter: 58, plot: 256, laneHeight: 52,
      lanesHeight: 52 });
    this.window = [0, 1];
    this.mode = "all"; // the whole run, "follow" its end, or "free"
    this.followSpan = FOLLOW_S;
  }

  // How high a lane is when there are so many rows.
  static laneHeight(rows) {
    return Math.max(13, Math.min(52, Math.floor(420 / Math.max(1, rows))));
  }

  // Lay out so many rows in `width` pixels; `labels` are the widths of their names.
  fit(width, labels) {
    const count = Math.max(1, labels.length);
    this.laneHeight = Frame.laneHeight(count);
    this.gutter = Math.min(150, Math.max(NAMES, ...labels.map((label) => label + 22)));
    this.width = Math.max(320, width);
    this.lanesHeight = this.laneHeight * count;
    this.height = TOP + this.lanesHeight + AXIS + GAP + STRIP;
    this.plot = Math.max(50, this.width - this.gutter - MARGIN);
  }

  get span() {
    return this.window[1] - this.window[0];
  }

  get right() {
    return this.gutter + this.plot;
  }

  get bottom() {
    return TOP + this.lanesHeight;
  }

  x(t) {
    return this.gutter + ((t - this.window[0]) / this.span) * this.plot;
  }

  time(x) {
    return this.window[0] + ((x - this.gutter) / this.plot) * this.span;
  }

  top(row) {
    return TOP + row * this.laneHeight;
  }

  rowAt(y) {
    return Math.floor((y - TOP) / this.laneHeight);
  }

  // Top and height of the half of a lane in which bars of this kind lie.
  half(row, kind) {
    const inner = this.laneHeight - (this.laneHeight > 20 ? 6 : 2);
    const upper = Math.round(inner / 2), top = this.top(row) + 1;
    return isUpper(kind) ? [top, upper] : [top + upper, inner - upper];
  }

  // -- the window

  // Put the window where the mode wants it in a run of this extent; a free one stays near the run.
  settle([from, to]) {
    if (this.mode === "all") this.window = [from, to + (to - from) * 0.005];
    if (this.mode === "follow") {
      const span = Math.min(this.followSpan, Math.max(1, to - from));
      this.window = [to - span, to + span * 0.01];
    }
    if (this.mode === "free") {
      const span = Math.min(Math.max(this.span, NARROWEST_S), (to - from) * 1.5);
      const start = Math.min(Math.max(this.window[0], from - span * 0.5), to - span * 0.5);
      this.window = [start, start + span];
    }
  }

  look(t0, t1) {
    this.mode = "free";
    this.window = [t0, t1];
  }

  // Show `factor` times as much time, around a moment or the middle; following goes on.
  zoom(factor, about) {
    const [t0, t1] = this.window;
    if (this.mode === "follow" && about === undefined) {
      this.followSpan = Math.max(0.05, (t1 - t0) * factor);
      return;
    }
    const centre = about ?? (t0 + t1) / 2;
    this.look(centre - (centre - t0) * factor, centre + (t1 - centre) * factor);
  }

  // A run that has been under way for longer is looked at by its end first.
  startWith(newest, isOver) {
    if (!isOver && newest > FOLLOW_S) this.mode = "follow";
  }

  // -- the strip of the whole run

  get stripTop() {
    return this.height - STRIP;
  }

  isStrip(y) {
    return y > this.stripTop - GAP / 2;
  }

  stripX(t, [from, to]) {
    return this.gutter + ((t - from) / (to - from)) * this.plot;
  }

  stripTime(x, [from, to]) {
    return from + ((x - this.gutter) / this.plot) * (to - from);
  }

  // The window's ends on the strip.
  brush(extent) {
    const keep = (x) => Math.min(this.right, Math.max(this.gutter, x));
    return this.window.map((t) => keep(this.stripX(t, extent)));
  }
}
