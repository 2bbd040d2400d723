//! The bf16 layout that AMX tiles read, and where expanded keys and values are stored in it.
//!
//! A *k-step* is 32 rows (or columns) × 32 terms: two tiles of 1 KB. A *left* panel stores a k-step
//! as 32 rows of 32 elements, row-major. A *right* panel stores it in VNNI order: each tile has
//! sixteen lines, and a line has two neighbouring terms of sixteen columns. A panel is a
//! sequence of k-steps, the last one padded with zeros.
//!
//! Expanded keys: 32 cached rows are a left panel. Expanded values: 32 columns are the rows of a
//! left panel and the cached rows are its terms, so that results have queries in the lanes of a
//! vector, as scores do.

/// Rows (or columns) of a panel.
pub(crate) const PANEL: usize = 32;

/// Terms of a k-step.
pub(crate) const K_STEP: usize = 32;

/// Elements of a k-step.
pub(crate) const STEP_LEN: usize = PANEL * K_STEP;

/// Cached rows of a block of expanded keys and values.
pub(crate) const KV_BLOCK: usize = 128;

/// K-steps that hold `terms` terms.
pub(crate) const fn steps(terms: usize) -> usize {
    terms.div_ceil(K_STEP)
}

/// Index of element `n` of the key of a cached row, in blocks of keys `width` elements wide.
pub(crate) fn key_offset(width: usize, row: usize, n: usize) -> usize {
    (row / PANEL * steps(width) + n / K_STEP) * STEP_LEN + row % PANEL * K_STEP + n % K_STEP
}

/// Index of element `n` of the value of a cached row, in blocks of values `width` elements wide.
pub(crate) fn value_offset(width: usize, row: usize, n: usize) -> usize {
    let block = row / KV_BLOCK * steps(width) * PANEL * KV_BLOCK;
    let step = n / PANEL * (KV_BLOCK / K_STEP) + row % KV_BLOCK / K_STEP;
    block + step * STEP_LEN + n % PANEL * K_STEP + row % K_STEP
}
