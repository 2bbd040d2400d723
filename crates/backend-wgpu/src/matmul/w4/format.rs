//! Formats of codes and scales.

/// The meaning of the sixteen codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum W4CodeKind {
    /// E2M1 floats.
    Fp4,
    /// Unsigned integers minus the zero point of their group.
    Int4,
    /// Unsigned integers minus 8.
    Int4Sym,
}

impl W4CodeKind {
    /// The suffix of kernel names.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            W4CodeKind::Fp4 => "fp4",
            W4CodeKind::Int4 => "u4",
            W4CodeKind::Int4Sym => "s4",
        }
    }
}

/// The format of scales on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ScaleKind {
    F16,
    /// Exponents.
    E8m0,
    /// E4M3 times the tensor's scale.
    E4m3,
}
