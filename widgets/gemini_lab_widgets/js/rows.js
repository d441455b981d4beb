// Which lanes stand in which row.

const MOST_ROWS = 64;
export const NAME = "name", WORST = "worst", RACK = "rack";

// One row a lane, or one for a group of neighbours when there are too many; groups open on a click.
// `order` is by name, by what training felt (worst first), or by rack; only lanes whose name or
// rack has `find` in it are shown.
export class Rows {
  constructor() {
    this.lanes = [];
    this.racks = []; // of each lane, as far as known
    this.costs = []; // of each lane the seconds that training felt
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
    this.grouped = shown.length > MOST_ROWS;
    this.groupsOf(shown).forEach((group, number) => this.putGroup(group, number));
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
    if (members.length === 1 || this.open.has(group)) {
      for (const one of members) this.put([one], one.name, group);
    } else {
      this.put(members, label, group);
    }
  }

  put(members, label, group) {
    for (const { lane } of members) this.of[lane] = this.list.length;
    this.list.push({ label, group, size: members.length });
  }

  toggle(row) {
    const { group } = this.list[row];
    if (!this.open.delete(group)) this.open.add(group);
  }
}
