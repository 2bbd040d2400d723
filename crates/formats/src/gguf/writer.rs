//! A writer that streams: metadata and the list of tensors first, then their data in the same order.

use super::{DEFAULT_ALIGNMENT, MAGIC};
use base::TensorType;
use std::io::{self, Error, ErrorKind, Write};

/// A metadata value to be written.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum WriterValue {
    U16(u16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Strings(Vec<Vec<u8>>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
}

/// Writes one GGUF file of version 3.
#[derive(Default)]
pub struct Writer {
    metadata: Vec<(String, WriterValue)>,
    tensors: Vec<(String, TensorType, Vec<usize>, u64)>,
}

impl Writer {
    /// A file without keys and tensors.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Adds a key.
    pub fn key(&mut self, key: impl Into<String>, value: WriterValue) -> &mut Writer {
        self.metadata.push((key.into(), value));
        self
    }

    /// Declares a tensor, shape outermost dimension first.
    ///
    /// # Errors
    /// A type without a GGUF id, or a shape that is not whole blocks.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        ty: TensorType,
        shape: &[usize],
    ) -> io::Result<&mut Writer> {
        let name = name.into();
        let wrong =
            |problem: String| Error::new(ErrorKind::InvalidInput, format!("tensor {name}: {problem}"));
        if ty.ggml_id().is_none() {
            return Err(wrong(format!("{ty} has no place in GGUF")));
        }
        let bytes = super::header::tensor_bytes(ty, shape).map_err(wrong)?;
        self.tensors.push((name, ty, shape.to_vec(), bytes));
        Ok(self)
    }

    /// Writes header and data; `data` writes the bytes of the tensor at an index.
    ///
    /// # Errors
    /// Of `out`, of `data`, or when `data` writes another number of bytes than the tensor has.
    pub fn write<W: Write>(
        &self,
        out: &mut W,
        mut data: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut out = Counted { inner: out, count: 0 };
        self.header(&mut out)?;
        out.pad()?;
        let start = out.count;
        for (index, (name, _, _, bytes)) in self.tensors.iter().enumerate() {
            let before = out.count;
            data(index, &mut out)?;
            if out.count - before != *bytes {
                let problem =
                    format!("tensor {name}: {} bytes were written, {bytes} declared", out.count - before);
                return Err(Error::new(ErrorKind::InvalidData, problem));
            }
            debug_assert_eq!((before - start) % u64::from(DEFAULT_ALIGNMENT), 0);
            out.pad()?;
        }
        out.flush()
    }

    fn header(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(MAGIC)?;
        out.write_all(&3u32.to_le_bytes())?;
        out.write_all(&(self.tensors.len() as u64).to_le_bytes())?;
        out.write_all(&(self.metadata.len() as u64).to_le_bytes())?;
        for (key, value) in &self.metadata {
            string(out, key.as_bytes())?;
            write_value(out, value)?;
        }
        let mut offset = 0u64;
        for (name, ty, shape, bytes) in &self.tensors {
            string(out, name.as_bytes())?;
            out.write_all(&(shape.len() as u32).to_le_bytes())?;
            for size in shape.iter().rev() {
                out.write_all(&(*size as u64).to_le_bytes())?;
            }
            out.write_all(&ty.ggml_id().unwrap_or(u32::MAX).to_le_bytes())?;
            out.write_all(&offset.to_le_bytes())?;
            offset += bytes.next_multiple_of(u64::from(DEFAULT_ALIGNMENT));
        }
        Ok(())
    }
}

struct Counted<'a, W: Write> {
    inner: &'a mut W,
    count: u64,
}

impl<W: Write> Counted<'_, W> {
    fn pad(&mut self) -> io::Result<()> {
        let zeros = [0; DEFAULT_ALIGNMENT as usize];
        let missing = self.count.next_multiple_of(u64::from(DEFAULT_ALIGNMENT)) - self.count;
        self.write_all(&zeros[..missing as usize])
    }
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.count += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn string(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&(bytes.len() as u64).to_le_bytes())?;
    out.write_all(bytes)
}

fn array(out: &mut dyn Write, ty: u32, count: usize) -> io::Result<()> {
    out.write_all(&9u32.to_le_bytes())?;
    out.write_all(&ty.to_le_bytes())?;
    out.write_all(&(count as u64).to_le_bytes())
}

fn write_value(out: &mut dyn Write, value: &WriterValue) -> io::Result<()> {
    let scalar = |out: &mut dyn Write, ty: u32, bytes: &[u8]| {
        out.write_all(&ty.to_le_bytes())?;
        out.write_all(bytes)
    };
    match value {
        WriterValue::U16(v) => scalar(out, 2, &v.to_le_bytes()),
        WriterValue::U32(v) => scalar(out, 4, &v.to_le_bytes()),
        WriterValue::I32(v) => scalar(out, 5, &v.to_le_bytes()),
        WriterValue::F32(v) => scalar(out, 6, &v.to_le_bytes()),
        WriterValue::Bool(v) => scalar(out, 7, &[u8::from(*v)]),
        WriterValue::String(v) => {
            out.write_all(&8u32.to_le_bytes())?;
            string(out, v.as_bytes())
        }
        WriterValue::Strings(v) => {
            array(out, 8, v.len())?;
            v.iter().try_for_each(|text| string(out, text))
        }
        WriterValue::I32s(v) => {
            array(out, 5, v.len())?;
            v.iter().try_for_each(|n| out.write_all(&n.to_le_bytes()))
        }
        WriterValue::F32s(v) => {
            array(out, 6, v.len())?;
            v.iter().try_for_each(|n| out.write_all(&n.to_le_bytes()))
        }
    }
}
