// What several drawings share. A `scene` is what they are given: the run, the frame, the theme, the
// raster, and the canvas's context as `c`.

export const FAMILY = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
export const FONT = `12px ${FAMILY}`, SMALL = `10.5px ${FAMILY}`;

export function fontFor(laneHeight) {
  return laneHeight < 15 ? SMALL : FONT;
}

// Slanted lines every `step` pixels over a rectangle, from `from` to `to` of its width.
export function hatch(c, { x, y, w, h, from, to, step, phase = 0 }) {
  c.save();
  c.beginPath();
  c.rect(x, y, w, h);
  c.clip();
  c.beginPath();
  for (let at = from - h - phase; at < to; at += step) {
    c.moveTo(at, y + h);
    c.lineTo(at + h, y);
  }
  c.stroke();
  c.restore();
}
