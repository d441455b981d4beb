import assert from "node:assert/strict";
import { test } from "node:test";

import { DARK, isDarkColour, LIGHT, rgb } from "../../../widgets/gemini_lab_widgets/js/theme.js";

test("a background tells light from dark unless it is see-through", () => {
  assert.equal(isDarkColour("rgb(16, 20, 24)"), true);
  assert.equal(isDarkColour("rgb(255, 255, 255)"), false);
  assert.equal(isDarkColour("rgba(0, 0, 0, 0)"), undefined);
  assert.equal(isDarkColour("transparent"), undefined);
});

test("light and dark name the same colours", () => {
  assert.deepEqual(Object.keys(LIGHT), Object.keys(DARK));
});

// WCAG 2: 4.5 to 1 for text.
test("text can be read on either surface", () => {
  const part = (n) => (n / 255 <= 0.04045 ? n / 255 / 12.92 : ((n / 255 + 0.055) / 1.055) ** 2.4);
  const light = (hex) => {
    const [r, g, b] = rgb(hex).map(part);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  for (const theme of [LIGHT, DARK]) {
    for (const text of [theme.text, theme.muted]) {
      const [low, high] = [light(text), light(theme.surface)].sort((a, b) => a - b);
      assert.ok((high + 0.05) / (low + 0.05) >= 4.5, `${text} on ${theme.surface}`);
    }
  }
});
