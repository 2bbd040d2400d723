//! Bytes on disk to checked checkpoints: GGUF and safetensors, and writers for them.
