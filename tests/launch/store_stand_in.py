"""A store in this process's memory, whose answers can get lost."""

from gemini_lab.node.control_store import StoreUnavailableError


class StoreStandIn:
    """Has the methods of `EtcdStore`; leases end when they are revoked, and no time passes.

    Attributes:
        keys: What is stored.
        lost_answers: So many of the next writes are done, but their answers do not arrive.
    """

    def __init__(self, **keys: str) -> None:
        self.keys = dict(keys)
        self.lost_answers = 0
        self._leases, self._lease_of = [], {}

    def grant(self, ttl_s):
        self._leases.append(ttl_s)
        return len(self._leases)

    def keep_alive(self, lease):
        return 0 < lease <= len(self._leases)

    def revoke(self, lease):
        for key in [key for key, of in self._lease_of.items() if of == lease]:
            self.delete(key)

    def put(self, key, value, *, lease=None):
        self.keys[key], self._lease_of[key] = value, lease
        self._answer()

    def create(self, key, value, *, lease=None):
        if is_new := key not in self.keys:
            self.keys[key], self._lease_of[key] = value, lease
        self._answer()
        return is_new

    def put_if(self, values, *, guard, held):
        is_held = self.keys.get(guard) == held
        if is_held:
            self.keys.update(values)
        self._answer()
        return is_held

    def delete_if(self, key, held):
        is_held = self.keys.get(key) == held
        if is_held:
            del self.keys[key]
        self._answer()
        return is_held

    def delete(self, key):
        self.keys.pop(key, None)
        self._lease_of.pop(key, None)

    def items(self):
        return dict(self.keys)

    def names(self):
        return set(self.keys)

    def get(self, keys):
        return {key: self.keys[key] for key in keys if key in self.keys}

    def close(self):
        pass

    def _answer(self):
        if self.lost_answers:
            self.lost_answers -= 1
            raise StoreUnavailableError("no answer")
