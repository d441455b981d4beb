// What pointer, wheel and keys do to a timeline.

const CLICK = 4, HANDLE = 6;

export class Hands {
  constructor(timeline) {
    this.timeline = timeline;
    this.drag = null; // what moving does while a button is down
    const { canvas, root } = timeline.parts;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const on = (kind, act, options) => canvas.addEventListener(kind, act, options);
    on("pointerdown", (event) => this.press(event, ...place(event)));
    on("pointermove", (event) => {
      if (this.drag) this.drag(...place(event));
      else timeline.hover(...place(event));
    });
    on("pointerup", (event) => this.release(...place(event)));
    on("pointercancel", () => { this.drag = null; });
    on("pointerleave", () => timeline.parts.showTip([]));
    on("dblclick", (event) => timeline.zoom(1 / 4, timeline.frame.time(place(event)[0])));
    on("wheel", (event) => this.wheel(event, place(event)[0]), { passive: false });
    root.addEventListener("keydown", (event) => this.key(event));
  }

  press(event, x, y) {
    const { timeline } = this, { frame, parts } = timeline;
    parts.root.focus({ preventScroll: true });
    parts.canvas.setPointerCapture(event.pointerId);
    parts.showTip([]);
    this.pressed = [x, y];
    this.selected = null;
    if (frame.isStrip(y)) this.drag = this.brushing(x);
    else if (event.shiftKey) {
      const time = frame.time(x);
      this.drag = (now) => { this.selected = [time, frame.time(now)]; };
    } else if (x >= frame.gutter) this.drag = this.moving(x);
    else this.drag = () => {};
  }

  moving(x) {
    const { timeline } = this, { frame } = timeline, [t0, t1] = frame.window;
    return (now) => {
      if (Math.abs(now - x) < CLICK && frame.mode !== "free") return;
      const moved = ((now - x) / frame.plot) * (t1 - t0);
      timeline.look(t0 - moved, t1 - moved);
    };
  }

  // On the strip: take the window's ends, or the window, or draw a new one.
  brushing(x) {
    const { timeline } = this, { frame, run } = timeline, [t0, t1] = frame.window;
    const at = (pixel) => frame.stripTime(pixel, run.extent());
    const [from, to] = frame.brush(run.extent()), time = at(x);
    if (Math.abs(x - from) < HANDLE) return (now) => this.lookBetween(at(now), t1);
    if (Math.abs(x - to) < HANDLE) return (now) => this.lookBetween(t0, at(now));
    if (x > from && x < to && to - from < frame.plot - 8) {
      return (now) => timeline.look(t0 + at(now) - time, t1 + at(now) - time);
    }
    return (now) => this.lookBetween(time, at(now));
  }

  lookBetween(a, b) {
    const { frame, run } = this.timeline, extent = run.extent();
    if (Math.abs(frame.stripX(a, extent) - frame.stripX(b, extent)) < 3) return;
    this.timeline.look(Math.min(a, b), Math.max(a, b));
  }

  release(x, y) {
    if (!this.drag) return;
    this.drag = null;
    const { timeline } = this, { frame, run } = timeline;
    const isClick = Math.hypot(x - this.pressed[0], y - this.pressed[1]) < CLICK;
    if (this.selected && !isClick) this.lookBetweenTimes(this.selected);
    const row = frame.rowAt(y);
    if (!isClick || row < 0 || row >= run.rows.list.length) return;
    if (x >= frame.gutter) timeline.choose(timeline.at(x, y).bar);
    else timeline.toggle(row);
  }

  lookBetweenTimes(times) {
    this.timeline.look(Math.min(...times), Math.max(...times));
  }

  wheel(event, x) {
    const { timeline } = this, { frame, parts } = timeline;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const moved = (event.deltaX / frame.plot) * frame.span;
      timeline.look(frame.window[0] + moved, frame.window[1] + moved);
    } else if (event.ctrlKey || event.metaKey || parts.root.matches(":focus-within")) {
      timeline.zoom(Math.exp(Math.max(-50, Math.min(50, event.deltaY)) * 0.006), frame.time(x));
    } else return; // an unfocused timeline lets the page scroll
    event.preventDefault();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches?.("input, select")) return;
    const { timeline } = this, { frame, parts } = timeline, [t0, t1] = frame.window;
    if (event.target !== parts.root && (event.key === " " || event.key === "Enter")) return;
    const tenth = (t1 - t0) / 10;
    const acts = {
      ArrowLeft: () => timeline.look(t0 - tenth, t1 - tenth),
      ArrowRight: () => timeline.look(t0 + tenth, t1 + tenth),
      ArrowUp: () => timeline.zoom(1 / 1.4),
      ArrowDown: () => timeline.zoom(1.4),
      "+": () => timeline.zoom(1 / 1.6),
      "=": () => timeline.zoom(1 / 1.6),
      "-": () => timeline.zoom(1.6),
      Home: () => timeline.show("all"),
      End: () => timeline.show("follow"),
      " ": () => timeline.follow(),
      ",": () => timeline.step(-1),
      ".": () => timeline.step(1),
      Escape: () => timeline.choose(-1),
    };
    if (!Object.hasOwn(acts, event.key)) return;
    event.preventDefault();
    event.stopPropagation(); // a notebook has keys of its own
    acts[event.key]();
  }
}
