"""Adds fill-in-the-middle tokens to the demo model."""

import struct

# Control tokens that do not occur in code.
TOKENS = {"fim_pre_token_id": 2, "fim_suf_token_id": 3, "fim_mid_token_id": 4}
UINT32, STRING = 4, 8


def key(name, kind):
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind)


def with_gaps(gguf):
    """Returns the bytes of a GGUF file with the ids of these tokens in its metadata."""
    magic, version, tensors, entries = struct.unpack_from("<4sIQQ", gguf)
    added = b"".join(key(f"tokenizer.ggml.{name}", UINT32) + struct.pack("<I", id) for name, id in TOKENS.items())
    # Tensors stay aligned if the added size is a multiple of the alignment.
    filler = key("general.description", STRING)
    size = -(len(added) + len(filler) + 8) % 32
    added += filler + struct.pack("<Q", size) + b" " * size
    header = struct.pack("<4sIQQ", magic, version, tensors, entries + len(TOKENS) + 1)
    return header + added + gguf[len(header):]
