import js from "@eslint/js";

const BROWSER = [
  "Blob", "CustomEvent", "DecompressionStream", "Element", "MutationObserver", "ResizeObserver",
  "Response", "TextDecoder", "URLSearchParams", "atob",
  "cancelAnimationFrame", "document", "fetch", "getComputedStyle", "location", "performance",
  "history", "queueMicrotask", "requestAnimationFrame", "setTimeout", "URL", "window",
];

export default [
  js.configs.recommended,
  {
    languageOptions: { globals: Object.fromEntries(BROWSER.map((name) => [name, "readonly"])) },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      eqeqeq: "error",
      "max-len": ["error", { code: 100 }],
      "max-lines": ["error", 300],
      "max-lines-per-function": ["error", { max: 40, skipComments: true }],
      "no-shadow": "error",
      "no-var": "error",
      "prefer-const": ["error", { destructuring: "all" }],
      // Names of nodes are untrusted: text is set as `textContent` or drawn, never parsed.
      "no-restricted-properties": ["error", { property: "innerHTML" }, { property: "outerHTML" },
        { property: "insertAdjacentHTML" }],
    },
  },
];
