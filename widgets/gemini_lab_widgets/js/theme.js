// Colours and the style sheet; light or dark as the host shows itself.

import { FAMILY } from "./pen.js";

// The colours of `pictures/palette.py`, which a test compares; `training` and `button` are areas.
export const LIGHT = {
  surface: "#ffffff", text: "#1b1b1b", muted: "#565656", grid: "#e3e6ea", training: "#eef1f4",
  collective: "#8c8c8c", checkpoint: "#0072b2", exposed: "#e69f00", restore: "#cc79a7",
  complete: "#009e73", failure: "#d55e00", onBar: "#ffffff", button: "#eef1f4",
};
export const DARK = {
  surface: "#141414", text: "#f2f2f2", muted: "#bdbdbd", grid: "#33383e", training: "#2a2f35",
  collective: "#a6a6a6", checkpoint: "#4aa8e0", exposed: "#f0b030", restore: "#e09cc3",
  complete: "#2fc79b", failure: "#f0793a", onBar: "#141414", button: "#2a2f35",
};

export const STYLE = `
.gl-timeline{position:relative;box-sizing:border-box;width:100%;font:13px/1.4 ${FAMILY};
  color:var(--gl-text);background:var(--gl-surface);border:1px solid var(--gl-grid);
  border-radius:8px;padding:8px 10px 6px;outline:none}
.gl-timeline:focus-visible{box-shadow:0 0 0 2px #0072b2}
.gl-timeline .gl-head,.gl-timeline .gl-legend{display:flex;flex-wrap:wrap;align-items:center;
  gap:4px 14px;min-height:26px}
.gl-timeline .gl-title{font-weight:650;font-size:18px}
.gl-timeline .gl-lag,.gl-timeline .gl-basis{color:var(--gl-muted);font-variant-numeric:tabular-nums}
.gl-timeline .gl-buttons{margin-left:auto;display:flex;gap:4px}
.gl-timeline button{font:inherit;color:var(--gl-text);background:var(--gl-button);min-width:30px;
  border:1px solid var(--gl-grid);border-radius:6px;padding:1px 9px;cursor:pointer}
.gl-timeline .gl-choices{display:flex;flex-wrap:wrap;gap:4px;align-items:center}
.gl-timeline .gl-choices input,.gl-timeline .gl-choices select{font:inherit;color:var(--gl-text);
  background:var(--gl-button);border:1px solid var(--gl-muted);border-radius:6px;padding:1px 6px;
  max-width:11em}
.gl-timeline button:hover{border-color:var(--gl-muted)}
.gl-timeline button[aria-pressed=true]{border-color:var(--gl-checkpoint);color:var(--gl-checkpoint)}
.gl-timeline .gl-key{display:inline-flex;align-items:center;gap:5px;color:var(--gl-muted);
  font-size:12px}
.gl-timeline .gl-key i{width:16px;height:10px;border-radius:2px;display:inline-block}
.gl-timeline canvas{display:block;width:100%;touch-action:pan-y;cursor:crosshair}
.gl-timeline .gl-tip{position:absolute;z-index:5;pointer-events:none;max-width:340px;
  padding:6px 9px;
  background:var(--gl-surface);color:var(--gl-text);border:1px solid var(--gl-muted);font-size:12px;
  border-radius:6px;box-shadow:0 2px 10px rgba(0,0,0,.25);font-variant-numeric:tabular-nums;
  overflow-wrap:anywhere}
.gl-timeline .gl-tip b{display:block}
.gl-timeline .gl-why{color:var(--gl-muted);font-size:12px}
.gl-timeline .gl-said{min-height:20px;color:var(--gl-muted);font-size:12px;overflow-wrap:anywhere}
@media print{.gl-timeline .gl-buttons{display:none}}
`;

export function rgb(hex) {
  const n = parseInt(hex.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}

// Whether a CSS colour is dark; undefined where it is see-through or no colour.
export function isDarkColour(css) {
  const [r, g, b, a = 1] = (css.match(/[\d.]+/g) ?? []).map(Number);
  return a > 0 && b !== undefined ? 0.299 * r + 0.587 * g + 0.114 * b < 128 : undefined;
}

// The host's theme where it says so or shows itself by a background around `root`, else what the
// viewer prefers.
export function isDarkAround(root, isPreferred) {
  const { body, documentElement } = root.ownerDocument;
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false";
  if (documentElement.dataset.theme) return documentElement.dataset.theme === "dark";
  let element = root.parentNode;
  while (element) {
    if (element instanceof Element) {
      const isDark = isDarkColour(getComputedStyle(element).backgroundColor);
      if (isDark !== undefined) return isDark;
    }
    element = element.parentNode ?? element.host;
  }
  return isPreferred;
}
