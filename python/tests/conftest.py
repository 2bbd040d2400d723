import importlib.util
import pathlib
import sys

import pytest

import latent


@pytest.fixture(scope="session")
def model():
    """The demo model with a small context. In exact precision logits do not depend on the batch."""
    return latent.Model.load(ctx_size=512, threads=2, precision="exact")


@pytest.fixture
def truncated(tmp_path):
    """A truncated GGUF file."""
    demo = latent.gguf.read()
    path = tmp_path / "truncated.gguf"
    whole = b"GGUF" + demo["token_embd.weight"].data.tobytes()
    path.write_bytes(whole[:1000])
    return path


@pytest.fixture(scope="session")
def plain():
    """The layer without torch, even if torch is installed."""
    path = pathlib.Path(latent.__file__).parent / "linear.py"
    spec = importlib.util.spec_from_file_location("linear_without_torch", path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        spec.loader.exec_module(module)
    return module.MarlinLinear


@pytest.fixture(scope="session")
def torch():
    return pytest.importorskip("torch", reason="torch is not installed: the layer as its module is not tested")
