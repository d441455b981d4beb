// The traffic timeline: one lane a node, training collectives above, checkpoint chunks below.
//
// It joins what a viewer knows (run.js), where that lies (frame.js), what of it a window shows
// (sight.js, raster.js), what is drawn (lanes.js, marks.js, axis.js), what is said (words.js), the
// page's elements (parts.js), the room around them (room.js) and the viewer's hands (hands.js). It
// asks nothing of the network.

import { drawAxis, drawNothing, drawStrip } from "./axis.js";
import { Frame } from "./frame.js";
import { Hands } from "./hands.js";
import { TRANSFER } from "./kinds.js";
import { drawDetails, drawLanes } from "./lanes.js";
import { drawChosen, drawMarks } from "./marks.js";
import { Parts } from "./parts.js";
import { fontFor } from "./pen.js";
import { Raster } from "./raster.js";
import { Room } from "./room.js";
import { NAME, RACK, WORST } from "./rows.js";
import { Run } from "./run.js";
import { Sight } from "./sight.js";
import { DARK, isDarkAround, LIGHT } from "./theme.js";
import { barWords, basis, behindMs, sharedBytes, HINT, lag, shareExplained, summary, tipWords }
  from "./words.js";

// With more bars in the window than this, edges and words would only cover one another.
const DETAILED = 6000;

export class Timeline {
  constructor(root) {
    this.run = new Run();
    this.frame = new Frame();
    this.raster = new Raster();
    this.sight = new Sight(this.run, this.raster);
    this.chosen = null; // number of the selected bar
    this.isFresh = true;
    this.draws = 0;
    this.drawMs = 0;
    this.waiting = []; // what to call after the next draw
    this.parts = new Parts(root, {
      all: () => this.show("all"), follow: () => this.follow(),
      out: () => this.zoom(1.6), in: () => this.zoom(1 / 1.6),
      order: (order) => this.arrange({ order }), find: (find) => this.arrange({ find }),
    });
    this.context = this.parts.canvas.getContext("2d");
    this.hands = new Hands(this);
    this.room = new Room(root, {
      resized: () => this.fit(), restyled: () => this.restyle(),
    });
    this.restyle();
    this.resize();
  }

  // Who answers looks: `ask(look)` is followed by a message with the answer.
  answeredBy(ask) {
    this.sight.answeredBy(ask);
    this.dirty();
  }

  // Take in one message; `drawn` is called once what it brought has been drawn.
  push(meta, buffer, drawn) {
    if (meta.look) {
      this.sight.take(meta.look, buffer);
      this.dirty();
      return;
    }
    if (meta.reset) {
      if (!this.isFresh) this.chosen = null;
      this.sight.forget();
    }
    if (this.run.take(meta, buffer)) this.resize();
    if (this.isFresh && (meta.count || meta.is_deep)) {
      this.isFresh = false;
      this.frame.startWith(this.run.newest, meta.is_over);
      if (this.address) this.arrive();
    }
    if (drawn) this.waiting.push(drawn);
    this.dirty();
  }

  // Mark a moment, seconds since the run's start; none with null.
  lookBack(at) {
    this.run.lookBack(at);
    this.resize();
  }

  dirty() {
    this.pending ??= requestAnimationFrame(() => {
      this.pending = null;
      this.draw();
    });
  }

  // Take on the room's width, if there is one and it is another.
  fit() {
    const { clientWidth } = this.parts.canvas;
    if (clientWidth && clientWidth !== this.frame.width) this.resize();
  }

  resize() {
    const { canvas, root } = this.parts, { run, frame, context } = this;
    context.font = fontFor(Frame.laneHeight(run.rows.list.length));
    frame.fit(canvas.clientWidth || root.clientWidth - 22,
      run.rows.list.map((row) => context.measureText(run.label(row)).width));
    this.ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${frame.height}px`;
    canvas.width = Math.round(frame.width * this.ratio);
    canvas.height = Math.round(frame.height * this.ratio);
    this.dirty();
  }

  restyle() {
    this.theme = isDarkAround(this.parts.root, this.room.prefersDark) ? DARK : LIGHT;
    this.parts.showTheme(this.theme);
    this.dirty();
  }

  // -- the window

  show(mode) {
    this.frame.mode = mode;
    this.dirty();
  }

  follow() {
    this.show(this.frame.mode === "follow" ? "free" : "follow");
  }

  zoom(factor, about) {
    this.frame.zoom(factor, about);
    this.frame.settle(this.run.extent());
    this.dirty();
  }

  look(t0, t1) {
    this.frame.look(t0, t1);
    this.frame.settle(this.run.extent());
    this.dirty();
  }

  // Put lanes in another order, or choose some.
  arrange(choice) {
    Object.assign(this.run.rows, choice);
    this.run.rows.open.clear();
    this.run.arrange();
    this.resize();
  }

  // Show what the page's address says, and keep it as the timeline is.
  keepAddress(address) {
    this.address = address;
    if (!this.isFresh) this.arrive();
  }

  // Go to where the address says, now that there is a run.
  arrive() {
    const { window, follows, bar, lanes, find } = this.address.read();
    if (window) this.look(...window);
    else if (follows) this.show("follow");
    this.chosen = bar;
    this.isFound = bar === null;
    this.arrange({ find, order: [NAME, WORST, RACK].find((order) => order === lanes) ?? NAME });
  }

  toggle(row) {
    this.run.rows.toggle(row);
    this.run.arrange();
    this.resize();
  }

  // -- drawing

  draw() {
    const began = performance.now(), { context: c, run, frame, theme, raster, sight, ratio } = this;
    frame.settle(run.extent());
    const scene = { c, run, frame, theme, raster, strip: sight.whole(began) };
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = theme.surface;
    c.fillRect(0, 0, frame.width, frame.height);
    const columns = Math.max(1, Math.round(frame.plot * ratio));
    const seen = sight.cover(...frame.window, columns, began);
    raster.paint(theme, run.rows);
    drawLanes(scene);
    c.save();
    c.beginPath();
    c.rect(frame.gutter, 0, frame.plot, frame.bottom);
    c.clip();
    if (seen <= DETAILED) drawDetails(scene);
    drawMarks(scene);
    this.drawChosen(scene);
    c.restore();
    if (run.isEmpty) {
      drawNothing(scene);
    } else {
      drawAxis(scene);
      drawStrip(scene);
    }
    this.draws += 1;
    this.drawMs = performance.now() - began;
    this.tell();
    for (const drawn of this.waiting.splice(0)) drawn();
  }

  drawChosen(scene) {
    const i = this.chosen === null ? -1 : this.run.seen.placeOf(this.chosen);
    const way = i < 0 ? undefined : drawChosen(scene, i), { dataset } = this.parts.root;
    if (i >= 0 && this.isFound === false) {
      this.isFound = true; // what an address selected is told when its bar has come
      this.parts.said.textContent = barWords(this.run, i).join(" · ");
    }
    if (way === undefined) delete dataset.arrow;
    else dataset.arrow = way;
  }

  // -- words

  tell() {
    const { run, frame, parts, sight } = this;
    parts.readout.textContent = sharedBytes(run);
    parts.why.textContent = shareExplained(run);
    parts.basis.textContent = basis(run);
    parts.lag.textContent = lag(run);
    parts.showMode(frame.mode);
    parts.showRows(run.rows);
    if (!this.isFresh) {
      this.address?.keep({ window: frame.window, mode: frame.mode, bar: this.chosen,
        lanes: run.rows.order, find: run.rows.find });
    }
    parts.describe(summary(run));
    Object.assign(parts.root.dataset, {
      events: run.total, shows: sight.kind, isWaiting: String(sight.isWaiting),
      last: run.newest.toFixed(3), draws: this.draws,
      drawMs: this.drawMs.toFixed(2), mode: frame.mode, behindMs: behindMs(run),
      window: frame.window.map((t) => t.toFixed(6)).join(" "),
    });
  }

  // What lies under a point of the canvas.
  at(x, y) {
    const { run, frame } = this, row = frame.rowAt(y);
    if (x < frame.gutter || row < 0 || row >= run.rows.list.length) return { bar: -1, exposed: -1 };
    const isInUpper = y < frame.half(row, TRANSFER)[0];
    return run.find(row, isInUpper, frame.time(x), (3 * frame.span) / frame.plot);
  }

  hover(x, y) {
    this.parts.showTip(tipWords(this, this.at(x, y), x, y), x, y, this.frame.width);
  }

  choose(i) {
    const { run, parts } = this;
    this.chosen = i < 0 ? null : run.seen.numberOf(i);
    parts.said.textContent = i < 0 ? HINT : barWords(run, i).join(" · ");
    this.dirty();
  }

  // Select the next or previous copy of the same lane, and show it.
  step(direction) {
    const { run: { seen: bars }, frame } = this;
    const now = this.chosen === null ? -1 : bars.placeOf(this.chosen);
    const from = now >= 0 ? bars.start[now] : frame.window[direction > 0 ? 0 : 1];
    const found = this.run.next(now, from, direction);
    if (found < 0) return;
    const start = bars.start[found], end = start + bars.duration[found];
    if (start < frame.window[0] || end > frame.window[1]) {
      const span = Math.max(frame.span, 2 * (end - start));
      this.look((start + end - span) / 2, (start + end + span) / 2);
    }
    this.choose(found);
  }

  destroy() {
    cancelAnimationFrame(this.pending);
    this.room.leave();
  }
}
