// The room in which a timeline stands: its width, and whether its host is light or dark.

export class Room {
  // Calls `resized` when the width may have changed, `restyled` when the host's theme may have.
  constructor(root, { resized, restyled }) {
    this.restyled = restyled;
    this.resizer = new ResizeObserver(resized);
    this.resizer.observe(root);
    this.scheme = window.matchMedia("(prefers-color-scheme: dark)");
    this.scheme.addEventListener("change", restyled);
    this.observer = new MutationObserver(restyled);
    for (const element of [document.documentElement, document.body]) {
      this.observer.observe(element, { attributes: true,
        attributeFilter: ["class", "style", "data-theme", "data-jp-theme-light"] });
    }
  }

  get prefersDark() {
    return this.scheme.matches;
  }

  leave() {
    this.resizer.disconnect();
    this.observer.disconnect();
    this.scheme.removeEventListener("change", this.restyled);
  }
}
