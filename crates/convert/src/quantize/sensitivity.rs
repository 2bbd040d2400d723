//! Sensitivity: how much an error in a group of tensors changes the model's output.

use crate::error::ConvertError;
use crate::quantize::assigned_tensor::AssignedTensor;
use crate::quantize::assignment::Assignment;
use crate::quantize::search::{TypeChoice, TypeMeasurements};
use latent_types::TensorType;

/// Relative squared error of a trial.
// Large enough to exceed the rounding noise, small enough that the divergence is proportional to
// it.
const TRIED_ERROR: f64 = 0.01;

/// The tensors of one name in all layers, such as `ffn_down_exps.weight`.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorGroup {
    pub name: String,
    /// Indices into the lists of [`TypeMeasurements`].
    members: Vec<usize>,
}

fn name_in_layers(tensor: &AssignedTensor) -> &str {
    let name = &*tensor.name;
    let in_layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    in_layer.map_or(name, |(_, name)| name)
}

/// The choice whose error is nearest to [`TRIED_ERROR`] on a logarithmic scale. `None` if all are
/// without error.
fn tried(hull: &[TypeChoice]) -> Option<&TypeChoice> {
    let off = |choice: &TypeChoice| (choice.error / TRIED_ERROR).ln().abs();
    hull.iter().filter(|choice| choice.error > 0.0).min_by(|a, b| off(a).total_cmp(&off(b)))
}

impl Assignment<'_> {
    /// The groups whose types the search may choose.
    pub fn groups(&self, measured: &TypeMeasurements) -> Vec<TensorGroup> {
        let mut groups: Vec<TensorGroup> = Vec::new();
        for (place, (tensor, hull)) in measured.tensors.iter().zip(&measured.choices).enumerate() {
            if tried(hull).is_none() {
                continue;
            }
            let name = name_in_layers(&self.tensors[*tensor]);
            match groups.iter_mut().find(|group| group.name == name) {
                Some(group) => group.members.push(place),
                None => groups.push(TensorGroup { name: name.to_owned(), members: vec![place] }),
            }
        }
        groups
    }

    /// Assigns types with measurable errors to a group, and the stored types to all other tensors.
    pub fn try_group(
        &mut self,
        measured: &TypeMeasurements,
        group: &TensorGroup,
    ) -> Result<(), ConvertError> {
        let kept = measured.tensors.iter().map(|tensor| (*tensor, self.tensors[*tensor].kept));
        let mut types: Vec<(usize, TensorType)> = kept.collect();
        for place in &group.members {
            types[*place].1 = tried(&measured.choices[*place]).map_or(types[*place].1, |choice| choice.ty);
        }
        self.retype(&types)
    }
}

impl TypeMeasurements {
    /// Weights errors by the divergence that each group caused when it was
    /// [tried](Assignment::try_group). A group without any effect, such as tensors that only MTP
    /// drafts read, gets the smallest weight of the others.
    pub fn set_sensitivities(&mut self, divergences: &[(TensorGroup, f64)]) {
        let error = |group: &TensorGroup| -> f64 {
            let tried = group.members.iter().filter_map(|place| tried(&self.choices[*place]));
            tried.map(|choice| choice.error).sum()
        };
        // The divergence is proportional to the squared error if the error is small: divide by it.
        let of_group: Vec<f64> = divergences.iter().map(|(group, kl)| kl / error(group)).collect();
        let told = |weight: &f64| *weight > 0.0 && weight.is_finite();
        let Some(least) = of_group.iter().copied().filter(told).min_by(f64::total_cmp) else { return };
        let mut weights = vec![least; self.tensors.len()];
        for ((group, _), weight) in divergences.iter().zip(&of_group) {
            group
                .members
                .iter()
                .for_each(|place| weights[*place] = if told(weight) { *weight } else { least });
        }
        self.weights = Some(weights);
    }
}
