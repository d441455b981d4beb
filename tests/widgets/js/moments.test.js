// What a saved page shows at a moment.

import assert from "node:assert/strict";
import test from "node:test";

import { asked, asking, Moments, placeOf }
  from "../../../widgets/gemini_lab_widgets/js/moments.js";

function made() {
  const models = { a: { text: "end", data: { x: [1, 2] } }, b: { visible: true } };
  const told = {
    at_s: [0, 10, 20, 30], failures: [1, 2], ids: ["a", "b"], pool: ["start", "end", [], [1, 2]],
    tracks: [[0, "text", [[0, 0], [3, 1]], 0], [0, "data", [[0, { x: 2 }], [1, { x: 3 }]], 1]],
    views: ["live", "figure"], live: [0],
  };
  return { models, moments: new Moments(told, (id) => models[id]) };
}

test("every moment is that of the last change before it, back and forth", () => {
  const { models, moments } = made();
  assert.equal(moments.isAtEnd, true);
  for (const [place, text, x] of [[0, "start", []], [2, "start", [1, 2]], [3, "end", [1, 2]],
    [1, "start", [1, 2]], [0, "start", []]]) {
    moments.show(place);
    assert.equal(models.a.text, text);
    assert.deepEqual(models.a.data, { x });
  }
  assert.deepEqual(models.b, { visible: true });
});

test("while the slider moves only text follows, and a figure once it is drawn", () => {
  const { models, moments } = made();
  moments.go(0);
  assert.equal(models.a.text, "start");
  assert.deepEqual(models.a.data, { x: [1, 2] });
  assert.equal(moments.changes(moments.views[1]).length, 1);
  moments.draw(moments.views[1]);
  assert.deepEqual(models.a.data, { x: [] });
  assert.equal(moments.changes(moments.views[1]).length, 0);
});

test("what somebody chose meanwhile stays where the run did not change it", () => {
  const { models, moments } = made();
  moments.show(2);
  models.a.data = { x: [7] };
  moments.show(1);
  assert.deepEqual(models.a.data, { x: [7] });
});

test("a moment is the kept one before it", () => {
  assert.deepEqual([-5, 0, 9.9, 10, 25, 30, 99].map((at) => placeOf([0, 10, 20, 30], at)),
    [0, 0, 0, 1, 2, 3, 3]);
});

test("a small step of the slider leads on, either way", () => {
  const { moments } = made();
  moments.show(1);
  assert.deepEqual([9.9, 10, 10.1, 20].map((at) => moments.near(at)), [0, 1, 2, 2]);
});

test("one goes from failure to failure", () => {
  const { moments } = made();
  assert.deepEqual([moments.failure(-1), moments.failure(1)], [2, -1]);
  moments.show(2);
  assert.deepEqual([moments.failure(-1), moments.failure(1)], [1, -1]);
  moments.show(0);
  assert.deepEqual([moments.failure(-1), moments.failure(1)], [-1, 1]);
});

test("the address names the moment beside what it says already", () => {
  assert.equal(asking("#t=1~2", 12.5), "#t=1%7E2&at=12.500");
  assert.equal(asking("#at=3", null), "");
  assert.deepEqual(["#at=12.5", "#t=1", "#at=x", ""].map(asked), [12.5, null, null, null]);
});
