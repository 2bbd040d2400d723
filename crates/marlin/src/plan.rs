//! Kernel selection: by shape, or as requested.

use crate::error::Error;
use crate::weight::Shape;
use latent_kernels::{W4Entry, W4Fn, W4Form, W4Kernel, W4MatmulFn, W4Shape, w4_table};
use latent_types::{ActivationType, Tier};

/// The kernels that multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Many rows: strips of the weight are decoded into the cache.
    Gemm,
    /// Few rows: codes are decoded in registers.
    Fused,
    /// Few output tiles: K is split into slices, whose partial sums are added in order.
    Striped,
}

impl Kernel {
    /// All kernels.
    pub const ALL: [Kernel; 3] = [Kernel::Gemm, Kernel::Fused, Kernel::Striped];

    /// Its name: `gemm`, `fused`, `striped`.
    pub fn name(self) -> &'static str {
        self.entry().name()
    }

    fn entry(self) -> W4Entry {
        match self {
            Kernel::Gemm => W4Entry::Gemm,
            Kernel::Fused => W4Entry::Fused,
            Kernel::Striped => W4Entry::Striped,
        }
    }
}

/// Precision of the inputs in products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// The precision of the inputs. f32 inputs keep at least sixteen bits.
    #[default]
    AsGiven,
    /// Rounded to bf16.
    Bf16,
    /// Rounded to 8-bit integers with a scale per 32 inputs. Faster if arithmetic limits the speed
    /// and the CPU has no bf16 instructions. The error of an input is at most 1/254 of the largest
    /// of its 32. Only for groups of whole words.
    Int8,
}

/// Precision that the inputs of a kernel must have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KernelPrecision {
    AtLeast16,
    Bf16,
    Int8,
}

impl KernelPrecision {
    fn of(activations: Activations, bf16_inputs: bool) -> KernelPrecision {
        match activations {
            Activations::Int8 => KernelPrecision::Int8,
            Activations::Bf16 => KernelPrecision::Bf16,
            Activations::AsGiven if bf16_inputs => KernelPrecision::Bf16,
            Activations::AsGiven => KernelPrecision::AtLeast16,
        }
    }

    /// Whether a kernel with these activations may multiply.
    fn allows(self, activation: ActivationType) -> bool {
        match self {
            KernelPrecision::AtLeast16 => activation == ActivationType::F32,
            // On CPUs without bf16 arithmetic, kernels for f32 multiply bf16 inputs exactly.
            KernelPrecision::Bf16 => matches!(activation, ActivationType::F32 | ActivationType::Bf16),
            KernelPrecision::Int8 => activation == ActivationType::A8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            KernelPrecision::AtLeast16 => "f32",
            KernelPrecision::Bf16 => "bf16",
            KernelPrecision::Int8 => "int8",
        }
    }
}

/// Options that force a choice. By default everything is chosen by shape.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The kernel.
    pub kernel: Option<Kernel>,
    /// The instruction set.
    pub tier: Option<Tier>,
    /// Slices of K (the parallel factor), for [`Kernel::Striped`].
    pub slices: Option<usize>,
    /// Precision of the inputs.
    pub activations: Activations,
}

/// Largest number of rows for which codes are decoded in registers.
const MAX_FUSED_ROWS: usize = 16;

/// Rows and columns of a striped tile.
pub(crate) fn tile(m: usize) -> (usize, usize) {
    // With few rows, reading the weight takes most of the time, and wide tiles read long stretches
    // of it.
    if m <= MAX_FUSED_ROWS { (MAX_FUSED_ROWS, 8192) } else { (64, 96) }
}

/// With fewer tiles, K is split.
// 32 tiles keep the cores of one machine busy.
const MIN_TILES: usize = 32;

/// Smallest number of inputs of a slice.
const MIN_SLICE_INPUTS: usize = 1024;

/// How a product runs.
#[derive(Clone, Copy)]
pub struct Plan {
    /// The kernel.
    pub kernel: Kernel,
    /// Slices of K; 1 except for [`Kernel::Striped`].
    pub slices: usize,
    chosen: &'static W4Kernel,
    pub(crate) function: W4MatmulFn,
}

impl Plan {
    /// Plans a product with `m` rows of inputs, which are bf16 or more precise.
    ///
    /// # Errors
    /// If no kernel of the machine does what `options` force.
    pub fn new(options: &Options, shape: Shape, m: usize, bf16_inputs: bool) -> Result<Plan, Error> {
        let words = shape.k / 8;
        // Slices change the order of sums. Their number depends only on the shape, so that results
        // do not depend on the number of threads.
        // The tile of `tile` for many rows, whatever `m` is.
        let tiles = m.div_ceil(64) * shape.n.div_ceil(96);
        let useful = MIN_TILES.div_ceil(tiles.max(1)).min(shape.k / MIN_SLICE_INPUTS).max(1);
        let kernel = options.kernel.unwrap_or(match m {
            _ if useful > 1 => Kernel::Striped,
            ..=MAX_FUSED_ROWS => Kernel::Fused,
            _ => Kernel::Gemm,
        });
        let slices = match kernel {
            Kernel::Striped => options.slices.unwrap_or(useful),
            _ => 1,
        };
        // K may be 0, which is one empty slice.
        if slices == 0 || slices > words.max(1) {
            return Err(Error::Slices { slices, words });
        }
        let precision = KernelPrecision::of(options.activations, bf16_inputs);
        let best = latent_kernels::features().tier();
        let found = find(kernel, (m, shape), options.tier, best, precision);
        found.map(|(chosen, function)| Plan { kernel, slices, chosen, function }).ok_or(Error::NoKernel {
            kernel: kernel.name(),
            tier: options.tier.unwrap_or(best),
            group: shape.group,
            inputs: precision.name(),
        })
    }

    /// The chosen kernel of the table.
    pub fn chosen(&self) -> &'static W4Kernel {
        self.chosen
    }
}

/// Finds the kernel of the highest tier that this machine has; for few rows rather one on 16-bit
/// integers.
fn find(
    kernel: Kernel,
    (m, shape): (usize, Shape),
    tier: Option<Tier>,
    best: Tier,
    precision: KernelPrecision,
) -> Option<(&'static W4Kernel, W4MatmulFn)> {
    let shape = W4Shape { k: shape.k, n: shape.n, group: shape.group };
    let mut found: Option<(&W4Kernel, W4MatmulFn)> = None;
    for other in w4_table() {
        let W4Fn::Matmul(function) = other.function else { continue };
        let fits = other.entry == kernel.entry()
            && other.tier <= best
            && tier.is_none_or(|tier| tier == other.tier)
            && other.takes(shape)
            && precision.allows(other.activation);
        let few = kernel == Kernel::Fused || m <= MAX_FUSED_ROWS;
        let rank = |other: &W4Kernel| {
            // For many rows, 16-bit integers are as fast as bf16 on CPUs with VNNI; with AVX2, f32
            // is faster.
            let form = match other.form {
                W4Form::Pairs | W4Form::TileRows => 3,
                W4Form::Int16 if other.tier >= Tier::Avx512 => 2,
                W4Form::F32 | W4Form::Int8 => 1,
                W4Form::Int16 => 0,
            };
            // With few rows, most of a matrix tile would be empty.
            (few && other.form == W4Form::Int16, other.tier, form)
        };
        // Of equal ranks, the first row of the table wins.
        if fits && found.is_none_or(|(before, _)| rank(other) > rank(before)) {
            found = Some((other, function));
        }
    }
    found
}
