"""The ring of lab 03: clicks and keys kill machines, and what is lost is said at once."""

import json
from typing import Any

import pytest

from gemini_lab.placement import plan_placement
from gemini_lab_course.play import SCRIPT

RACKS = [0, 0, 1, 1]


@pytest.fixture
def ring(open_page: Any) -> Any:
    """A page with the ring of four machines, as anywidget calls the script."""
    page = open_page()
    holders = [list(kept) for kept in plan_placement(nodes=4, replicas=2, strategy="ring").holders]
    state = {"nodes": 4, "replicas": 2, "racks": 2, "strategy": "ring"}
    state |= {"holders": holders, "rack_of": RACKS}
    page.set_content("<div id=ring></div>")
    page.add_script_tag(
        type="module",
        content=SCRIPT.read_text().replace("export default { render };", "").replace("export ", "")
        + f"const state = {json.dumps(state)};"
        "window.model = {get: (n) => state[n], set: (n, v) => {state[n] = v},"
        " save_changes() {}, on(_, f) {this.change = f}};"
        "render({model: window.model, el: document.getElementById('ring')});",
    )
    page.get_by_role("status").wait_for()
    return page


def test_a_click_kills_a_machine_and_the_second_neighbour_takes_a_shard_with_it(ring: Any) -> None:
    said = ring.get_by_role("status")
    ring.get_by_role("button", name="machine 1, alive, rack 0").click()
    assert "Machine 1 is dead, and every shard" in said.text_content()
    ring.get_by_role("button", name="machine 2, alive, rack 1").press("Enter")
    assert "every copy of shard 1 is lost" in said.text_content()
    assert "You have found 1 fatal set of 2 machines" in said.text_content()
    ring.get_by_role("button", name="machine 1, dead, rack 0").press(" ")
    assert "every shard is still in some memory" in said.text_content()
    ring.get_by_role("button", name="Lose rack 0").click()
    assert "every copy of shard 0 is lost" in said.text_content()
    assert "You have found 2 fatal sets" in said.text_content()
    ring.get_by_role("button", name="Count the fatal sets of 2").click()
    assert "4 sets of 2 machines are fatal: 0+1, 0+3, 1+2, 2+3." in said.text_content()


def test_on_a_phone_all_settings_are_in_sight(ring: Any) -> None:
    ring.set_viewport_size({"width": 390, "height": 800})
    assert ring.evaluate("document.documentElement.scrollWidth") <= 390


def test_another_placement_begins_with_all_machines_alive(ring: Any) -> None:
    ring.get_by_role("button", name="machine 1, alive, rack 0").click()
    ring.get_by_label("placement").select_option("group")
    assert ring.evaluate("window.model.get('strategy')") == "group"
    ring.evaluate("window.model.change()")
    assert ring.get_by_role("button", name="alive").count() == 4
    assert "Click a machine" in ring.get_by_role("status").text_content()
