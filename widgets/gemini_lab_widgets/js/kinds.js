// What a bar is, and the columns in which bars travel. Numbers and order are those of `bars.py`.

export const ITERATION = 0, COLLECTIVE = 1, WAIT = 2, TRANSFER = 3, VERSION = 4, EXPOSED = 5,
  COMPLETE = 6, RESTORE = 7;

export const COLUMNS = [
  ["start", Float64Array], ["size", Float64Array], ["duration", Float32Array],
  ["new", Float32Array], ["number", Int32Array], ["part", Int32Array], ["rank", Int32Array],
  ["peer", Int32Array],
  ["lane", Uint16Array], ["name", Uint16Array], ["kind", Uint8Array],
];

// Collectives and what training does lie in a lane's upper half, checkpoints in its lower one.
export function isUpper(kind) {
  return kind === COLLECTIVE || kind === WAIT || kind === ITERATION;
}

// The bars that carry a shard, or a piece of one.
export function isCopy(kind) {
  return kind === TRANSFER || kind === VERSION || kind === RESTORE;
}
