import pytest

import latent


@pytest.fixture(scope="session")
def model():
    """The demo model, with a small context; exact, so that the same tokens have the same logits alone and in a batch."""
    return latent.Model.load(ctx_size=512, threads=2, precision="exact")


@pytest.fixture
def truncated(tmp_path):
    """Half of a file."""
    demo = latent.gguf.read()
    path = tmp_path / "truncated.gguf"
    whole = b"GGUF" + demo["token_embd.weight"].data.tobytes()
    path.write_bytes(whole[:1000])
    return path
