// Below the lanes: the axis of time, and the strip of the whole run with the window as a brush.

import { STRIP } from "./frame.js";
import { inkOf } from "./marks.js";
import { OVERVIEW } from "./overview.js";
import { SMALL } from "./pen.js";
import { clock, niceStep } from "./text.js";

const TICK_ROOM = 95, FEWEST_TICKS = 5, HALF = STRIP / 2;

export function drawAxis({ c, frame, theme }) {
  const y = frame.bottom, [t0, t1] = frame.window;
  const step = niceStep(t1 - t0, Math.max(FEWEST_TICKS, frame.plot / TICK_ROOM));
  c.font = SMALL;
  c.textAlign = "center";
  for (let n = Math.ceil(t0 / step); n * step <= t1; n++) {
    const x = Math.round(frame.x(n * step)) + 0.5;
    c.fillStyle = theme.grid;
    c.fillRect(x, y, 1, 5);
    c.fillStyle = theme.muted;
    const isFree = x > frame.gutter + 14 && x < frame.width - 22;
    if (isFree) c.fillText(clock(n * step, step), x, y + 13);
  }
  c.textAlign = "right";
  c.fillStyle = theme.muted;
  c.fillText("since start", frame.gutter - 8, y + 13);
}

// In place of both, before there is anything to show.
export function drawNothing({ c, run, frame, theme }) {
  c.font = SMALL;
  c.textAlign = "center";
  c.fillStyle = theme.muted;
  c.fillText(run.isLoading ? "loading …" : "nothing to draw yet", frame.width / 2, frame.bottom);
}

export function drawStrip(scene) {
  const { c, run, frame, theme } = scene, top = frame.stripTop;
  if (scene.strip) run.overview.show(scene.strip, run.rows.lanes.length);
  else run.overview.update(run.bars);
  c.strokeStyle = theme.grid;
  c.lineWidth = 1;
  c.strokeRect(frame.gutter + 0.5, top + 0.5, frame.plot - 1, STRIP - 1);
  drawSums(scene);
  drawStripMarks(scene);
  drawBrush(scene);
  c.font = SMALL;
  c.textAlign = "right";
  c.fillStyle = theme.muted;
  c.fillText("whole run", frame.gutter - 8, top + HALF);
}

// Training above, checkpoints and what training felt of them below.
function drawSums({ c, run, frame, theme }) {
  const { overview } = run, extent = run.extent(), middle = frame.stripTop + HALF;
  const lanes = Math.max(1, run.rows.lanes.length);
  const scale = OVERVIEW / Math.max(1e-9, overview.t1 - overview.t0);
  [theme.collective, theme.checkpoint, theme.exposed].forEach((colour, which) => {
    c.fillStyle = colour;
    c.beginPath();
    for (let column = 0; column < OVERVIEW; column++) {
      const sum = overview.sums[which][column];
      if (!sum) continue;
      const x = frame.stripX(overview.t0 + column / scale, extent);
      const w = frame.stripX(overview.t0 + (column + 1) / scale, extent) - x;
      const tall = Math.max(1, Math.min(1, Math.sqrt(sum / lanes)) * (HALF - 2));
      c.rect(x, which ? middle : middle - tall, w, tall);
    }
    c.fill();
  });
}

function drawStripMarks({ c, run, frame, theme }) {
  const extent = run.extent();
  for (const mark of run.marks) {
    const isRecovery = mark.kind === "recovery", x = frame.stripX(mark.start_s, extent);
    c.fillStyle = isRecovery ? theme.restore : inkOf(mark, theme);
    c.globalAlpha = isRecovery ? 0.5 : 1;
    const until = isRecovery ? frame.stripX(mark.end_s ?? extent[1], extent) : x;
    c.fillRect(x, frame.stripTop + 1, Math.max(1.5, until - x), STRIP - 2);
    c.globalAlpha = 1;
  }
}

function drawBrush({ c, run, frame, theme }) {
  const [from, to] = frame.brush(run.extent()), top = frame.stripTop;
  c.globalAlpha = 0.62;
  c.fillStyle = theme.surface;
  c.fillRect(frame.gutter + 1, top + 1, Math.max(0, from - frame.gutter - 1), STRIP - 2);
  c.fillRect(to, top + 1, Math.max(0, frame.right - to - 1), STRIP - 2);
  c.globalAlpha = 1;
  c.strokeStyle = theme.text;
  c.lineWidth = 1.5;
  c.strokeRect(from, top + 1, Math.max(3, to - from), STRIP - 2);
  c.fillStyle = theme.text;
  for (const x of [from, to]) c.fillRect(x - 2, top + HALF - 6, 4, 12);
}
