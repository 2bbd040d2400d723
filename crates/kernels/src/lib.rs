//! CPU compute: one folder an operation, one file an instruction-set tier.
