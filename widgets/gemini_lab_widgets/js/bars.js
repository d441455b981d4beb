// The bars that a viewer holds, in typed columns: they grow, forget their oldest, and are searched
// block by block.

import { COLUMNS } from "./kinds.js";

const BLOCK = 2048;

// Bars in typed columns, oldest first; `base` is the number of the oldest one that is kept, unless
// each has a number of its own, and `gone` when the last of those that were not kept was over.
export class Bars {
  constructor() {
    this.clear(1_000_000, 0);
  }

  clear(limit, base) {
    Object.assign(this, { limit, base, length: 0, first: 0, last: 0, gone: -Infinity,
      numbers: null });
    this.blocks = { from: new Float64Array(0), to: new Float64Array(0) };
    for (const [name, Type] of COLUMNS) this[name] = new Type(4096);
  }

  // Add the rows of a packed message; times become seconds since `origin`.
  append(count, buffer, origin) {
    if (this.length + count > this.limit) this.forget(count);
    this.reserve(this.length + count);
    let at = 0;
    for (const [name, Type] of COLUMNS) {
      this[name].set(new Type(buffer, at, count), this.length);
      at += count * Type.BYTES_PER_ELEMENT;
    }
    const from = this.length;
    this.length += count;
    for (let i = from; i < this.length; i++) this.start[i] -= origin;
    if (from === 0 && count) this.first = this.start[0];
    this.index(from);
  }

  // The number of the bar in a place, and the place of a number; -1 for none.
  numberOf(i) {
    return this.numbers === null ? this.base + i : this.numbers[i];
  }

  placeOf(number) {
    if (this.numbers !== null) return this.numbers.indexOf(number);
    const i = number - this.base;
    return i >= 0 && i < this.length ? i : -1;
  }

  reserve(count) {
    const room = this.start.length;
    if (count <= room) return;
    for (const [name, Type] of COLUMNS) {
      const wider = new Type(Math.max(count, 2 * room));
      wider.set(this[name].subarray(0, this.length));
      this[name] = wider;
    }
  }

  // Let the oldest go, so that `count` more fit.
  forget(count) {
    const gone = Math.min(this.length, Math.max(this.limit >> 2, this.length + count - this.limit));
    for (let i = 0; i < gone; i++) {
      this.gone = Math.max(this.gone, this.start[i] + this.duration[i]);
    }
    for (const [name] of COLUMNS) this[name].copyWithin(0, gone, this.length);
    this.length -= gone;
    this.base += gone;
    this.first = Infinity;
    this.index(0);
  }

  // Note from when to when the blocks reach that hold rows from `row` on.
  index(row) {
    const count = Math.ceil(this.length / BLOCK), { from } = this.blocks;
    if (count > from.length) {
      for (const key of ["from", "to"]) {
        const wider = new Float64Array(2 * count);
        wider.set(this.blocks[key]);
        this.blocks[key] = wider;
      }
    }
    for (let block = Math.floor(row / BLOCK); block < count; block++) {
      let low = Infinity, high = -Infinity;
      const end = Math.min(this.length, (block + 1) * BLOCK);
      for (let i = block * BLOCK; i < end; i++) {
        const start = this.start[i], stop = start + this.duration[i];
        if (start < low) low = start;
        if (stop > high) high = stop;
      }
      this.blocks.from[block] = low;
      this.blocks.to[block] = high;
      this.first = Math.min(this.first, low);
      this.last = Math.max(this.last, high);
    }
  }

  // Call `visit(from, to)` for runs of rows that may touch the time from `t0` to `t1`.
  blocksIn(t0, t1, visit) {
    const count = Math.ceil(this.length / BLOCK);
    for (let block = 0; block < count; block++) {
      if (this.blocks.from[block] <= t1 && this.blocks.to[block] >= t0) {
        visit(block * BLOCK, Math.min(this.length, (block + 1) * BLOCK));
      }
    }
  }
}
