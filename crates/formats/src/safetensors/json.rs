//! A deserializer for the JSON of a header. A tree of JSON values would need many times the
//! header's bytes, and headers of 200 000 tensors have tens of megabytes.

use crate::limits;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// An unchecked description of a tensor.
#[derive(serde::Deserialize)]
pub(super) struct UncheckedTensor<'a> {
    #[serde(borrow)]
    // Not `&str`: a string with escapes cannot be borrowed from the header.
    pub(super) dtype: Cow<'a, str>,
    pub(super) shape: HeaderShape,
    pub(super) data_offsets: (u64, u64),
}

/// A shape of at most [`limits::MAX_SAFETENSORS_DIMENSIONS`] sizes.
pub(super) struct HeaderShape(pub(super) Vec<u64>);

impl<'de> Deserialize<'de> for HeaderShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HeaderShape, D::Error> {
        struct HeaderShapeVisitor;
        impl<'de> Visitor<'de> for HeaderShapeVisitor {
            type Value = HeaderShape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of sizes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<HeaderShape, A::Error> {
                // A fixed array: a list of a million sizes is rejected before it is stored.
                let mut sizes = [0; limits::MAX_SAFETENSORS_DIMENSIONS];
                let mut count = 0;
                while let Some(size) = list.next_element()? {
                    let place = sizes.get_mut(count).ok_or_else(|| {
                        A::Error::custom(format_args!(
                            "a shape has more than {} dimensions",
                            limits::MAX_SAFETENSORS_DIMENSIONS
                        ))
                    })?;
                    *place = size;
                    count += 1;
                }
                Ok(HeaderShape(sizes[..count].to_vec()))
            }
        }
        deserializer.deserialize_seq(HeaderShapeVisitor)
    }
}

/// Calls a function with every tensor of the header in file order, including duplicates, which a
/// map would drop.
pub(super) struct HeaderTensorsSeed<F>(pub(super) F);

impl<'de, F> serde::de::DeserializeSeed<'de> for HeaderTensorsSeed<F>
where
    F: FnMut(String, UncheckedTensor<'de>) -> Result<(), String>,
{
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F> Visitor<'de> for HeaderTensorsSeed<F>
where
    F: FnMut(String, UncheckedTensor<'de>) -> Result<(), String>,
{
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object that names tensors")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let mut noted = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                if noted {
                    return Err(A::Error::custom("__metadata__ occurs twice"));
                }
                noted = true;
                map.next_value::<MetadataNotes>()?;
                continue;
            }
            let described =
                map.next_value().map_err(|e| A::Error::custom(format_args!("tensor {name:?}: {e}")))?;
            (self.0)(name, described).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

/// `__metadata__`: an object of strings, which are not used.
struct MetadataNotes;

impl<'de> Deserialize<'de> for MetadataNotes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MetadataNotes, D::Error> {
        struct MetadataNotesVisitor;
        impl<'de> Visitor<'de> for MetadataNotesVisitor {
            type Value = MetadataNotes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts in __metadata__")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MetadataNotes, A::Error> {
                // The format allows only strings as values.
                while map.next_entry::<IgnoredAny, Cow<'de, str>>()?.is_some() {}
                Ok(MetadataNotes)
            }
        }
        deserializer.deserialize_map(MetadataNotesVisitor)
    }
}
