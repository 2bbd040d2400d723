//! Input rows, converted to the form that a kernel reads.

use crate::error::{Error, exactly};
use crate::workers::Workers;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use latent_kernels::{MatrixView, W4Form, W4Input};

/// Input rows `[M, K]`, row-major.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// f32.
    F32(&'a [f32]),
    /// f16.
    F16(&'a [f16]),
    /// bf16.
    Bf16(&'a [bf16]),
}

impl Input<'_> {
    /// Checks the number of elements.
    pub(crate) fn check(&self, m: usize, k: usize) -> Result<(), Error> {
        let found = match self {
            Input::F32(x) => x.len(),
            Input::F16(x) => x.len(),
            Input::Bf16(x) => x.len(),
        };
        exactly("the input", (m, k), found)
    }

    /// Whether elements are bf16.
    pub(crate) fn is_bf16(&self) -> bool {
        matches!(self, Input::Bf16(_))
    }

    /// Copies elements to `out` as f32, beginning with element `from`.
    fn widen(&self, from: usize, out: &mut [f32]) {
        match self {
            Input::F32(x) => out.copy_from_slice(&x[from..][..out.len()]),
            Input::F16(x) => x[from..][..out.len()].convert_to_f32_slice(out),
            Input::Bf16(x) => x[from..][..out.len()].convert_to_f32_slice(out),
        }
    }
}

/// Memory for converted rows, which is reused by later products.
#[derive(Default)]
pub(crate) struct ConvertedRows {
    floats: Vec<f32>,
    panels: Vec<u32>,
}

/// Largest number of inputs that the caller converts alone.
// For fewer inputs, waking threads takes longer than converting.
const MAX_ALONE: usize = 1 << 15;

/// Elements from one f32 row to the next.
fn stride(k: usize) -> usize {
    // Rows whose distance is a multiple of 4096 bytes fall into the same cache sets and evict each
    // other. 16 more elements, one cache line, avoid that.
    if k.is_multiple_of(256) { k + 16 } else { k }
}

impl ConvertedRows {
    /// Converts rows to the form that a kernel reads.
    pub(crate) fn input<'a>(
        &'a mut self,
        (form, input): (W4Form, &Input<'a>),
        (m, k): (usize, usize),
        workers: &mut Workers,
    ) -> Result<W4Input<'a>, Error> {
        // A few f32 rows are read where they are: so few cannot evict each other.
        if let (W4Form::F32, Input::F32(x), ..=4) = (form, input, m) {
            return Ok(W4Input::from_rows(MatrixView::try_new(x, m, k, k)?));
        }
        // This cannot overflow: `check` has compared the product with the number of elements.
        let small = m * k <= MAX_ALONE;
        if form == W4Form::F32 {
            // `chunks_mut` refuses chunks of 0 elements, and K may be 0.
            let stride = stride(k).max(1);
            self.floats.resize(m * stride, 0.0);
            let rows = self.floats.chunks_mut(stride).enumerate();
            workers.each(rows.collect(), small, |(row, out), _| input.widen(row * k, &mut out[..k]));
            return Ok(W4Input::from_rows(MatrixView::try_new(&self.floats, m, k, stride)?));
        }
        let (height, len) = (form.panel_rows(m), form.panel_len(m, k)?);
        self.panels.resize(m.div_ceil(height) * len, 0);
        // Each worker packs whole panels, from f32 rows in its own memory.
        let panels = self.panels.chunks_mut(len.max(1)).enumerate();
        workers.each(panels.collect(), small, |(index, panel), memory| {
            let first = index * height;
            let rows = (m - first).min(height);
            memory.rows.resize(rows * k, 0.0);
            input.widen(first * k, &mut memory.rows);
            form.pack(&MatrixView::new(&memory.rows, rows, k, k), panel);
        });
        Ok(W4Input::from_panels(form, &self.panels, m, k)?)
    }
}
