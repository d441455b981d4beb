"""A store without etcd, and who is registered, or root agent, in it."""

import time

from gemini_lab.node.agent_machine import AgentMachine
from gemini_lab.node.membership import Membership
from gemini_lab.node.root_shell import RootShell


class StoreStandIn:
    """A store's keys; three agents are registered, whom nobody reaches."""

    def __init__(self):
        self.keys = {f"nodes/node-{n}": '{"address": "127.0.0.1:1"}' for n in range(3)}

    async def grant(self, ttl_s):
        return ttl_s

    async def put(self, key, value, **_):
        self.keys[key] = value

    async def create(self, key, value, **_):
        return self.keys.setdefault(key, value) is value

    async def put_if(self, values, *, guard, held):
        self.keys |= values if self.keys.get(guard) == held else {}
        return self.keys.get(guard) == held

    async def delete_if(self, key, held):
        return self.keys.get(key) == held and self.keys.pop(key) == held

    async def items(self):
        return dict(self.keys)

    async def get(self, keys):
        return {key: self.keys[key] for key in keys if key in self.keys}


def member(store, name):
    return Membership(
        store=store,
        streams=None,
        name=name,
        address=f"{name}:1",
        lease_s=2.0,
        machine=AgentMachine(),
    )


async def shell_in(store, *, emit=lambda _event: None, wall_s=time.time):
    """A root agent's shell on node-0, which holds the place."""
    membership = member(store, "node-0")
    await membership.register()
    machine = AgentMachine()
    machine.wall_s = wall_s
    shell = RootShell(
        membership=membership,
        record=await membership.campaign(await store.items()),
        token="secret",
        emit=emit,
        request_nodes=lambda _wanted, _reason: None,
        machine=machine,
    )
    return membership, shell
