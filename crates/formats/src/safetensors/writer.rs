//! A streaming writer.

use crate::gguf::tensor_bytes;
use latent_types::TensorType;
use std::io::{self, Error, ErrorKind, Write};

/// Writes one safetensors file.
#[derive(Default)]
pub struct Writer {
    tensors: Vec<(String, TensorType, Vec<usize>, u64)>,
}

impl Writer {
    /// A file without tensors.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Declares a tensor, shape outermost dimension first.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        ty: TensorType,
        shape: &[usize],
    ) -> io::Result<&mut Writer> {
        let name = name.into();
        let wrong =
            |problem: String| Error::new(ErrorKind::InvalidInput, format!("tensor {name}: {problem}"));
        if ty.is_quantized() {
            return Err(wrong(format!("safetensors does not support {ty}")));
        }
        let bytes = tensor_bytes(ty, shape).map_err(wrong)?;
        self.tensors.push((name, ty, shape.to_vec(), bytes));
        Ok(self)
    }

    /// Writes header and data. `data` writes the bytes of the tensor at an index.
    ///
    /// # Errors
    /// Errors of `out` and of `data`; `data` writes another number of bytes than the tensor has.
    pub fn write<W: Write>(
        &self,
        out: &mut W,
        mut data: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let refuse = |problem: String| Err(Error::new(ErrorKind::InvalidInput, problem));
        let mut header = serde_json::Map::new();
        let mut at = 0u64;
        for (name, ty, shape, bytes) in &self.tensors {
            let Some(end) = at.checked_add(*bytes) else {
                return refuse(format!("the size of the file overflows at tensor {name}"));
            };
            // Offsets follow the order of declaration. The order of names in the JSON does not
            // matter.
            let entry = serde_json::json!({"dtype": ty.name(), "shape": shape, "data_offsets": [at, end]});
            if header.insert(name.clone(), entry).is_some() || name == "__metadata__" {
                return refuse(format!("tensor {name} occurs twice, or has a reserved name"));
            }
            at = end;
        }
        let mut text = serde_json::to_string(&header)?;
        // Spaces at the end of the JSON align the data to eight bytes, as the safetensors library
        // does.
        while !(8 + text.len()).is_multiple_of(8) {
            text.push(' ');
        }
        out.write_all(&(text.len() as u64).to_le_bytes())?;
        out.write_all(text.as_bytes())?;
        for (index, (name, _, _, bytes)) in self.tensors.iter().enumerate() {
            let mut counted = SafetensorsCountingWriter { inner: out, count: 0 };
            data(index, &mut counted)?;
            if counted.count != *bytes {
                let problem = format!("tensor {name}: wrote {} bytes, expected {bytes}", counted.count);
                return Err(Error::new(ErrorKind::InvalidData, problem));
            }
        }
        out.flush()
    }
}

struct SafetensorsCountingWriter<'a, W: Write> {
    inner: &'a mut W,
    count: u64,
}

impl<W: Write> Write for SafetensorsCountingWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.count += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
