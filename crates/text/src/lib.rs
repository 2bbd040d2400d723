//! Tokenizers, chat templates, streaming detokenizer.
