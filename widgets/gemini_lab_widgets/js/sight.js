// What a window shows: what the bars at hand come to, or what was asked of whoever keeps all.

import { Bars } from "./bars.js";
import { Looks } from "./looks.js";

const NO_BARS = new Bars();

export class Sight {
  constructor(run, raster) {
    this.run = run;
    this.raster = raster;
    this.looks = new Looks(); // windows that the bars at hand do not reach
    this.strips = new Looks(); // the whole run, for the strip
    this.cells = null; // what is drawn where bars are too many
  }

  answeredBy(ask) {
    this.looks.ask = this.strips.ask = ask;
  }

  // Take in the answer to a look.
  take(answer, buffer) {
    if (!this.looks.take(answer, buffer)) this.strips.take(answer, buffer);
  }

  forget() {
    this.looks.forget();
    this.strips.forget();
  }

  get isWaiting() {
    return this.looks.asked !== null;
  }

  // What is shown: every bar of the run, those of the window alone, or cells.
  get kind() {
    if (this.cells) return "cells";
    return this.run.seen === this.run.bars ? "bars" : "window";
  }

  // Add up what lies from `t0` to `t1` into so many columns; returns how many bars there were.
  cover(t0, t1, columns, now_ms) {
    const { run, raster, looks } = this;
    this.cells = null;
    run.seen = run.bars;
    if (!run.meta.is_deep || run.holds(t0, t1)) {
      return raster.cover(run.bars, run.rows, columns, t0, t1);
    }
    const wanted = this.wanted(t0, t1, { key: run.rows.key, rows: [...run.rows.of], bars: true });
    const found = looks.want(wanted, now_ms);
    run.seen = found?.bars ?? NO_BARS;
    this.cells = found?.cells ?? null;
    if (this.cells === null) return raster.cover(run.seen, run.rows, columns, t0, t1);
    raster.coverCells(this.cells, run.rows, columns, t0, t1);
    return Infinity;
  }

  // The whole run's cells, null where the bars at hand are all there are.
  whole(now_ms) {
    const { run, strips } = this, [from, to] = run.extent();
    if (!run.meta.is_deep || run.holds(from, to)) return null;
    const rows = run.rows.lanes.map(() => 0);
    return strips.want(this.wanted(from, to, { key: "all", rows, bars: false }), now_ms)?.cells
      ?? null;
  }

  wanted(from, to, what) {
    const { run } = this;
    return { from, to, ...what, total: run.total, extent: run.extent(), origin: run.origin };
  }
}
