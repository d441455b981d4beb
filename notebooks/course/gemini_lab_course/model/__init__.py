"""The recovery protocol without I/O: the real root agent among modelled agents.

the lab         world > actions > judged: it comes to rest, what may happen, what must hold
its machines    node > starting > agent: its worker trains, starts; its agent obeys
its root        shell, the acting half around a real `RootAgent`
the things      machines (links, slabs, store, tier), truth (which states may be combined)
"""
