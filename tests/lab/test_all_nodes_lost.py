"""A lab that has lost all of its nodes asks for new ones, once, and ends if none come."""

from gemini_lab.lab.agent_cluster import ALONE_S, AllNodesLost

LOOKS = range(200)


def verdicts(*, coming=(), silent=(), connected=()):
    """What is decided at each look; the given looks find something else than an empty store."""
    alone, found = AllNodesLost(), []
    for look in LOOKS:
        found.append(
            alone.look(
                is_connected=look in connected,
                is_coming=look in coming,
                is_empty=look not in silent,
            )
        )
        if found[-1] == "end":
            break
    return found


def test_new_machines_are_asked_for_once_and_then_the_run_ends():
    found = verdicts()
    assert found.count("bring") == 1
    assert (found[-1], len(found)) == ("end", ALONE_S)


def test_nobody_is_asked_while_an_agent_is_connected():
    assert set(verdicts(connected=LOOKS)) == {"wait"}


def test_a_store_that_is_away_or_still_names_the_dead_delays_the_asking_and_no_more():
    found = verdicts(silent=range(20))
    assert found.index("bring") == 20
    assert found.count("bring") == 1


def test_a_machine_that_is_on_its_way_is_waited_for():
    found = verdicts(coming=range(5, 150))
    assert found[-1] == "wait"
    assert "end" not in found


def test_who_loses_all_nodes_again_asks_again():
    assert verdicts(connected=range(10, 20)).count("bring") == 2
