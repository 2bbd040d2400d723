//! Unrolled loops over register tiles.

/// Unrolls a loop up to a constant of at most sixteen.
// With an index that is not a constant, the compiler keeps an array of accumulators in memory and
// stores them after each multiply-add: 47 instead of 74 % of the f16 limit (Xeon).
// measured: docs/notes/attention-kernels.md "Attention kernels"
macro_rules! unrolled {
    ($count:ident, $i:ident => $body:expr) => {
        unrolled!($count, $i => $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($count:ident, $i:ident => $body:expr; $($number:literal)*) => {$(
        if $number < $count {
            let $i = Ord::min($number, $count - 1);
            $body;
        }
    )*};
}
pub(super) use unrolled;
