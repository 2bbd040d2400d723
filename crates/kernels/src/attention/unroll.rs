//! Unrolled loops over register tiles.

/// Unrolls a loop below a constant of at most sixteen. With an index that the compiler does not know, an
/// array of accumulators would be kept in memory instead of registers.
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
