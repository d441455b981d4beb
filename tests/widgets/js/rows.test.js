import assert from "node:assert/strict";
import { test } from "node:test";

import { Rows } from "../../../widgets/gemini_lab_widgets/js/rows.js";

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
