// Which lanes stand in which row.

const MOST_ROWS = 64;

// One row a lane, or one for a group of neighbours when there are too many; groups open on a click.
export class Rows {
  constructor() {
    this.lanes = [];
    this.open = new Set();
    this.arrange(1);
  }

  arrange(replicas) {
    const order = this.lanes.map((name, lane) => ({ name, lane }));
    const collator = new Intl.Collator("en", { numeric: true });
    order.sort((a, b) => (b.name === "lab") - (a.name === "lab")
      || collator.compare(a.name, b.name));
    let size = Math.ceil(order.length / MOST_ROWS);
    if (size > 1) size = Math.ceil(size / replicas) * replicas;
    this.list = [];
    this.of = new Int32Array(Math.max(1, this.lanes.length));
    for (let at = 0; at < order.length; at += Math.max(1, size)) {
      const members = order.slice(at, at + Math.max(1, size));
      const group = at / Math.max(1, size);
      if (members.length === 1 || this.open.has(group)) {
        for (const one of members) this.put([one], one.name, group);
      } else {
        this.put(members, `${members[0].name} … ${members.at(-1).name}`, group);
      }
    }
    this.grouped = size > 1;
    this.key = this.of.join();
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
