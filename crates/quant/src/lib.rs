//! Block formats of weights: what the bits mean.
