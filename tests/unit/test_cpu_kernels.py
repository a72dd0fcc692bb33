"""The CPU stand-in for `sgl_kernel` against plain loops that say what each kernel means."""

import struct
from types import ModuleType

import torch
from hypothesis import given
from hypothesis import strategies as st

POOL_ROWS, POOL_LEN = 6, 12


@st.composite
def spans(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Requests as (row, start, end): distinct rows, empty spans allowed."""
    rows = draw(st.lists(st.integers(0, POOL_ROWS - 1), min_size=1, unique=True))
    bounds = [sorted(draw(st.tuples(*[st.integers(0, POOL_LEN)] * 2))) for _ in rows]
    return [(row, start, end) for row, (start, end) in zip(rows, bounds, strict=True)]


def _columns(requests: list[tuple[int, int, int]], dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.tensor(column, dtype=dtype) for column in zip(*requests, strict=True)]


@given(requests=spans(), dtype=st.sampled_from([torch.int32, torch.int64]))
def test_assign_req_to_token_pool(
    kernels: ModuleType, requests: list[tuple[int, int, int]], dtype: torch.dtype
) -> None:
    pool = torch.arange(POOL_ROWS * POOL_LEN, dtype=torch.int32).view(POOL_ROWS, POOL_LEN)
    expected = pool.clone()
    slots = torch.arange(1000, 1000 + POOL_ROWS * POOL_LEN)
    taken = 0
    for row, start, end in requests:
        for position in range(start, end):
            expected[row, position] = slots[taken]
            taken += 1

    rows, starts, ends = _columns(requests, dtype)
    kernels.assign_req_to_token_pool_cpu(rows, pool, starts, ends, slots, POOL_LEN)

    assert torch.equal(pool, expected)


@given(requests=spans(), dtype=st.sampled_from([torch.int32, torch.int64]))
def test_assign_extend_cache_locs(
    kernels: ModuleType, requests: list[tuple[int, int, int]], dtype: torch.dtype
) -> None:
    pool = torch.arange(POOL_ROWS * POOL_LEN, dtype=torch.int32).view(POOL_ROWS, POOL_LEN)
    slots = torch.full((POOL_ROWS * POOL_LEN,), -7, dtype=torch.int64)
    wanted = [int(pool[row, p]) for row, start, end in requests for p in range(start, end)]

    rows, starts, ends = _columns(requests, dtype)
    kernels.assign_extend_cache_locs_cpu(rows, pool, starts, ends, slots, POOL_LEN)

    assert slots.tolist() == wanted + [-7] * (slots.numel() - len(wanted))


def test_assign_draft_cache_locs_contiguous(kernels: ModuleType) -> None:
    pool = torch.arange(POOL_ROWS * POOL_LEN, dtype=torch.int32).view(POOL_ROWS, POOL_LEN)
    rows, seq_lens, topk, steps = torch.tensor([4, 1]), torch.tensor([3, 6]), 2, 3
    slots = torch.zeros(2 * topk * steps, dtype=torch.int64)

    kernels.assign_draft_cache_locs_contiguous_cpu(
        rows, pool, seq_lens, slots, POOL_LEN, topk, steps
    )

    assert slots.tolist() == pool[4, 3:9].tolist() + pool[1, 6:12].tolist()


@given(accept=st.lists(st.integers(-1, 9), min_size=1, max_size=12))
def test_fill_accept_out_cache_loc(kernels: ModuleType, accept: list[int]) -> None:
    slots = torch.arange(10) * 10
    packed = torch.full((12,), -7, dtype=torch.int64)

    kernels.fill_accept_out_cache_loc_cpu(torch.tensor(accept), slots, packed)

    wanted = [10 * index for index in accept if index != -1]
    assert packed.tolist() == wanted + [-7] * (12 - len(wanted))


@given(
    moves=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), unique_by=lambda move: move[0]),
    layout=st.sampled_from([(torch.float32, 4), (torch.bfloat16, 3), (torch.float16, 5)]),
)
def test_copy_all_layer_kv_cache(
    kernels: ModuleType, moves: list[tuple[int, int]], layout: tuple[torch.dtype, int]
) -> None:
    dtype, width = layout
    buffers = [torch.randn(8, heads, width).to(dtype) for heads in (1, 2)]
    expected = [buffer.clone() for buffer in buffers]
    for before, after in zip(buffers, expected, strict=True):
        for target, source in moves:
            after[target] = before[source]

    kernels.copy_all_layer_kv_cache_cpu(
        torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64),
        torch.tensor([buffer[0].nbytes for buffer in buffers]),
        torch.tensor([target for target, _ in moves], dtype=torch.int64),
        torch.tensor([source for _, source in moves], dtype=torch.int64),
    )

    assert all(torch.equal(got, want) for got, want in zip(buffers, expected, strict=True))


def test_fill_bonus_tokens(kernels: ModuleType) -> None:
    accepted = torch.tensor([[11, 12, 13], [21, 22, 23]], dtype=torch.int32)
    bonus = torch.zeros(2, dtype=torch.int64)

    kernels.fill_bonus_tokens_cpu(accepted, torch.tensor([1, 3], dtype=torch.int32), bonus, 3)

    assert bonus.tolist() == [11, 23]


@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=5), select=st.booleans())
def test_rotate_input_ids(kernels: ModuleType, lengths: list[int], select: bool) -> None:
    ids = torch.arange(sum(lengths))
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    news = [100 + index for index in range(len(lengths))]
    expected: list[int] = []
    for start, length, new in zip(starts, lengths, news, strict=True):
        rotated = list(range(start + 1, start + length)) + [start + length - 1][:length]
        if length:
            rotated[0 if select else -1] = new
        expected += rotated

    kernels.rotate_input_ids_cpu(
        ids,
        torch.tensor(starts),
        torch.tensor(lengths),
        torch.tensor(news).view(-1, 1),
        torch.tensor(starts) if select else None,
    )

    assert ids.tolist() == expected


def test_murmur_hash32(kernels: ModuleType) -> None:
    assert murmur_hash32(b"") == 0
    assert murmur_hash32(b"test", 0x9747B28C) == 0x704B81DC  # a vector known of the original
    seeds, positions = [0, 7, 2**63 - 1, 2**64 - 1, 2**40 + 3], [0, 5, 100_000, 2**31 - 1, 1]
    hashed = kernels.murmur_hash32_cpu(
        torch.tensor(seeds, dtype=torch.uint64), torch.tensor(positions), torch.arange(40)
    )
    assert hashed.dtype == torch.uint32
    assert hashed.tolist() == [
        [murmur_hash32(struct.pack("<QII", seed, position, column)) for column in range(40)]
        for seed, position in zip(seeds, positions, strict=True)
    ]


def murmur_hash32(data: bytes, seed: int = 0) -> int:
    """MurmurHash3_x86_32 of whole blocks of 4 bytes, in integers without bounds."""

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> 32 - bits) % 2**32

    hashed = seed
    for (block,) in struct.iter_unpack("<I", data):
        hashed ^= rotated(block * 0xCC9E2D51 % 2**32, 15) * 0x1B873593 % 2**32
        hashed = (rotated(hashed, 13) * 5 + 0xE6546B64) % 2**32
    hashed ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashed = (hashed ^ hashed >> shift) * factor % 2**32
    return hashed ^ hashed >> 16


def test_operators_are_registered_but_not_the_sign_of_amx(kernels: ModuleType) -> None:
    """SGLang would take that one as AMX kernels for every layer (srt/utils/common.py)."""
    for name in ("decode_attention_cpu", "extend_attention_cpu"):
        assert hasattr(torch.ops.sgl_kernel, name)
    assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")
