"""Contents of the package."""

import ast
import pathlib
import pickle

import numpy as np
import pytest

import latent
from latent import _latent

PACKAGE = pathlib.Path(latent.__file__).parent


def members(cls):
    own = {"__enter__", "__exit__", "__iter__", "__next__", "__len__", "__getitem__", "__array__", "_repr_html_"}
    return {name for name in vars(cls) if not name.startswith("_") or name in own}


def test_the_stubs_name_what_there_is():
    tree = ast.parse((PACKAGE / "_latent.pyi").read_text())
    stubs = {}
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name, body=body):
                stubs[name] = {part.name for part in body if isinstance(part, ast.FunctionDef)} - {"__new__"}
            case ast.FunctionDef(name=name):
                stubs[name] = None
    public = {name for name in vars(_latent) if not name.startswith("_")}
    assert public == stubs.keys()
    for name, stubbed in stubs.items():
        if stubbed is not None:
            assert members(getattr(_latent, name)) == stubbed, name
    assert (PACKAGE / "py.typed").exists()


def test_the_stubs_name_every_option(model):
    tree = ast.parse((PACKAGE / "_latent.pyi").read_text())
    [cls] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"]
    keywords = {
        node.name: {argument.arg for argument in node.args.kwonlyargs}
        for node in cls.body
        if isinstance(node, ast.FunctionDef)
    }
    for name, call in [("load", latent.Model.load), ("generate", lambda **options: model.generate("x", **options))]:
        with pytest.raises(latent.errors.ArgumentError, match="expected one of") as raised:
            call(no_such_option=1)
        known = set(str(raised.value).split("expected one of ")[1].split(", "))
        assert keywords[name] - {"variables"} == known
    assert keywords["generate"] == keywords["stream"] == keywords["chat"]
    weight = latent.pack_fp4_weights(np.zeros((8, 1), np.float32), 8)
    for function, positional in [
        (latent.quantized_linear, [np.zeros(8, np.float32), *weight, 8]),
        (latent.quantized_linear_striped, [np.zeros(8, np.float32), *weight, 8, 1]),
        (latent.dequantize, [*weight, 8]),
    ]:
        with pytest.raises(latent.errors.ArgumentError, match="expected one of") as raised:
            function(*positional, no_such_option=1)
        # The last overload is the one for arrays.
        *_, stub = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function.__name__]
        known = set(str(raised.value).split("expected one of ")[1].split(", "))
        assert {argument.arg for argument in stub.args.kwonlyargs} == known


def test_everything_has_a_description():
    for name in latent.__all__:
        assert getattr(latent, name).__doc__, name
    for cls in [latent.Model, latent.Answer, latent.Stream, latent.Tokenizer, latent.Plan, latent.MarlinLinear, latent.DeviceArray, latent.DeviceWeight]:
        for name in members(cls) - {"__enter__", "__exit__", "__iter__", "__next__", "__len__"}:
            assert getattr(cls, name).__doc__, f"{cls.__name__}.{name}"


def test_a_model_is_not_pickled(model):
    with pytest.raises(TypeError, match="Model"):
        pickle.dumps(model)
