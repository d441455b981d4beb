// The traffic timeline: one lane a node, training collectives above, checkpoint chunks below.
//
// One file for three places: an anywidget in a notebook, a Panel component, and a saved page
// (`mount`). It asks nothing of the network. All names are untrusted: they are only ever drawn with
// `fillText` or set as `textContent`.
//
// Bars live in typed columns. A draw adds up, for every lane and pixel column, how much of the
// column each layer covers, turns the sums into the pixels of a small image, and stretches each of
// its rows over half a lane; its cost hardly depends on how bars lie, and blocks of bars outside
// the window are skipped.

const ITERATION = 0, COLLECTIVE = 1, WAIT = 2, TRANSFER = 3, VERSION = 4, EXPOSED = 5, COMPLETE = 6,
  RESTORE = 7;
// Layers of the image, by kind; COMPLETE is drawn as a tick.
const LAYER = Int8Array.of(0, 1, 2, 3, 3, 4, -1, 5);
const LAYERS = 6;
const COLUMNS = [
  ["start", Float64Array], ["size", Float64Array], ["duration", Float32Array],
  ["number", Int32Array], ["part", Int32Array], ["rank", Int32Array], ["peer", Int32Array],
  ["lane", Uint16Array], ["name", Uint16Array], ["kind", Uint8Array],
];
const BLOCK = 2048, MOST_ROWS = 64, OVERVIEW = 1024, FOLLOW_S = 20, DETAILED = 6000;
const TOP = 20, AXIS = 20, STRIP = 34, GAP = 10;
const FONT = "12px system-ui, sans-serif", SMALL = "10.5px system-ui, sans-serif";

const LIGHT = {
  surface: "#ffffff", text: "#1b1f24", muted: "#57606a", grid: "#dfe3e8", training: "#eaeef2",
  collective: "#68727e", checkpoint: "#0072b2", exposed: "#e69f00", restore: "#cc79a7",
  complete: "#009e73", failure: "#d55e00", onBar: "#ffffff", button: "#f3f5f7",
};
const DARK = {
  surface: "#15181c", text: "#e8ebee", muted: "#a3adb8", grid: "#30363d", training: "#262c33",
  collective: "#a9b4c0", checkpoint: "#56b4e9", exposed: "#e69f00", restore: "#cc79a7",
  complete: "#009e73", failure: "#f0752b", onBar: "#0b0d10", button: "#242a31",
};

const STYLE = `
.gl-timeline{position:relative;box-sizing:border-box;width:100%;font:13px/1.4 system-ui,sans-serif;
  color:var(--gl-text);background:var(--gl-surface);border:1px solid var(--gl-grid);
  border-radius:8px;padding:8px 10px 6px;outline:none}
.gl-timeline:focus-visible{box-shadow:0 0 0 2px #0072b2}
.gl-timeline .gl-head,.gl-timeline .gl-legend{display:flex;flex-wrap:wrap;align-items:center;
  gap:4px 14px;min-height:26px}
.gl-timeline .gl-readout{font-weight:600;font-size:15px;font-variant-numeric:tabular-nums}
.gl-timeline .gl-lag,.gl-timeline .gl-basis{color:var(--gl-muted);font-variant-numeric:tabular-nums}
.gl-timeline .gl-buttons{margin-left:auto;display:flex;gap:4px}
.gl-timeline button{font:inherit;color:var(--gl-text);background:var(--gl-button);min-width:30px;
  border:1px solid var(--gl-grid);border-radius:6px;padding:1px 9px;cursor:pointer}
.gl-timeline button:hover{border-color:var(--gl-muted)}
.gl-timeline button[aria-pressed=true]{border-color:var(--gl-checkpoint);color:var(--gl-checkpoint)}
.gl-timeline .gl-key{display:inline-flex;align-items:center;gap:5px;color:var(--gl-muted);
  font-size:12px}
.gl-timeline .gl-key i{width:16px;height:10px;border-radius:2px;display:inline-block}
.gl-timeline canvas{display:block;width:100%;touch-action:pan-y;cursor:crosshair}
.gl-timeline .gl-tip{position:absolute;z-index:5;pointer-events:none;max-width:340px;padding:6px 9px;
  background:var(--gl-surface);color:var(--gl-text);border:1px solid var(--gl-muted);font-size:12px;
  border-radius:6px;box-shadow:0 2px 10px rgba(0,0,0,.25);font-variant-numeric:tabular-nums;
  overflow-wrap:anywhere}
.gl-timeline .gl-tip b{display:block}
.gl-timeline .gl-said{min-height:20px;color:var(--gl-muted);font-size:12px;overflow-wrap:anywhere}
@media print{.gl-timeline .gl-buttons{display:none}}
`;

// -- text ------------------------------------------------------------------------------------

function bytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(n) < 1024) return unit === "B" ? `${Math.round(n)} B` : `${n.toFixed(1)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} TiB`;
}

function seconds(s) {
  if (s < 0.001) return `${(s * 1e6).toFixed(0)} µs`;
  if (s < 0.1) return `${(s * 1e3).toFixed(1)} ms`;
  if (s < 1) return `${(s * 1e3).toFixed(0)} ms`;
  if (s < 120) return `${s.toFixed(1)} s`;
  return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
}

function clock(s, step) {
  const digits = Math.min(6, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)));
  if (Math.abs(s) < 120 && step < 60) return `${s.toFixed(digits)} s`;
  const sign = s < 0 ? "−" : "", whole = Math.abs(s);
  const h = Math.floor(whole / 3600), m = Math.floor((whole % 3600) / 60);
  const rest = (whole % 60).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
  return sign + (h ? `${h}:${String(m).padStart(2, "0")}:${rest}` : `${m}:${rest}`);
}

function niceStep(span, room) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400];
  const least = span / Math.max(1, room);
  if (least > 1) return steps.find((step) => step >= least) ?? 86400 * Math.ceil(least / 86400);
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= least);
}

function rgb(hex) {
  const n = parseInt(hex.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}

// -- bars ------------------------------------------------------------------------------------

// Bars in typed columns, oldest first; `base` is the number of the oldest one that is kept.
class Bars {
  constructor() {
    this.clear(1_000_000);
  }

  clear(limit) {
    Object.assign(this, { limit, base: 0, length: 0, first: 0, last: 0 });
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
    for (const [name] of COLUMNS) this[name].copyWithin(0, gone, this.length);
    this.length -= gone;
    this.base += gone;
    this.first = Infinity;
    this.index(0);
  }

  // Note from when to when the blocks reach that hold rows from `row` on.
  index(row) {
    const count = Math.ceil(this.length / BLOCK), { from, to } = this.blocks;
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

// -- rows ------------------------------------------------------------------------------------

// Which lanes stand in which row: one each, or groups of neighbours when there are too many.
class Rows {
  constructor() {
    this.lanes = [];
    this.open = new Set();
    this.arrange(1);
  }

  arrange(replicas) {
    const order = this.lanes.map((name, lane) => ({ name, lane }));
    const collator = new Intl.Collator("en", { numeric: true });
    order.sort((a, b) => (b.name === "lab") - (a.name === "lab") || collator.compare(a.name, b.name));
    let size = Math.ceil(order.length / MOST_ROWS);
    if (size > 1) size = Math.ceil(size / replicas) * replicas;
    this.list = [];
    this.of = new Int32Array(Math.max(1, this.lanes.length));
    for (let at = 0; at < order.length; at += Math.max(1, size)) {
      const members = order.slice(at, at + Math.max(1, size));
      const group = at / Math.max(1, size);
      if (members.length === 1 || this.open.has(group)) {
        for (const one of members) this.put([one], one.name, group);
      } else {
        this.put(members, `${members[0].name} … ${members.at(-1).name}`, group);
      }
    }
    this.grouped = size > 1;
  }

  put(members, label, group) {
    for (const { lane } of members) this.of[lane] = this.list.length;
    this.list.push({ label, group, size: members.length });
  }

  toggle(row) {
    const { group } = this.list[row];
    if (!this.open.delete(group)) this.open.add(group);
  }
}

// -- the picture's pixels --------------------------------------------------------------------

// How much of each pixel column every layer covers, as the pixels of an image of one line a half
// lane.
class Raster {
  constructor() {
    this.canvas = document.createElement("canvas");
    this.columns = this.rows = 0;
  }

  // Add up the bars between `t0` and `t1`; returns how many there were.
  cover(bars, rows, columns, t0, t1) {
    this.columns = columns;
    this.rows = rows.list.length;
    const cells = this.rows * LAYERS * columns;
    if (!this.sums || this.sums.length < cells) this.sums = new Float32Array(cells);
    else this.sums.fill(0, 0, cells);
    // Within a row and layer what one rank told twice for the same time counts once.
    this.reached = new Float64Array(this.rows * LAYERS).fill(-Infinity);
    this.teller = new Int32Array(this.rows * LAYERS).fill(-2);
    let seen = 0;
    bars.blocksIn(t0, t1, (from, to) => { seen += this.add(bars, rows, from, to, t0, t1); });
    return seen;
  }

  add(bars, rows, from, to, t0, t1) {
    const { start, duration, lane, kind, rank } = bars;
    const { sums, reached, teller, columns } = this;
    const scale = columns / (t1 - t0), rowOf = rows.of;
    let seen = 0;
    for (let i = from; i < to; i++) {
      const layer = LAYER[kind[i]];
      let begin = start[i];
      const end = begin + duration[i];
      if (layer < 0 || begin > t1 || end < t0) continue;
      seen++;
      const place = rowOf[lane[i]] * LAYERS + layer;
      const who = (lane[i] << 12) ^ rank[i];
      if (teller[place] !== who) teller[place] = who;
      else if (begin < reached[place]) begin = reached[place];
      if (end > reached[place] || begin === start[i]) reached[place] = end;
      if (end < begin) continue;
      const x0 = Math.max(0, (begin - t0) * scale), x1 = Math.min(columns, (end - t0) * scale);
      const c0 = Math.min(columns - 1, x0 | 0), c1 = Math.min(columns - 1, x1 | 0);
      const row = place * columns;
      if (c0 === c1) {
        sums[row + c0] += Math.max(x1 - x0, 1e-4);
      } else {
        sums[row + c0] += c0 + 1 - x0;
        for (let c = c0 + 1; c < c1; c++) sums[row + c] += 1;
        sums[row + c1] += x1 - c1;
      }
    }
    return seen;
  }

  // Turn the sums into colours: line 2r is the upper half of row r, line 2r+1 the lower.
  paint(theme, rows) {
    const { columns, sums, canvas } = this, lines = 2 * this.rows;
    if (canvas.width !== columns || canvas.height !== lines || !this.image) {
      canvas.width = columns;
      canvas.height = Math.max(1, lines);
      this.context = canvas.getContext("2d");
      this.image = this.context.createImageData(columns, Math.max(1, lines));
    }
    const pixels = new Uint32Array(this.image.data.buffer);
    const [surface, training, collective, wait, sent, exposed, restore] = [
      theme.surface, theme.training, theme.collective, theme.exposed, theme.checkpoint,
      theme.exposed, theme.restore].map(rgb);
    for (let row = 0; row < this.rows; row++) {
      const share = 1 / rows.list[row].size, at = (layer) => (row * LAYERS + layer) * columns;
      const tint = at(0);
      const halves = [[[at(1), collective, 0.16], [at(2), wait, 0.6]],
        [[at(3), sent, 0.35], [at(4), exposed, 0.6], [at(5), restore, 0.6]]];
      for (let half = 0; half < 2; half++) {
        const line = (2 * row + half) * columns;
        for (let c = 0; c < columns; c++) {
          const shade = Math.min(1, sums[tint + c] * share);
          let r = surface[0] + (training[0] - surface[0]) * shade;
          let g = surface[1] + (training[1] - surface[1]) * shade;
          let b = surface[2] + (training[2] - surface[2]) * shade;
          for (const [from, colour, least] of halves[half]) {
            const sum = sums[from + c];
            if (sum === 0) continue;
            const alpha = Math.min(1, Math.max(sum * share, least));
            r += (colour[0] - r) * alpha;
            g += (colour[1] - g) * alpha;
            b += (colour[2] - b) * alpha;
          }
          pixels[line + c] = 0xff000000 | (b << 16) | (g << 8) | r;
        }
      }
    }
    this.context.putImageData(this.image, 0, 0);
  }
}

// The whole run on `OVERVIEW` columns: every bar is added once, all again only when time outgrows
// the columns.
class Overview {
  constructor() {
    this.reset();
  }

  reset() {
    Object.assign(this, { taken: 0, t0: 0, t1: 0 });
    this.sums = [0, 1, 2].map(() => new Float32Array(OVERVIEW));
  }

  update(bars) {
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
      const kind = bars.kind[i];
      const which = kind === COLLECTIVE ? 0 : kind === TRANSFER || kind === VERSION ? 1
        : kind === EXPOSED || kind === WAIT ? 2 : -1;
      if (which < 0) continue;
      const x0 = (bars.start[i] - this.t0) * scale;
      const x1 = x0 + bars.duration[i] * scale, sums = this.sums[which];
      for (let c = Math.max(0, Math.floor(x0)); c <= Math.min(OVERVIEW - 1, x1); c++) {
        sums[c] += Math.min(c + 1, x1) - Math.max(c, x0) + 1e-3;
      }
    }
    this.taken = end;
  }
}

// -- the timeline ----------------------------------------------------------------------------

class Timeline {
  constructor(root) {
    this.root = root;
    this.bars = new Bars();
    this.rows = new Rows();
    this.raster = new Raster();
    this.overview = new Overview();
    this.names = [];
    this.marks = [];
    this.meta = {};
    this.origin = 0;
    this.newest = 0;
    this.window = [0, 1];
    this.mode = "all"; // the whole run, "follow" its end, or "free"
    this.chosen = null; // number of the selected bar
    this.draws = 0;
    this.drawMs = 0;
    this.waiting = []; // what to call after the next draw
    this.build();
    this.listen();
    this.restyle();
    this.resize();
  }

  build() {
    const make = (tag, name, parent, text) => {
      const element = document.createElement(tag);
      if (name) element.className = name;
      if (text) element.textContent = text;
      parent.appendChild(element);
      return element;
    };
    const { root } = this;
    root.classList.add("gl-timeline");
    root.tabIndex = 0;
    root.setAttribute("role", "group");
    make("style", "", root, STYLE);
    const head = make("div", "gl-head", root);
    this.readout = make("span", "gl-readout", head, "no traffic yet");
    this.basis = make("span", "gl-basis", head);
    this.lag = make("span", "gl-lag", head);
    const buttons = make("div", "gl-buttons", head);
    const button = (text, label, act) => {
      const element = make("button", "", buttons, text);
      element.type = "button";
      element.title = label;
      element.setAttribute("aria-label", label);
      element.addEventListener("click", act);
      return element;
    };
    this.allButton = button("All", "Show the whole run (Home)", () => this.show("all"));
    this.followButton = button("Follow", "Follow the newest (End), pause (space)", () =>
      this.show(this.mode === "follow" ? "free" : "follow"));
    button("−", "Zoom out (-)", () => this.zoom(1.6));
    button("+", "Zoom in (+)", () => this.zoom(1 / 1.6));
    this.legend = make("div", "gl-legend", root);
    this.keys = [["training collectives", "collective"], ["checkpoint chunks", "checkpoint"],
      ["exposed, or the step waits", "exposed"], ["▲ a version is whole", "complete"],
      ["a recovery, a replica read back", "restore"], ["a failure", "failure"],
      ["an iteration", "training"]].map(([text, colour]) => {
      const key = make("span", "gl-key", this.legend);
      const patch = make("i", "", key);
      make("span", "", key, text);
      return { patch, colour };
    });
    this.canvas = make("canvas", "", root);
    this.context = this.canvas.getContext("2d");
    this.said = make("div", "gl-said", root);
    this.said.setAttribute("aria-live", "polite");
    this.tip = make("div", "gl-tip", root);
    this.tip.hidden = true;
    this.hint = "Drag to move, + and − or ctrl+wheel to zoom, arrows to move, , and . to step through "
      + "checkpoint chunks; click one for the way to its receiver.";
    this.said.textContent = this.hint;
  }

  // Take in one message: what changed, and `count` packed bars.
  push(meta, buffer, drawn) {
    if (meta.reset) {
      this.bars.clear(meta.limit);
      this.overview.reset();
      this.rows.lanes = [];
      this.names = [];
      this.chosen = null;
      this.origin = meta.origin_s ?? 0;
    }
    this.meta = { ...this.meta, ...meta };
    this.newest = Math.max(0, (meta.newest_s ?? this.origin) - this.origin);
    if (meta.lanes?.length) this.rows.lanes.push(...meta.lanes);
    if (meta.names?.length) this.names.push(...meta.names);
    if (meta.lanes?.length || meta.reset) this.arrange();
    if (meta.marks) {
      this.marks = meta.marks.map((mark) => ({ ...mark, start_s: mark.start_s - this.origin,
        end_s: mark.end_s === null ? null : mark.end_s - this.origin }));
    }
    if (meta.count) this.bars.append(meta.count, buffer, this.origin);
    if (this.fresh !== false && meta.count) {
      this.fresh = false;
      if (!meta.is_over && this.newest > FOLLOW_S) this.mode = "follow";
    }
    if (drawn) this.waiting.push(drawn);
    this.dirty();
  }

  arrange() {
    this.rows.arrange(this.meta.replicas ?? 1);
    this.resize();
  }

  show(mode) {
    this.mode = mode;
    this.dirty();
  }

  dirty() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  // -- geometry

  resize() {
    const width = Math.max(320, this.canvas.clientWidth || this.root.clientWidth - 22);
    const count = Math.max(1, this.rows.list.length);
    this.laneHeight = Math.max(13, Math.min(52, Math.floor(420 / count)));
    this.gutter = Math.min(150, Math.max(58, ...this.rows.list.map((row) => this.labelWidth(row))));
    this.ratio = window.devicePixelRatio || 1;
    this.width = width;
    this.lanesHeight = this.laneHeight * count;
    this.height = TOP + this.lanesHeight + AXIS + GAP + STRIP;
    this.plot = Math.max(50, width - this.gutter - 6);
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = Math.round(width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
    this.dirty();
  }

  // The simulator speaks for all nodes in the lab's name.
  name(node) {
    return node === "lab" && this.meta.is_simulated ? "all nodes" : node;
  }

  label(row) {
    const text = this.name(row.label);
    return text.length > 40 ? `${text.slice(0, 39)}…` : text;
  }

  labelWidth(row) {
    this.context.font = this.laneHeight < 15 ? SMALL : FONT;
    return this.context.measureText(this.label(row)).width + 22;
  }

  x(t) {
    return this.gutter + ((t - this.window[0]) / (this.window[1] - this.window[0])) * this.plot;
  }

  time(x) {
    return this.window[0] + ((x - this.gutter) / this.plot) * (this.window[1] - this.window[0]);
  }

  extent() {
    const { bars } = this;
    const from = bars.length ? Math.min(0, bars.first) : 0;
    const to = Math.max(this.newest, bars.length ? bars.last : 0, from + 0.1);
    return [from, to];
  }

  // Where the window is now, by mode; a free one stays near the run.
  settle() {
    const [from, to] = this.extent();
    if (this.mode === "all") this.window = [from, to + (to - from) * 0.005];
    if (this.mode === "follow") {
      const span = Math.min(this.followSpan ?? FOLLOW_S, Math.max(1, to - from));
      this.window = [to - span, to + span * 0.01];
    }
    if (this.mode === "free") {
      const span = Math.min(Math.max(this.window[1] - this.window[0], 2e-5), (to - from) * 1.5);
      const start = Math.min(Math.max(this.window[0], from - span * 0.5), to - span * 0.5);
      this.window = [start, start + span];
    }
  }

  zoom(factor, about) {
    const [t0, t1] = this.window, span = (t1 - t0) * factor;
    if (this.mode === "follow" && about === undefined) {
      this.followSpan = Math.max(0.05, span);
      return this.dirty();
    }
    const centre = about ?? (t0 + t1) / 2;
    this.look(centre - (centre - t0) * factor, centre + (t1 - centre) * factor);
  }

  look(t0, t1) {
    this.mode = "free";
    this.window = [t0, t1];
    this.settle();
    this.dirty();
  }

  // -- drawing

  draw() {
    const began = performance.now();
    this.settle();
    const { context: c, theme, ratio } = this;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = theme.surface;
    c.fillRect(0, 0, this.width, this.height);
    const columns = Math.max(1, Math.round(this.plot * ratio));
    const seen = this.raster.cover(this.bars, this.rows, columns, ...this.window);
    this.raster.paint(theme, this.rows);
    this.drawLanes();
    c.save();
    c.beginPath();
    c.rect(this.gutter, 0, this.plot, TOP + this.lanesHeight);
    c.clip();
    if (seen <= DETAILED) this.drawDetails();
    this.drawMarks();
    this.drawChosen();
    c.restore();
    this.drawAxis();
    this.drawOverview();
    this.draws += 1;
    this.drawMs = performance.now() - began;
    this.tell();
    for (const drawn of this.waiting.splice(0)) drawn();
  }

  top(row) {
    return TOP + row * this.laneHeight;
  }

  // Top and height of the half of a lane in which bars of this kind lie.
  half(row, kind) {
    const inner = this.laneHeight - (this.laneHeight > 20 ? 6 : 2);
    const upper = Math.round(inner / 2);
    const isUpper = kind === COLLECTIVE || kind === WAIT || kind === ITERATION;
    return isUpper ? [this.top(row) + 1, upper] : [this.top(row) + 1 + upper, inner - upper];
  }

  drawLanes() {
    const { context: c, theme, raster } = this;
    c.imageSmoothingEnabled = false;
    c.textBaseline = "middle";
    c.font = this.laneHeight < 15 ? SMALL : FONT;
    this.rows.list.forEach((row, at) => {
      const [upperTop, upper] = this.half(at, COLLECTIVE), [lowerTop, lower] = this.half(at, TRANSFER);
      for (const [line, y, height] of [[2 * at, upperTop, upper], [2 * at + 1, lowerTop, lower]]) {
        c.drawImage(raster.canvas, 0, line, raster.columns, 1, this.gutter, y, this.plot, height);
      }
      c.fillStyle = theme.surface;
      c.fillRect(this.gutter, lowerTop - 0.5, this.plot, 1);
      c.fillStyle = theme.grid;
      c.fillRect(0, this.top(at) + this.laneHeight - 1, this.width, 1);
      c.fillStyle = theme.text;
      c.textAlign = "right";
      const mark = this.rows.grouped ? (row.size > 1 ? "▸ " : "") : "";
      c.fillText(mark + this.label(row), this.gutter - 8, this.top(at) + this.laneHeight / 2,
        this.gutter - 10);
    });
  }

  // Edges, words, hatching and ticks, when there is room for them.
  drawDetails() {
    const { context: c, theme, bars } = this, [t0, t1] = this.window;
    const scale = this.plot / (t1 - t0);
    c.font = SMALL;
    c.textAlign = "left";
    const ticked = new Float64Array(this.rows.list.length).fill(-Infinity);
    bars.blocksIn(t0, t1, (from, to) => {
      for (let i = from; i < to; i++) {
        const start = bars.start[i], kind = bars.kind[i];
        if (start > t1 || start + bars.duration[i] < t0) continue;
        const row = this.rows.of[bars.lane[i]], x = this.x(start), w = bars.duration[i] * scale;
        const [y, h] = this.half(row, kind);
        if (kind === COMPLETE && Math.abs(x - ticked[row]) > 14) {
          this.drawTick(x, y + h);
          ticked[row] = x;
        }
        if (w < 3 || kind === COMPLETE || kind === ITERATION) continue;
        if (kind === EXPOSED || kind === WAIT) this.hatch(x, y, w, h);
        else {
          c.fillStyle = theme.surface;
          c.fillRect(x, y, Math.min(1, w / 6), h);
        }
        if (w > 34 && h >= 12 && kind !== EXPOSED) this.drawWords(i, x, y, w, h);
      }
    });
  }

  drawTick(x, bottom) {
    const { context: c, theme } = this, size = this.laneHeight > 20 ? 4 : 2.5;
    c.fillStyle = theme.complete;
    c.beginPath();
    c.moveTo(x, bottom - size);
    c.lineTo(x + size, bottom + size);
    c.lineTo(x - size, bottom + size);
    c.fill();
  }

  drawWords(i, x, y, w, h) {
    const { context: c, bars, theme } = this, kind = bars.kind[i];
    let words = `v${bars.number[i]} · ${bytes(bars.size[i])}`;
    if (kind === COLLECTIVE) {
      words = this.names[bars.name[i]].replace(/(_into)?_tensor$/, "").replaceAll("_", " ");
    }
    if (kind === WAIT) words = "waits";
    const left = Math.max(x, this.gutter) + 5, room = Math.min(x + w, this.gutter + this.plot) - left - 3;
    if (kind !== COLLECTIVE && c.measureText(words).width > room) words = `v${bars.number[i]}`;
    if (c.measureText(words).width > room) return;
    c.fillStyle = kind === WAIT ? "#000000" : theme.onBar;
    c.fillText(words, left, y + h / 2 + 0.5);
  }

  hatch(x, y, w, h) {
    const { context: c } = this;
    c.save();
    c.beginPath();
    c.rect(x, y, w, h);
    c.clip();
    c.strokeStyle = "rgba(0,0,0,.55)";
    c.lineWidth = 1;
    c.beginPath();
    const from = Math.max(x, this.gutter), to = Math.min(x + w, this.gutter + this.plot);
    for (let at = from - h - (from % 5); at < to; at += 5) {
      c.moveTo(at, y + h);
      c.lineTo(at + h, y);
    }
    c.stroke();
    c.restore();
  }

  drawMarks() {
    const { context: c, theme } = this, bottom = TOP + this.lanesHeight;
    const end = this.extent()[1];
    for (const mark of this.marks) {
      const x = this.x(mark.start_s);
      if (mark.kind === "recovery") {
        const width = Math.max(2, this.x(mark.end_s ?? end) - x);
        c.globalAlpha = 0.2;
        c.fillStyle = theme.restore;
        c.fillRect(x, TOP - 2, width, this.lanesHeight + 2);
        c.globalAlpha = 1;
        c.fillRect(x, TOP - 3, width, 3);
      }
      if (mark.kind === "lost") this.drawLoss(mark, x);
    }
    for (const mark of this.marks) {
      if (mark.kind === "recovery") continue;
      const x = Math.round(this.x(mark.start_s)) + 0.5;
      c.strokeStyle = theme.failure;
      c.lineWidth = mark.kind === "injected" ? 2 : 1;
      c.setLineDash(mark.kind === "injected" ? [] : [3, 3]);
      c.beginPath();
      c.moveTo(x, TOP - 6);
      c.lineTo(x, bottom);
      c.stroke();
      c.setLineDash([]);
    }
    this.drawMarkWords();
  }

  // A node that is gone: its lane is barred from then on.
  drawLoss(mark, x) {
    const lane = this.rows.lanes.indexOf(mark.lane);
    const row = lane < 0 ? null : this.rows.of[lane];
    if (row === null || this.rows.list[row].size > 1) return;
    const { context: c, theme } = this, y = this.top(row), h = this.laneHeight - 1;
    const from = Math.max(x, this.gutter), to = this.gutter + this.plot;
    if (from >= to) return;
    c.save();
    c.beginPath();
    c.rect(from, y, to - from, h);
    c.clip();
    c.strokeStyle = theme.muted;
    c.globalAlpha = 0.35;
    c.beginPath();
    for (let at = from - h; at < to; at += 9) {
      c.moveTo(at, y + h);
      c.lineTo(at + h, y);
    }
    c.stroke();
    c.globalAlpha = 1;
    c.font = SMALL;
    c.textAlign = "left";
    const words = "gone", width = c.measureText(words).width;
    if (to - from > width + 20 && h > 12) {
      c.fillStyle = theme.surface;
      c.fillRect(from + 6, y + h / 2 - 8, width + 8, 16);
      c.fillStyle = theme.muted;
      c.fillText(words, from + 10, y + h / 2);
    }
    c.restore();
  }

  // Words over failures and recoveries, where they do not run into one another.
  drawMarkWords() {
    const { context: c, theme } = this;
    c.font = SMALL;
    c.textAlign = "left";
    let free = this.gutter;
    const told = this.marks.filter((mark) => mark.kind === "injected" || mark.kind === "noticed");
    const alone = this.marks.filter((mark) => mark.kind === "lost"
      && !told.some((other) => Math.abs(other.start_s - mark.start_s) < 5));
    for (const mark of [...told, ...alone].sort((a, b) => a.start_s - b.start_s)) {
      const x = this.x(mark.start_s), words = `✕ ${mark.text}`, width = c.measureText(words).width;
      const at = Math.min(x - 4, this.gutter + this.plot - width);
      if (x < this.gutter || x > this.gutter + this.plot || at < free) continue;
      c.fillStyle = theme.failure;
      c.fillText(words, at, 8);
      free = at + width + 10;
    }
  }

  // The selected bar, and an arrow to the lane that receives it.
  drawChosen() {
    const i = this.chosen === null ? -1 : this.chosen - this.bars.base;
    delete this.root.dataset.arrow;
    if (i < 0) return;
    const { context: c, theme, bars } = this;
    const row = this.rows.of[bars.lane[i]], [y, h] = this.half(row, bars.kind[i]);
    const x0 = this.x(bars.start[i]), x1 = this.x(bars.start[i] + bars.duration[i]);
    c.strokeStyle = theme.text;
    c.lineWidth = 2;
    c.strokeRect(x0, y, Math.max(2, x1 - x0), h);
    if (bars.peer[i] < 0) return;
    const to = this.rows.of[bars.peer[i]], [peerTop, peerHeight] = this.half(to, TRANSFER);
    this.root.dataset.arrow = `${this.rows.lanes[bars.lane[i]]} -> ${this.rows.lanes[bars.peer[i]]}`;
    this.arrow(x1, y + h / 2, x1 + 26, peerTop + peerHeight / 2);
  }

  arrow(x0, y0, x1, y1) {
    const { context: c, theme } = this;
    for (const [colour, width] of [[theme.surface, 6], [theme.text, 2.5]]) {
      c.strokeStyle = colour;
      c.lineWidth = width;
      c.beginPath();
      c.moveTo(x0, y0);
      c.bezierCurveTo(x0 + 40, y0, x1 + 30, y1, x1 + 8, y1);
      c.stroke();
    }
    c.fillStyle = theme.text;
    c.beginPath();
    c.moveTo(x1, y1);
    c.lineTo(x1 + 11, y1 - 6);
    c.lineTo(x1 + 11, y1 + 6);
    c.fill();
  }

  drawAxis() {
    const { context: c, theme } = this, y = TOP + this.lanesHeight, [t0, t1] = this.window;
    const step = niceStep(t1 - t0, this.plot / 95);
    c.font = SMALL;
    c.textAlign = "center";
    for (let n = Math.ceil(t0 / step); n * step <= t1; n++) {
      const x = Math.round(this.x(n * step)) + 0.5;
      c.fillStyle = theme.grid;
      c.fillRect(x, y, 1, 5);
      c.fillStyle = theme.muted;
      if (x > this.gutter + 14 && x < this.width - 22) c.fillText(clock(n * step, step), x, y + 13);
    }
    c.textAlign = "right";
    c.fillStyle = theme.muted;
    c.fillText("since start", this.gutter - 8, y + 13);
  }

  // The whole run, and on it the window as a brush.
  drawOverview() {
    const { context: c, theme, overview } = this, top = this.height - STRIP, half = STRIP / 2;
    overview.update(this.bars);
    c.strokeStyle = theme.grid;
    c.lineWidth = 1;
    c.strokeRect(this.gutter + 0.5, top + 0.5, this.plot - 1, STRIP - 1);
    const lanes = Math.max(1, this.rows.lanes.length);
    const colours = [theme.collective, theme.checkpoint, theme.exposed];
    const scale = OVERVIEW / Math.max(1e-9, overview.t1 - overview.t0);
    for (let which = 0; which < 3; which++) {
      c.fillStyle = colours[which];
      c.beginPath();
      for (let column = 0; column < OVERVIEW; column++) {
        const sum = overview.sums[which][column];
        if (!sum) continue;
        const x = this.overviewX(overview.t0 + column / scale);
        const w = this.overviewX(overview.t0 + (column + 1) / scale) - x;
        const tall = Math.max(1, Math.min(1, Math.sqrt(sum / lanes)) * (half - 2));
        c.rect(x, which ? top + half : top + half - tall, w, tall);
      }
      c.fill();
    }
    for (const mark of this.marks) {
      const x = this.overviewX(mark.start_s);
      c.fillStyle = mark.kind === "recovery" ? theme.restore : theme.failure;
      c.globalAlpha = mark.kind === "recovery" ? 0.5 : 1;
      const until = mark.kind === "recovery" ? this.overviewX(mark.end_s ?? this.extent()[1]) : x;
      c.fillRect(x, top + 1, Math.max(1.5, until - x), STRIP - 2);
      c.globalAlpha = 1;
    }
    const [b0, b1] = this.brush();
    c.globalAlpha = 0.62;
    c.fillStyle = theme.surface;
    c.fillRect(this.gutter + 1, top + 1, Math.max(0, b0 - this.gutter - 1), STRIP - 2);
    c.fillRect(b1, top + 1, Math.max(0, this.gutter + this.plot - b1 - 1), STRIP - 2);
    c.globalAlpha = 1;
    c.strokeStyle = theme.text;
    c.lineWidth = 1.5;
    c.strokeRect(b0, top + 1, Math.max(3, b1 - b0), STRIP - 2);
    c.fillStyle = theme.text;
    for (const x of [b0, b1]) c.fillRect(x - 2, top + half - 6, 4, 12);
    c.font = SMALL;
    c.textAlign = "right";
    c.fillStyle = theme.muted;
    c.fillText("whole run", this.gutter - 8, top + half);
  }

  overviewX(t) {
    const [from, to] = this.extent();
    return this.gutter + ((t - from) / (to - from)) * this.plot;
  }

  overviewTime(x) {
    const [from, to] = this.extent();
    return from + ((x - this.gutter) / this.plot) * (to - from);
  }

  brush() {
    const keep = (x) => Math.min(this.gutter + this.plot, Math.max(this.gutter, x));
    return this.window.map((t) => keep(this.overviewX(t)));
  }

  // -- words

  tell() {
    const { meta, root, bars } = this;
    const judged = (meta.hidden_bytes ?? 0) + (meta.exposed_bytes ?? 0);
    if (judged > 0) {
      const exposed = (100 * meta.exposed_bytes) / judged;
      const rounded = exposed > 0 && exposed < 1 ? exposed.toFixed(1) : exposed.toFixed(0);
      this.readout.textContent = `hidden ${+(100 - rounded).toFixed(1)} %, exposed ${+rounded} %`;
    } else {
      this.readout.textContent = bars.length ? "no checkpoint traffic judged yet" : "no traffic yet";
    }
    this.readout.title = "Checkpoint bytes are exposed while a training collective of the same node "
      + "was under way, and while the step waited for them; they are hidden the rest of the time. "
      + `${bytes(meta.open_bytes ?? 0)} are not judged yet.`;
    const notes = [];
    if (meta.basis === "waits" && judged > 0) notes.push("by waits alone: the log has no collectives");
    if (meta.is_simulated) notes.push("simulated");
    if (bars.base > 0) notes.push(`the oldest ${bars.base.toLocaleString("en")} bars were let go`);
    this.basis.textContent = notes.join(" · ");
    const behind = Math.max(0, Math.round(1000 * (meta.behind_s ?? 0)));
    this.lag.textContent = meta.is_recorded || meta.is_over ? "run is over" : `${behind} ms behind`;
    if (meta.more) this.lag.textContent = "loading …";
    this.allButton.setAttribute("aria-pressed", String(this.mode === "all"));
    this.followButton.setAttribute("aria-pressed", String(this.mode === "follow"));
    this.followButton.textContent = this.mode === "follow" ? "Pause" : "Follow";
    Object.assign(root.dataset, {
      events: bars.base + bars.length, last: this.newest.toFixed(3), draws: this.draws,
      drawMs: this.drawMs.toFixed(2), mode: this.mode, behindMs: behind,
      window: this.window.map((t) => t.toFixed(6)).join(" "),
    });
    root.setAttribute("aria-label", `Traffic timeline: ${this.rows.lanes.length} nodes, `
      + `${bars.base + bars.length} bars in ${seconds(this.newest)}. ${this.readout.textContent}. `
      + `${this.marks.filter((mark) => mark.kind === "injected").length} failures injected, `
      + `${this.marks.filter((mark) => mark.kind === "recovery").length} recoveries.`);
  }

  // What to say of row `i`: a heading and lines below it.
  words(i) {
    const { bars, rows } = this, kind = bars.kind[i];
    const node = this.name(rows.lanes[bars.lane[i]]), rank = `rank ${bars.rank[i]} on ${node}`;
    const size = bytes(bars.size[i]), length = seconds(bars.duration[i]);
    const rate = bars.duration[i] > 0 ? `${bytes(bars.size[i] / bars.duration[i])}/s` : "at once";
    const peer = bars.peer[i] < 0 ? "receiver not told" : `to ${rows.lanes[bars.peer[i]]}`;
    const amount = `${size} in ${length}: ${rate}`, number = bars.number[i];
    switch (kind) {
      case COLLECTIVE:
        return [this.names[bars.name[i]].replaceAll("_", " "), rank, amount, `iteration ${number}`];
      case TRANSFER:
        return [`version ${number} ${peer}`, rank, amount,
          bars.part[i] < 0 ? "in the background" : `chunks of idle span ${bars.part[i]}`];
      case VERSION: return [`version ${number}`, rank, amount, peer];
      case EXPOSED: return [`exposed: ${size} of version ${number}`, rank, `for ${length}`];
      case RESTORE: return [`shard of rank ${bars.rank[i]}, version ${number}`, `from ${node} ${peer}`,
        amount, "a recovery reads a replica"];
      case WAIT: return [`iteration ${number} waits ${length}`, rank, "for its checkpoint to be whole"];
      default: return [`iteration ${number}`, rank, `${length}, of which it waited `
        + seconds(bars.part[i] / 1e6)];
    }
  }

  // The row under a point: the narrowest bar of that half lane, else its iteration; -1 for none.
  at(x, y) {
    const row = Math.floor((y - TOP) / this.laneHeight);
    if (x < this.gutter || row < 0 || row >= this.rows.list.length) return { bar: -1, exposed: -1 };
    const upper = y < this.half(row, TRANSFER)[0], { bars } = this;
    const t = this.time(x), slack = (3 * (this.window[1] - this.window[0])) / this.plot;
    let bar = -1, exposed = -1, best = Infinity, iteration = -1;
    bars.blocksIn(t - slack, t + slack, (from, to) => {
      for (let i = from; i < to; i++) {
        const start = bars.start[i], end = start + bars.duration[i], kind = bars.kind[i];
        if (start > t + slack || end < t - slack || this.rows.of[bars.lane[i]] !== row) continue;
        if (kind === ITERATION) {
          if (start <= t && t <= end) iteration = i;
        } else if (kind === EXPOSED) {
          if (!upper) exposed = i;
        } else if (kind !== COMPLETE && upper === (kind === COLLECTIVE || kind === WAIT)) {
          const off = Math.max(0, start - t, t - end), rank = off * 1e6 + bars.duration[i];
          if (rank < best) [best, bar] = [rank, i];
        }
      }
    });
    return { bar: bar < 0 ? iteration : bar, exposed };
  }

  hover(x, y) {
    const { bar, exposed } = this.at(x, y);
    const lines = bar < 0 ? [] : this.words(bar);
    if (exposed >= 0) lines.push(`${bytes(this.bars.size[exposed])} of it exposed here`);
    for (const mark of this.marks) {
      const from = this.x(mark.start_s), to = mark.end_s === null ? from : this.x(mark.end_s);
      const near = y < TOP + this.lanesHeight && x > this.gutter && x >= from - 4 && x <= to + 4;
      if (near && mark.text) {
        const took = mark.end_s === null ? "" : `, ${seconds(mark.end_s - mark.start_s)}`;
        lines.push(`${mark.text}${took} (at ${clock(mark.start_s, 0.01)})`);
      }
    }
    this.tip.hidden = lines.length === 0;
    if (!lines.length) return;
    this.tip.replaceChildren(...lines.map((line, n) => {
      const element = document.createElement(n ? "div" : "b");
      element.textContent = line;
      return element;
    }));
    const box = this.canvas.offsetTop, right = x > this.width - 260;
    this.tip.style.left = right ? "" : `${x + this.canvas.offsetLeft + 14}px`;
    this.tip.style.right = right ? `${this.width - x + 24}px` : "";
    this.tip.style.top = `${box + y + 16}px`;
  }

  choose(i) {
    this.chosen = i < 0 ? null : this.bars.base + i;
    this.said.textContent = i < 0 ? this.hint : this.words(i).join(" · ");
    this.dirty();
  }

  // Select the next or previous checkpoint bar of the same rank and show it.
  step(direction) {
    const { bars } = this, now = this.chosen === null ? -1 : this.chosen - bars.base;
    const from = now >= 0 ? bars.start[now] : this.window[direction > 0 ? 0 : 1];
    let found = -1;
    for (let i = 0; i < bars.length; i++) {
      if (bars.kind[i] !== TRANSFER && bars.kind[i] !== RESTORE && bars.kind[i] !== VERSION) continue;
      if (now >= 0 && bars.lane[i] !== bars.lane[now]) continue;
      const ahead = (bars.start[i] - from) * direction;
      if (ahead > 0 && (found < 0 || ahead < (bars.start[found] - from) * direction)) found = i;
    }
    if (found < 0) return;
    const start = bars.start[found], end = start + bars.duration[found];
    if (start < this.window[0] || end > this.window[1]) {
      const span = Math.max(this.window[1] - this.window[0], 2 * (end - start));
      this.look((start + end - span) / 2, (start + end + span) / 2);
    }
    this.choose(found);
  }

  // -- hands

  listen() {
    const { root, canvas } = this;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", (event) => this.press(event, ...place(event)));
    canvas.addEventListener("pointermove", (event) => {
      if (this.drag) this.drag(...place(event));
      else this.hover(...place(event));
    });
    canvas.addEventListener("pointerup", (event) => this.release(...place(event)));
    canvas.addEventListener("pointercancel", () => { this.drag = null; });
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("dblclick", (event) => this.zoom(1 / 4, this.time(place(event)[0])));
    canvas.addEventListener("wheel", (event) => this.wheel(event, place(event)[0]),
      { passive: false });
    root.addEventListener("keydown", (event) => this.key(event));
    this.resizer = new ResizeObserver(() => {
      if (canvas.clientWidth && canvas.clientWidth !== this.width) this.resize();
    });
    this.resizer.observe(root);
    this.scheme = window.matchMedia("(prefers-color-scheme: dark)");
    this.restyled = () => this.restyle();
    this.scheme.addEventListener("change", this.restyled);
    this.observer = new MutationObserver(this.restyled);
    for (const element of [document.documentElement, document.body]) {
      this.observer.observe(element, { attributes: true,
        attributeFilter: ["class", "style", "data-theme", "data-jp-theme-light"] });
    }
  }

  press(event, x, y) {
    this.root.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    this.tip.hidden = true;
    this.pressed = [x, y];
    const [t0, t1] = this.window;
    if (y > this.height - STRIP - GAP / 2) {
      const [b0, b1] = this.brush(), time = this.overviewTime(x);
      if (Math.abs(x - b0) < 6) this.drag = (now) => this.lookBetween(this.overviewTime(now), t1);
      else if (Math.abs(x - b1) < 6) this.drag = (now) => this.lookBetween(t0, this.overviewTime(now));
      else if (x > b0 && x < b1 && b1 - b0 < this.plot - 8) {
        this.drag = (now) => {
          const moved = this.overviewTime(now) - time;
          this.look(t0 + moved, t1 + moved);
        };
      } else this.drag = (now) => this.lookBetween(time, this.overviewTime(now));
    } else if (event.shiftKey) {
      const time = this.time(x);
      this.drag = (now) => { this.selected = [time, this.time(now)]; };
    } else if (x >= this.gutter) {
      this.drag = (now) => {
        if (Math.abs(now - x) < 4 && this.mode !== "free") return;
        const moved = ((now - x) / this.plot) * (t1 - t0);
        this.look(t0 - moved, t1 - moved);
      };
    } else this.drag = () => {};
  }

  lookBetween(a, b) {
    if (Math.abs(this.overviewX(a) - this.overviewX(b)) < 3) return;
    this.look(Math.min(a, b), Math.max(a, b));
  }

  release(x, y) {
    if (!this.drag) return;
    this.drag = null;
    const isClick = Math.hypot(x - this.pressed[0], y - this.pressed[1]) < 4;
    if (this.selected && !isClick) this.look(Math.min(...this.selected), Math.max(...this.selected));
    this.selected = null;
    const row = Math.floor((y - TOP) / this.laneHeight);
    if (!isClick || row < 0 || row >= this.rows.list.length) return;
    if (x < this.gutter && this.rows.grouped) {
      this.rows.toggle(row);
      this.arrange();
    } else if (x >= this.gutter) {
      this.choose(this.at(x, y).bar);
    }
  }

  wheel(event, x) {
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const moved = (event.deltaX / this.plot) * (this.window[1] - this.window[0]);
      this.look(this.window[0] + moved, this.window[1] + moved);
    } else if (event.ctrlKey || event.metaKey || this.root.matches(":focus-within")) {
      this.zoom(Math.exp(Math.max(-50, Math.min(50, event.deltaY)) * 0.006), this.time(x));
    } else return; // an unfocused timeline lets the page scroll
    event.preventDefault();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target !== this.root && (event.key === " " || event.key === "Enter")) return;
    const [t0, t1] = this.window, tenth = (t1 - t0) / 10;
    const acts = {
      ArrowLeft: () => this.look(t0 - tenth, t1 - tenth),
      ArrowRight: () => this.look(t0 + tenth, t1 + tenth),
      ArrowUp: () => this.zoom(1 / 1.4),
      ArrowDown: () => this.zoom(1.4),
      "+": () => this.zoom(1 / 1.6),
      "=": () => this.zoom(1 / 1.6),
      "-": () => this.zoom(1.6),
      Home: () => this.show("all"),
      End: () => this.show("follow"),
      " ": () => this.show(this.mode === "follow" ? "free" : "follow"),
      ",": () => this.step(-1),
      ".": () => this.step(1),
      Escape: () => this.choose(-1),
    };
    if (!Object.hasOwn(acts, event.key)) return;
    event.preventDefault();
    event.stopPropagation(); // a notebook has keys of its own
    acts[event.key]();
  }

  // -- light and dark

  // The host's theme where it shows itself by a background, else what the viewer prefers.
  isDark() {
    if (document.body.dataset.jpThemeLight) return document.body.dataset.jpThemeLight === "false";
    if (document.documentElement.dataset.theme) {
      return document.documentElement.dataset.theme === "dark";
    }
    let element = this.root.parentNode;
    while (element) {
      if (element instanceof Element) {
        const [r, g, b, a = 1] = (getComputedStyle(element).backgroundColor.match(/[\d.]+/g) ?? [])
          .map(Number);
        if (a > 0 && b !== undefined) return 0.299 * r + 0.587 * g + 0.114 * b < 128;
      }
      element = element.parentNode ?? element.host;
    }
    return this.scheme.matches;
  }

  restyle() {
    this.theme = this.isDark() ? DARK : LIGHT;
    for (const key of ["surface", "text", "muted", "grid", "button", "checkpoint"]) {
      this.root.style.setProperty(`--gl-${key}`, this.theme[key]);
    }
    for (const { patch, colour } of this.keys) patch.style.background = this.theme[colour];
    this.root.dataset.theme = this.theme === DARK ? "dark" : "light";
    this.dirty();
  }

  destroy() {
    cancelAnimationFrame(this.frame);
    this.resizer.disconnect();
    this.observer.disconnect();
    this.scheme.removeEventListener("change", this.restyled);
  }
}

// -- the three places ------------------------------------------------------------------------

// Put a timeline into `element`; `push(meta, buffer, drawn)` feeds it.
export function mount(element) {
  const root = document.createElement("div");
  element.appendChild(root);
  const timeline = new Timeline(root);
  requestAnimationFrame(() => { timeline.restyle(); timeline.resize(); });
  return timeline;
}

// Show a saved run: `packed` is base64 of gzip of the columns.
export async function mountSaved(element, meta, packed) {
  const zipped = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const plain = new Blob([zipped]).stream().pipeThrough(new DecompressionStream("gzip"));
  const timeline = mount(element);
  timeline.push(meta, await new Response(plain).arrayBuffer());
  return timeline;
}

// An aligned buffer of whatever the host hands over.
function asBuffer(data) {
  if (data === undefined || data === null) return new ArrayBuffer(0);
  if (data instanceof ArrayBuffer) return data;
  return data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength);
}

// anywidget and Panel both call this; each message is acknowledged once it has been drawn.
function render({ model, el }) {
  const isPanel = typeof model.send_msg === "function";
  const send = (message) => (isPanel ? model.send_msg(message) : model.send(message));
  const holder = document.createElement("div");
  holder.style.width = "100%";
  if (!isPanel) el.appendChild(holder);
  const timeline = mount(holder);
  const take = (message, buffers) => {
    const meta = message.meta ?? message.data?.meta;
    const buffer = asBuffer(isPanel ? (message.columns ?? message.data?.columns) : buffers?.[0]);
    if (meta) timeline.push(meta, buffer, () => send({ drawn: meta.seq }));
  };
  model.on("msg:custom", take);
  send({ ready: true });
  const leave = () => {
    model.off("msg:custom", take);
    timeline.destroy();
  };
  if (!isPanel) return leave;
  model.on("remove", leave);
  return holder;
}

export { render };
export default { render };
