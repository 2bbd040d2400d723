//! Cooperative matrices.

/// A kind of square cooperative matrices with sums in f32. The lanes of a subgroup multiply them
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoopMatrix {
    /// Number of rows and of columns: 8 or 16.
    pub side: usize,
    /// Whether factors are f16 instead of f32.
    pub f16: bool,
    /// Lanes per subgroup.
    pub subgroup: usize,
}

impl CoopMatrix {
    /// Subgroups per workgroup.
    pub(crate) const SUBGROUPS: usize = 4;

    /// The directives with which a shader's text begins.
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

    /// Declarations of the matrix types and of the constants `SIDE` and `SUBGROUPS`.
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

    /// Threads per workgroup.
    pub(crate) fn threads(self) -> usize {
        CoopMatrix::SUBGROUPS * self.subgroup
    }
}
