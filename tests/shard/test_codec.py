"""Small state comes back equal in value and type, or is refused with its place."""

import random
from collections import Counter, OrderedDict, deque
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from gemini_lab.errors import IntegrityError, UnsupportedError
from gemini_lab.shard.codec import decode, decode_framed, encode, encode_framed

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
keys = st.integers() | st.text() | st.binary() | st.tuples(st.integers(), st.text())
states = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner, max_size=5)
    ),
    max_leaves=20,
)


def same(one, two) -> bool:
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        pairs = zip(one.items(), two.items(), strict=True)
        return len(one) == len(two) and all(same(a, b) for a, b in pairs)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


@given(states)
@settings(max_examples=200, deadline=None)
def test_any_plain_state_comes_back_equal_in_value_and_type(state):
    assert same(decode(encode(state)), state)


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "bfloat16", "float16", "int64", "uint8", "bool", "complex64"],
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_a_tensor_keeps_dtype_shape_and_bits(dtype, shape):
    tensor = (torch.randn(shape) * 10).to(getattr(torch, dtype))
    back = decode(encode({"t": tensor.t() if tensor.dim() == 2 else tensor}))["t"]
    expected = tensor.t() if tensor.dim() == 2 else tensor
    assert back.dtype == expected.dtype
    assert torch.equal(back, expected)
    assert back.shape == expected.shape


def test_not_a_number_keeps_its_bits():
    tensor = torch.tensor([0x7FC00123, 0x7F800001], dtype=torch.int32).view(torch.float32)
    assert torch.equal(decode(encode(tensor)).view(torch.int32), tensor.view(torch.int32))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3).T,
        np.array(3, "<i2"),
        np.array(["ab", "c"]),
        np.zeros((0, 2)),
        np.array([True]),
        np.array(["2026-01-01"], "M8[D]"),
        np.arange(3, dtype=">u4"),
    ],
)
def test_an_array_keeps_dtype_and_shape(array):
    back = decode(encode([array]))[0]
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert np.array_equal(back, array)
    back.setflags(write=True)  # it can be changed, as a state must


@pytest.mark.parametrize(
    "view",
    [
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
        torch._neg_view(torch.tensor([1.0, -2.0])),
    ],
    ids=["a conjugate", "its imaginary part", "a negative"],
)
def test_what_is_marked_to_be_read_otherwise_comes_back_as_it_reads(view):
    """Torch computes neither at once: the tensor's bytes are those of what it was made of."""
    assert torch.equal(decode(encode(view)), view)


class Halves(torch.Tensor):
    """Made of another tensor, as DTensors and optimizer states of 8 bits are."""

    @staticmethod
    def __new__(cls, half):
        shape = (2 * len(half), *half.shape[1:])
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=half.dtype)

    def __init__(self, half):
        self.half = half

    @classmethod
    def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
        del function, kinds, kwargs
        return cls(args[0].half)


def test_a_tensor_without_memory_of_its_own_is_refused():
    state = {"ema": {"weight": Halves(torch.ones(2, 3))}}
    with pytest.raises(
        UnsupportedError, match=r"state\['ema'\]\['weight'\], a .*Halves; .*to_local"
    ):
        encode(state)


@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning")  # newer PyTorch wants other ones
def test_a_quantized_tensor_is_refused_where_it_is_stored():
    """What is stored has to come back: its scale would not."""
    with pytest.raises(UnsupportedError, match=r"state, a torch\.Tensor"):
        encode(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))


def test_random_states_come_back():
    python, legacy = random.Random(3).getstate(), np.random.RandomState(3).get_state()
    back_python, back_legacy = decode(encode((python, legacy)))
    assert back_python == python
    assert back_legacy[0] == legacy[0]
    assert np.array_equal(back_legacy[1], legacy[1])
    assert back_legacy[2:] == legacy[2:]
    generator = np.random.default_rng(5)
    assert decode(encode(generator.bit_generator.state)) == generator.bit_generator.state


@pytest.mark.parametrize("value", [np.float64(1.5), np.int32(-3), np.bool_(True)])
def test_numpy_scalars_stay_numpy_scalars(value):
    assert type(decode(encode(value))) is type(value)
    assert decode(encode(value)) == value


def test_an_ordered_dict_stays_one():
    back = decode(encode(OrderedDict(b=1, a=2)))
    assert type(back) is OrderedDict
    assert list(back.items()) == [("b", 1), ("a", 2)]


def test_a_counter_stays_one():
    back = decode(encode(Counter({1: 1, 30: 2})))
    assert type(back) is Counter
    assert [*back.elements()] == [1, 30, 30]


@pytest.mark.parametrize("most", [None, 3])
def test_a_deque_keeps_its_length(most):
    back = decode(encode({"recent": deque([1, (2, 3), deque()], most)}))["recent"]
    assert back == deque([1, (2, 3), deque()], most)
    assert back.maxlen == most


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": deque([1, {2}])}, r"state\['a'\]\[1\], a builtins.set"),
        ({"a": [1, {"b": {1, 2}}]}, r"state\['a'\]\[1\]\['b'\], a builtins.set"),
        ([Path("x")], r"state\[0\], a pathlib"),
        ({"f": lambda: 0}, r"state\['f'\], a builtins.function"),
        ({(1, frozenset()): 1}, r"the key .* of state\[1\], a builtins.frozenset"),
        (np.array([object()]), r"state, a numpy.ndarray"),
        (torch.randn(2, 2).to_sparse(), r"state, a torch.Tensor"),
    ],
)
def test_anything_else_is_refused_with_its_place(state, place):
    with pytest.raises(UnsupportedError, match=place):
        encode(state)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_tensor_whose_elements_do_not_tell_its_values_is_refused():
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
    with pytest.raises(UnsupportedError, match=r"state\['q'\], a torch.Tensor"):
        encode({"q": quantized})


def test_a_sharded_tensor_is_refused_with_what_to_keep_of_it():
    """Of a DTensor a rank has a part; what would be read beyond that is others' memory."""
    mesh = DeviceMesh("cpu", torch.arange(1), _init_backend=False, _rank=0)
    sharded = DTensor.from_local(torch.arange(6.0), mesh, [Shard(0)], run_check=False)
    with pytest.raises(UnsupportedError, match=r"a .*DTensor; keep .*to_local"):
        encode({"ema": sharded})
    assert torch.equal(decode(encode(sharded.to_local())), torch.arange(6.0))


def test_a_state_that_contains_itself_is_refused():
    state: list = []
    state.append(state)
    with pytest.raises(UnsupportedError, match="contains itself"):
        encode(state)


def test_bytes_that_were_cut_short_are_refused():
    data = encode({"a": [1, 2, 3], "t": torch.ones(3)})
    for end in range(len(data)):
        with pytest.raises(IntegrityError, match="small state cannot be read"):
            decode(data[:end])


def test_a_framed_state_says_its_own_length():
    state = {"a": (1, 2)}
    assert decode_framed(encode_framed(state) + b"what follows") == state


@pytest.mark.parametrize("shape", [(0,), (3,)])
def test_a_tensor_that_was_encoded_can_still_be_resized(shape):
    """As buffers of observers are when their model first computes."""
    buffer = torch.ones(shape)
    assert same(decode(encode(buffer)).tolist(), buffer.tolist())
    buffer.resize_(5)
    assert buffer.shape == (5,)
