// A saved page's slider of time: at each moment that was kept, what of the views differs.
//
// `told.at_s` are the moments, the last of them the run's end. A track is a model's property, the
// places among the moments from which it has another value (a number in `told.pool`, or one for
// each column of a table), and the number of its view in `told.views`.
//
// Drawing all views takes the browser some 100 ms. So while the slider moves only the views in
// `told.live` follow, which are text. The others follow when it rests: those on the screen, one a
// frame, and the rest when they are scrolled to.

import { nameHandles } from "./handles.js";
import { unpacked } from "./packed.js";

const RESTS_MS = 250;

// The last place whose moment is not later; the first where all are.
export function placeOf(moments, at) {
  const later = moments.findIndex((each) => each > at + 1e-9);
  return later < 0 ? moments.length - 1 : Math.max(0, later - 1);
}

// The moment that a hash asks for, null for none; and the hash that asks for another.
export function asked(hash) {
  const at = new URLSearchParams(hash.replace(/^#/, "")).get("at");
  return at === null || at === "" || !Number.isFinite(Number(at)) ? null : Number(at);
}

export function asking(hash, at) {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  if (at === null) said.delete("at");
  else said.set("at", at.toFixed(3));
  return said.size ? `#${said}` : "";
}

export class Moments {
  // `find` gives a model by its id.
  constructor(told, find) {
    this.moments = told.at_s;
    this.failures = told.failures;
    this.pool = told.pool;
    this.place = told.at_s.length - 1;
    this.views = told.views.map((id) => ({ id, tracks: [] }));
    this.live = told.live;
    for (const [id, name, steps, view] of told.tracks) {
      this.views[view].tracks.push({ model: find(told.ids[id]), name, now: steps.length - 1,
        places: steps.map(([place]) => place), values: steps.map(([, value]) => value) });
    }
  }

  // Go to a place; only the live views show it at once.
  go(place) {
    this.place = place;
    for (const view of this.live) this.draw(this.views[view]);
  }

  // Show everything as it was at a place.
  show(place) {
    this.place = place;
    for (const view of this.views) this.draw(view);
  }

  draw(view) {
    for (const [track, now] of this.changes(view)) {
      track.now = now;
      track.model[track.name] = this.value(track.values[now]);
    }
  }

  // The tracks of a view that have another value at the present place, with its number.
  changes({ tracks }) {
    return tracks.map((track) => [track, placeOf(track.places, this.place)])
      .filter(([track, now]) => now !== track.now);
  }

  value(told) {
    if (typeof told === "number") return this.pool[told];
    return Object.fromEntries(Object.entries(told).map(([name, at]) => [name, this.pool[at]]));
  }

  get isAtEnd() {
    return this.place === this.moments.length - 1;
  }

  // Where a slider at `at` leads: a step to the right is one to the next moment at least.
  near(at) {
    const place = placeOf(this.moments, at);
    const isOn = place === this.place && at > this.moments[place] + 1e-9;
    return isOn ? Math.min(place + 1, this.moments.length - 1) : place;
  }

  // The place of the next failure, or of the one before where `direction` is -1; -1 for none.
  failure(direction) {
    const { failures, place } = this;
    if (direction > 0) return failures.find((each) => each > place) ?? -1;
    return failures.filter((each) => each < place).at(-1) ?? -1;
  }
}

// Whether the view with this root is on the screen, or nearly.
function isSeen(id) {
  const room = window.innerHeight / 2;
  const { top, bottom } = document.querySelector(`[data-root-id="${id}"]`).getBoundingClientRect();
  return bottom > -room && top < window.innerHeight + room;
}

// Join the page's slider and buttons with what was kept.
class Hands {
  constructor(moments, { slider, before, after, newest }) {
    Object.assign(this, { moments, slider, before, after, newest, kept: null });
    document.addEventListener("gemini-slide", ({ detail }) => this.go(moments.near(detail)));
    document.addEventListener("gemini-jump", ({ detail }) => this.go(moments.failure(detail)));
    document.addEventListener("gemini-newest", () => this.go(moments.moments.length - 1));
    window.addEventListener("hashchange", () => this.arrive());
    for (const event of ["scroll", "resize"]) window.addEventListener(event, () => this.rest());
    window.addEventListener("beforeprint", () => moments.show(moments.place));
    this.arrive();
  }

  arrive() {
    const at = asked(window.location.hash), { moments } = this;
    this.go(at === null ? moments.moments.length - 1 : placeOf(moments.moments, at));
  }

  // Draw what is on the screen once the slider rests.
  rest() {
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.drawNext(), RESTS_MS);
  }

  drawNext() {
    const { moments } = this, at = moments.isAtEnd ? null : moments.moments[moments.place];
    if (this.kept !== at) {
      this.kept = at;
      document.dispatchEvent(new CustomEvent("gemini-look-back", { detail: at }));
      this.keep(at);
    }
    const next = moments.views.find((view) => isSeen(view.id) && moments.changes(view).length);
    if (!next) return;
    moments.draw(next);
    this.resting = setTimeout(() => requestAnimationFrame(() => this.drawNext()));
  }

  go(place) {
    const { moments } = this;
    if (place >= 0 && place !== moments.place) {
      moments.go(place);
      this.rest();
    }
    this.slider.value = moments.moments[moments.place];
    this.before.disabled = moments.failure(-1) < 0;
    this.after.disabled = moments.failure(1) < 0;
    this.newest.disabled = moments.isAtEnd;
    document.documentElement.dataset.moment = String(moments.place);
  }

  keep(at) {
    const { location, history } = window, hash = asking(location.hash, at);
    const rest = location.href.replace(/#.*$/, "");
    if (hash !== location.hash) history.replaceState(history.state, "", rest + (hash || "#"));
  }
}

// Once Bokeh shows the page.
export async function mountMoments(packed, hands) {
  const told = JSON.parse(new TextDecoder().decode(await unpacked(packed)));
  const find = (id) => window.Bokeh?.documents[0]?.get_model_by_id(id);
  while (!find(hands.slider)) {
    await new Promise((resolve) => { requestAnimationFrame(resolve); });
  }
  const named = Object.entries(hands).map(([name, id]) => [name, find(id)]);
  nameHandles();
  return new Hands(new Moments(told, find), Object.fromEntries(named));
}
