//! Options of offload: the number of layers on a device, and the backend of the others.

use latent_backend::Backend;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Offload: a device runs only the last layers of a model.
#[derive(Clone)]
pub struct Offload {
    /// The backend of the other layers: the CPU.
    pub front: Arc<dyn Backend>,
    /// The number of layers on the device.
    pub layers: DeviceLayers,
}

impl fmt::Debug for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offload").field("front", &self.front.name()).field("layers", &self.layers).finish()
    }
}

/// The number of a model's layers on a device, counted from the end as in llama.cpp: the output
/// (final norm, `lm_head` and the MTP layer) counts as the first, the last layer as the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceLayers {
    /// All layers, and the output.
    #[default]
    All,
    /// As many as fit into the device's memory.
    Auto,
    /// This number, or all if the model has fewer.
    Count(usize),
}

impl DeviceLayers {
    /// The index of the first layer on the device, for a model of `layers` layers. It is 0 if the
    /// device has all layers, `layers` if it has the output only, and `layers + 1` if it has
    /// nothing. `None` for [`DeviceLayers::Auto`].
    pub fn first(self, layers: usize) -> Option<usize> {
        match self {
            DeviceLayers::All => Some(0),
            DeviceLayers::Auto => None,
            DeviceLayers::Count(count) => Some(layers.saturating_add(1).saturating_sub(count)),
        }
    }
}

impl FromStr for DeviceLayers {
    type Err = String;

    fn from_str(word: &str) -> Result<DeviceLayers, String> {
        match word {
            // llama.cpp's numbers.
            "all" | "-2" => Ok(DeviceLayers::All),
            "auto" | "-1" => Ok(DeviceLayers::Auto),
            number => number.parse().map(DeviceLayers::Count).map_err(|_| {
                format!(
                    "invalid number of layers {number:?}: expected an integer from 0, `all`, or `auto` (as many as fit)"
                )
            }),
        }
    }
}

impl fmt::Display for DeviceLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceLayers::All => f.write_str("all"),
            DeviceLayers::Auto => f.write_str("auto"),
            DeviceLayers::Count(count) => write!(f, "{count}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_counted_from_the_output() {
        let first = |word: &str| word.parse::<DeviceLayers>().unwrap().first(10);
        let counted = ["0", "1", "2", "10", "11", "99", "all", "auto"].map(first);
        assert_eq!(counted, [Some(11), Some(10), Some(9), Some(1), Some(0), Some(0), Some(0), None]);
        for word in ["0", "17", "all", "auto"] {
            assert_eq!(word.parse::<DeviceLayers>().unwrap().to_string(), word);
        }
        assert_eq!("-1".parse(), Ok(DeviceLayers::Auto));
        assert_eq!("-2".parse(), Ok(DeviceLayers::All));
        for wrong in ["", "-3", "some", "1.5"] {
            let error = wrong.parse::<DeviceLayers>().unwrap_err();
            assert!(error.contains("`all`, or `auto`"), "{error}");
        }
    }
}
