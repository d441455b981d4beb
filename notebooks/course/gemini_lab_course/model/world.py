"""A lab without I/O: the real `RootAgent` among modelled agents, workers, links, store and tier.

In layers: what there is of it and what must hold (`judged`), what may happen (`actions`), and here
how it comes to rest, as each run must that nothing befalls any more.
"""

from gemini_lab_course.model.actions import STEP_S, ActingWorld
from gemini_lab_course.model.truth import BrokenError

CALM_ROUNDS = 600
CALM_EPOCHS = 14
PAUSED_S = 100.0  # the most that passes here between two looks


class World(ActingWorld):
    """A lab in which things happen, and which then comes to rest."""

    def calm(self) -> None:
        """Check that without faults and with machines enough the run ends in reasonable time."""
        self._mend_all()
        first = self._epoch()
        idle_s, began_s = STEP_S, self.now_s
        for _ in range(CALM_ROUNDS):
            if self.told.done or self.told.failed:
                return
            idle_s = STEP_S if self._round() else min(2 * idle_s, 100.0)
            self.now_s += idle_s
            self.renew()
            self._have_a_person_decide(waited_s=self.now_s - began_s)
            if self._epoch() - first > CALM_EPOCHS:
                raise BrokenError(f"{CALM_EPOCHS} epochs without a fault: {self._stuck()}")
        raise BrokenError(f"the run does not end: {self._stuck()}")

    def _mend_all(self) -> None:
        self._fuses.clear()
        self.do_store_up(1)
        self.do_tier_up()
        for number, node in enumerate(self.nodes.values()):
            self.do_thaw(number)
            self.do_join(number)
            if not node.is_alive:
                node.refuses = True
        self._mend_machines()
        enough = self.order.seats.machines if self.shape.is_refilled else self.shape.nodes
        while sum(node.is_alive for node in self.nodes.values()) < enough:
            self._add_node()

    def _mend_machines(self) -> None:
        """Have as many machines well as train, and no more."""
        lacking = [number for number, node in enumerate(self.nodes.values()) if node.lacks]
        alive = sum(node.is_alive for node in self.nodes.values())
        for number in lacking[: max(0, self.shape.nodes - alive + len(lacking))]:
            self.do_regain(number)

    def _round(self) -> bool:
        """Do what every part has to do; return whether anything was."""
        has_moved = False
        for node in list(self.nodes.values()):
            self.poll(node)
        for shell in self.shells():
            while shell.act():
                pass
        for node in list(self.nodes.values()):
            while node.hear() or node.work() or node.write():
                has_moved = True
            for shell in self.shells():
                while shell.listen(node.name):
                    has_moved = True
                    while shell.act():
                        pass
        return has_moved

    def _have_a_person_decide(self, *, waited_s: float) -> None:
        """Give up only what is really gone, as a person does."""
        for shell in self.shells():
            is_waiting = shell.root is not None and shell.root.state.phase == "waiting"
            if not is_waiting or waited_s < 100:
                continue
            assert shell.root is not None
            if shell.root.state.discarded.has_given_up:
                continue
            if self.now_s < shell.root.lifecycle.resumes_s + PAUSED_S:
                continue  # it pauses, or is about to go on, and waits for no version
            newest = self.newest_saved()
            known = shell.root.state.reached.newest
            is_hopeless = any(
                not self.nodes[name].is_alive for name in shell.root.state.nodes.silent
            )
            if newest and newest >= known and not self.flips and not is_hopeless:
                raise BrokenError(f"the root waits though version {newest} is there: {shell.said}")
            self.do_give_up()

    def _epoch(self) -> int:
        return 0 if self.store.state is None else self.store.state.epoch

    def _stuck(self) -> str:
        lines = [f"root {self.store.root}"]
        for shell in self.shells():
            if shell.root is not None:
                state = shell.root.state
                lines.append(f"{shell.record}: {state.phase} epoch {state.epoch} {state.members}")
        for node in self.nodes.values():
            worker = node.worker
            if worker is not None:
                lines.append(
                    f"{node.name}: rank {worker.rank} of epoch {worker.epoch}, stage "
                    f"{worker.stage}, version {worker.version} moving {worker.moving}"
                )
        return "; ".join(lines)
