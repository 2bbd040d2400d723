//! The tensors that a config declares, without a file. For plans of models whose weights are not on
//! this machine.

use super::block::SlotSpec;
use super::form::Circuit;
use super::vars::ConfigVars;
use super::weights::TensorIndex;
use crate::config::ModelConfig;
use crate::error::GraphError;
use crate::naming::TensorNaming;
use latent_types::TensorType;
use std::collections::HashMap;

/// Every tensor of a config with the shape that its circuit gives it. Vectors and routers are F32,
/// all others have one type.
pub struct DeclaredTensors {
    naming: TensorNaming,
    ty: TensorType,
    file: String,
    tensors: HashMap<String, (TensorType, Vec<usize>)>,
}

impl DeclaredTensors {
    /// The tensors of `config` under `naming`, matrices stored as `ty`.
    pub fn new(
        config: &ModelConfig,
        naming: TensorNaming,
        ty: TensorType,
    ) -> Result<DeclaredTensors, GraphError> {
        DeclaredTensors::of(Circuit::named(&config.circuit)?, config, naming, ty)
    }

    /// Like [`new`](Self::new), with a circuit that need not be built in.
    pub fn of(
        circuit: &Circuit,
        config: &ModelConfig,
        naming: TensorNaming,
        ty: TensorType,
    ) -> Result<DeclaredTensors, GraphError> {
        let mut declared =
            DeclaredTensors { naming, ty, file: "the declared tensors".into(), tensors: HashMap::new() };
        let whole = ConfigVars::of(config, None);
        for (_, block) in circuit.model_blocks() {
            for (slot, spec) in &block.weights {
                declared.add(circuit, slot, spec, None, &whole, ty)?;
            }
        }
        for (layer, made_of) in circuit.layer_specs(config)?.iter().enumerate() {
            let vars = ConfigVars::of(config, Some(layer));
            let blocks = made_of.blocks().into_iter().filter_map(|name| circuit.blocks.get(name));
            for (slot, spec) in blocks.flat_map(|block| &block.weights) {
                declared.add(circuit, slot, spec, Some(layer), &vars, ty)?;
            }
            // MTP layers have the weights of an ordinary layer, and their own.
            if layer >= config.layers {
                for (slot, spec) in &circuit.mtp_weights {
                    declared.add(circuit, slot, spec, Some(layer), &vars, ty)?;
                }
            }
        }
        Ok(declared)
    }

    /// Sets the file name for messages.
    #[must_use]
    pub fn named(self, file: String) -> DeclaredTensors {
        DeclaredTensors { file, ..self }
    }

    /// The type in which matrices are declared.
    pub fn matrix_type(&self) -> TensorType {
        self.ty
    }

    fn add(
        &mut self,
        circuit: &Circuit,
        slot: &str,
        spec: &SlotSpec,
        layer: Option<usize>,
        vars: &ConfigVars,
        ty: TensorType,
    ) -> Result<(), GraphError> {
        let pattern = match self.naming {
            TensorNaming::Gguf => &spec.gguf,
            TensorNaming::HuggingFace => &spec.hf,
        };
        let (Some(pattern), true) = (pattern, vars.hold(&spec.when, &circuit.name)?) else { return Ok(()) };
        // As published files do: norms, biases, convolutions and routers are not quantized.
        let plain =
            vars.shape(slot, spec, &circuit.name)?.len() == 1 || slot == "router" || !spec.stored.is_empty();
        let shape = vars.stored_shape(slot, spec, &circuit.name)?;
        let blocks = shape.last().is_some_and(|n| n.is_multiple_of(ty.block_len()));
        // A row that is not a whole number of blocks cannot be stored in the requested type.
        let ty = if plain || !blocks { TensorType::F32 } else { ty };
        let name = layer.map_or_else(|| pattern.clone(), |l| pattern.replace("{layer}", &l.to_string()));
        // Safetensors: one tensor per expert, without the outer dimension.
        if name.contains("{expert}") && shape.len() == 3 {
            for expert in 0..shape[0] {
                self.tensors.insert(name.replace("{expert}", &expert.to_string()), (ty, shape[1..].to_vec()));
            }
        } else {
            self.tensors.insert(name, (ty, shape));
        }
        Ok(())
    }

    /// Names with types and shapes (outermost dimension first), unordered.
    pub fn iter(&self) -> impl Iterator<Item = (&str, TensorType, &[usize])> {
        self.tensors.iter().map(|(name, (ty, shape))| (name.as_str(), *ty, shape.as_slice()))
    }
}

impl TensorIndex for DeclaredTensors {
    fn naming(&self) -> TensorNaming {
        self.naming
    }

    fn find(&self, name: &str) -> Option<(TensorType, Vec<usize>)> {
        self.tensors.get(name).cloned()
    }

    fn all(&self) -> Vec<(&str, TensorType, &[usize])> {
        self.iter().collect()
    }

    fn file(&self) -> String {
        self.file.clone()
    }
}
