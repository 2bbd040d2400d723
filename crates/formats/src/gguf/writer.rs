//! A streaming writer: metadata and the list of tensors, then the tensors' data in the same order.

use super::{DEFAULT_ALIGNMENT, MAGIC, MetadataType};
use crate::limits;
use latent_types::TensorType;
use std::collections::HashSet;
use std::io::{self, Error, ErrorKind, Read, Write};

/// A metadata value to write.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum WriterValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Strings(Vec<Vec<u8>>),
    U8s(Vec<u8>),
    I8s(Vec<i8>),
    U16s(Vec<u16>),
    I16s(Vec<i16>),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    U64s(Vec<u64>),
    I64s(Vec<i64>),
    F32s(Vec<f32>),
    F64s(Vec<f64>),
    Bools(Vec<bool>),
    /// Type and value in the encoding of another file.
    Encoded(Vec<u8>),
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

    /// Adds a key. `general.alignment`, a [`WriterValue::U32`], sets the alignment of tensors. The
    /// default is 32 bytes.
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
            return Err(wrong(format!("GGUF does not support {ty}")));
        }
        let bytes = super::header::tensor_bytes(ty, shape).map_err(wrong)?;
        self.tensors.push((name, ty, shape.to_vec(), bytes));
        Ok(self)
    }

    /// Writes header and data. `data` writes the bytes of the tensor at an index.
    ///
    /// # Errors
    /// Errors of `out` and of `data`; `data` writes another number of bytes than the tensor has; a
    /// key or tensor that the reader would reject.
    pub fn write<W: Write>(
        &self,
        out: &mut W,
        mut data: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        // Checked before the first byte, so that a rejected file is not written in part.
        let alignment = self.check()?;
        let mut out = GgufCountingWriter { inner: out, count: 0 };
        self.header(&mut out)?;
        // A file without tensors (a vocabulary) ends after its metadata.
        if self.tensors.is_empty() {
            return out.flush();
        }
        out.pad(alignment)?;
        for (index, (name, _, _, bytes)) in self.tensors.iter().enumerate() {
            let before = out.count;
            data(index, &mut out)?;
            let written = out.count - before;
            // The header already states the offsets of later tensors, so a wrong count would
            // corrupt the file silently.
            if written != *bytes {
                let problem = format!("tensor {name}: wrote {written} bytes, expected {bytes}");
                return Err(Error::new(ErrorKind::InvalidData, problem));
            }
            // After the last tensor too, as ggml does.
            out.pad(alignment)?;
        }
        out.flush()
    }

    /// The header alone, up to the first byte of tensor data.
    pub(crate) fn header_bytes(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.write_header(&mut bytes)?;
        Ok(bytes)
    }

    /// Replaces the value of a key, or adds the key at the end.
    pub fn set_key(&mut self, key: &str, value: WriterValue) -> &mut Writer {
        match self.metadata.iter_mut().find(|(name, _)| name == key) {
            Some(entry) => entry.1 = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    /// First byte of every tensor, from the start of tensor data, and the end of the last one's
    /// padding.
    pub fn offsets(&self) -> io::Result<(Vec<u64>, u64)> {
        let alignment = self.check()?;
        let mut offsets = Vec::with_capacity(self.tensors.len());
        let mut offset = 0u64;
        for (name, _, _, bytes) in &self.tensors {
            offsets.push(offset);
            // Checked, because shapes come from the caller.
            let next = bytes.checked_next_multiple_of(alignment).and_then(|bytes| offset.checked_add(bytes));
            offset = next.ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidInput,
                    format!("the size of the file overflows at tensor {name}"),
                )
            })?;
        }
        Ok((offsets, offset))
    }

    /// Writes the header alone, up to the first tensor's data. [`Outline`](crate::Outline) can read
    /// such a file.
    pub fn write_header<W: Write>(&self, out: &mut W) -> io::Result<()> {
        let alignment = self.check()?;
        let mut out = GgufCountingWriter { inner: out, count: 0 };
        self.header(&mut out)?;
        out.pad(alignment)?;
        out.flush()
    }

    /// Bytes of all tensors with their padding.
    pub fn data_bytes(&self) -> io::Result<u64> {
        let alignment = self.check()?;
        Ok(self.tensors.iter().map(|(_, _, _, bytes)| bytes.next_multiple_of(alignment)).sum())
    }

    /// Rejects keys and tensors that the reader would reject. Returns the alignment.
    fn check(&self) -> io::Result<u64> {
        let refuse = |problem: String| Err(Error::new(ErrorKind::InvalidInput, problem));
        let mut names = HashSet::new();
        let mut alignment = DEFAULT_ALIGNMENT;
        for (key, value) in &self.metadata {
            if key.is_empty() || key.len() as u64 > limits::MAX_KEY_BYTES {
                return refuse(format!("metadata key {key:?} is empty or too long"));
            }
            if !names.insert(key) {
                return refuse(format!("metadata key {key} occurs twice"));
            }
            if key == "general.alignment" {
                // Copies of other files have the key in encoded form.
                match &plain(value) {
                    WriterValue::U32(v) if v.is_power_of_two() && *v <= limits::MAX_ALIGNMENT => {
                        alignment = *v
                    }
                    other => {
                        return refuse(format!("general.alignment is {other:?}, which is not supported"));
                    }
                }
            }
        }
        // A tensor may have the name of a key.
        names.clear();
        for (name, _, shape, _) in &self.tensors {
            if name.is_empty() || name.len() as u64 > limits::MAX_NAME_BYTES {
                return refuse(format!("tensor name {name:?} is empty or too long"));
            }
            if !names.insert(name) {
                return refuse(format!("tensor {name} occurs twice"));
            }
            if shape.len() > limits::MAX_DIMENSIONS as usize {
                return refuse(format!("tensor {name} has more than {} dimensions", limits::MAX_DIMENSIONS));
            }
        }
        Ok(u64::from(alignment))
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
        let (offsets, _) = self.offsets()?;
        for ((name, ty, shape, _), offset) in self.tensors.iter().zip(offsets) {
            string(out, name.as_bytes())?;
            out.write_all(&(shape.len() as u32).to_le_bytes())?;
            // GGUF lists the innermost dimension first.
            for size in shape.iter().rev() {
                out.write_all(&(*size as u64).to_le_bytes())?;
            }
            // `tensor` has rejected types without an id.
            out.write_all(&ty.ggml_id().unwrap_or(u32::MAX).to_le_bytes())?;
            out.write_all(&offset.to_le_bytes())?;
        }
        Ok(())
    }
}

/// Decodes an encoded u32; returns other values unchanged.
fn plain(value: &WriterValue) -> WriterValue {
    match value {
        WriterValue::Encoded(bytes) => match bytes.as_slice() {
            // `MetadataType::U32` is 4.
            [4, 0, 0, 0, a, b, c, d] => WriterValue::U32(u32::from_le_bytes([*a, *b, *c, *d])),
            _ => value.clone(),
        },
        value => value.clone(),
    }
}

struct GgufCountingWriter<'a, W: Write> {
    inner: &'a mut W,
    count: u64,
}

impl<W: Write> GgufCountingWriter<'_, W> {
    fn pad(&mut self, alignment: u64) -> io::Result<()> {
        let missing = self.count.next_multiple_of(alignment) - self.count;
        io::copy(&mut io::repeat(0).take(missing), self).map(|_| ())
    }
}

impl<W: Write> Write for GgufCountingWriter<'_, W> {
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

fn write_value(out: &mut dyn Write, value: &WriterValue) -> io::Result<()> {
    use MetadataType as T;
    match value {
        WriterValue::U8(v) => scalar(out, T::U8, &v.to_le_bytes()),
        WriterValue::I8(v) => scalar(out, T::I8, &v.to_le_bytes()),
        WriterValue::U16(v) => scalar(out, T::U16, &v.to_le_bytes()),
        WriterValue::I16(v) => scalar(out, T::I16, &v.to_le_bytes()),
        WriterValue::U32(v) => scalar(out, T::U32, &v.to_le_bytes()),
        WriterValue::I32(v) => scalar(out, T::I32, &v.to_le_bytes()),
        WriterValue::U64(v) => scalar(out, T::U64, &v.to_le_bytes()),
        WriterValue::I64(v) => scalar(out, T::I64, &v.to_le_bytes()),
        WriterValue::F32(v) => scalar(out, T::F32, &v.to_le_bytes()),
        WriterValue::F64(v) => scalar(out, T::F64, &v.to_le_bytes()),
        WriterValue::Bool(v) => scalar(out, T::Bool, &[u8::from(*v)]),
        WriterValue::String(v) => {
            out.write_all(&(T::String as u32).to_le_bytes())?;
            string(out, v.as_bytes())
        }
        WriterValue::Strings(v) => {
            array_start(out, T::String, v.len())?;
            v.iter().try_for_each(|text| string(out, text))
        }
        WriterValue::U8s(v) => array(out, T::U8, v, |n| n.to_le_bytes()),
        WriterValue::I8s(v) => array(out, T::I8, v, |n| n.to_le_bytes()),
        WriterValue::U16s(v) => array(out, T::U16, v, |n| n.to_le_bytes()),
        WriterValue::I16s(v) => array(out, T::I16, v, |n| n.to_le_bytes()),
        WriterValue::U32s(v) => array(out, T::U32, v, |n| n.to_le_bytes()),
        WriterValue::I32s(v) => array(out, T::I32, v, |n| n.to_le_bytes()),
        WriterValue::U64s(v) => array(out, T::U64, v, |n| n.to_le_bytes()),
        WriterValue::I64s(v) => array(out, T::I64, v, |n| n.to_le_bytes()),
        WriterValue::F32s(v) => array(out, T::F32, v, |n| n.to_le_bytes()),
        WriterValue::F64s(v) => array(out, T::F64, v, |n| n.to_le_bytes()),
        WriterValue::Bools(v) => array(out, T::Bool, v, |n| [u8::from(n)]),
        WriterValue::Encoded(bytes) => out.write_all(bytes),
    }
}

fn scalar(out: &mut dyn Write, ty: MetadataType, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&(ty as u32).to_le_bytes())?;
    out.write_all(bytes)
}

fn array_start(out: &mut dyn Write, ty: MetadataType, count: usize) -> io::Result<()> {
    out.write_all(&(MetadataType::Array as u32).to_le_bytes())?;
    out.write_all(&(ty as u32).to_le_bytes())?;
    out.write_all(&(count as u64).to_le_bytes())
}

fn array<T: Copy, const N: usize>(
    out: &mut dyn Write,
    ty: MetadataType,
    values: &[T],
    bytes: impl Fn(T) -> [u8; N],
) -> io::Result<()> {
    array_start(out, ty, values.len())?;
    values.iter().try_for_each(|&value| out.write_all(&bytes(value)))
}
