// What a viewer knows of a run: its bars, rows, names and marks, message by message.

import { Bars } from "./bars.js";
import { COMPLETE, EXPOSED, ITERATION, isCopy, isUpper } from "./kinds.js";
import { Overview } from "./overview.js";
import { Rows } from "./rows.js";

export class Run {
  constructor() {
    this.bars = new Bars(); // the newest ones, or those of the saved window
    this.seen = this.bars; // those that are drawn
    this.rows = new Rows();
    this.overview = new Overview();
    this.names = [];
    this.marks = [];
    this.comings = []; // when which node was gone, or came back
    this.meta = {};
    this.origin = 0; // the run's time of what is drawn at 0
    this.newest = 0;
  }

  // Take in one message: what changed, and `count` packed bars; true when lanes are to be arranged.
  take(meta, buffer) {
    if (meta.reset) this.reset(meta);
    const then = this.meta.moment_s;
    this.meta = { ...this.meta, ...meta };
    this.newest = Math.max(0, (meta.newest_s ?? this.origin) - this.origin);
    if (meta.lanes?.length) this.rows.lanes.push(...meta.lanes);
    if (meta.costs_s) this.rows.costs = meta.costs_s;
    if (meta.racks) this.rows.racks = meta.racks;
    if (meta.comings) this.comings = meta.comings;
    if (meta.names?.length) this.names.push(...meta.names);
    if (meta.marks) this.marks = meta.marks.map((mark) => this.moved(mark));
    const isNew = Boolean(meta.lanes?.length || meta.racks || meta.comings || meta.reset
      || (this.comings.length && then !== this.meta.moment_s));
    if (isNew) this.arrange(); // before the bars come, so that each has a row
    const next = this.bars.base + this.bars.length;
    if (meta.first !== undefined && meta.first !== next) this.begin(meta);
    if (meta.count) this.bars.append(meta.count, buffer, this.origin);
    return isNew;
  }

  reset(meta) {
    this.overview.reset();
    this.rows.lanes = [];
    this.names = [];
    this.origin = meta.origin_s ?? 0;
    this.begin(meta);
  }

  // Hold no bars before number `meta.first`.
  begin(meta) {
    this.bars.clear(meta.limit ?? this.meta.limit, meta.first ?? 0);
    const [from] = meta.whole_s ?? [null];
    if (from !== null) this.bars.gone = from - this.origin;
    this.seen = this.bars;
  }

  // Whether nobody has told anything of the run yet.
  get isLoading() {
    return this.meta.limit === undefined;
  }

  // Whether there is nothing yet of which one could say when it was.
  get isEmpty() {
    return !this.rows.lanes.length && !this.marks.length;
  }

  // Whether the bars at hand are all that touch a window.
  holds(from, to) {
    const until = this.meta.whole_s?.[1] ?? null;
    return from >= this.bars.gone && (until === null || to <= until - this.origin);
  }

  // How many bars there are.
  get total() {
    return Math.max(this.meta.total ?? 0, this.bars.base + this.bars.length);
  }

  moved(mark) {
    const end = mark.end_s === null ? null : mark.end_s - this.origin;
    return { ...mark, start_s: mark.start_s - this.origin, end_s: end };
  }

  arrange() {
    this.rows.gone = this.goneThen();
    this.rows.arrange(this.meta.replicas ?? 1);
  }

  // The names of nodes that are gone at the moment that the page shows.
  goneThen() {
    const gone = new Set(), until = this.meta.moment_s ?? Infinity;
    for (const [at, node, isThere] of this.comings) {
      if (at > until) continue;
      if (isThere) gone.delete(node);
      else gone.add(node);
    }
    return gone;
  }

  // The moment that the page looks back at, in the run's time; null for the newest.
  moment() {
    const at = this.meta.moment_s ?? null;
    return at === null ? null : at - this.origin;
  }

  // Have the page show a moment of the run's time; the newest with null.
  lookBack(at) {
    this.meta.moment_s = at === null ? null : at + this.origin;
    this.arrange();
  }

  // From when to when there is something to see.
  extent() {
    const { bars } = this;
    const from = bars.length && bars.gone === -Infinity ? Math.min(0, bars.first) : 0;
    const to = Math.max(this.newest, bars.length ? bars.last : 0, from + 0.1);
    return [from, to];
  }

  // The simulator speaks for all nodes in the lab's name.
  name(node) {
    return node === "lab" && this.meta.is_simulated ? "all nodes" : node;
  }

  label(row) {
    const text = this.name(row.label);
    return text.length > 40 ? `${text.slice(0, 39)}…` : text;
  }

  // What lies at time `t` in a half of row `row`: the narrowest bar within `slack` seconds, else
  // the iteration, and the exposed part; -1 for none.
  find(row, isInUpper, t, slack) {
    const { seen: bars, rows } = this;
    let bar = -1, exposed = -1, best = Infinity, iteration = -1;
    bars.blocksIn(t - slack, t + slack, (from, to) => {
      for (let i = from; i < to; i++) {
        const start = bars.start[i], end = start + bars.duration[i], kind = bars.kind[i];
        if (start > t + slack || end < t - slack || rows.of[bars.lane[i]] !== row) continue;
        if (kind === ITERATION) {
          if (start <= t && t <= end) iteration = i;
        } else if (kind === EXPOSED) {
          if (!isInUpper) exposed = i;
        } else if (kind !== COMPLETE && isInUpper === isUpper(kind)) {
          // A bar under the point goes before one beside it, and then the shorter one.
          const off = Math.max(0, start - t, t - end), rank = off * 1e6 + bars.duration[i];
          if (rank < best) [best, bar] = [rank, i];
        }
      }
    });
    return { bar: bar < 0 ? iteration : bar, exposed };
  }

  // The next copy after bar `now` of its lane, or after time `from` where that is -1; before it
  // where `direction` is -1; -1 for none.
  next(now, from, direction) {
    const { seen: bars } = this;
    let found = -1, nearest = Infinity;
    for (let i = 0; i < bars.length; i++) {
      if (!isCopy(bars.kind[i]) || (now >= 0 && bars.lane[i] !== bars.lane[now])) continue;
      const ahead = (bars.start[i] - from) * direction;
      if (ahead > 0 && ahead < nearest) [found, nearest] = [i, ahead];
    }
    return found;
  }
}
