"""The layer with and without torch. Tests that need torch are skipped if it is not installed."""

import copy
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import latent
from latent.errors import ArgumentError, FileError, ModelNotFoundError

QUANTS = ["fp4", "int4", "int4_sym"]


def random(*shape):
    return np.random.default_rng(shape).standard_normal(shape, dtype=np.float32)


class Dense:
    """The attributes of torch.nn.Linear."""

    weight, bias = random(24, 64), random(24)


@pytest.mark.parametrize("quant", QUANTS)
def test_a_layer_over_numpy(plain, quant, tmp_path):
    layer = plain.from_linear(Dense, quant, 32)
    x = random(2, 3, 64)
    expected = x @ layer.dequantize() + Dense.bias
    np.testing.assert_allclose(layer(x), expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(layer.dequantize(), Dense.weight.T, atol=0.6)
    assert repr(layer) == f"MarlinLinear(in_features=64, out_features=24, bias=True, quant_type={quant!r}, group_size=32)"
    new = plain(64, 24, quant_type=quant)
    assert not new(x).any()
    new.load_state_dict(layer.state_dict())
    np.testing.assert_array_equal(new(x), layer(x))
    assert ("zeros" in layer.state_dict()) == (quant == "int4")
    layer.save(tmp_path / "layer.safetensors")
    loaded = plain.load(tmp_path / "layer.safetensors")
    np.testing.assert_array_equal(loaded(x), layer(x))
    assert repr(loaded) == repr(layer)
    assert [path.name for path in tmp_path.iterdir()] == ["layer.safetensors"]


def test_a_layer_without_bias(plain, tmp_path):
    layer = plain.from_dense(random(64, 24))
    assert layer.bias is None and "bias" not in layer.state_dict()
    layer.save(tmp_path / "layer")
    assert plain.load(tmp_path / "layer").bias is None
    with pytest.raises(ArgumentError, match="the state has packed, scales, expected packed, scales, bias"):
        plain(64, 24).load_state_dict(layer.state_dict())


def test_what_cannot_be_is_refused_with_the_numbers(plain, tmp_path):
    for arguments, words in [
        ((60, 24), "K is 60, which is not a multiple of 8"),
        ((64, 24, True, "fp4", 48), "not a multiple of the group size 48"),
        ((64, 24, True, "fp8"), "quant_type 'fp8': expected fp4, int4, int4_sym"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            plain(*arguments)
    with pytest.raises(ArgumentError, match=r"bias has the shape \(23,\), expected \(24,\)"):
        plain.from_dense(random(64, 24), random(23))
    with pytest.raises(ArgumentError, match="weight has 1 dimensions"):
        plain.from_dense(random(64))
    state = plain.from_dense(random(64, 24)).state_dict()
    for name, array, words in [
        ("packed", random(8, 24), "packed is float32 of shape .8, 24., expected uint32"),
        ("scales", state["scales"][:1], r"scales is float16 of shape \(1, 24\), expected float16 of shape \(2, 24\)"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            plain(64, 24, bias=False).load_state_dict(state | {name: array})
    with pytest.raises(ModelNotFoundError, match="no-layer"):
        plain.load(tmp_path / "no-layer")


def gptq(k, n, group, seed=0):
    """Tensors of a GPTQ checkpoint with act-order, and their dequantized weight."""
    generator = np.random.default_rng(seed)
    codes, zeros = generator.integers(0, 16, (k, n)), generator.integers(0, 16, (k // group, n))
    scales = generator.uniform(0.01, 0.1, (k // group, n)).astype(np.float16)
    g_idx = generator.permutation(np.arange(k) // group)
    qweight, qzeros = np.zeros((k // 8, n), np.uint32), np.zeros((k // group, n // 8), np.uint32)
    for i in range(8):
        qweight |= (codes[i::8] << 4 * i).astype(np.uint32)
        qzeros |= (zeros[:, i::8] << 4 * i).astype(np.uint32)
    weight = (codes - (zeros[g_idx] + 1)) * scales.astype(np.float64)[g_idx]
    return qweight.view(np.int32), qzeros.view(np.int32), scales, g_idx.astype(np.int32), weight


def test_tensors_of_gptq(plain, tmp_path):
    qweight, qzeros, scales, g_idx, weight = gptq(96, 24, 32)
    x, bias = random(3, 96), random(24)
    layer = plain.from_gptq(qweight, qzeros, scales, g_idx, bias)
    np.testing.assert_array_equal(layer.dequantize(), weight.astype(np.float32))
    expected = x @ weight + bias
    assert ((layer(x) - expected) ** 2).sum() < 1e-6 * (expected**2).sum()
    assert "act_order=True" in repr(layer)
    layer.save(tmp_path / "layer")
    np.testing.assert_array_equal(plain.load(tmp_path / "layer")(x), layer(x))
    path = tmp_path / "layer"
    path.write_bytes(path.read_bytes().replace(layer.order.tobytes(), bytes(4 * 96)))
    with pytest.raises(FileError, match="order is not a permutation of 96 inputs"):
        plain.load(path)
    # Without act-order, and with zero points stored unchanged.
    in_order = np.arange(96) // 32
    weight = weight + scales.astype(np.float64)[g_idx]
    values = np.empty_like(weight)
    values[np.argsort(in_order, kind="stable")] = weight[np.argsort(g_idx, kind="stable")]
    for group_of in (None, in_order):
        layer = plain.from_gptq(layer_words(qweight, g_idx), qzeros, scales, group_of, zero_offset=0)
        assert layer.order is None
        np.testing.assert_array_equal(layer.dequantize(), values.astype(np.float32))
    for change, words in [
        ({"g_idx": np.where(g_idx == 0, 3, g_idx)}, "belongs to group 3, of 3 groups"),
        ({"g_idx": np.where(np.arange(96) == 0, (g_idx[0] + 1) % 3, g_idx)}, "has 31 inputs, expected 32"),
        ({"g_idx": g_idx[:48]}, r"qweight \(12, 24\) holds 8 bits for each of 48 inputs, expected 4"),
        ({"scales": np.where(scales > 0, np.float32(1e6), 0)}, "the scale of group 0 and column 0 is 1000000.0, beyond f16"),
        ({"scales": scales[:, :8]}, r"scales has the shape \(3, 8\), expected \(groups, 24\)"),
        ({"qzeros": qzeros[:2]}, r"qzeros has the shape \(2, 3\), expected \(3, 24 / 8\)"),
        ({"qweight": qweight.astype(float)}, "packed integers are an array of float64, expected int32"),
        ({"qweight": qweight[0]}, r"qweight has the shape \(24,\), expected two dimensions"),
    ]:
        tensors = {"qweight": qweight, "qzeros": qzeros, "scales": scales, "g_idx": g_idx}
        with pytest.raises(ArgumentError, match=words):
            plain.from_gptq(**(tensors | change))


def across(codes, order=range(8)):
    """Pack eight neighbouring codes of a row per word, in the given order."""
    eights = codes.reshape(len(codes), -1, 8)[:, :, list(order)].astype(np.uint32)
    return np.bitwise_or.reduce(eights << (4 * np.arange(8, dtype=np.uint32)), axis=2).view(np.int32)


def integers(k, n, group, seed=0):
    """Codes, zero points, scales `[groups, N]`, and the dequantized weight."""
    generator = np.random.default_rng(seed)
    codes, zeros = generator.integers(0, 16, (k, n)), generator.integers(0, 16, (k // group, n))
    scales = generator.uniform(0.01, 0.1, (k // group, n)).astype(np.float16)
    of = np.arange(k) // group
    return codes, zeros, scales, (codes - zeros[of]) * scales.astype(np.float64)[of]


def test_tensors_of_awq(plain):
    codes, zeros, scales, weight = integers(96, 24, 32)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    state = {"qweight": across(codes, order), "qzeros": across(zeros, order), "scales": scales}
    bias = random(24)
    layer = plain.from_awq(**state, bias=bias)
    assert (layer.quant_type, layer.group_size) == ("int4", 32)
    np.testing.assert_array_equal(layer.dequantize(), weight.astype(np.float32))
    # From a state dict, and from a module.
    states = {f"up.{name}": array for name, array in (state | {"bias": bias}).items()}
    module = type("WQLinear", (), state | {"bias": None})()
    for other, bias_of in [(plain.from_awq(states, prefix="up."), bias), (plain.from_awq(module), None)]:
        np.testing.assert_array_equal(other.dequantize(), layer.dequantize())
        assert (other.bias is None) == (bias_of is None)
    for change, words in [
        ({"qzeros": state["qzeros"][:2]}, r"qzeros has the shape \(2, 3\), expected \(3, 3\)"),
        ({"scales": scales[:, :8]}, r"scales has the shape \(3, 8\), expected \(groups, 24\)"),
        ({"qweight": state["qweight"].astype(float)}, "packed integers are an array of float64, expected int32"),
        ({"scales": None}, "scales is missing"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            plain.from_awq(**(state | change))
    with pytest.raises(ArgumentError, match="the state has no down.qweight; it has up.qweight, up.qzeros"):
        plain.from_awq(states, prefix="down.")
    with pytest.raises(ArgumentError, match="prefix 'up.' belongs to a state dict"):
        plain.from_awq(**state, prefix="up.")


def test_integers_of_compressed_tensors(plain):
    codes, zeros, scales, weight = integers(96, 20, 32)
    packed, scale = across(codes.T), np.ascontiguousarray(scales.T)
    padded = np.pad(zeros.T, ((0, 4), (0, 0)))
    nibbles = np.ascontiguousarray(across(padded.T).T)
    for zero_point in (nibbles, (zeros.T - 8).astype(np.int8)):
        layer = plain.from_compressed_tensors(packed, scale, zero_point)
        assert layer.quant_type == "int4"
        np.testing.assert_array_equal(layer.dequantize(), weight.astype(np.float32))
    of = np.arange(96) // 32
    symmetric = ((codes - 8) * scales.astype(np.float64)[of]).astype(np.float32)
    layer = plain.from_compressed_tensors({"weight_packed": packed, "weight_scale": scale})
    assert layer.quant_type == "int4_sym"
    np.testing.assert_array_equal(layer.dequantize(), symmetric)
    # One group per row, with an order.
    g_idx = np.random.default_rng(3).permutation(of).astype(np.int32)
    layer = plain.from_compressed_tensors(packed, scale, weight_g_idx=g_idx)
    expected = ((codes - 8) * scales.astype(np.float64)[g_idx]).astype(np.float32)
    np.testing.assert_array_equal(layer.dequantize(), expected)
    x = random(3, 96)
    np.testing.assert_allclose(layer(x), x @ expected, rtol=1e-3, atol=1e-3)
    assert plain.from_compressed_tensors(packed, scale[:, :1]).group_size == 96
    for change, words in [
        ({"weight_scale": scale[:5]}, r"weight_scale has the shape \(5, 3\), expected \(20, groups\)"),
        ({"weight_zero_point": nibbles[:2]}, r"weight_zero_point has the shape \(2, 3\), expected \(3, 3\)"),
        ({"weight_zero_point": np.full((20, 3), 9, np.int8)}, "weight_zero_point is from 9 to 9, expected -8 to 8"),
        ({"weight_g_idx": g_idx[:5]}, r"g_idx has the shape \(5,\), expected \(96,\)"),
        ({"weight_packed": packed.astype(np.int64)}, "packed integers are an array of int64"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            plain.from_compressed_tensors(**({"weight_packed": packed, "weight_scale": scale} | change))


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def test_fp4_of_compressed_tensors(plain, torch, tmp_path):
    generator = np.random.default_rng(5)
    codes = generator.integers(0, 16, (20, 96)).astype(np.uint8)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    scale = torch.from_numpy(generator.uniform(1, 400, (20, 6)).astype(np.float32)).to(torch.float8_e4m3fn)
    divisor = torch.tensor([1536.0])
    values = E2M1[codes] * np.repeat(scale.float().numpy() / 1536, 16, 1)
    tensors = [torch.from_numpy(packed), scale]
    layer = latent.MarlinLinear.from_compressed_tensors(*tensors, weight_global_scale=divisor)
    np.testing.assert_allclose(layer.dequantize(), values.T, rtol=1e-6)
    x = random(3, 96)
    np.testing.assert_allclose(layer(x), x @ values.T.astype(np.float32), rtol=1e-3, atol=1e-3)
    layer.save(tmp_path / "layer")
    loaded = latent.MarlinLinear.load(tmp_path / "layer")
    np.testing.assert_array_equal(loaded.dequantize(), layer.dequantize())
    np.testing.assert_array_equal(plain.load(tmp_path / "layer")(x), layer(x))
    np.testing.assert_array_equal(copy.deepcopy(layer)(x), layer(x))
    with pytest.raises(ArgumentError, match="weight_global_scale is missing"):
        latent.MarlinLinear.from_compressed_tensors(*tensors)
    with pytest.raises(ArgumentError, match="expected a positive number"):
        latent.MarlinLinear.from_compressed_tensors(*tensors, weight_global_scale=-divisor)
    # A reader without torch returns bytes.
    bytes_of = [scale.view(torch.uint8).numpy(), None, None, divisor.numpy()]
    np.testing.assert_array_equal(plain.from_compressed_tensors(packed, *bytes_of).dequantize(), layer.dequantize())


def test_mxfp4_of_compressed_tensors(plain, tmp_path):
    generator = np.random.default_rng(6)
    codes = generator.integers(0, 16, (20, 96)).astype(np.uint8)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    exponents = generator.integers(118, 130, (20, 3)).astype(np.uint8)
    layer = plain.from_compressed_tensors(packed, exponents)
    assert (layer.scale_type, layer.group_size) == ("e8m0", 32)
    values = E2M1[codes] * np.repeat(np.exp2(exponents.astype(float) - 127), 32, 1)
    np.testing.assert_array_equal(layer.dequantize(), values.T.astype(np.float32))
    layer.save(tmp_path / "layer")
    np.testing.assert_array_equal(plain.load(tmp_path / "layer").dequantize(), layer.dequantize())
    with pytest.raises(ArgumentError, match="weight_packed is FP4 and weight_scale float32"):
        plain.from_compressed_tensors(packed, exponents.astype(np.float32))


def test_bf16_scales(torch):
    codes, zeros, scales, _ = integers(96, 24, 32)
    scales = torch.from_numpy(scales.astype(np.float32)).to(torch.bfloat16)
    layer = latent.MarlinLinear.from_compressed_tensors(torch.from_numpy(across(codes.T)), scales.T.contiguous())
    of = np.arange(96) // 32
    expected = (codes - 8) * scales.float().numpy()[of]
    # A bf16 in this range is exact in f16.
    np.testing.assert_array_equal(layer.dequantize(), expected.astype(np.float32))


def test_a_model_is_quantized_but_for_what_is_skipped(torch):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(64, 96), torch.nn.Linear(96, 64, bias=False)
            self.gate = torch.nn.Linear(64, 3)

        def forward(self, x):
            return self.down(torch.relu(self.up(x))) * self.gate(x).sum()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(Block() for _ in range(2))
            self.shared = self.layers[0].up
            self.lm_head = torch.nn.Linear(64, 32)
            self.odd = torch.nn.Linear(60, 32)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.lm_head(x)

    model = Model()
    before = list(model.named_modules())
    with pytest.raises(ArgumentError, match=r"odd: K is 60, .* leave it as it is with skip=\('odd',\)"):
        latent.quantize_model(model)
    assert list(model.named_modules()) == before
    expected = model(torch.ones(2, 64))
    assert latent.quantize_model(model, skip=("lm_head", "odd", "layers.1.gate"), quant_type="int4") is model
    kinds = {name for name, module in model.named_modules(remove_duplicate=False) if isinstance(module, latent.MarlinLinear)}
    assert kinds == {"layers.0.up", "layers.0.down", "layers.0.gate", "layers.1.up", "layers.1.down", "shared"}
    assert model.shared is model.layers[0].up and model.layers[0].down.bias is None
    assert type(model.lm_head) is torch.nn.Linear
    found = model(torch.ones(2, 64))
    assert ((found - expected) ** 2).mean() < 0.1 * (expected**2).mean()
    # All layers below a module.
    model = latent.quantize_model(Model(), skip=["layers", "odd"])
    assert isinstance(model.lm_head, latent.MarlinLinear) and type(model.layers[1].up) is torch.nn.Linear
    attention = latent.quantize_model(torch.nn.MultiheadAttention(64, 4))
    assert attention(*[torch.ones(2, 1, 64)] * 3)[0].shape == (2, 1, 64)
    assert isinstance(latent.quantize_model(torch.nn.Linear(64, 8)), latent.MarlinLinear)
    with pytest.raises(ArgumentError, match="module is a dict"):
        latent.quantize_model({})


def layer_words(qweight, g_idx):
    """Words whose inputs are sorted by group."""
    codes = np.stack([(qweight.view(np.uint32) >> 4 * i) & 15 for i in range(8)], 1).reshape(-1, qweight.shape[1])
    codes = codes[np.argsort(g_idx, kind="stable")]
    return sum(codes[i::8] << np.uint32(4 * i) for i in range(8)).astype(np.uint32)


def test_files_that_are_none_are_refused(plain, tmp_path):
    path = tmp_path / "layer"
    plain.from_dense(random(64, 24), random(24)).save(path)
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = whole[8 : 8 + length]

    def changed(old, new):
        assert old in header
        text = header.replace(old, new)
        return len(text).to_bytes(8, "little") + text + whole[8 + length :]

    for data, words in [
        (b"", "a header of 0 bytes in a file of 0"),
        (whole[:7], "in a file of 7"),
        (b"\xff" * 8 + whole[8:], "a header of 18446744073709551615 bytes"),
        (whole[:-1], "bias of shape .24,. is bytes"),
        (changed(b'"U32"', b'"F64"'), "packed is of F64, expected F32"),
        (changed(b"[8, 24]", b"[9, 24]"), "packed of shape .9, 24. is bytes 0 to 768"),
        (changed(b"[8, 24]", b"[-8, -24]"), "packed of shape"),
        (changed(b"[8, 24]", b"[0, 1%s]" % (b"0" * 40)), "packed of shape"),
        (changed(header, b"[" * 100_000), "is not a safetensors file of a layer"),
        (changed(b'"32"', b'"48"'), "not a multiple of the group size 48"),
        (changed(b'"32"', b'"x"'), "invalid literal"),
        (changed(b"fp4", b"fp8"), "quant_type 'fp8'"),
        (changed(b'"group_size"', b'"group"'), "has no group_size of a layer"),
        (changed(b"scales", b"scale"), "has no scales of a layer"),
        (changed(b"{", b"["), "is not a safetensors file of a layer"),
    ]:
        path.write_bytes(data)
        with pytest.raises(FileError, match=words):
            plain.load(path)


def test_torch_is_imported_when_the_layer_is_asked_for():
    code = "import sys, latent; latent.pack_fp4_weights; assert 'torch' not in sys.modules; latent.MarlinLinear"
    # Not in python/, where Python would import the sources instead of the installed package.
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=pathlib.Path(__file__).parent)
    with pytest.raises(AttributeError, match="no attribute 'MarlinLinears'"):
        latent.MarlinLinears


@pytest.mark.parametrize("quant", QUANTS)
def test_a_module_of_torch(torch, plain, quant, tmp_path):
    linear = torch.nn.Linear(64, 24)
    layer = latent.MarlinLinear.from_linear(linear, quant)
    assert isinstance(layer, torch.nn.Module) and "quant_type" in repr(torch.nn.Sequential(layer))
    x = torch.from_numpy(random(2, 3, 64))
    expected = x @ torch.from_numpy(layer.dequantize()) + linear.bias.detach()
    torch.testing.assert_close(layer(x), expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(layer(x.numpy()), layer(x).numpy())
    state = layer.state_dict()
    assert set(state) == {"packed", "scales", "bias"} | ({"zeros"} if quant == "int4" else set())
    new = latent.MarlinLinear(64, 24, quant_type=quant)
    new.load_state_dict(state)
    assert torch.equal(new(x), layer(x))
    with pytest.raises(RuntimeError, match="size mismatch"):
        latent.MarlinLinear(128, 24, quant_type=quant).load_state_dict(state)
    # The layers with and without torch read each other's files.
    layer.save(tmp_path / "layer")
    np.testing.assert_array_equal(plain.load(tmp_path / "layer")(x.numpy()), layer(x).numpy())
    plain.from_linear(Dense, quant).save(tmp_path / "plain")
    other = latent.MarlinLinear.load(tmp_path / "plain")
    np.testing.assert_array_equal(other(x).numpy(), plain.from_linear(Dense, quant)(x.numpy()))


def test_a_state_in_safetensors_of_torch(torch, tmp_path):
    files = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    model = torch.nn.Sequential(latent.MarlinLinear.from_linear(torch.nn.Linear(64, 32)), torch.nn.ReLU())
    files.save_file(model.state_dict(), tmp_path / "model.safetensors")
    other = torch.nn.Sequential(latent.MarlinLinear(64, 32), torch.nn.ReLU())
    other.load_state_dict(files.load_file(tmp_path / "model.safetensors"))
    x = torch.from_numpy(random(5, 64))
    assert torch.equal(other(x), model(x))
    # The safetensors package reads files that `save` has written.
    model[0].save(tmp_path / "layer.safetensors")
    state = files.load_file(tmp_path / "layer.safetensors")
    assert all(torch.equal(state[name], tensor) for name, tensor in model[0].state_dict().items())


def test_types_of_the_inputs_and_of_the_module(torch):
    layer = latent.MarlinLinear.from_linear(torch.nn.Linear(64, 24))
    x = torch.from_numpy(random(5, 64))
    whole = layer(x)
    for dtype, bound in [(torch.float16, 1e-2), (torch.bfloat16, 1e-1)]:
        y = layer(x.to(dtype))
        assert y.dtype == dtype
        torch.testing.assert_close(y.float(), whole, rtol=bound, atol=bound)
    layer.to(torch.bfloat16)
    assert (layer.bias.dtype, layer.scales.dtype, layer.packed.dtype) == (torch.bfloat16, torch.float16, torch.int32)
    torch.testing.assert_close(layer(x), whole, rtol=1e-2, atol=1e-2)
    # A transposed input is copied, as in other modules.
    assert torch.equal(layer(x.T.contiguous().T), layer(x))
    with pytest.raises(ArgumentError, match="x is an array of float64"):
        layer(x.double())
    with pytest.raises(ArgumentError, match="x cannot be read"):
        layer(x.to("meta"))


def test_gradients_pass_to_inputs_and_bias(torch):
    layer = latent.MarlinLinear.from_linear(torch.nn.Linear(64, 24), "int4")
    layer.bias.requires_grad_(True)
    x = torch.from_numpy(random(2, 3, 64)).requires_grad_(True)
    factors = torch.from_numpy(random(2, 3, 24))
    (layer(x) * factors).sum().backward()
    weight = torch.from_numpy(layer.dequantize())
    torch.testing.assert_close(x.grad, factors @ weight.T)
    torch.testing.assert_close(layer.bias.grad, factors.sum((0, 1)))
    with torch.no_grad():
        assert not layer(x).requires_grad


def test_tensors_of_gptq_in_torch(torch):
    *tensors, weight = gptq(96, 24, 32)
    layer = latent.MarlinLinear.from_gptq(*(torch.from_numpy(tensor) for tensor in tensors))
    x = torch.from_numpy(random(3, 96)).requires_grad_(True)
    weight = torch.from_numpy(weight.astype(np.float32))
    torch.testing.assert_close(layer(x), x @ weight, rtol=1e-3, atol=1e-3)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(1).expand(3, 96))
    new = latent.MarlinLinear(96, 24, False, "int4", 32, act_order=True)
    new.load_state_dict(layer.state_dict())
    assert torch.equal(new(x), layer(x))
    np.testing.assert_array_equal(layer(x.detach().numpy()), layer(x).detach().numpy())


def test_tensors_are_read_where_they_are(torch):
    w, x = random(64, 24), random(3, 64)
    packed, scales = latent.pack_fp4_weights(torch.from_numpy(w), 32)
    expected = latent.quantized_linear(x, packed, scales)
    y = latent.quantized_linear(*(torch.from_numpy(array) for array in (x, packed, scales)))
    np.testing.assert_array_equal(y, expected)
    shared = torch.from_dlpack(y)
    shared[0, 0] = 7
    assert y[0, 0] == 7
    codes = torch.full((2, 24), 127, dtype=torch.uint8)
    exact = latent.quantized_linear(x, packed, codes, scale_type="e8m0")
    if hasattr(torch, "float8_e8m0fnu"):
        named = latent.quantized_linear(x, packed, codes.view(torch.float8_e8m0fnu))
        np.testing.assert_array_equal(named, exact)
    with pytest.raises(ArgumentError, match="x cannot be read: .*detach"):
        latent.quantized_linear(torch.from_numpy(x).requires_grad_(True), packed, scales)
