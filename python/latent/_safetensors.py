"""Reading and writing the tensors and metadata of a layer as a safetensors file.

For other safetensors files, use the package safetensors.
"""

import json
import os
import secrets
import stat
from collections.abc import Mapping
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from latent.errors import FileError, ModelNotFoundError

__all__ = ["read", "write"]

Tensors: TypeAlias = Mapping[str, NDArray[Any]]

DTYPES = {"F32": "<f4", "F16": "<f2", "I32": "<i4", "U32": "<u4", "U8": "|u1"}

# Maximum size of a header in bytes, more than that of any layer.
MAX_HEADER = 1 << 20


def write(path: str | os.PathLike[str], tensors: Tensors, metadata: Mapping[str, str]) -> None:
    """Write a file atomically: an existing file is replaced once the new one is complete."""
    names = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": names[tensor.dtype], "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    temporary = f"{os.fspath(path)}.{secrets.token_hex(4)}"
    try:
        with open(temporary, "xb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in tensors.values():
                file.write(np.ascontiguousarray(tensor).data)
        os.replace(temporary, path)
    except OSError as error:
        raise FileError(f"{os.fspath(path)}: {error}") from error
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the tensors and the metadata of a file."""
    try:
        # Opening a pipe would block until a process writes to it.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise FileError(f"{os.fspath(path)}: it is a folder, a pipe or a device, expected a plain file")
        with open(path, "rb") as file:
            data = file.read()
    except FileError:
        raise
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"{os.fspath(path)}: {error.strerror}") from error
    except OSError as error:
        raise FileError(f"{os.fspath(path)}: {error}") from error
    try:
        return _parsed(data)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        raise FileError(f"{os.fspath(path)} is not a safetensors file of a layer: {error}") from error


def _parsed(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, MAX_HEADER):
        raise ValueError(f"a header of {length} bytes in a file of {len(data)}")
    header = json.loads(data[8 : 8 + length])
    metadata = {str(name): str(value) for name, value in header.pop("__metadata__", {}).items()}
    tensors = {}
    for name, entry in header.items():
        (begin, end), dtype = entry["data_offsets"], DTYPES.get(entry["dtype"])
        if dtype is None:
            raise ValueError(f"{name} is of {entry['dtype']}, expected {', '.join(DTYPES)}")
        shape = tuple(int(size) for size in entry["shape"])
        expected = prod(shape) * np.dtype(dtype).itemsize
        if not 0 <= begin <= end <= len(data) - 8 - length or end - begin != expected or min(shape, default=0) < 0:
            raise ValueError(f"{name} of shape {shape} is bytes {begin} to {end} of {len(data) - 8 - length}")
        elements = np.frombuffer(data, dtype, prod(shape), 8 + length + begin)
        tensors[name] = elements.reshape(shape).copy()
    return tensors, metadata
