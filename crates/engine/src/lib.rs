//! The CPU backend, latent cache, sampling, and the prompt to text loop.
