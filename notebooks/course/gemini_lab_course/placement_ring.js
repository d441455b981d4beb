// A ring of machines that a reader kills by clicks: which shards are lost, and which sets are fatal.

const GREEN = "#2e8540", RED = "#c0392b", GREY = "#8a8a8a", BLUE = "#3b6fb6";
const SVG = "http://www.w3.org/2000/svg";
const LAYOUTS = { group: "groups", ring: "ring", racks: "groups across racks" };

function made(tag, attributes = {}, text = "") {
  const element = document.createElementNS(tag === "svg" || SHAPES.has(tag) ? SVG : "http://www.w3.org/1999/xhtml", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}
const SHAPES = new Set(["circle", "text", "path", "g", "title", "line"]);

export function lostShards(holders, dead) {
  return holders.flatMap((nodes, shard) => (nodes.every((node) => dead.has(node)) ? [shard] : []));
}

export function fatalSets(holders, size) {
  const sets = [];
  const grow = (from, chosen) => {
    if (chosen.length === size) {
      if (lostShards(holders, new Set(chosen)).length) sets.push(chosen);
      return;
    }
    for (let node = from; node < holders.length; node++) grow(node + 1, [...chosen, node]);
  };
  grow(0, []);
  return sets;
}

function chooser(label, values, model, name) {
  const box = made("label", { style: "margin-right:1.2em;white-space:nowrap" }, label + " ");
  const select = made("select", { "aria-label": label });
  for (const [value, text] of values) select.append(made("option", { value }, text));
  select.value = model.get(name);
  select.addEventListener("change", () => {
    model.set(name, typeof model.get(name) === "number" ? Number(select.value) : select.value);
    model.save_changes();
  });
  box.append(select);
  return box;
}

function slider(label, low, high, model, name) {
  const box = made("label", { style: "margin-right:1.2em;white-space:nowrap" }, label + " ");
  const range = made("input", { type: "range", min: low, max: high, "aria-label": label, style: "vertical-align:middle;width:9em" });
  const value = made("span", {}, String(model.get(name)));
  range.value = model.get(name);
  range.addEventListener("input", () => {
    value.textContent = range.value;
    model.set(name, Number(range.value));
    model.save_changes();
  });
  box.append(range, " ", value);
  return box;
}

function render({ model, el }) {
  const dead = new Set(), found = new Set();
  el.style.cssText = "max-width:760px;font-family:var(--jp-ui-font-family,sans-serif)";
  const settings = made("div", { style: "margin:.3em 0;display:flex;flex-wrap:wrap" });
  const drawing = made("div"), said = made("p", { role: "status", style: "min-height:2.6em;margin:.3em 0" });
  const buttons = made("div");
  settings.append(
    slider("machines", 4, 16, model, "nodes"),
    slider("copies", 2, 4, model, "replicas"),
    slider("racks", 2, 4, model, "racks"),
    chooser("placement", Object.entries(LAYOUTS), model, "strategy"),
  );
  el.append(settings, drawing, said, buttons);

  const named = (what, numbers) => `${what}${numbers.length === 1 ? "" : "s"} ${numbers.join(", ")}`;
  const tell = () => {
    const holders = model.get("holders"), size = model.get("replicas");
    const lost = lostShards(holders, dead);
    const names = [...dead].sort((a, b) => a - b).join(", ");
    if (lost.length && dead.size === size) found.add(names);
    const number = found.size === 1 ? "1 fatal set" : `${found.size} fatal sets`;
    const dying = `${dead.size === 1 ? "Machine" : "Machines"} ${names} ${dead.size === 1 ? "is" : "are"} dead`;
    const tally = ` You have found ${number} of ${size} machines.`;
    said.style.color = lost.length ? RED : "";
    said.textContent = !dead.size
      ? "Click a machine to kill it, or bring it back. Each number is a machine with its own shard." + tally
      : lost.length
        ? `${dying}: every copy of ${named("shard", lost)} is lost.` + tally
        : `${dying}, and every shard is still in some memory.` + tally;
  };

  const draw = () => {
    const holders = model.get("holders"), racks = model.get("rack_of"), count = holders.length;
    const lost = new Set(lostShards(holders, dead));
    const at = (node, radius) => {
      const angle = (2 * Math.PI * node) / count - Math.PI / 2;
      return [230 + radius * Math.cos(angle), 185 + radius * Math.sin(angle)];
    };
    const svg = made("svg", { viewBox: "0 0 460 370", width: 460, style: "max-width:100%;height:auto" });
    holders.forEach((nodes, owner) => nodes.slice(1).forEach((holder) => {
      const [x0, y0] = at(owner, 122), [x1, y1] = at(holder, 122);
      const isGone = dead.has(holder) || dead.has(owner);
      svg.append(made("path", {
        d: `M${x0} ${y0}Q${(x0 + x1) / 2 * 0.7 + 69} ${(y0 + y1) / 2 * 0.7 + 55.5} ${x1} ${y1}`,
        fill: "none", stroke: lost.has(owner) ? RED : BLUE, "stroke-width": 1.6,
        opacity: isGone && !lost.has(owner) ? 0.25 : 0.9,
      }));
    }));
    holders.forEach((_, node) => {
      const [x, y] = at(node, 140), isDead = dead.has(node);
      const colour = lost.has(node) ? RED : isDead ? GREY : GREEN;
      const group = made("g", {
        tabindex: 0, role: "button", style: "cursor:pointer", "aria-pressed": isDead,
        "aria-label": `machine ${node}, ${isDead ? "dead" : "alive"}, rack ${racks[node]}`,
      });
      group.append(made("title", {}, `machine ${node} keeps shards ${holders.flatMap((n, shard) => (n.includes(node) ? [shard] : [])).join(", ")}`));
      group.append(made("circle", { cx: x, cy: y, r: 17, fill: isDead ? "none" : colour, stroke: colour, "stroke-width": 2.5, "stroke-dasharray": isDead ? "4 3" : "none" }));
      group.append(made("text", { x, y: y + 5, "text-anchor": "middle", "font-size": 14, "font-weight": 600, fill: isDead ? colour : "#fff" }, String(node)));
      const [tx, ty] = at(node, 170);
      group.append(made("text", { x: tx, y: ty + 4, "text-anchor": "middle", "font-size": 10, fill: "currentColor", opacity: 0.7 }, "r" + racks[node]));
      const strike = () => {
        if (!dead.delete(node)) dead.add(node);
        draw();
        drawing.querySelectorAll("g")[node].focus();
      };
      group.addEventListener("click", strike);
      group.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); strike(); }
      });
      svg.append(group);
    });
    drawing.replaceChildren(svg);
    buttons.replaceChildren();
    const press = (label, act) => {
      const button = made("button", { type: "button", class: "jupyter-button lm-Widget", style: "margin:0 .5em .4em 0" }, label);
      button.addEventListener("click", act);
      buttons.append(button);
    };
    press("Bring all back", () => { dead.clear(); draw(); });
    for (const rack of [...new Set(racks)]) press(`Lose rack ${rack}`, () => {
      dead.clear();
      racks.forEach((each, node) => each === rack && dead.add(node));
      draw();
    });
    press(`Count the fatal sets of ${model.get("replicas")}`, () => {
      const sets = fatalSets(holders, model.get("replicas"));
      const some = sets.slice(0, 8).map((set) => set.join("+")).join(", ");
      said.style.color = "";
      said.textContent = `${sets.length} sets of ${model.get("replicas")} machines are fatal: ${some}${sets.length > 8 ? ", ..." : ""}.`;
    });
    tell();
  };
  model.on("change:holders", () => { dead.clear(); found.clear(); draw(); });
  draw();
}

export default { render };
