// What is said of a run, for eyes and for screen readers.

import { COLLECTIVE, EXPOSED, RESTORE, TRANSFER, VERSION, WAIT } from "./kinds.js";
import { bytes, clock, counted, seconds } from "./text.js";

export const HINT = "Drag to move, + and − or ctrl+wheel to zoom, arrows to move, , and . to step "
  + "through checkpoint chunks; click one for the way to its receiver.";

// A heading for bar `i`, and lines below it.
export function barWords(run, i) {
  const { seen: bars, rows } = run, number = bars.number[i];
  const node = run.name(rows.lanes[bars.lane[i]]), rank = `rank ${bars.rank[i]} on ${node}`;
  const size = bytes(bars.size[i]), length = seconds(bars.duration[i]);
  const rate = bars.duration[i] > 0 ? `${bytes(bars.size[i] / bars.duration[i])}/s` : "at once";
  const peer = bars.peer[i] < 0 ? "receiver unknown" : `to ${rows.lanes[bars.peer[i]]}`;
  const amount = `${size} in ${length}: ${rate}`;
  switch (bars.kind[i]) {
    case COLLECTIVE:
      return [run.names[bars.name[i]].replaceAll("_", " "), rank, amount, `iteration ${number}`];
    case TRANSFER:
      return [`version ${number} ${peer}`, rank, amount,
        bars.part[i] < 0 ? "in the background" : `chunks of idle span ${bars.part[i]}`];
    case VERSION: return [`version ${number}`, rank, amount, peer];
    case EXPOSED: return [`shared the link: ${size} of version ${number}`, rank, `for ${length}`];
    case RESTORE:
      return [`shard of rank ${bars.rank[i]}, version ${number}`, `from ${node} ${peer}`, amount,
        "a recovery reads a replica"];
    case WAIT:
      return [`iteration ${number} waits ${length}`, rank, "for its checkpoint to be whole"];
    default: return [`iteration ${number}`, rank, `${length}, of which it waited `
      + seconds(bars.part[i] / 1e6)];
  }
}

// What stands in bar `i` where there is room: in full, and in short.
export function barLabel(run, i) {
  const { seen: bars } = run, kind = bars.kind[i], version = `v${bars.number[i]}`;
  if (kind === WAIT) return ["waits", version];
  if (kind !== COLLECTIVE) return [`${version} · ${bytes(bars.size[i])}`, version];
  const name = run.names[bars.name[i]].replace(/(_into)?_tensor$/, "").replaceAll("_", " ");
  return [name, name];
}

export function markWords(mark) {
  const took = mark.end_s === null ? "" : `, ${seconds(mark.end_s - mark.start_s)}`;
  return `${mark.text}${took} (at ${clock(mark.start_s, 0.01)})`;
}

// How much of the checkpoint traffic was sent while training used the link.
export function sharedBytes(run) {
  if (run.isLoading) return "the traffic is loading …";
  const { meta, bars } = run, judged = (meta.hidden_bytes ?? 0) + (meta.exposed_bytes ?? 0);
  if (!(judged > 0)) return bars.length ? "no checkpoint traffic judged yet" : "no traffic yet";
  const exposed = (100 * meta.exposed_bytes) / judged;
  const rounded = exposed > 0 && exposed < 1 ? exposed.toFixed(1) : exposed.toFixed(0);
  return `${+rounded} % of checkpoint bytes shared the link with training`;
}

export function shareExplained(run) {
  const open = run.meta.open_bytes ?? 0;
  return "Shared: checkpoint bytes that left while a collective of the same node was under way, "
    + "or while the step waited for them. That is no cost by itself; how long training waited stands above."
    + (open > 0 ? ` ${bytes(open)} are not judged yet.` : "");
}

// On what the share rests, where that is not the whole log.
export function basis(run) {
  const { meta, bars } = run, notes = [];
  const isJudged = (meta.hidden_bytes ?? 0) + (meta.exposed_bytes ?? 0) > 0;
  if (meta.basis === "waits" && isJudged) notes.push("counted by waits alone, because the log has no collectives");
  if (meta.is_simulated) notes.push("simulated");
  if (bars.base > 0 && !meta.is_deep) {
    notes.push(`the oldest ${bars.base.toLocaleString("en")} bars were dropped`);
  }
  return notes.join(" · ");
}

export function behindMs(run) {
  return Math.max(0, Math.round(1000 * (run.meta.behind_s ?? 0)));
}

// What lies at a moment of row `row` where bars are too many to be told one by one.
export function cellWords(run, cells, row, t) {
  const lines = cells.of(row, run.rows), names = ["iterations", "training collectives",
    "waiting for a version", "checkpoint chunks", "chunks that shared the link", "a replica read back"];
  const sums = lines.map((line) => cells.at(line, t));
  const shares = names.map((name, layer) =>
    [name, sums.reduce((sum, one) => sum + one[layer], 0) / Math.max(1, lines.length)]);
  const told = shares.filter(([, share]) => share > 0);
  if (!told.length) return [];
  return [`${run.label(run.rows.list[row])}: ${seconds(cells.width)} at ${clock(t, 0.01)}`,
    ...told.map(([name, share]) => `${name} ${share < 0.01 ? "< 1" : Math.round(100 * share)} %`),
    "zoom in for single bars"];
}

export function lag(run) {
  if (run.meta.more) return "loading …";
  if (run.meta.is_over) return "run is over";
  if (run.meta.is_recorded) return "saved while it ran";
  return run.isEmpty ? "" : `${behindMs(run)} ms behind`;
}

// The whole picture in two sentences, for who cannot see it.
export function summary(run) {
  const { rows, newest, marks } = run;
  const count = (kind) => marks.filter((mark) => mark.kind === kind).length;
  const failures = counted(count("injected"), "failure", "failures");
  return `Traffic timeline: ${counted(rows.lanes.length, "node", "nodes")}, `
    + `${counted(run.total, "bar", "bars")} in ${seconds(newest)}. `
    + `${sharedBytes(run)}. ${failures} injected, `
    + `${counted(count("recovery"), "recovery", "recoveries")}.`;
}

// What is said beside a point of the timeline, line by line; `bar` and `exposed` lie there.
export function tipWords({ run, frame, sight: { cells } }, { bar, exposed }, x, y) {
  const lines = bar < 0 ? [] : barWords(run, bar), row = frame.rowAt(y);
  if (cells && x > frame.gutter && row >= 0 && row < run.rows.list.length) {
    lines.push(...cellWords(run, cells, row, frame.time(x)));
  }
  if (exposed >= 0) lines.push(`${bytes(run.seen.size[exposed])} of it shared the link here`);
  if (y >= frame.bottom || x <= frame.gutter) return lines;
  for (const mark of run.marks) {
    const from = frame.x(mark.start_s), to = mark.end_s === null ? from : frame.x(mark.end_s);
    if (mark.text && x >= from - 4 && x <= to + 4) lines.push(markWords(mark));
  }
  return lines;
}
