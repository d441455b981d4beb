// The lanes: the raster stretched over them, then edges, words and ticks where there is room.

import { COLLECTIVE, COMPLETE, EXPOSED, ITERATION, TRANSFER, WAIT } from "./kinds.js";
import { fontFor, hatch, SMALL } from "./pen.js";
import { barLabel } from "./words.js";

const TICK_ROOM = 14;

export function drawLanes({ c, run, frame, theme, raster }) {
  c.imageSmoothingEnabled = false;
  c.textBaseline = "middle";
  c.font = fontFor(frame.laneHeight);
  run.rows.list.forEach((row, at) => {
    const [upperTop, upper] = frame.half(at, COLLECTIVE);
    const [lowerTop, lower] = frame.half(at, TRANSFER);
    for (const [line, y, height] of [[2 * at, upperTop, upper], [2 * at + 1, lowerTop, lower]]) {
      c.drawImage(raster.canvas, 0, line, raster.columns, 1, frame.gutter, y, frame.plot, height);
    }
    c.fillStyle = theme.surface;
    c.fillRect(frame.gutter, lowerTop - 0.5, frame.plot, 1);
    c.fillStyle = theme.grid;
    c.fillRect(0, frame.top(at) + frame.laneHeight - 1, frame.width, 1);
    c.fillStyle = theme.text;
    c.textAlign = "right";
    const mark = row.size > 1 ? "▸ " : "";
    c.fillText(mark + run.label(row), frame.gutter - 8, frame.top(at) + frame.laneHeight / 2,
      frame.gutter - 10);
  });
}

// Edges, words, hatching and ticks of single bars.
export function drawDetails(scene) {
  const { c, run: { seen: bars, rows }, frame } = scene, [t0, t1] = frame.window;
  c.font = SMALL;
  c.textAlign = "left";
  const ticked = new Float64Array(rows.list.length).fill(-Infinity);
  bars.blocksIn(t0, t1, (from, to) => {
    for (let i = from; i < to; i++) {
      const start = bars.start[i], kind = bars.kind[i];
      if (start > t1 || start + bars.duration[i] < t0) continue;
      const row = rows.of[bars.lane[i]], x = frame.x(start);
      if (row < 0) continue;
      const [y, h] = frame.half(row, kind);
      if (kind === COMPLETE) {
        if (Math.abs(x - ticked[row]) <= TICK_ROOM) continue;
        drawTick(scene, x, y + h);
        ticked[row] = x;
      } else if (kind !== ITERATION) {
        drawBar(scene, i, { x, y, w: (bars.duration[i] / frame.span) * frame.plot, h });
      }
    }
  });
}

function drawBar(scene, i, box) {
  const { c, run, frame, theme } = scene, kind = run.seen.kind[i], { x, y, w, h } = box;
  if (w < 3) return;
  if (kind === EXPOSED || kind === WAIT) {
    const from = Math.max(x, frame.gutter), to = Math.min(x + w, frame.right);
    c.strokeStyle = "rgba(0,0,0,.55)";
    c.lineWidth = 1;
    hatch(c, { ...box, from, to, step: 5, phase: from % 5 });
  } else {
    c.fillStyle = theme.surface;
    c.fillRect(x, y, Math.min(1, w / 6), h);
  }
  if (w > 34 && h >= 12 && kind !== EXPOSED) drawLabel(scene, i, box);
}

function drawLabel({ c, run, frame, theme }, i, { x, y, w, h }) {
  const left = Math.max(x, frame.gutter) + 5, room = Math.min(x + w, frame.right) - left - 3;
  const words = barLabel(run, i).find((label) => c.measureText(label).width <= room);
  if (words === undefined) return;
  const isPale = run.seen.kind[i] === WAIT || run.seen.kind[i] === COLLECTIVE;
  c.fillStyle = isPale ? "#000000" : theme.onBar;
  c.fillText(words, left, y + h / 2 + 0.5);
}

// A version is whole.
function drawTick({ c, frame, theme }, x, bottom) {
  const size = frame.laneHeight > 20 ? 4 : 2.5;
  c.fillStyle = theme.complete;
  c.beginPath();
  c.moveTo(x, bottom - size);
  c.lineTo(x + size, bottom + size);
  c.lineTo(x - size, bottom + size);
  c.fill();
}
