// Which lanes stand in which row.

const MOST_ROWS = 64, MOST_GONE = 4, GONE = "gone";
export const NAME = "name", WORST = "worst", RACK = "rack";

// One row a lane, or one for a group of neighbours when there are too many; groups open on a click.
// Where more than a few nodes are gone, they share the last row. `order` is by name, by what training
// felt (worst first), or by rack; only lanes whose name or rack has `find` in it are shown.
export class Rows {
  constructor() {
    this.lanes = [];
    this.racks = []; // of each lane, as far as known
    this.costs = []; // of each lane the seconds that training felt
    this.gone = new Set(); // names of nodes that were lost or have left
    this.order = NAME;
    this.find = "";
    this.open = new Set();
    this.arrange(1);
  }

  arrange(replicas) {
    this.replicas = replicas;
    const shown = this.sorted();
    this.list = [];
    this.of = new Int32Array(Math.max(1, this.lanes.length)).fill(-1);
    const gone = this.find ? [] : shown.filter(({ name }) => this.gone.has(name));
    const isFolded = gone.length > MOST_GONE;
    const here = isFolded ? shown.filter(({ name }) => !this.gone.has(name)) : shown;
    this.grouped = here.length > MOST_ROWS;
    this.groupsOf(here).forEach((group, number) => this.putGroup(group, number));
    if (isFolded) this.putGroup({ members: gone, label: `${gone.length} gone nodes` }, GONE);
    this.key = this.of.join();
    this.shown = shown.length;
  }

  // The lanes that are shown, in order.
  sorted() {
    const collator = new Intl.Collator("en", { numeric: true }), { order } = this;
    const find = this.find.trim().toLowerCase();
    const all = this.lanes.map((name, lane) =>
      ({ name, lane, rack: this.racks[lane] ?? "", cost: this.costs[lane] ?? 0 }));
    return all.filter(({ name, rack }) => `${name} ${rack}`.toLowerCase().includes(find))
      .sort((a, b) => (b.name === "lab") - (a.name === "lab")
        || (order === WORST && b.cost - a.cost)
        || (order === RACK && collator.compare(a.rack, b.rack))
        || collator.compare(a.name, b.name));
  }

  // Lanes that share a row as long as nobody opens it, each group with its label.
  groupsOf(shown) {
    if (!this.grouped) return shown.map((one) => ({ members: [one], label: one.name }));
    if (this.order === RACK && this.racks.some(Boolean)) {
      const racks = new Map();
      for (const one of shown) racks.set(one.rack, [...(racks.get(one.rack) ?? []), one]);
      return [...racks].map(([rack, members]) => ({ members, label: rack || "no rack" }));
    }
    if (this.order === WORST) {
      const first = shown.slice(0, MOST_ROWS - 1), rest = shown.slice(MOST_ROWS - 1);
      return [...first.map((one) => ({ members: [one], label: one.name })),
        { members: rest, label: `${rest.length} others` }];
    }
    let size = Math.ceil(shown.length / MOST_ROWS);
    size = Math.ceil(size / this.replicas) * this.replicas;
    return Array.from({ length: Math.ceil(shown.length / size) }, (_, n) => {
      const members = shown.slice(n * size, (n + 1) * size);
      return { members, label: `${members[0].name} … ${members.at(-1).name}` };
    });
  }

  putGroup({ members, label }, group) {
    const isShared = members.length > 1;
    if (isShared && !this.open.has(group)) {
      this.put(members, { label, group, isShared });
    } else {
      for (const one of members) this.put([one], { label: one.name, group, isShared });
    }
  }

  put(members, row) {
    for (const { lane } of members) this.of[lane] = this.list.length;
    this.list.push({ ...row, size: members.length });
  }

  // Open the group of a row, or close it.
  toggle(row) {
    const { group, isShared } = this.list[row];
    if (isShared && !this.open.delete(group)) this.open.add(group);
  }
}
