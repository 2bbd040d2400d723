//! Locations of a plan's values. Values with disjoint lifetimes share buffers (registers).

use latent_backend::BackendError;
use latent_graph::ir::{ValueId, ValueStorage};
use latent_graph::passes::lifetimes;
use latent_graph::{GraphError, Plan};

/// The buffer of the model that holds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueBuffer {
    /// The residual stream.
    Hidden,
    Logits,
    /// A buffer for intermediate results within an operation.
    Scratch(usize),
    /// A buffer that values share.
    Register(usize),
}

/// A value as shaders address it: element `offset + row · row_stride + head · head_stride + i`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShaderOperand {
    pub(crate) home: ValueBuffer,
    pub(crate) offset: u32,
    pub(crate) row_stride: u32,
    pub(crate) head_stride: u32,
    pub(crate) heads: u32,
    /// Elements of a head.
    pub(crate) width: u32,
}

impl ShaderOperand {
    /// Offset and strides, as parameters of a shader.
    pub(crate) fn address(&self) -> [u32; 3] {
        [self.offset, self.row_stride, self.head_stride]
    }

    /// Elements of a row.
    pub(crate) fn row_width(&self) -> u32 {
        self.heads * self.width
    }

    /// Views the elements of a row as heads of another width. None if they are not contiguous.
    pub(crate) fn cut(&self, width: u32) -> Option<ShaderOperand> {
        let contiguous = self.heads == 1 || self.head_stride == self.width;
        let heads = self.row_width().checked_div(width)?;
        (self.width == width).then_some(*self).or_else(|| {
            (contiguous && heads * width == self.row_width()).then_some(ShaderOperand {
                heads,
                width,
                head_stride: width,
                ..*self
            })
        })
    }

    /// A part of each head.
    pub(crate) fn part(&self, from: u32, width: u32) -> ShaderOperand {
        ShaderOperand { offset: self.offset + from, width, ..*self }
    }
}

/// The error of a plan that this backend cannot compile. It is a fault of Latent.
pub(crate) fn internal<T>(problem: String) -> Result<T, BackendError> {
    Err(BackendError::Graph(GraphError::Internal { pass: "gpu backend", problem }))
}

/// A size as u32, the type of all counts in shaders. A plan with larger sizes cannot run on a GPU.
pub(crate) fn count(size: usize) -> Result<u32, BackendError> {
    u32::try_from(size).or_else(|_| internal(format!("{size} elements exceed the range of u32 in shaders")))
}

/// The registers of a plan's values.
pub(crate) struct ValueRegisters {
    /// By value. None for views, and for the residual stream and logits.
    of: Vec<Option<usize>>,
}

impl ValueRegisters {
    /// Assigns every value a register. `sizes` are the bytes of the existing registers. They grow
    /// if this plan needs more.
    pub(crate) fn assign(plan: &Plan, sizes: &mut Vec<u64>) -> ValueRegisters {
        let mut lives = lifetimes(&plan.ir, &plan.phases, plan.max_rows);
        // In the order of first uses, since the loop knows only the last use of each register.
        lives.sort_by_key(|life| (life.first, life.value));
        let mut of = vec![None; plan.ir.values.len()];
        // The last phase in which each register's value is used.
        let mut busy: Vec<Option<usize>> = vec![None; sizes.len()];
        for life in &lives {
            let bytes = life.bytes as u64;
            // Not equal: an operation must not write a register that it also reads.
            let free = |register: &usize| busy[*register].is_none_or(|last| last < life.first);
            // Best fit: the smallest register that is large enough, otherwise the largest one,
            // which grows by the least.
            let best = (0..sizes.len())
                .filter(free)
                .min_by_key(|register| (sizes[*register] < bytes, sizes[*register].abs_diff(bytes)));
            let register = best.unwrap_or_else(|| {
                sizes.push(bytes);
                busy.push(None);
                sizes.len() - 1
            });
            sizes[register] = sizes[register].max(bytes);
            busy[register] = Some(life.last);
            of[life.value] = Some(register);
        }
        ValueRegisters { of }
    }

    /// The location of a value.
    ///
    /// # Errors
    /// If the plan gives the value no register. This is a fault of Latent, not of the file.
    pub(crate) fn operand(&self, plan: &Plan, id: ValueId) -> Result<ShaderOperand, BackendError> {
        let value = plan.ir.value(id);
        let (heads, width) = (count(value.heads)?, count(value.width)?);
        // Checked here, so that `heads * width` below and in shaders cannot overflow.
        count(value.heads.saturating_mul(value.width))?;
        let here = |home| ShaderOperand {
            home,
            offset: 0,
            row_stride: heads * width,
            head_stride: width,
            heads,
            width,
        };
        Ok(match value.storage {
            ValueStorage::Hidden => here(ValueBuffer::Hidden),
            ValueStorage::Logits => here(ValueBuffer::Logits),
            ValueStorage::Own => match self.of[id.0] {
                Some(register) => here(ValueBuffer::Register(register)),
                None => return internal(format!("value {} has no buffer", value.name)),
            },
            ValueStorage::View { of, offset } => {
                let parent = self.operand(plan, of)?;
                // A view with one head over a parent with several heads sees the parent's row as a
                // whole, so its own width is the distance between heads.
                let flat = heads == 1 && parent.heads > 1;
                ShaderOperand {
                    offset: parent.offset + count(offset)?,
                    heads,
                    head_stride: if flat { width } else { parent.head_stride },
                    width,
                    ..parent
                }
            }
            ValueStorage::Tokens => return internal("expected a matrix, found token ids".into()),
        })
    }
}
