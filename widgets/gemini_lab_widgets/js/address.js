// What of a timeline stands in the page's address, so that a link shows the same: its window, the
// selected bar, and the order and choice of its lanes.

const NAMES = ["t", "bar", "lanes", "find"], WAIT_MS = 300;

// What an address says, from what follows its `#`: a window, seconds since the run's start, or null
// for the whole run; a bar's number or null; how lanes stand.
export function read(hash) {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  const ends = (said.get("t") ?? "").split("~").map(Number);
  const isWindow = ends.length === 2 && ends.every(Number.isFinite) && ends[0] < ends[1];
  const bar = said.get("bar"), number = Number(bar);
  return {
    window: isWindow ? ends : null,
    follows: said.get("t") === "newest",
    bar: bar !== null && Number.isInteger(number) && number >= 0 ? number : null,
    lanes: said.get("lanes") ?? "",
    find: said.get("find") ?? "",
  };
}

// The same as text; what else stands in `hash` stays.
export function written(hash, { window, mode, bar, lanes, find }) {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  for (const name of NAMES) said.delete(name);
  const digits = window[1] - window[0] > 1 ? 3 : 6;
  if (mode === "free") said.set("t", window.map((t) => t.toFixed(digits)).join("~"));
  if (mode === "follow") said.set("t", "newest");
  if (bar !== null) said.set("bar", String(bar));
  if (lanes !== "name") said.set("lanes", lanes);
  if (find) said.set("find", find);
  return said.size ? `#${said}` : "";
}

// Keeps the address of the page as the timeline is, a moment after it has changed.
export class Address {
  constructor(page) {
    this.page = page;
    this.timer = null;
  }

  read() {
    return read(this.page.location.hash);
  }

  keep(state) {
    this.state = state;
    this.timer ??= setTimeout(() => {
      this.timer = null;
      const { location, history } = this.page, hash = written(location.hash, this.state);
      if (hash === location.hash) return;
      const rest = location.href.replace(/#.*$/, "");
      history.replaceState(history.state, "", rest + (hash || "#"));
    }, WAIT_MS);
  }
}
