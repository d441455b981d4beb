"""What etcd says of its own use: the counters that it offers to Prometheus."""

import re
import ssl
import tempfile
import urllib.request
from dataclasses import dataclass
from typing import Final

from gemini_lab.node.etcd_address import EtcdAddress

ANSWER_S: Final = 30.0
_OPERATIONS: Final = re.compile(r"^grpc_server_msg_received_total\{.*\} (\S+)$", re.MULTILINE)
_SENT: Final = re.compile(r"^etcd_network_client_grpc_sent_bytes_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUse:
    """How much a store was used.

    Attributes:
        operations: Requests that it received, whether on a stream or alone.
        sent_bytes: Of its answers, and of what it told those who watch.
    """

    operations: float
    sent_bytes: float

    def __sub__(self, before: "StoreUse") -> "StoreUse":
        return StoreUse(
            operations=self.operations - before.operations,
            sent_bytes=self.sent_bytes - before.sent_bytes,
        )


def store_use(address: EtcdAddress) -> StoreUse:
    """Return how much an etcd of a lab's own was used since its start."""
    own, url = address.own, f"https://{address.endpoints[0]}/metrics"
    assert own is not None
    trust = ssl.create_default_context(cadata=own.authority_pem)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(own.pem + own.key_pem)
        file.flush()
        trust.load_cert_chain(file.name)
    direct = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
    )
    with direct.open(url, timeout=ANSWER_S) as answer:
        return read_use(answer.read().decode())


def read_use(metrics: str) -> StoreUse:
    """The use that a text of metrics tells."""
    return StoreUse(
        operations=sum(float(value) for value in _OPERATIONS.findall(metrics)),
        sent_bytes=sum(float(value) for value in _SENT.findall(metrics)),
    )
