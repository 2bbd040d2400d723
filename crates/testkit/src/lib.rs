//! Random models of every shape and type, written with our own writer and encoders.
