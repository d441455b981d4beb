// The two places of a timeline: a Panel component and a saved page.

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

// An aligned buffer of the bytes that Panel hands over.
export function asBuffer(data) {
  if (data === undefined || data === null) return new ArrayBuffer(0);
  if (data instanceof ArrayBuffer) return data;
  return data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength);
}

// Panel calls this; each message is acknowledged once it has been drawn.
export function render({ model }) {
  const holder = document.createElement("div");
  holder.style.width = "100%";
  const timeline = mount(holder);
  timeline.answeredBy((look) => model.send_msg({ look }));
  timeline.keepAddress(new Address(window));
  const take = (message) => {
    const { meta, columns } = message.meta ? message : message.data ?? {};
    const drawn = () => meta.seq && model.send_msg({ drawn: meta.seq });
    if (meta) timeline.push(meta, asBuffer(columns), drawn);
  };
  model.on("msg:custom", take);
  model.send_msg({ ready: true });
  model.on("remove", () => {
    model.off("msg:custom", take);
    timeline.destroy();
  });
  return holder;
}

export default { render };
