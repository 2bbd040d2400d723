//! Errors of weights, inputs and options.

use latent_types::Tier;

/// An error of this library.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum Error {
    /// K is not a multiple of 8, so that its codes do not fill words.
    #[error(
        "K is {k}, which is not a multiple of 8: a word holds eight codes along K; pad the weight with zeros"
    )]
    WordSize { k: usize },
    /// K is not a multiple of the group size.
    #[error("K is {k}, which is not a multiple of the group size {group}; use a divisor of K, or K itself")]
    Group { k: usize, group: usize },
    /// The length of a slice does not match its shape.
    #[error("{what} [{rows}, {cols}] has {expected} elements, but {found} were given")]
    Length { what: &'static str, rows: usize, cols: usize, expected: usize, found: usize },
    /// The number of elements of a shape overflows.
    #[error("{what} [{rows}, {cols}] has more elements than fit into memory")]
    Overflow { what: &'static str, rows: usize, cols: usize },
    /// A zero point is out of range.
    #[error("the zero point of group {group} and column {col} is {value}; it must be from 0 to 16")]
    ZeroPoint { group: usize, col: usize, value: u8 },
    /// Zero points are missing for [`QuantType::Int4`](crate::QuantType::Int4), or were given for
    /// another type.
    #[error("{quant} weights take {}zero points", if *.needed { "" } else { "no " })]
    Zeros {
        quant: &'static str,
        /// Whether the type needs zero points.
        needed: bool,
    },
    /// A weight to be packed is infinite or NaN.
    #[error("the weight at [{row}, {col}] is {value}: only finite weights can be packed")]
    NotFinite { row: usize, col: usize, value: f32 },
    /// A Hessian that cannot be used.
    #[error("the Hessian of a weight with K = {k}: {problem}")]
    Hessian { k: usize, problem: latent_quant::gptq::GptqError },
    /// A group needs a scale that f16 cannot represent.
    #[error(
        "group {group} of column {col} needs the scale {scale}, beyond the largest f16 (65504): scale the weight down"
    )]
    ScaleRange { group: usize, col: usize, scale: f32 },
    /// No kernel does what was requested.
    #[error("no kernel {kernel} on {tier} for groups of {group} and inputs of {inputs}")]
    NoKernel {
        kernel: &'static str,
        tier: Tier,
        group: usize,
        /// Precision of the inputs: f32, bf16 or int8.
        inputs: &'static str,
    },
    /// The parallel factor is 0, or larger than the number of words along K.
    #[error("the parallel factor is {slices}; it must be from 1 to K / 8 = {words}")]
    Slices { slices: usize, words: usize },
    /// A kernel refused a shape that had passed the checks.
    #[error(transparent)]
    Shape(#[from] latent_kernels::ShapeError),
    /// A name that is not the name of a device, or of one that does not exist.
    #[error("unknown device {name:?}: expected cpu, auto, gpu or gpu:N; {devices}")]
    UnknownDevice { name: String, devices: String },
    /// This build has no GPU support.
    #[error(
        "device gpu:{index}: this build has no GPU support: build Latent with the feature gpu, or use cpu"
    )]
    NoGpu { index: usize },
    /// An option that only the CPU has.
    #[error("{option} selects CPU instructions and cannot be used on {device}: omit it")]
    CpuOption { option: &'static str, device: String },
    /// No kernel of a device does what was requested.
    #[error(
        "no kernel {kernel} on {device} for inputs of {inputs}: f32 and f16 inputs are multiplied as given"
    )]
    NoDeviceKernel { kernel: &'static str, device: String, inputs: &'static str },
    /// An operand is in the memory of another device, or of another opening of the same device.
    #[error(
        "{what} is in the memory of {found}, but the weight is in that of {expected} (each opened device has \
         its own memory)"
    )]
    OtherDevice { what: &'static str, found: String, expected: String },
    /// An order of inputs names an input that does not exist.
    #[error("the order of inputs has {input} at {at}, but K is {k}")]
    Order { at: usize, input: u32, k: usize },
    /// A forked child cannot use the device of its parent.
    #[error(
        "process {child} was forked from process {parent}, which opened the GPU: its device is not usable \
         here; open it in the child (with Python's \
         multiprocessing, start processes by \"spawn\")"
    )]
    Forked { child: u32, parent: u32 },
    /// A device does not have enough memory.
    #[error("{0}")]
    DeviceMemory(String),
    /// A device failed.
    #[error("{0}")]
    DeviceFault(String),
    /// The system refused to start threads.
    #[error("starting threads: {0}")]
    Threads(#[from] std::io::Error),
}

/// Checks that an operand has the length of its shape.
pub(crate) fn exactly(what: &'static str, (rows, cols): (usize, usize), found: usize) -> Result<(), Error> {
    let expected = rows.checked_mul(cols).ok_or(Error::Overflow { what, rows, cols })?;
    if expected == found { Ok(()) } else { Err(Error::Length { what, rows, cols, expected, found }) }
}
