// The three places of a timeline: a Panel component, an ipywidget and a saved page.

import { Address } from "./address.js";
import { savedLooks } from "./looks.js";
import { unpacked } from "./packed.js";
import { Timeline } from "./timeline.js";

// Put a timeline into `element`; its `push(meta, buffer, drawn)` feeds it.
export function mount(element) {
  const root = document.createElement("div");
  element.appendChild(root);
  const timeline = new Timeline(root);
  requestAnimationFrame(() => { timeline.restyle(); timeline.resize(); });
  return timeline;
}

// Show a saved run: `packed` is base64 of gzip of the columns, `cells` of the coverage of the whole
// run by lane, if the columns are not all of it.
export async function mountSaved(element, meta, packed, cells) {
  const timeline = mount(element);
  if (cells) {
    const shades = await unpacked(cells);
    timeline.answeredBy(savedLooks(meta.cells, shades, (look, buffer) =>
      timeline.push({ look }, buffer)));
  }
  timeline.keepAddress(new Address(window));
  document.addEventListener("gemini-look-back", ({ detail }) => timeline.lookBack(detail));
  timeline.push(meta, await unpacked(packed));
  return timeline;
}

// An aligned buffer of the bytes that a host hands over.
export function asBuffer(data) {
  if (data === undefined || data === null) return new ArrayBuffer(0);
  if (data instanceof ArrayBuffer) return data;
  return data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength);
}

// Panel and anywidget both call this; each message is acknowledged once it has been drawn. Panel's
// models send by `send_msg` and take the element that is returned; anywidget gives an element.
export function render({ model, el }) {
  const isPanel = typeof model.send_msg === "function";
  const send = (message) => (isPanel ? model.send_msg(message) : model.send(message));
  const holder = document.createElement("div");
  holder.style.width = "100%";
  if (!isPanel) el.appendChild(holder);
  const timeline = mount(holder);
  timeline.answeredBy((look) => send({ look }));
  if (isPanel) timeline.keepAddress(new Address(window));
  const take = (message, buffers) => {
    const { meta, columns } = message.meta ? message : message.data ?? {};
    const drawn = () => meta.seq && send({ drawn: meta.seq });
    if (meta) timeline.push(meta, asBuffer(columns ?? buffers?.[0]), drawn);
  };
  model.on("msg:custom", take);
  send({ ready: true });
  const leave = () => {
    model.off("msg:custom", take);
    timeline.destroy();
  };
  if (!isPanel) return leave;
  model.on("remove", leave);
  return holder;
}

export default { render };
