import assert from "node:assert/strict";
import { test } from "node:test";

import { RACK, Rows, WORST } from "../../../widgets/gemini_lab_widgets/js/rows.js";

function rowsOf(lanes, replicas = 1) {
  const rows = new Rows();
  rows.lanes = lanes;
  rows.arrange(replicas);
  return rows;
}

test("nodes stand in the order of their numbers, the lab first", () => {
  const rows = rowsOf(["node-10", "node-9", "lab"]);
  assert.deepEqual(rows.list.map((row) => row.label), ["lab", "node-9", "node-10"]);
  assert.deepEqual([...rows.of], [2, 1, 0]);
});

test("many nodes share rows, and a replica group is never torn apart", () => {
  const rows = rowsOf(Array.from({ length: 200 }, (_, n) => `node-${n}`), 3);
  assert.ok(rows.grouped && rows.list.length <= 64);
  for (let group = 0; group < 66; group++) {
    const [first, ...others] = [0, 1, 2].map((member) => rows.of[3 * group + member]);
    assert.ok(others.every((row) => row === first), `group ${group}`);
  }
});

test("a group that is opened has a row for each node, and closes again", () => {
  const rows = rowsOf(Array.from({ length: 100 }, (_, n) => `node-${n}`));
  const closed = rows.list.length;
  rows.toggle(0);
  rows.arrange(1);
  assert.equal(rows.list[0].label, "node-0");
  assert.equal(rows.list.length, closed + 1);
  rows.toggle(1);
  rows.arrange(1);
  assert.equal(rows.list.length, closed);
});

const labels = (rows) => rows.list.map((row) => row.label);

test("the nodes that training felt most stand first, the rest share a row where many are", () => {
  const rows = rowsOf(["a", "b", "c"]);
  Object.assign(rows, { order: WORST, costs: [1, 3, 2] });
  rows.arrange(1);
  assert.deepEqual(labels(rows), ["b", "c", "a"]);
  rows.lanes = Array.from({ length: 100 }, (_, n) => `node-${n}`);
  rows.costs = rows.lanes.map((_, n) => n);
  rows.arrange(1);
  assert.deepEqual([labels(rows)[0], labels(rows)[63]], ["node-99", "37 others"]);
});

test("nodes of a rack stand together, and share its row where many are", () => {
  const rows = rowsOf(["a", "b", "c"]);
  Object.assign(rows, { order: RACK, racks: ["r10", "r2", "r10"] });
  rows.arrange(1);
  assert.deepEqual(labels(rows), ["b", "a", "c"]);
  rows.lanes = Array.from({ length: 100 }, (_, n) => `node-${n}`);
  rows.racks = rows.lanes.map((_, n) => `r${n % 5}`);
  rows.arrange(1);
  assert.deepEqual(labels(rows), ["r0", "r1", "r2", "r3", "r4"]);
  assert.equal(rows.list[0].size, 20);
});

test("only nodes that are looked for are shown, by their name or their rack", () => {
  const rows = rowsOf(["node-1", "node-2", "node-11"]);
  rows.racks = ["east", "west", "west"];
  for (const [find, found] of [["-1", ["node-1", "node-11"]], [" WEST ", ["node-2", "node-11"]],
    ["nobody", []]]) {
    rows.find = find;
    rows.arrange(1);
    assert.deepEqual(labels(rows), found);
    assert.equal(rows.shown, found.length);
  }
  assert.deepEqual([...rows.of], [-1, -1, -1]);
});

test("many nodes that are gone share the last row, which opens, and are found by name", () => {
  const rows = rowsOf(Array.from({ length: 10 }, (_, n) => `node-${n}`));
  rows.gone = new Set(rows.lanes.slice(0, 6));
  rows.arrange(2);
  assert.deepEqual(labels(rows), ["node-6", "node-7", "node-8", "node-9", "6 gone nodes"]);
  assert.deepEqual([...rows.of], [4, 4, 4, 4, 4, 4, 0, 1, 2, 3]);
  rows.toggle(4);
  rows.arrange(2);
  assert.equal(rows.list.length, 10);
  rows.toggle(9);
  rows.find = "node-3";
  rows.arrange(2);
  assert.deepEqual(labels(rows), ["node-3"]);
});

test("a few nodes that are gone keep their lanes", () => {
  const rows = rowsOf(["node-0", "node-1", "node-2"]);
  rows.gone = new Set(["node-1"]);
  rows.arrange(1);
  assert.equal(rows.list.length, 3);
});
