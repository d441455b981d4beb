// Numbers as people read them.

export function counted(n, one, many) {
  return `${n} ${n === 1 ? one : many}`;
}

export function bytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(n) < 1024) return unit === "B" ? `${Math.round(n)} B` : `${n.toFixed(1)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} TiB`;
}

export function seconds(s) {
  if (s < 0.001) return `${(s * 1e6).toFixed(0)} µs`;
  if (s < 0.1) return `${(s * 1e3).toFixed(1)} ms`;
  if (s < 1) return `${(s * 1e3).toFixed(0)} ms`;
  if (s < 120) return `${s.toFixed(1)} s`;
  return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
}

// A moment of the run, as exact as an axis with ticks every `step` seconds needs it.
export function clock(s, step) {
  const digits = Math.min(6, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)));
  if (Math.abs(s) < 120 && step < 60) return `${s.toFixed(digits)} s`;
  const sign = s < 0 ? "−" : "", whole = Math.abs(s);
  const h = Math.floor(whole / 3600), m = Math.floor((whole % 3600) / 60);
  const rest = (whole % 60).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
  return sign + (h ? `${h}:${String(m).padStart(2, "0")}:${rest}` : `${m}:${rest}`);
}

// The least round step at which `span` seconds get no more than `room` ticks.
export function niceStep(span, room) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200,
    86400];
  const least = span / Math.max(1, room);
  if (least > 1) return steps.find((step) => step >= least) ?? 86400 * Math.ceil(least / 86400);
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= least);
}
