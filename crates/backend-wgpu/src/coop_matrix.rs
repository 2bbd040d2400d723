//! Cooperative matrices.

/// Square cooperative matrices, with sums in f32, that the lanes of a subgroup multiply together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoopMatrix {
    /// Rows, and columns: 8 or 16.
    pub side: usize,
    /// Whether factors are f16; else f32.
    pub f16: bool,
    /// Lanes of a subgroup, of which the adapter has only this size.
    pub subgroup: usize,
}

impl CoopMatrix {
    /// Subgroups of a workgroup that multiplies them.
    pub(crate) const SUBGROUPS: usize = 4;

    /// Threads of such a workgroup.
    pub(crate) fn threads(self) -> usize {
        CoopMatrix::SUBGROUPS * self.subgroup
    }
}
