//! The JSON of a header, read straight into descriptions: a tree of values would take many times the header's bytes.

use crate::limits;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// A tensor as the header describes it, unchecked.
#[derive(serde::Deserialize)]
pub(super) struct Described<'a> {
    #[serde(borrow)]
    pub(super) dtype: Cow<'a, str>,
    pub(super) shape: Shape,
    pub(super) data_offsets: (u64, u64),
}

/// A shape of at most [`limits::MAX_SAFETENSORS_DIMENSIONS`] sizes.
pub(super) struct Shape(pub(super) Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Shape, D::Error> {
        struct Sizes;
        impl<'de> Visitor<'de> for Sizes {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of sizes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
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
                Ok(Shape(sizes[..count].to_vec()))
            }
        }
        deserializer.deserialize_seq(Sizes)
    }
}

/// Calls `each` with every tensor of the header, in file order; duplicates included.
pub(super) struct Tensors<F>(pub(super) F);

impl<'de, F> serde::de::DeserializeSeed<'de> for Tensors<F>
where
    F: FnMut(String, Described<'de>) -> Result<(), String>,
{
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F> Visitor<'de> for Tensors<F>
where
    F: FnMut(String, Described<'de>) -> Result<(), String>,
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
                map.next_value::<Notes>()?;
                continue;
            }
            let described =
                map.next_value().map_err(|e| A::Error::custom(format_args!("tensor {name:?}: {e}")))?;
            (self.0)(name, described).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

/// `__metadata__`: an object of texts, which nothing here reads.
struct Notes;

impl<'de> Deserialize<'de> for Notes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Notes, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = Notes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts in __metadata__")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Notes, A::Error> {
                while map.next_entry::<IgnoredAny, Cow<'de, str>>()?.is_some() {}
                Ok(Notes)
            }
        }
        deserializer.deserialize_map(Texts)
    }
}
