//! Type of each tensor in a mix: the rules of llama.cpp's `llama_tensor_get_type`, as far as they
//! apply to models with Multi-head Latent Attention. Compared with llama-quantize on 8940 tensors
//! of six models and 33 mixes.

use crate::quantize::mix::Mix;
use crate::quantize::shape::{ModelShape, TensorRole, layer_of};
use latent_types::TensorType::{self, *};

/// Name parts of tensors that keep their type, because they are small or sensitive.
const KEPT: [&str; 8] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "attn_rel_b.weight",
];

/// Whether a tensor may be quantized: a weight matrix not listed in [`KEPT`].
pub(crate) fn may_be_quantized(name: &str, shape: &[usize]) -> bool {
    // A matrix of a single row is a vector for ggml (`ggml_n_dims`), which is not quantized.
    let is_matrix = shape.len() > 1 && shape[..shape.len() - 1].iter().any(|size| *size > 1);
    is_matrix && name.ends_with("weight") && !KEPT.iter().any(|part| name.contains(part))
}

/// Whether the type is unusable without importances in this mix.
pub(crate) fn needs_importance(name: &str, ty: TensorType, mix: Mix) -> bool {
    if matches!(TensorRole::of(name), TensorRole::Embedding | TensorRole::Output) {
        return false;
    }
    // llama-quantize refuses these types without an importance matrix.
    match ty {
        IQ3_XXS | IQ2_XXS | IQ2_XS | IQ2_S | IQ1_M | IQ1_S => true,
        Q2_K => mix.is(&["Q2_K_S"]),
        _ => false,
    }
}

/// The replacement for a type whose block size does not divide the row length. `None` if it does.
pub(crate) fn fallback(ty: TensorType, columns: usize) -> Option<TensorType> {
    let fits = |ty: TensorType| columns.is_multiple_of(ty.block_len());
    if fits(ty) {
        return None;
    }
    // llama-quantize's fallbacks for rows that are not multiples of 256: types with blocks of 32.
    let smaller = match ty {
        IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ4_XS => IQ4_NL,
        Q1_0 | Q2_0 | Q2_K | Q3_K | TQ1_0 | TQ2_0 => Q4_0,
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        Q6_K => Q8_0,
        _ => F16,
    };
    Some(if fits(smaller) { smaller } else { F16 })
}

/// Applies a mix to tensors in the order of layer and name: some rules count the preceding tensors.
pub(crate) struct MixRules<'a> {
    pub mix: Mix,
    pub shape: &'a ModelShape,
    pub has_importance: bool,
    /// Overrides the mix's choice for [`TensorRole::Output`].
    pub output: Option<TensorType>,
    /// Number of tensors of [`TensorRole::Value`].
    pub values: u64,
    values_before: u64,
    downs_before: u64,
}

/// Mixes of about two bits and less.
const TINY: [&str; 6] = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M"];

/// Mixes of about two and a half bits.
const SMALL: [&str; 2] = ["IQ2_S", "IQ2_M"];

/// llama.cpp's `use_more_bits`: the first eighth of the layers, the last eighth, and every third in
/// between.
fn more_bits(layer: u64, layers: u64) -> bool {
    layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2
}

impl<'a> MixRules<'a> {
    pub(crate) fn new(
        mix: Mix,
        shape: &'a ModelShape,
        has_importance: bool,
        output: Option<TensorType>,
        values: u64,
    ) -> MixRules<'a> {
        MixRules { mix, shape, has_importance, output, values, values_before: 0, downs_before: 0 }
    }

    /// Chooses the type of a tensor of `matrices` matrices and `columns` columns.
    pub(crate) fn choose(&mut self, name: &str, columns: usize, matrices: usize) -> TensorType {
        let (mix, base, role) = (self.mix, self.mix.base(), TensorRole::of(name));
        // As in llama-quantize, a tied embedding gets the type of the output matrix.
        if role == TensorRole::Output || (role == TensorRole::Embedding && self.shape.tied) {
            return self.output.unwrap_or_else(|| self.output_type(columns));
        }
        if mix.is(&["MXFP4_MOE"]) {
            return if matrices > 1 { MXFP4 } else { Q8_0 };
        }
        if role == TensorRole::Embedding {
            return self.embedding_type();
        }
        if mix.is(&TINY) {
            return self.tiny(role);
        }
        let layer = layer_of(name);
        match role {
            TensorRole::Value => {
                let before = self.values_before;
                self.values_before += 1;
                // llama.cpp's rule for Mixtral: with 8 experts, attention is a small share of the
                // file.
                if self.shape.experts == 8 { Q8_0 } else { self.value_type(before) }
            }
            TensorRole::Key | TensorRole::Query => {
                if role == TensorRole::Key && self.shape.experts == 8 {
                    Q8_0
                } else if mix.is(&["IQ3_XS"]) {
                    IQ3_XXS
                } else if mix.is(&["IQ3_XXS"]) {
                    IQ2_S
                } else {
                    base
                }
            }
            TensorRole::Down => {
                let before = self.downs_before;
                self.downs_before += 1;
                // With experts, llama.cpp parses the layer from the name; otherwise it counts
                // tensors.
                self.down_type(if self.shape.experts > 1 { layer.unwrap_or(before) } else { before })
            }
            TensorRole::AttentionOutput => self.attention_output_type(),
            TensorRole::Gate | TensorRole::Up => {
                let (layer, layers) = (layer.unwrap_or(0), self.shape.layers);
                let middle = layer >= layers / 8 && layer < 7 * layers / 8;
                if mix.is(&["IQ3_XS"]) && middle { IQ3_XXS } else { base }
            }
            TensorRole::Output | TensorRole::Embedding | TensorRole::Other => base,
        }
    }

    fn output_type(&self, columns: usize) -> TensorType {
        let base = self.mix.base();
        if base == Q8_0 || self.mix.is(&["MXFP4_MOE"]) || !columns.is_multiple_of(base.block_len()) {
            Q8_0
        } else if self.mix.is(&TINY) || self.mix.is(&["IQ3_XXS"]) {
            Q5_K
        } else {
            Q6_K
        }
    }

    fn embedding_type(&self) -> TensorType {
        if self.mix.is(&SMALL) || self.mix.is(&["IQ3_XXS"]) {
            IQ3_S
        } else if self.mix.is(&TINY) {
            Q2_K
        } else if self.mix.is(&["TQ1_0", "TQ2_0"]) {
            Q4_K
        } else {
            self.mix.base()
        }
    }

    fn tiny(&mut self, role: TensorRole) -> TensorType {
        let (mix, experts) = (self.mix, self.shape.experts);
        let better = if mix.is(&SMALL) { IQ3_S } else { Q2_K };
        match role {
            // Grouped-query attention makes the value matrix small, so more bits cost little.
            TensorRole::Value if self.shape.gqa >= 4 || experts >= 4 => Q4_K,
            TensorRole::Value => better,
            TensorRole::Key if experts == 8 => Q4_K,
            TensorRole::Down => {
                let before = self.downs_before;
                self.downs_before += 1;
                if before < self.shape.layers / 8 { better } else { mix.base() }
            }
            TensorRole::AttentionOutput if experts == 8 => Q5_K,
            TensorRole::AttentionOutput if mix.is(&["IQ1_S", "IQ1_M"]) => IQ2_XXS,
            TensorRole::AttentionOutput if mix.is(&SMALL) => IQ3_S,
            _ => mix.base(),
        }
    }

    fn value_type(&self, before: u64) -> TensorType {
        let (mix, wide) = (self.mix, self.shape.gqa >= 4);
        if mix.is(&["Q2_K"]) {
            if wide { Q4_K } else { Q3_K }
        } else if mix.is(&["Q2_K_S", "IQ3_XS", "IQ3_S"]) && wide || mix.is(&["IQ3_M"]) {
            Q4_K
        } else if mix.is(&["IQ3_XXS"]) {
            match (wide, self.has_importance) {
                (true, _) => Q4_K,
                (false, true) => IQ3_XXS,
                (false, false) => IQ3_S,
            }
        } else if mix.is(&["Q3_K_M"]) {
            if before < 2 { Q5_K } else { Q4_K }
        } else if mix.is(&["Q3_K_L"])
            || mix.is(&["IQ4_NL", "IQ4_XS"]) && wide
            || mix.is(&["Q4_K_S"]) && before < 4
        {
            Q5_K
        } else if mix.is(&["Q4_K_M", "Q5_K_M"]) && more_bits(before, self.values) {
            Q6_K
        } else {
            mix.base()
        }
    }

    fn down_type(&self, layer: u64) -> TensorType {
        let (mix, layers) = (self.mix, self.shape.layers);
        let first = layer < layers / 8;
        if mix.is(&["Q2_K"]) {
            Q3_K
        } else if mix.is(&["IQ3_XXS"]) && !self.has_importance {
            if first { Q4_K } else { Q3_K }
        } else if mix.is(&["Q3_K_M"]) {
            if layer < layers / 16 { Q5_K } else { Q4_K }
        } else if mix.is(&["Q2_K_S"]) && first
            || mix.is(&["IQ3_M"]) && (first || self.shape.experts == 8 && more_bits(layer, layers))
        {
            Q4_K
        } else if mix.is(&["Q3_K_L"])
            || mix.is(&["Q4_K_S"]) && first
            || mix.is(&["IQ4_NL", "IQ4_XS"]) && first && !self.has_importance
        {
            Q5_K
        } else if mix.is(&["Q4_K_M", "Q5_K_M"]) && more_bits(layer, layers) {
            Q6_K
        } else if mix.is(&["Q4_0"]) && self.has_importance && first {
            Q4_1
        } else if mix.is(&["Q5_0"]) && self.has_importance && first {
            Q5_1
        } else {
            mix.base()
        }
    }

    fn attention_output_type(&self) -> TensorType {
        let mix = self.mix;
        if self.shape.experts == 8 {
            let raised = [
                "Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ3_S",
                "IQ3_M", "IQ4_XS",
            ];
            return if mix.is(&raised) { Q5_K } else { mix.base() };
        }
        if mix.is(&["Q2_K"]) {
            Q3_K
        } else if mix.is(&["IQ3_XXS"]) {
            IQ3_S
        } else if mix.is(&["Q3_K_M", "IQ3_M"]) {
            Q4_K
        } else if mix.is(&["Q3_K_L"]) {
            Q5_K
        } else {
            mix.base()
        }
    }
}
