"""etcd's messages and calls, as far as this package sends and reads them.

This table takes the place of generated stubs: these would be 2,400 lines, bound to one release of
protobuf's compiler, and the package that ships them collides with a namesake. Fields that are left
out here are skipped when an answer is read.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

PACKAGE: Final = "etcdserverpb"
CALLS: Final = {
    "Range": "KV",
    "Put": "KV",
    "DeleteRange": "KV",
    "Txn": "KV",
    "Watch": "Watch",
    "LeaseGrant": "Lease",
    "LeaseRevoke": "Lease",
    "LeaseKeepAlive": "Lease",
    "MemberList": "Cluster",
    "MemberAdd": "Cluster",
    "MemberRemove": "Cluster",
    "Authenticate": "Auth",
}
"""The service of each call, which takes its name + `Request`, and answers its name + `Response`."""
_MESSAGES: Final = {
    "KeyValue": "bytes key 1, bytes value 5",
    "RangeRequest": "bytes key 1, bytes range_end 2, bool keys_only 8",
    "RangeResponse": "*KeyValue kvs 2",
    "PutRequest": "bytes key 1, bytes value 2, int64 lease 3",
    "PutResponse": "",
    "DeleteRangeRequest": "bytes key 1",
    "DeleteRangeResponse": "",
    "Compare": "int32 result 1, int32 target 2, bytes key 3, bytes value 7",
    "RequestOp": (
        "RangeRequest request_range 1, PutRequest request_put 2, "
        "DeleteRangeRequest request_delete_range 3"
    ),
    "ResponseOp": "RangeResponse response_range 1",
    "TxnRequest": "*Compare compare 1, *RequestOp success 2",
    "TxnResponse": "bool succeeded 2, *ResponseOp responses 3",
    "WatchCreateRequest": "bytes key 1, bytes range_end 2",
    "WatchRequest": "WatchCreateRequest create_request 1",
    "WatchResponse": "bool created 3, bool canceled 4, string cancel_reason 6",
    "LeaseGrantRequest": "int64 TTL 1",
    "LeaseGrantResponse": "int64 ID 2",
    "LeaseRevokeRequest": "int64 ID 1",
    "LeaseRevokeResponse": "",
    "LeaseKeepAliveRequest": "int64 ID 1",
    "LeaseKeepAliveResponse": "int64 TTL 3",
    "Member": "uint64 ID 1, string name 2, *string peerURLs 3, *string clientURLs 4",
    "MemberListRequest": "",
    "MemberListResponse": "*Member members 2",
    "MemberAddRequest": "*string peerURLs 1",
    "MemberAddResponse": "",
    "MemberRemoveRequest": "uint64 ID 1",
    "MemberRemoveResponse": "",
    "AuthenticateRequest": "string name 1, string password 2",
    "AuthenticateResponse": "string token 2",
}
"""Each message's fields as `type name number`; `*` marks a repeated one."""
COMPARES_CREATION: Final = 1
COMPARES_VALUE: Final = 3


@cache
def messages() -> Mapping[str, Any]:
    """Return the class of each message, by its name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415

    file = descriptor_pb2.FileDescriptorProto(
        name="gemini_lab/etcd.proto", package=PACKAGE, syntax="proto3"
    )
    of = descriptor_pb2.FieldDescriptorProto
    for name, text in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for kind, field, number in (one.split() for one in text.split(", ") if one):
            plain = kind.removeprefix("*")
            added = message.field.add(name=field, number=int(number))
            added.label = of.LABEL_OPTIONAL if kind == plain else of.LABEL_REPEATED
            if plain in _MESSAGES:
                added.type, added.type_name = of.TYPE_MESSAGE, f".{PACKAGE}.{plain}"
            else:
                added.type = getattr(of, f"TYPE_{plain.upper()}")
    # A pool of our own: a script or library in this process may have loaded etcd's real stubs.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in _MESSAGES
    }


def request(call: str, **fields: Any) -> Any:
    """Return the request of a call."""
    return messages()[f"{call}Request"](**fields)


def method(channel: Any, call: str, *, is_stream: bool = False) -> Any:
    """Return what sends a call's request over a gRPC channel."""
    kind = channel.stream_stream if is_stream else channel.unary_unary
    answer = messages()[f"{call}Response"]
    return kind(
        f"/{PACKAGE}.{CALLS[call]}/{call}",
        request_serializer=lambda asked: asked.SerializeToString(),
        response_deserializer=answer.FromString,
    )
