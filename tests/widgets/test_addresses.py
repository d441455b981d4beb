"""Where a page is reached."""

import pytest

pytest.importorskip("bokeh")

from gemini_lab_widgets.dashboard import (
    EVERYWHERE,
    TEMPLATE,
    Dashboard,
    link_of,
    origins_of,
    reached_at,
)
from gemini_lab_widgets.serve import address_of, parser

from gemini_lab.errors import ConfigError


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    for name in (TEMPLATE, "JUPYTERHUB_SERVICE_PREFIX", "JUPYTERHUB_PUBLIC_URL", "JUPYTERHUB_HOST"):
        monkeypatch.delenv(name, raising=False)


def test_a_server_is_reached_where_it_listens():
    assert link_of("127.0.0.1", 5006) == "http://127.0.0.1:5006/"


def test_one_that_listens_everywhere_names_no_address_of_this_machine_alone():
    link = link_of(EVERYWHERE, 5006)
    assert not any(name in link for name in ("0.0.0.0", "127.", "localhost"))
    if reached_at():
        assert link == f"http://{reached_at()[0]}:5006/"


@pytest.mark.parametrize(
    ("asked", "address"),
    [
        ([], "127.0.0.1"),
        (["--public"], EVERYWHERE),
        (["--public", "--address", "10.0.0.7"], "10.0.0.7"),
    ],
)
def test_the_command_listens_to_this_machine_alone_unless_it_is_public(asked, address):
    assert address_of(parser().parse_args(asked)) == address


def test_behind_a_hub_the_page_comes_through_its_proxy(monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ada/")
    assert link_of("127.0.0.1", 5006) == "/user/ada/proxy/5006/"
    monkeypatch.setenv("JUPYTERHUB_PUBLIC_URL", "https://hub.example/user/ada/")
    assert "hub.example" in origins_of("127.0.0.1", 5006)


def test_a_template_says_where_else(monkeypatch):
    monkeypatch.setenv("ROOM", "b12/")
    monkeypatch.setenv(TEMPLATE, "https://lab.example/{ROOM}/proxy/{port}")
    assert link_of("127.0.0.1", 5006) == "https://lab.example/b12/proxy/5006/"
    assert link_of("127.0.0.1", 5006, "/x/{port}") == "/x/5006/"
    with pytest.raises(ConfigError, match="DOOR"):
        link_of("127.0.0.1", 5006, "/{DOOR}/{port}/")


@pytest.mark.parametrize("port", [-1, 99_999])
def test_what_is_no_port_is_refused_with_those_there_are(port):
    with pytest.raises(ConfigError, match=f"there is no port {port}; name one up to 65535"):
        Dashboard(lambda: None, port=port)
