// The elements on the page around the canvas. Names are untrusted: text is only ever set as
// `textContent`.

import { NAME, RACK, WORST } from "./rows.js";
import { DARK, STYLE } from "./theme.js";
import { HINT } from "./words.js";

const LEGEND = [["training collectives", "collective"], ["checkpoint chunks", "checkpoint"],
  ["shared the link, or the step waits", "exposed"], ["▲ a version is whole", "complete"],
  ["a recovery, a replica read back", "restore"], ["a failure", "failure"],
  ["an iteration", "training"]];
const ORDERS = [[NAME, "lanes by name"], [WORST, "worst first"], [RACK, "by rack"]];
const TIP_ROOM = 260;

function make(tag, name, parent, text) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text) element.textContent = text;
  parent.appendChild(element);
  return element;
}

export class Parts {
  // Fill `root`; `acts` are what the buttons do.
  constructor(root, acts) {
    this.root = root;
    root.classList.add("gl-timeline");
    root.tabIndex = 0;
    root.setAttribute("role", "group");
    make("style", "", root, STYLE);
    const head = make("div", "gl-head", root);
    make("span", "gl-title", head, "Network traffic, node by node");
    this.readout = make("span", "gl-basis", head);
    this.basis = make("span", "gl-basis", head);
    this.lag = make("span", "gl-lag", head);
    this.addChoices(make("div", "gl-choices", head), acts);
    this.addButtons(make("div", "gl-buttons", head), acts);
    this.why = make("div", "gl-why", root);
    const legend = make("div", "gl-legend", root);
    this.keys = LEGEND.map(([text, colour]) => {
      const key = make("span", "gl-key", legend), patch = make("i", "", key);
      make("span", "", key, text);
      return { patch, colour };
    });
    this.canvas = make("canvas", "", root);
    this.canvas.setAttribute("role", "img");
    this.said = make("div", "gl-said", root, HINT);
    this.said.setAttribute("aria-live", "polite");
    this.tip = make("div", "gl-tip", root);
    this.tip.hidden = true;
  }

  // How lanes stand, and which.
  addChoices(parent, acts) {
    this.order = make("select", "", parent);
    this.order.setAttribute("aria-label", "Order of the lanes");
    for (const [value, text] of ORDERS) make("option", "", this.order, text).value = value;
    this.order.addEventListener("change", () => acts.order(this.order.value));
    this.find = make("input", "", parent);
    this.find.type = "search";
    this.find.placeholder = "find a node";
    this.find.setAttribute("aria-label", "Show only nodes whose name or rack has this in it");
    this.find.addEventListener("input", () => acts.find(this.find.value));
    this.count = make("span", "gl-basis", parent);
    this.count.setAttribute("role", "status");
  }

  showRows(rows) {
    const hasRacks = rows.racks.some(Boolean), [, , rack] = this.order.options;
    rack.hidden = rack.disabled = !hasRacks;
    if (this.order.value !== rows.order) this.order.value = rows.order;
    if (this.find.value !== rows.find) this.find.value = rows.find;
    const text = rows.find ? `${rows.shown} of ${rows.lanes.length}` : "";
    if (this.count.textContent !== text) this.count.textContent = text;
  }

  addButtons(parent, acts) {
    const button = (text, label, act) => {
      const element = make("button", "", parent, text);
      element.type = "button";
      element.title = label;
      if (text.length === 1) element.setAttribute("aria-label", label); // a sign is no name
      element.addEventListener("click", act);
      return element;
    };
    this.allButton = button("All", "Show the whole run (Home)", acts.all);
    this.followButton = button("Follow", "Follow the newest (End), pause (space)", acts.follow);
    button("−", "Zoom out (-)", acts.out);
    button("+", "Zoom in (+)", acts.in);
  }

  describe(words) {
    for (const element of [this.root, this.canvas]) {
      if (element.getAttribute("aria-label") !== words) element.setAttribute("aria-label", words);
    }
  }

  showMode(mode) {
    this.allButton.setAttribute("aria-pressed", String(mode === "all"));
    this.followButton.setAttribute("aria-pressed", String(mode === "follow"));
    this.followButton.textContent = mode === "follow" ? "Pause" : "Follow";
  }

  showTheme(theme) {
    for (const key of ["surface", "text", "muted", "grid", "button", "checkpoint"]) {
      this.root.style.setProperty(`--gl-${key}`, theme[key]);
    }
    for (const { patch, colour } of this.keys) patch.style.background = theme[colour];
    this.root.dataset.theme = theme === DARK ? "dark" : "light";
  }

  // Show lines beside a point of the canvas, the first as a heading; none hides them.
  showTip(lines, x, y, width) {
    const { tip, canvas } = this;
    tip.hidden = lines.length === 0;
    if (!lines.length) return;
    tip.replaceChildren(...lines.map((line, n) => {
      const element = document.createElement(n ? "div" : "b");
      element.textContent = line;
      return element;
    }));
    const isRight = x > width - TIP_ROOM;
    tip.style.left = isRight ? "" : `${x + canvas.offsetLeft + 14}px`;
    tip.style.right = isRight ? `${width - x + 24}px` : "";
    tip.style.top = `${canvas.offsetTop + y + 16}px`;
  }
}
