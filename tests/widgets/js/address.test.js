import assert from "node:assert/strict";
import { test } from "node:test";

import { read, written } from "../../../widgets/gemini_lab_widgets/js/address.js";

const PLAIN = { window: [0, 100], mode: "all", bar: null, lanes: "name", find: "" };

test("a page says in its address what it shows, and a link shows the same", () => {
  const hash = written("#other=1",
    { ...PLAIN, mode: "free", window: [12.3456, 15], bar: 70_123, lanes: "worst", find: "a&b #" });
  assert.deepEqual(read(hash), { window: [12.346, 15], follows: false, bar: 70_123,
    lanes: "worst", find: "a&b #" });
  assert.equal(new URLSearchParams(hash.slice(1)).get("other"), "1");
});

test("a whole run needs no words, and the newest moment one", () => {
  assert.equal(written("", PLAIN), "");
  assert.equal(written("#t=3~4&bar=1", PLAIN), "");
  assert.equal(read(written("", { ...PLAIN, mode: "follow" })).follows, true);
});

test("an address that makes no sense shows the whole run", () => {
  for (const hash of ["#t=5", "#t=9~3", "#t=a~b", "#bar=-1", "#bar=1.5", "#t=1~2~3", "#t=~"]) {
    const { window, bar } = read(hash);
    assert.deepEqual([window, bar], [null, null], hash);
  }
});
