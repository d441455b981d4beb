"""All that may happen in a modelled lab.

Whatever happens is one action, a tuple of a name and whole numbers, and every action can be tried
in every state (where it makes no sense nothing happens): so any list of actions is a schedule, and
so is what is left of it when some are taken away.
"""

import random
from collections.abc import Callable

from gemini_lab_course.model.judged import JudgedWorld
from gemini_lab_course.model.machines import LEASE_S, TierRecord
from gemini_lab_course.model.node import Node
from gemini_lab_course.model.shell import Shell

Action = tuple[str, *tuple[int, ...]]
STEP_S = 0.02  # that time goes on with each move


class ActingWorld(JudgedWorld):
    """A lab in which things happen; each action has a method `do_NAME`."""

    # -- actions ---------------------------------------------------------------------------------

    def do(self, action: Action) -> None:
        """Do this, if it can be done."""
        name, *numbers = action
        handler: Callable[..., object] = getattr(self, f"do_{name}")
        handler(*numbers)

    def do_go(self, seed: int, moves: int) -> None:
        """So many moves of whoever comes first: messages, workers, roots, time."""
        rng = random.Random(seed)
        names = list(self.nodes)
        for _ in range(moves):
            node = self.nodes[names[int(rng.random() * len(names))]]
            self._move(node, rng)
            self.now_s += STEP_S
            self.renew()

    def do_go_halfway(self, seed: int, most: int) -> None:
        """Go on until a version is on some nodes and not yet on all, in another epoch than before.

        That is a rare moment, and one in which most can go wrong.
        """
        rng = random.Random(seed)
        for _ in range(most):
            newest = max(self.jobs.values(), key=lambda job: job.order.epoch, default=None)
            if newest is not None and newest.order.epoch > self._halfway and newest.is_halfway:
                self._halfway = newest.order.epoch
                return
            self.do_go(rng.randrange(10**6), 1)

    def _move(self, node: Node, rng: random.Random) -> None:
        kind = rng.random()
        if kind < 0.25:
            node.hear()
        elif kind < 0.6:
            for _ in range(1 + int(rng.random() * 3)):
                if not node.work() and rng.random() < 0.1:
                    node.notice_gone_peers()
        elif kind < 0.65:
            node.write()
        elif kind < 0.72:
            self.poll(node)
        else:
            many = 1 + int(rng.random() * 4)
            for shell in self.shells():
                for _ in range(many):
                    if not (shell.listen(node.name) if kind < 0.86 else shell.act()):
                        break

    def do_wait(self, tenths: int) -> None:
        """Time goes by, in which nobody comes to act."""
        self.now_s += tenths / 10
        self.renew()

    def do_kill(self, number: int, refuses: int) -> None:
        """Kill a machine, or its agent alone, which the machine then reports."""
        node = self._node(number)
        if not node.is_alive or self._survivors() <= 1:
            return
        node.is_alive, node.is_frozen, node.refuses = False, False, bool(refuses)
        node.kill_worker()
        node.slab, node.shell = None, None
        node.aside.clear()
        if node.link is not None:
            node.link.cut(0, 99)
        for other in self.nodes.values():
            if other.shell is not None:
                keeper = other.shell.keepers.get(node.name)
                if keeper is not None and keeper.link is not None and refuses:
                    keeper.link.is_broken = True
        self.safety.note_dead(node.name)
        self.check_safety()

    def do_add(self) -> None:
        """Bring a machine, as the operator does."""
        if sum(node.is_alive for node in self.nodes.values()) < self.order.seats.machines:
            self._add_node()

    def do_freeze(self, number: int) -> None:
        node = self._node(number)
        node.is_frozen = node.is_alive

    def do_thaw(self, number: int) -> None:
        self._node(number).is_frozen = False

    def do_thaw_all(self) -> None:
        """Thaw all frozen nodes, and reach them again."""
        for number in range(len(self.nodes)):
            self.do_thaw(number)
            self.do_join(number)

    def do_kill_group(self, rank: int) -> None:
        """Kill all nodes that keep a shard."""
        for number in self._keepers_of(rank):
            self.do_kill(number, 1)

    def do_freeze_group(self, rank: int) -> None:
        """Freeze all nodes that keep a shard."""
        for number in self._keepers_of(rank):
            self.do_freeze(number)

    def _keepers_of(self, rank: int) -> list[int]:
        safety, names = self.safety, list(self.nodes)
        if not safety.members:
            return []
        positions = safety.holders[rank % len(safety.holders)]
        return [names.index(str(safety.members[position])) for position in positions]

    def do_cut(self, number: int, arrive_at_agent: int, arrive_at_root: int) -> None:
        """Break the connection between a root and an agent."""
        link = self._node(number).link
        if link is not None:
            link.cut(arrive_at_agent, arrive_at_root)

    def do_part(self, number: int, sees_store: int) -> None:
        """Cut an agent off from all others; its worker's network is another."""
        node = self._node(number)
        node.is_cut_off, node.sees_store = True, bool(sees_store)

    def do_join(self, number: int) -> None:
        """Mend the network."""
        node = self._node(number)
        node.is_cut_off, node.sees_store = False, True

    def do_store_down(self) -> None:
        self.store.is_up = False

    def do_store_up(self, keeps_leases: int) -> None:
        """Bring the store back; if it counted on, leases ran out meanwhile."""
        if self.store.is_up:
            return
        self.store.is_up = True
        if keeps_leases:
            self.store.leases = dict.fromkeys(self.store.leases, self.now_s + LEASE_S)

    def do_tier_down(self) -> None:
        self.tier.is_up = False

    def do_tier_up(self) -> None:
        self.tier.is_up, self.tier.is_full = True, False
        self.tier.is_mute, self.tier.shown = False, None

    def do_tier_mute(self) -> None:
        self.tier.is_mute = True

    def do_tier_stale(self) -> None:
        """Freeze the tier's list, as a cached folder does."""
        self.tier.shown = self.tier.stored()

    def do_tier_full(self) -> None:
        self.tier.is_full = True

    def do_flip(self, number: int, which: int) -> None:
        """Turn a bit of a whole copy."""
        copies = self._node(number).copies()
        if copies and self._node(number).is_alive:
            copies[which % len(copies)].is_good = False
            self.flips += 1
            self.safety.is_excused = True

    def do_kill_worker(self, number: int) -> None:
        node = self._node(number)
        if node.can_act and node.worker is not None:
            self.worker_kills += 1
            node.exit_worker(-9)

    def do_lack(self, number: int) -> None:
        """No worker can be started on a machine any more; one that runs goes on."""
        self._node(number).lacks = True

    def do_regain(self, number: int) -> None:
        """Workers can be started there again."""
        node = self._node(number)
        if node.lacks:
            node.lacks, node.well_since_s = False, self.now_s

    def do_sever_worker(self, number: int) -> None:
        node = self._node(number)
        if node.can_act:
            node.sever_worker()

    def do_hang_worker(self, number: int) -> None:
        node = self._node(number)
        if node.worker is not None:
            node.worker.is_hung = True
            self.worker_kills += 1

    def do_fuse(self, instructions: int, how: int) -> None:
        """Kill (0), freeze (1) or cut (2) the root's node after so many more instructions."""
        if self.store.root is not None:
            self._fuses[self.store.root.name] = (instructions, ("kill", "freeze", "cut")[how % 3])

    def do_drain(self, number: int) -> None:
        """Ask for a machine to be free, as a person does."""
        node, drains = self._node(number), self.store.drains
        if node.is_alive and self.store.is_up:
            drains.pop(node.name, None)
            drains[node.name] = max(drains.values(), default=0) + 1

    def do_resize(self, nodes: int) -> None:
        """Ask for another number of nodes, as a person does."""
        if self.store.is_up:
            before, _ = self.store.resize or (0, 0)
            self.store.resize = before + 1, 1 + nodes

    def do_rewind(self, depth: int) -> None:
        """Training goes back after the next update, once in each start."""
        job = max(self.jobs.values(), key=lambda one: one.order.epoch, default=None)
        if job is not None and job.updated and job.wish is None:
            _, newest = max(job.updated.values())
            job.wish = (newest + 1, depth)

    def do_cancel(self) -> None:
        self.store.cancel, self.is_cancelled = 1, True

    def do_give_up(self) -> None:
        self.store.give_up, self.has_given_up = (self.store.give_up or 0) + 1, True
        self.safety.is_excused = True

    def burn_fuse(self, node: Node) -> None:
        """Note that an instruction was carried out on this node."""
        if node.name not in self._fuses:
            return
        left, how = self._fuses.pop(node.name)
        if left > 0:
            self._fuses[node.name] = (left - 1, how)
            return
        number = list(self.nodes).index(node.name)
        if how == "cut":
            self.do_cut(number + 1, 0, 1)
        else:
            self.do((how, number, 1) if how == "kill" else (how, number))

    # -- the store, as agents see it -------------------------------------------------------------

    def renew(self) -> None:
        """Leases of nodes that reach the store stay; others run out."""
        if not self.store.is_up:
            return
        for name, until_s in list(self.store.leases.items()):
            node = self.nodes[name]
            if node.can_act and node.sees_store:
                self.store.leases[name] = self.now_s + LEASE_S
            elif self.now_s > until_s:
                self.store.drop(name)

    def poll(self, node: Node) -> None:
        """Read the store as an agent, and act on what it says."""
        if not node.can_act:
            return
        node.watch()
        if node.link is not None and node.link.is_broken and not node.link.to_agent:
            node.link = None
        if not node.reaches_store:
            node.is_store_away = True
            return
        if node.is_store_away:
            node.settled_s, node.is_store_away = self.now_s + 2 * LEASE_S, False
        store = self.store
        if node.name not in store.leases:
            store.leases[node.name] = self.now_s + LEASE_S
            return  # what it does about its old workers comes with the next look
        self._depose_the_dead(node)
        is_settled = self.now_s > node.settled_s
        if node.shell is not None:
            is_newest = store.term == node.shell.record.term
            if store.root is None and not is_settled and is_newest:
                store.root = node.shell.record
            elif store.root is not node.shell.record:
                node.shell.close()
            else:
                node.shell.observe(is_settled=is_settled)
        elif store.root is None and is_settled:
            store.term += 1
            store.root = TierRecord(name=node.name, term=store.term)
            node.shell = Shell(node, store.root)
        elif store.root is not None and store.root.name == node.name:
            node.shell = Shell(node, store.root)  # it resigned while the store was away
        node.end_older_worker()

    def _depose_the_dead(self, node: Node) -> None:
        record = self.store.root
        if record is not None and node.link is None and not node.is_cut_off:
            root = self.nodes[record.name]
            if not root.is_alive and root.refuses:
                self.store.root = None

    def _node(self, number: int) -> Node:
        names = list(self.nodes)
        return self.nodes[names[number % len(names)]]

    def _survivors(self) -> int:
        return sum(node.is_alive for node in self.nodes.values())
