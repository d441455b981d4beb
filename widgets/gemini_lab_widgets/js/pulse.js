// The page's pulse. The server says how many beats it sent; the page answers once it has drawn
// what came with them, so a slow page, or one in a hidden tab, is sent nothing more until then.
// When the connection is lost, the page says so, and comes back when the server does.

import { nameHandles } from "./handles.js";

const AGAIN_MS = 3000;
const DRAWN_MS = 1000; // after a beat, Bokeh has drawn what came with it

export function render({ model, view }) {
  const line = document.createElement("p");
  line.setAttribute("role", "status");
  line.hidden = true;

  let drawing;
  const answer = () => requestAnimationFrame(() => {
    model.seen = model.beat;
    nameHandles();
    clearTimeout(drawing);
    drawing = setTimeout(() => document.dispatchEvent(new CustomEvent("gemini-drawn")), DRAWN_MS);
  });
  model.on("beat", answer);
  answer();
  const name = () => { if (model.title) document.title = model.title; };
  model.on("title", name);
  name(); // it may have changed since the page was asked for
  const tell = () => {
    const url = new URL(location);
    for (const [name, values] of Object.entries(model.address)) {
      url.searchParams.delete(name);
      for (const value of values) url.searchParams.append(name, value);
    }
    if (url.href !== location.href) history.replaceState(null, "", url);
  };
  model.on("address", tell);
  tell(); // what the address asked for may not be there

  const retry = async () => {
    try {
      const there = await fetch("./login", { cache: "no-store" });
      if (there.ok) return location.reload();
    } catch { /* the server is still away */ }
    setTimeout(retry, AGAIN_MS);
  };
  view.model.document?.on_event("connection_lost", () => {
    const at = new Date().toLocaleTimeString();
    line.textContent = `The server is away since ${at}; the page shows what it knew then.`;
    line.hidden = false;
    document.documentElement.dataset.away = at; // the page's head says so, too
    setTimeout(retry, AGAIN_MS);
  });
  return line;
}
