// What lies over the lanes: failures, planned moves, recoveries, lost nodes, and the selected
// bar's way.

import { TRANSFER } from "./kinds.js";
import { TOP } from "./frame.js";
import { hatch, SMALL } from "./pen.js";

const NEAR_S = 5;

export function drawMarks(scene) {
  const { run } = scene;
  for (const mark of run.marks) {
    if (mark.kind === "recovery") drawRecovery(scene, mark);
    if (mark.kind === "lost") drawLoss(scene, mark);
  }
  for (const mark of run.marks) if (mark.kind !== "recovery") drawMoment(scene, mark);
  drawMarkWords(scene);
  drawPast(scene);
}

// Where the page looks back at: what came later is veiled.
function drawPast({ c, run, frame, theme }) {
  const at = run.moment();
  if (at === null) return;
  const x = Math.min(Math.max(frame.x(at), frame.gutter), frame.right);
  c.globalAlpha = 0.6;
  c.fillStyle = theme.surface;
  c.fillRect(x, TOP - 6, frame.right - x, frame.lanesHeight + 6);
  c.globalAlpha = 1;
  c.fillStyle = theme.text;
  c.fillRect(Math.round(x) - 1, TOP - 6, 2, frame.lanesHeight + 6);
}

function drawRecovery({ c, run, frame, theme }, mark) {
  const x = frame.x(mark.start_s);
  const width = Math.max(2, frame.x(mark.end_s ?? run.extent()[1]) - x);
  c.globalAlpha = 0.2;
  c.fillStyle = theme.restore;
  c.fillRect(x, TOP - 2, width, frame.lanesHeight + 2);
  c.globalAlpha = 1;
  c.fillRect(x, TOP - 3, width, 3);
}

// Nobody takes what was asked for as a failure.
export function inkOf(mark, theme) {
  return mark.kind === "planned" ? theme.muted : theme.failure;
}

function drawMoment({ c, frame, theme }, mark) {
  const x = Math.round(frame.x(mark.start_s)) + 0.5;
  c.strokeStyle = inkOf(mark, theme);
  c.lineWidth = mark.kind === "injected" ? 2 : 1;
  c.setLineDash(mark.kind === "injected" ? [] : [3, 3]);
  c.beginPath();
  c.moveTo(x, TOP - 6);
  c.lineTo(x, frame.bottom);
  c.stroke();
  c.setLineDash([]);
}

// A node that is gone: its lane is barred from then on.
function drawLoss({ c, run, frame, theme }, mark) {
  const lane = run.rows.lanes.indexOf(mark.lane), row = lane < 0 ? -1 : run.rows.of[lane];
  if (row < 0 || run.rows.list[row].size > 1) return;
  const y = frame.top(row), h = frame.laneHeight - 1, to = frame.right;
  const from = Math.max(frame.x(mark.start_s), frame.gutter);
  if (from >= to) return;
  c.strokeStyle = theme.muted;
  c.lineWidth = 1.5;
  c.globalAlpha = 0.35;
  hatch(c, { x: from, y, w: to - from, h, from, to, step: 9 });
  c.globalAlpha = 1;
  c.font = SMALL;
  c.textAlign = "left";
  const words = "gone", width = c.measureText(words).width;
  if (to - from <= width + 20 || h <= 12) return;
  c.fillStyle = theme.surface;
  c.fillRect(from + 6, y + h / 2 - 8, width + 8, 16);
  c.fillStyle = theme.muted;
  c.fillText(words, from + 10, y + h / 2);
}

// The marks to be told in words: a loss only where nothing near it says more.
export function toldMarks(marks) {
  const told = marks.filter((mark) => mark.kind !== "recovery" && mark.kind !== "lost");
  const alone = marks.filter((mark) => mark.kind === "lost"
    && !told.some((other) => Math.abs(other.start_s - mark.start_s) < NEAR_S));
  return [...told, ...alone].sort((a, b) => a.start_s - b.start_s);
}

// Words over marks, where they do not run into one another.
function drawMarkWords({ c, run, frame, theme }) {
  c.font = SMALL;
  c.textAlign = "left";
  let free = frame.gutter;
  for (const mark of toldMarks(run.marks)) {
    const x = frame.x(mark.start_s), sign = mark.kind === "planned" ? "◆" : "✕";
    const words = `${sign} ${mark.text}`, width = c.measureText(words).width;
    const at = Math.min(x - 4, frame.right - width);
    if (x < frame.gutter || x > frame.right || at < free) continue;
    c.fillStyle = inkOf(mark, theme);
    c.fillText(words, at, 8);
    free = at + width + 10;
  }
}

// The selected bar `i` and an arrow to the lane that receives it; returns who sends to whom.
export function drawChosen(scene, i) {
  const { c, run: { seen: bars, rows }, frame, theme } = scene;
  if (rows.of[bars.lane[i]] < 0) return undefined;
  const [y, h] = frame.half(rows.of[bars.lane[i]], bars.kind[i]);
  const x0 = frame.x(bars.start[i]), x1 = frame.x(bars.start[i] + bars.duration[i]);
  c.strokeStyle = theme.text;
  c.lineWidth = 2;
  c.strokeRect(x0, y, Math.max(2, x1 - x0), h);
  if (bars.peer[i] < 0 || rows.of[bars.peer[i]] < 0) return undefined;
  const [peerTop, peerHeight] = frame.half(rows.of[bars.peer[i]], TRANSFER);
  drawArrow(scene, x1, y + h / 2, x1 + 26, peerTop + peerHeight / 2);
  return `${rows.lanes[bars.lane[i]]} -> ${rows.lanes[bars.peer[i]]}`;
}

function drawArrow({ c, theme }, x0, y0, x1, y1) {
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
