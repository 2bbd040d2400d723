"""Hugging Face folder to GGUF with llama.cpp's converter, the MTP layer kept.

  python3 convert.py LLAMA_CPP work/hf work/mla-demo-BF16.gguf

The converter's class for DeepSeek-V3 leaves MTP layers out, although llama.cpp's loader for the architecture
reads them. Three methods are replaced at run time, as the converter's classes for other models with MTP
layers have them. And the name of the pre-tokenizer is given, as the converter knows tokenizers only by a hash
of what they do.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

TYPES = ("bf16", "f16", "f32")


def keep_mtp_layer(converter: Any, gguf: Any, mtp_layer: int) -> None:
    """Makes the class `converter` write the MTP layer, which has that number in the checkpoint."""
    original_init, original_parameters = converter.__init__, converter.set_gguf_parameters
    original_filter = converter.filter_tensors.__func__
    # The layer's copies of the embedding and of the head are the model's own, which the loader falls back to.
    copies = (f"layers.{mtp_layer}.embed_tokens.weight", f"layers.{mtp_layer}.shared_head.head.weight")

    def init(self: Any, *args: Any, **keywords: Any) -> None:
        original_init(self, *args, **keywords)
        self.block_count = self.hparams["num_hidden_layers"] + self.hparams["num_nextn_predict_layers"]
        self.tensor_map = gguf.get_tensor_name_map(self.model_arch, self.block_count)

    def set_gguf_parameters(self: Any) -> None:
        original_parameters(self)
        self.gguf_writer.add_nextn_predict_layers(self.hparams["num_nextn_predict_layers"])

    def filter_tensors(cls: Any, item: tuple[str, Any]) -> Any:
        return None if item[0].endswith(copies) else original_filter(cls, item)

    converter.skip_mtp = False
    converter.__init__ = init
    converter.set_gguf_parameters = set_gguf_parameters
    converter.filter_tensors = classmethod(filter_tensors)
    converter.get_vocab_base_pre = lambda *_: "deepseek-v3"


def main() -> None:
    """Converts a folder."""
    parser = argparse.ArgumentParser(description="Writes a Hugging Face folder of the demo model as GGUF.")
    parser.add_argument("llama_cpp", type=Path, help="llama.cpp's source folder")
    parser.add_argument("hf", type=Path, help="folder that export.py wrote")
    parser.add_argument("gguf", type=Path, help="file to write")
    parser.add_argument("--type", choices=TYPES, default="bf16", help="type of the matrices (default: bf16)")
    parser.add_argument("--name", default="mla-demo", help="general.name of the file (default: mla-demo)")
    options = parser.parse_args()
    sys.path[:0] = [str(options.llama_cpp), str(options.llama_cpp / "gguf-py")]
    gguf = importlib.import_module("gguf")
    converter = importlib.import_module("conversion.deepseek").DeepseekV2Model
    config = json.loads((options.hf / "config.json").read_text(encoding="utf-8"))
    keep_mtp_layer(converter, gguf, mtp_layer=config["num_hidden_layers"])
    # The converter is a script that reads the command line.
    sys.argv = ["convert_hf_to_gguf.py", str(options.hf), "--outfile", str(options.gguf)]
    sys.argv += ["--outtype", options.type, "--model-name", options.name]
    importlib.import_module("convert_hf_to_gguf").main()


if __name__ == "__main__":
    main()
