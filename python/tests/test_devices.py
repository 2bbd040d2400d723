"""Products on a GPU, compared with NumPy and with the CPU. CI uses Mesa's lavapipe.

Without a GPU the tests are skipped, unless REQUIRE_GPU is set.
"""

import copy
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import latent
from latent import DeviceArray, DeviceWeight
from latent.errors import ArgumentError
from test_gemm import PACK, decoded, nmse, packed_weight, random
from test_linear import gptq

HERE = os.path.dirname(__file__)
# K, N, group: one word, groups that cut words, partial blocks in each dimension, one group for K.
SHAPES = [(8, 1, 8), (96, 33, 12), (256, 100, 64), (520, 65, 520)]


@pytest.fixture(scope="module")
def gpu():
    try:
        return latent._latent.device_name("gpu")
    except ArgumentError as error:
        if "REQUIRE_GPU" in os.environ:
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("quant", PACK)
@pytest.mark.parametrize(("k", "n", "group"), SHAPES)
def test_products_are_those_of_the_dequantized_weights(gpu, quant, k, n, group):
    weight = packed_weight(quant, k, n, group)
    truth = decoded(quant, weight["packed"], weight["scales"], group, weight["zeros"])
    resident = DeviceWeight(**weight, device=gpu)
    assert (resident.shape, resident.quant_type, resident.group_size) == ((k, n), quant, group)
    np.testing.assert_array_equal(latent.dequantize(**weight, device=gpu), truth.astype(np.float32))
    for dtype in (np.float32, np.float16):
        values = resident.dequantize(dtype)
        assert (values.dtype, values.shape) == (dtype, (k, n))
        np.testing.assert_array_equal(values.to_numpy(), truth.astype(dtype))
    bias = random(n)
    for m in [1, 3, 40]:
        x = random(m, k, seed=2)
        expected = x.astype(np.float64) @ truth
        for options in [{}, {"kernel": "gemm"}, {"kernel": "fused"}]:
            y = latent.quantized_linear(x, **weight, device=gpu, bias=bias, **options)
            assert y.dtype == np.float32 and nmse(y, expected + bias) < 1e-6, (m, options)
            np.testing.assert_array_equal(latent.quantized_linear(x, resident, bias=bias, **options), y)
        y = latent.quantized_linear_striped(x, **weight, parallel=k // 8, device=gpu)
        assert nmse(y, expected) < 1e-6, m
        half = x.astype(np.float16)
        y = latent.quantized_linear(half, resident)
        assert nmse(y, half.astype(np.float64) @ truth) < 1e-5


def test_arrays_of_a_chain_stay_on_the_device(gpu):
    first, second = packed_weight("fp4", 64, 96, 32), packed_weight("int4", 96, 24, 16)
    x, bias = random(2, 3, 64), random(96)
    layers = [DeviceWeight(**weight, device=gpu) for weight in (first, second)]
    there = DeviceArray(x, gpu)
    assert repr(there) == f"DeviceArray(shape=(2, 3, 64), dtype=float32, device={gpu!r})"
    np.testing.assert_array_equal(there.to_numpy(), x)
    y = latent.quantized_linear(there, layers[0], bias=DeviceArray(bias, gpu))
    assert isinstance(y, DeviceArray) and y.shape == (2, 3, 96) and y.device == gpu
    y = latent.quantized_linear(y, layers[1])
    host = latent.quantized_linear(latent.quantized_linear(x, **first, bias=bias), **second)
    assert y.shape == (2, 3, 24) and nmse(y.to_numpy(), host.astype(np.float64)) < 1e-6
    # Host arrays are copied to the device of the inputs.
    y = latent.quantized_linear(latent.quantized_linear(there, **first, bias=bias), **second)
    assert isinstance(y, DeviceArray) and nmse(y.to_numpy(), host.astype(np.float64)) < 1e-6
    half = there.astype(np.float16)
    np.testing.assert_array_equal(half.to_numpy(), x.astype(np.float16))
    np.testing.assert_array_equal(half.astype("float32").to_numpy(), x.astype(np.float16).astype(np.float32))
    assert layers[0].kernel(1) == ("marlin_gemm_fused_fp4", 1)
    assert layers[1].kernel(40)[0] == "marlin_gemm_u4"
    # An odd number of columns in f16.
    odd = DeviceArray(random(3, 7), gpu).astype("float16").to_numpy()
    np.testing.assert_array_equal(odd, random(3, 7).astype(np.float16))
    assert DeviceArray(random(4, 0), gpu).to_numpy().shape == (4, 0)


FP4 = packed_weight("fp4", 64, 24, 32)
INT4 = packed_weight("int4", 64, 24, 32)
X = random(3, 64)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda gpu: latent.quantized_linear(X, **FP4, device="cuda"), 'unknown device "cuda": expected cpu, auto, gpu or gpu:N; this machine has gpu:0'),
        (lambda gpu: latent.quantized_linear(X, **FP4, device="gpu:99"), 'unknown device "gpu:99".*this machine has gpu:0'),
        (lambda gpu: latent.quantized_linear(X, **FP4, device=3), "device is 3, expected a word"),
        (lambda gpu: DeviceArray(X, "cpu"), 'device "cpu" is the CPU'),
        (lambda gpu: DeviceArray(X.astype(float), gpu), "x is an array of float64, expected float32, float16 or bfloat16"),
        (lambda gpu: DeviceArray(X.T, gpu), "not contiguous"),
        (lambda gpu: latent.quantized_linear(X[:, :60].copy(), **FP4, device=gpu), r"x has the shape \(3, 60\), expected \(…, 64\)"),
        (lambda gpu: latent.quantized_linear(DeviceArray(random(3, 60), gpu), **FP4), r"x has the shape \(3, 60\), expected \(…, 64\)"),
        (lambda gpu: latent.quantized_linear(X, **FP4, device=gpu, bias=random(23)), r"bias has the shape \(23,\), expected \(24,\)"),
        (lambda gpu: latent.quantized_linear(X, **(INT4 | {"zeros": INT4["zeros"] + np.uint8(99)}), device=gpu), "must be from 0 to 16"),
        (lambda gpu: latent.quantized_linear(X, **(FP4 | {"quant_type": "int4"}), device=gpu), "int4 weights take zero points"),
        (lambda gpu: latent.quantized_linear(X, **FP4, device=gpu, threads=2), "threads selects instructions|threads"),
        (lambda gpu: latent.quantized_linear(X, **FP4, device=gpu, isa="portable"), "isa selects CPU instructions"),
        (lambda gpu: latent.quantized_linear(X, **FP4, device=gpu, activations="int8"), "no kernel fused on gpu:0 for inputs of int8"),
        (lambda gpu: latent.quantized_linear_striped(X, parallel=9, **FP4, device=gpu), "parallel factor is 9; it must be from 1 to K / 8 = 8"),
        (lambda gpu: latent.quantized_linear(DeviceArray(X, gpu), **FP4, device="cpu"), "x is on gpu:0"),
        (lambda gpu: latent.quantized_linear(X, DeviceWeight(**FP4, device=gpu), FP4["scales"]), "scales: a DeviceWeight has its own"),
        (lambda gpu: latent.quantized_linear(X, DeviceWeight(**FP4, device=gpu), device=gpu), "device: a DeviceWeight has its own"),
        (lambda gpu: latent.quantized_linear(X, FP4["packed"]), "scales are missing"),
        (lambda gpu: DeviceWeight(**FP4, device=gpu, order=np.full(64, -1, np.int32)), "has 4294967295 at 0, but K is 64"),
        (lambda gpu: DeviceWeight(**FP4, device=gpu, threads=2), "unknown option .*expected one of zeros, quant_type"),
        (lambda gpu: latent.MarlinLinear(64, 24)(DeviceArray(X, gpu)), "layer.to_device"),
        (lambda gpu: latent.MarlinLinear(64, 24, device="tpu"), "unknown device"),
    ],
)
def test_what_cannot_be_is_refused_as_on_the_cpu(gpu, work, words):
    with pytest.raises(ArgumentError, match=words):
        work(gpu)


@pytest.mark.parametrize("quant", PACK)
def test_weights_are_packed_to_a_device(gpu, quant):
    w = random(64, 24)
    weight = PACK[quant](w, 16, device=gpu)
    assert repr(weight) == f"DeviceWeight(shape=(64, 24), quant_type={quant!r}, group_size=16, device={gpu!r})"
    packed, scales, *zeros = PACK[quant](w, 16, device="cpu")
    values = latent.dequantize(packed, scales, 16, zeros=zeros[0] if zeros else None, quant_type=quant)
    np.testing.assert_array_equal(weight.dequantize().to_numpy(), values)
    with pytest.raises(ArgumentError, match="unknown device"):
        PACK[quant](w, 16, device="tpu")


@pytest.mark.parametrize("quant", PACK)
def test_a_layer_on_a_device(gpu, plain, quant, tmp_path):
    w, bias, x = random(64, 24), random(24), random(2, 3, 64)
    host = plain.from_dense(w, bias, quant)
    layer = plain.from_dense(w, bias, quant, device="gpu")
    assert layer.device == gpu and repr(layer).endswith(f"device={gpu!r})")
    # The CPU rounds inputs to 16 bits.
    np.testing.assert_allclose(layer(x), host(x), rtol=1e-3, atol=1e-3)
    y = layer(DeviceArray(x, gpu))
    assert isinstance(y, DeviceArray)
    np.testing.assert_array_equal(y.to_numpy(), layer(x))
    # A changed state is copied to the device again, and so is a changed bias.
    other = plain.from_dense(-w, 2 * bias, quant)
    layer.load_state_dict(other.state_dict())
    np.testing.assert_allclose(layer(x), other(x), rtol=1e-3, atol=1e-3)
    layer.save(tmp_path / "layer")
    for loaded in (plain.load(tmp_path / "layer", device=gpu), copy.deepcopy(layer)):
        np.testing.assert_array_equal(loaded(x), layer(x))
    layer.to_device("cpu")
    assert layer.device is None
    np.testing.assert_array_equal(layer(x), other(x))


def test_inputs_in_act_order_on_a_device(gpu, plain):
    *tensors, weight = gptq(96, 24, 32)
    x, layer = random(3, 96), plain.from_gptq(*tensors, device=gpu)
    assert layer.order is not None
    for y in (layer(x), layer(DeviceArray(x, gpu)).to_numpy()):
        assert nmse(y, x.astype(np.float64) @ weight) < 1e-6
    half = x.astype(np.float16)
    assert nmse(layer(half), half.astype(np.float64) @ weight) < 1e-5


def test_a_module_of_torch_on_a_device(gpu, torch):
    linear = torch.nn.Linear(64, 24)
    layer = latent.MarlinLinear.from_linear(linear, device=gpu)
    host = latent.MarlinLinear.from_linear(linear)
    x = torch.from_numpy(random(2, 3, 64)).requires_grad_(True)
    torch.testing.assert_close(layer(x), host(x), rtol=1e-3, atol=1e-3)
    for dtype in (torch.float16, torch.bfloat16):
        assert layer(x.to(dtype)).dtype == dtype
    factors = torch.from_numpy(random(2, 3, 24))
    (layer(x) * factors).sum().backward()
    torch.testing.assert_close(x.grad, factors @ torch.from_numpy(layer.dequantize()).T)
    with torch.no_grad():
        layer.packed.zero_()
        layer.bias += 1
    torch.testing.assert_close(layer(x)[0, 0].detach(), layer.bias.detach(), rtol=0, atol=1e-6)
    *tensors, weight = gptq(96, 24, 32)
    ordered = latent.MarlinLinear.from_gptq(*(torch.from_numpy(tensor) for tensor in tensors), device=gpu)
    x = torch.from_numpy(random(3, 96)).requires_grad_(True)
    weight = torch.from_numpy(weight.astype(np.float32))
    torch.testing.assert_close(ordered(x), x @ weight, rtol=1e-3, atol=1e-3)
    ordered(x).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(1).expand(3, 96))
    chain = torch.nn.Sequential(latent.MarlinLinear(64, 32, device=gpu), latent.MarlinLinear(32, 8, device=gpu))
    assert isinstance(chain(DeviceArray(random(3, 64), gpu)), DeviceArray)


def test_devices_are_not_pickled(gpu):
    for thing in (DeviceArray(X, gpu), DeviceWeight(**FP4, device=gpu)):
        with pytest.raises(TypeError, match="Device"):
            pickle.dumps(thing)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_no_device(gpu):
    code = """
import os, sys
import numpy as np
import latent
weight = latent.DeviceWeight(*latent.pack_fp4_weights(np.ones((64, 8), np.float32)))
x = latent.DeviceArray(np.ones((2, 64), np.float32))
child = os.fork()
if child == 0:
    for work in (lambda: latent.quantized_linear(x, weight), x.to_numpy, lambda: latent.DeviceArray(np.ones((2, 64), np.float32))):
        try:
            work()
            os._exit(1)
        except latent.errors.ForkedError as error:
            assert "open it in the child" in str(error)
    del x, weight
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(latent.quantized_linear(x, weight).to_numpy().sum())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=HERE)
    assert done.returncode == 0 and abs(float(done.stdout) - 1024) < 1, done.stderr
