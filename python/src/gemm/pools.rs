//! Thread pools for matrix products, which stay alive between calls.

use crate::errors::exception;
use latent::GemmHandle;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// One pool per requested number of threads. The lock is taken with the GIL held and released
/// before the GIL is, so that it is free in a child that Python forks.
static POOLS: Mutex<BTreeMap<usize, Arc<GemmHandle>>> = Mutex::new(BTreeMap::new());

/// Returns the pool of this process with a number of threads, started if necessary. 0: the default.
pub(crate) fn pool(py: Python<'_>, threads: usize) -> PyResult<Arc<GemmHandle>> {
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    // A forked child inherits this map without the parent's threads, so a pool of the parent would
    // never finish a product.
    if let Some(pool) = pools.get(&threads)
        && pool.is_of_this_process()
    {
        return Ok(Arc::clone(pool));
    }
    let pool = Arc::new(GemmHandle::new(threads).map_err(|error| exception(py, &error))?);
    pools.insert(threads, Arc::clone(&pool));
    Ok(pool)
}
