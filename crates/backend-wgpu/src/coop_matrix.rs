//! Cooperative matrices.

/// Square cooperative matrices, with sums in f32, that the lanes of a subgroup multiply together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoopMatrix {
    /// Rows, and columns: 8 or 16.
    pub side: usize,
    /// Whether factors are f16; else f32.
    pub f16: bool,
    /// Lanes of a subgroup that multiplies them.
    pub subgroup: usize,
}

impl CoopMatrix {
    /// Subgroups of a workgroup that multiplies them.
    pub(crate) const SUBGROUPS: usize = 4;

    /// What a text that uses them begins with.
    pub(crate) fn directives(self) -> &'static str {
        match self.f16 {
            true => "enable f16;\nenable wgpu_cooperative_matrix;\n",
            false => "enable wgpu_cooperative_matrix;\n",
        }
    }

    /// The element type of factors.
    pub(crate) fn element(self) -> &'static str {
        if self.f16 { "f16" } else { "f32" }
    }

    /// Their types, and constants: `SIDE`, `SUBGROUPS`.
    pub(crate) fn types(self) -> String {
        let (side, element) = (self.side, self.element());
        let alias = |name, ty, role| format!("alias {name} = coop_mat{side}x{side}<{ty}, {role}>;\n");
        [
            format!("const SIDE: u32 = {side}u;\nconst SUBGROUPS: u32 = {}u;\n", CoopMatrix::SUBGROUPS),
            alias("Rows", element, "A"),
            alias("Outputs", element, "B"),
            alias("Sums", "f32", "C"),
        ]
        .concat()
    }

    /// Threads of such a workgroup.
    pub(crate) fn threads(self) -> usize {
        CoopMatrix::SUBGROUPS * self.subgroup
    }
}
