"""Products with 4-bit weights, compared with packing and products in NumPy."""

import threading

import numpy as np
import pytest

import latent
from latent.errors import ArgumentError

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64)
# K, N, group: one group for K, one group per word, partial blocks in each dimension.
SHAPES = [(8, 1, 8), (64, 16, 32), (96, 33, 8), (256, 100, 64), (384, 37, 128), (520, 65, 520)]
PACK = {"fp4": latent.pack_fp4_weights, "int4": latent.pack_u4_weights, "int4_sym": latent.pack_u4_sym_weights}


def random(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)


def groups(w, group):
    return w.reshape(w.shape[0] // group, group, w.shape[1])


def words(codes):
    """Pack eight codes along K per word, the first in the lowest bits."""
    eights = codes.reshape(codes.shape[0] // 8, 8, codes.shape[1]).astype(np.uint32)
    return np.bitwise_or.reduce(eights << (4 * np.arange(8, dtype=np.uint32))[None, :, None], axis=1)


def fp4(w, group):
    w = groups(w, group)
    scales = (np.abs(w).max(1) / np.float32(6)).astype(np.float16)
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = np.nan_to_num(np.abs(w / scales.astype(np.float32)[:, None]))
    # The nearest value; in a tie, the one with the even code.
    distance = np.abs(sizes.astype(np.float64)[..., None] - E2M1)
    nearest = distance == distance.min(-1, keepdims=True)
    codes = np.argmax(nearest * (2 - np.arange(8) % 2), axis=-1)
    return words(np.where((w < 0) & (codes > 0), codes + 8, codes).reshape(-1, w.shape[2])), scales


def steps(w, scales):
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.rint(w / scales.astype(np.float32)[:, None]))


def u4(w, group):
    w = groups(w, group)
    low, high = np.minimum(w.min(1), 0), np.maximum(w.max(1), 0)
    scales = (high / np.float32(15) - low / np.float32(15)).astype(np.float16)
    zeros = np.clip(steps(-low[:, None], scales)[:, 0], 0, 15)
    codes = np.clip(steps(w, scales) + zeros[:, None], 0, 15)
    return words(codes.reshape(-1, w.shape[2])), scales, zeros.astype(np.uint8)


def u4_sym(w, group):
    w = groups(w, group)
    scales = (np.abs(w).max(1) / np.float32(7)).astype(np.float16)
    codes = np.clip(steps(w, scales) + 8, 0, 15)
    return words(codes.reshape(-1, w.shape[2])), scales


OWN = {"fp4": fp4, "int4": u4, "int4_sym": u4_sym}


def decoded(quant, packed, scales, group, zeros=None):
    """The weight in f64."""
    codes = (packed[:, None, :] >> (4 * np.arange(8, dtype=np.uint32))[None, :, None]) & 15
    codes = groups(codes.reshape(-1, packed.shape[1]), group)
    if quant == "fp4":
        values = np.where(codes < 8, E2M1[codes & 7], -E2M1[codes & 7])
    else:
        values = codes.astype(np.float64) - (8.0 if zeros is None else zeros.astype(np.float64)[:, None])
    return (values * scales.astype(np.float64)[:, None]).reshape(-1, packed.shape[1])


def nmse(found, truth):
    return ((found - truth) ** 2).sum() / (truth**2).sum()


def packed_weight(quant, k, n, group, seed=1):
    """The arguments of `quantized_linear` that describe a weight."""
    packed, scales, *zeros = PACK[quant](random(k, n, seed=seed), group)
    return {"packed": packed, "scales": scales, "group_size": group, "zeros": zeros[0] if zeros else None, "quant_type": quant}


@pytest.mark.parametrize("quant", PACK)
@pytest.mark.parametrize(("k", "n", "group"), SHAPES)
def test_codes_and_scales_are_those_of_numpy(quant, k, n, group):
    w = random(k, n)
    # A group of zeros, ties, the extreme values, groups of one sign.
    w[:, 0] = 0
    w[0, -1], w[1:8, -1] = 6, [0.25, -0.75, 1.25, -1.75, 2.5, 3.5, -5]
    w[:group, n // 2] = np.abs(w[:group, n // 2])
    for found, expected in zip(PACK[quant](w, group), OWN[quant](w, group), strict=True):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("quant", PACK)
@pytest.mark.parametrize(("k", "n", "group"), SHAPES)
def test_dequantized_weights_are_those_of_numpy(quant, k, n, group):
    weight = packed_weight(quant, k, n, group)
    truth = decoded(quant, weight["packed"], weight["scales"], group, weight["zeros"])
    np.testing.assert_array_equal(latent.dequantize(**weight), truth.astype(np.float32))
    np.testing.assert_array_equal(latent.dequantize(**weight, dtype=np.float16), truth.astype(np.float16))


@pytest.mark.parametrize("quant", PACK)
@pytest.mark.parametrize(("k", "n", "group"), SHAPES)
def test_products_are_those_of_the_dequantized_weights(quant, k, n, group):
    weight = packed_weight(quant, k, n, group)
    truth = decoded(quant, weight["packed"], weight["scales"], group, weight["zeros"])
    for m in [1, 2, 9, 40]:
        x, bias = random(m, k, seed=2), random(n)
        expected = x.astype(np.float64) @ truth
        for options in [{}, {"kernel": "gemm"}, {"kernel": "fused"}, {"isa": "portable"}, {"threads": 1}]:
            y = latent.quantized_linear(x, **weight, **options)
            assert y.dtype == np.float32 and nmse(y, expected) < 1e-6, (m, options)
        for parallel in {1, k // 8}:
            y = latent.quantized_linear_striped(x, parallel=parallel, **weight)
            assert nmse(y, expected) < 1e-6, (m, parallel)
        assert nmse(latent.quantized_linear(x, **weight, bias=bias), expected + bias) < 1e-6
        for activations in ("bf16", "int8"):
            assert nmse(latent.quantized_linear(x, **weight, activations=activations), expected) < 1e-4


def test_products_have_the_same_bits_for_any_number_of_threads():
    weight, x = packed_weight("int4", 1024, 300, 64), random(20, 1024)
    results = [latent.quantized_linear(x, **weight, threads=threads) for threads in (1, 2, 3)]
    assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()


def test_inputs_have_any_leading_dimensions_and_types():
    weight, x = packed_weight("fp4", 64, 24, 32), random(2, 3, 64)
    y = latent.quantized_linear(x, **weight)
    assert y.shape == (2, 3, 24)
    np.testing.assert_array_equal(latent.quantized_linear(x[1, 2], **weight).shape, (24,))
    assert latent.quantized_linear(x[:0], **weight).shape == (0, 3, 24)
    half = x.astype(np.float16)
    truth = half.astype(np.float64) @ decoded("fp4", weight["packed"], weight["scales"], 32)
    assert nmse(latent.quantized_linear(half, **weight), truth) < 1e-6
    # Other packers store words as int32.
    signed = weight | {"packed": weight["packed"].view(np.int32)}
    np.testing.assert_array_equal(latent.quantized_linear(x, **signed), y)


def test_scales_of_mxfp4_and_nvfp4():
    packed = packed_weight("fp4", 64, 16, 16)["packed"]
    x, ones = random(3, 64), np.ones((4, 16), np.float16)
    truth = x.astype(np.float64) @ decoded("fp4", packed, ones, 16)
    e8m0 = np.full((4, 16), 127 + 3, np.uint8)
    assert nmse(latent.quantized_linear(x, packed, e8m0, 16, scale_type="e8m0"), truth * 8) < 1e-6
    # 1.25
    e4m3 = np.full((4, 16), 0b0_0111_010, np.uint8)
    y = latent.quantized_linear(x, packed, e4m3, 16, scale_type="e4m3", tensor_scale=0.5)
    assert nmse(y, truth * 1.25 * 0.5) < 1e-6


def test_memory_is_shared_by_dlpack():
    class Tensor:
        """A tensor of another library with DLPack support."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    weight, x = packed_weight("int4_sym", 64, 24, 32), random(3, 64)
    y = latent.quantized_linear(Tensor(x), **(weight | {"packed": Tensor(weight["packed"])}))
    np.testing.assert_array_equal(y, latent.quantized_linear(x, **weight))
    assert np.shares_memory(np.from_dlpack(y), y)


def test_threads_run_beside_each_other():
    weight, x = packed_weight("fp4", 512, 512, 32), random(64, 512)
    expected, done = latent.quantized_linear(x, **weight), []

    def work():
        for _ in range(20):
            done.append(np.array_equal(latent.quantized_linear(x, **weight), expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 80 and all(done)


W = random(64, 24)
FP4 = packed_weight("fp4", 64, 24, 32)
INT4 = packed_weight("int4", 64, 24, 32)
X = random(3, 64)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda: latent.pack_fp4_weights(random(60, 4), 30), "K is 60, which is not a multiple of 8"),
        (lambda: latent.pack_fp4_weights(W, 48), "K is 64, which is not a multiple of the group size 48"),
        (lambda: latent.pack_fp4_weights(W, 0), "not a multiple of the group size 0"),
        (lambda: latent.pack_fp4_weights(W, -1), "group_size is -1, expected at least 1"),
        (lambda: latent.pack_fp4_weights(W[0]), r"w has the shape \(24,\), expected two dimensions"),
        (lambda: latent.pack_u4_weights(W.astype(float)), "w is an array of float64, expected float32, float16 or bfloat16"),
        (lambda: latent.pack_u4_weights(W.T, 8), r"w of shape \(24, 64\) is not contiguous, with strides of \(4, 96\) bytes"),
        (lambda: latent.pack_u4_weights(W.astype(">f4")), "byte order"),
        (lambda: latent.pack_u4_weights([[1.0]]), "w is a list, expected an array"),
        (lambda: latent.pack_fp4_weights(W * np.inf), "only finite weights can be packed"),
        (lambda: latent.pack_fp4_weights(W * np.float32(1e30)), "beyond the largest f16"),
        (lambda: latent.quantized_linear(X[:, :60], **FP4), "strides of"),
        (lambda: latent.quantized_linear(X[:, :60].copy(), **FP4), r"x has the shape \(3, 60\), expected \(…, 64\)"),
        (lambda: latent.quantized_linear(np.float32(1), **FP4), "x is a float32, expected an array"),
        (lambda: latent.quantized_linear(X.view(np.int32), **FP4), "x is an array of int32"),
        (lambda: latent.quantized_linear(X, **(FP4 | {"group_size": 64})), r"scales has the shape \(2, 24\), expected \(1, 24\)"),
        (lambda: latent.quantized_linear(X, **(FP4 | {"group_size": 48})), "not a multiple of the group size 48"),
        (lambda: latent.quantized_linear(X, **(FP4 | {"packed": W})), "packed is an array of float32, expected uint32"),
        (lambda: latent.quantized_linear(X, **(FP4 | {"scales": FP4["scales"].astype("f4")})), "scales is an array of float32"),
        (lambda: latent.quantized_linear(X, **(FP4 | {"scales": INT4["zeros"]})), "or a scale_type"),
        (lambda: latent.quantized_linear(X, **FP4, scale_type="e8m0"), "scales is an array of float16, expected another type"),
        (lambda: latent.quantized_linear(X, **FP4, scale_type="f8"), "expected f16, e8m0, e4m3"),
        (lambda: latent.quantized_linear(X, **FP4, tensor_scale=2.0), "which alone have a tensor_scale"),
        (lambda: latent.quantized_linear(X, **(FP4 | {"quant_type": "int4"})), "int4 weights take zero points"),
        (lambda: latent.quantized_linear(X, **(INT4 | {"quant_type": "fp4"})), "fp4 weights take no zero points"),
        (lambda: latent.quantized_linear(X, **(INT4 | {"quant_type": "fp8"})), "expected fp4, int4, int4_sym"),
        (lambda: latent.quantized_linear(X, **(INT4 | {"zeros": INT4["zeros"][:1]})), r"zeros has the shape \(1, 24\), expected \(2, 24\)"),
        (lambda: latent.quantized_linear(X, **(INT4 | {"zeros": INT4["zeros"] + np.uint8(99)})), "must be from 0 to 16"),
        (lambda: latent.quantized_linear(X, **FP4, bias=np.zeros(23, "f4")), r"bias has the shape \(23,\), expected \(24,\)"),
        (lambda: latent.quantized_linear(X, **FP4, threads=5000), "5000 threads"),
        (lambda: latent.quantized_linear(X, **FP4, threads=0), "threads is 0, expected at least 1"),
        (
            lambda: latent.quantized_linear(X, *latent.pack_fp4_weights(W, 4), 4, activations="int8"),
            "no kernel .* for groups of 4 and inputs of int8",
        ),
        (lambda: latent.quantized_linear(X, **FP4, kernel="fast"), "expected auto, gemm, fused, striped"),
        (lambda: latent.quantized_linear_striped(X, parallel=9, **FP4), "parallel factor is 9; it must be from 1 to K / 8 = 8"),
        (lambda: latent.quantized_linear_striped(X, parallel=-1, **FP4), "parallel is -1"),
        (lambda: latent.dequantize(**FP4, dtype="f8"), "dtype float64: expected float32 or float16"),
    ],
)
def test_what_cannot_be_is_refused_with_the_numbers(work, words):
    with pytest.raises(ArgumentError, match=words):
        work()


def test_a_result_that_does_not_fit_into_memory_is_refused():
    none = np.zeros((10**15, 0), np.float32)
    packed, scales = np.zeros((0, 1000), np.uint32), np.zeros((0, 1000), np.float16)
    with pytest.raises(MemoryError, match="the result needs 4000000000000000000 bytes"):
        latent.quantized_linear(none, packed, scales, 8)
