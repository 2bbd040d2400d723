//! Finds the 4-bit weights among the tensors of a folder, and checks their types and shapes.

use super::form::{FourBitEncoding, IntEncoding, WordPacking, ZeroCode, type_of_integers};
use super::numbers;
use super::settings::{CompressedScheme, FourBitSettings, GptqSettings};
use crate::error::FourBitError;
use latent_types::TensorType;
use std::collections::HashMap;

/// A tensor in a header.
#[derive(Clone, Copy)]
pub(crate) struct HeaderTensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) ty: TensorType,
    pub(crate) shape: &'a [usize],
}

/// Finds a tensor by its name.
pub(crate) type TensorLookup<'a> = dyn Fn(&str) -> Option<HeaderTensor<'a>> + 'a;

/// A 4-bit weight: its name, type and shape in the checkpoint, and the indices of its tensors.
#[derive(Clone, Debug)]
pub(crate) struct FourBitEntry {
    /// Name of the tensor before quantization.
    pub(crate) name: String,
    pub(crate) form: FourBitEncoding,
    pub(crate) ty: TensorType,
    /// Outputs and inputs.
    pub(crate) shape: [usize; 2],
    pub(crate) quants: usize,
    pub(crate) scales: usize,
    pub(crate) zeros: Option<usize>,
    pub(crate) order: Option<usize>,
    pub(crate) global: Option<usize>,
    pub(crate) stated_shape: Option<usize>,
    /// Scales of inputs, which are not used: activations are not quantized statically.
    pub(crate) unused: Option<usize>,
}

impl FourBitEntry {
    /// A weight of integers without zero points, with its inputs in order.
    fn integers(
        name: String,
        form: IntEncoding,
        shape: [usize; 2],
        quants: usize,
        scales: usize,
    ) -> FourBitEntry {
        let ty = type_of_integers(form.symmetric, form.group);
        FourBitEntry {
            name,
            form: FourBitEncoding::Int(form),
            ty,
            shape,
            quants,
            scales,
            zeros: None,
            order: None,
            global: None,
            stated_shape: None,
            unused: None,
        }
    }

    /// Whether the rows have a factor, the tensor `weight_scale_inv`.
    pub(crate) fn has_factor(&self, scales: TensorType) -> bool {
        match self.form {
            FourBitEncoding::Nvfp4 { .. } => true,
            FourBitEncoding::Mxfp4 => false,
            // Only f16 scales of a block format are certain to need no shift.
            FourBitEncoding::Int(_) => self.ty == TensorType::F16 || scales != TensorType::F16,
        }
    }

    /// All tensors of the weight.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = usize> + use<> {
        let others = [self.zeros, self.order, self.global, self.stated_shape, self.unused];
        [self.quants, self.scales].into_iter().chain(others.into_iter().flatten())
    }
}

pub(crate) fn factor_name(weight: &str) -> String {
    format!("{weight}_scale_inv")
}

/// The bytes of a tensor, if available. An outline has none.
pub(crate) type TensorBytesFn<'a> = dyn Fn(usize) -> Option<&'a [u8]> + 'a;

/// Suffixes of packed weights. AWQ has GPTQ's.
const GPTQ: &str = ".qweight";
const COMPRESSED: &str = ".weight_packed";

/// Suffix of the global scale of ModelOpt's NVFP4, whose packed weights have the plain name.
const MODELOPT: &str = ".weight_scale_2";

/// All 4-bit weights among `heads`, in their order.
pub(crate) fn find<'a>(
    heads: &'a [HeaderTensor<'a>],
    settings: Option<&FourBitSettings>,
    bytes: &'a TensorBytesFn<'a>,
) -> Result<Vec<FourBitEntry>, FourBitError> {
    let names = heads.iter().enumerate().map(|(i, head)| (head.name, i)).collect();
    let finder = Finder { heads, names, bytes };
    // ModelOpt's weights are recognized by their tensors. Its settings name only the usual kind,
    // and mixed-precision folders contain several.
    let modelopt = heads.iter().enumerate().filter_map(|(i, head)| {
        let stem = head.name.strip_suffix(MODELOPT)?;
        Some(finder.modelopt(i, stem))
    });
    let mut all: Vec<FourBitEntry> = modelopt.collect::<Result<_, _>>()?;
    let ending = match settings {
        Some(FourBitSettings::Compressed(_)) => COMPRESSED,
        Some(FourBitSettings::Gptq(_) | FourBitSettings::Awq { .. }) => GPTQ,
        Some(FourBitSettings::ModelOpt(_)) | None => {
            let packed =
                heads.iter().find(|head| head.name.ends_with(GPTQ) || head.name.ends_with(COMPRESSED));
            return match packed {
                Some(head) => Err(FourBitError::NoSettings { tensor: head.name.to_owned() }),
                None => Ok(all),
            };
        }
    };
    for (i, head) in heads.iter().enumerate() {
        let Some(stem) = head.name.strip_suffix(ending) else { continue };
        all.push(match settings {
            Some(FourBitSettings::Gptq(gptq)) => finder.gptq(i, stem, gptq)?,
            Some(FourBitSettings::Awq { group }) => finder.awq(i, stem, *group)?,
            Some(FourBitSettings::Compressed(kinds)) => finder.compressed(i, stem, kinds)?,
            Some(FourBitSettings::ModelOpt(_)) | None => continue,
        });
    }
    finder.reorder(&mut all)?;
    Ok(all)
}

struct Finder<'a> {
    heads: &'a [HeaderTensor<'a>],
    names: HashMap<&'a str, usize>,
    bytes: &'a TensorBytesFn<'a>,
}

impl<'a> Finder<'a> {
    fn head(&self, i: usize) -> HeaderTensor<'a> {
        self.heads[i]
    }

    /// The tensor `stem.end`.
    fn companion(&self, stem: &str, end: &str) -> Option<usize> {
        self.names.get(format!("{stem}.{end}").as_str()).copied()
    }

    fn needed(&self, of: usize, stem: &str, end: &str) -> Result<usize, FourBitError> {
        self.companion(stem, end).ok_or_else(|| FourBitError::Companion {
            tensor: self.head(of).name.to_owned(),
            missing: format!("{stem}.{end}"),
        })
    }

    /// Name and shape of the packed matrix at `i`.
    fn packed(&self, i: usize, stem: &str) -> Result<(String, [usize; 2]), FourBitError> {
        // The joined tensor gets the plain name, which must be free.
        let (head, plain) = (self.head(i), format!("{stem}.weight"));
        let twins = [plain.clone(), factor_name(&plain)];
        let is_twin = |name: &&String| **name != head.name && self.names.contains_key(name.as_str());
        if let Some(twin) = twins.iter().find(is_twin) {
            return Err(FourBitError::Both { tensor: head.name.to_owned(), plain: twin.clone() });
        }
        let &[rows, cols] = head.shape else {
            return Err(FourBitError::Shape {
                tensor: head.name.to_owned(),
                found: head.shape.to_vec(),
                expected: vec![0, 0],
                of: "a matrix of any size".into(),
            });
        };
        Ok((plain, [rows, cols]))
    }

    fn is(&self, i: usize, types: &[TensorType], expected: &'static str) -> Result<(), FourBitError> {
        let HeaderTensor { name, ty, .. } = self.head(i);
        if types.contains(&ty) {
            return Ok(());
        }
        Err(FourBitError::Dtype { tensor: name.to_owned(), found: ty, expected })
    }

    fn has_shape(&self, i: usize, expected: &[usize], of: usize) -> Result<(), FourBitError> {
        let HeaderTensor { name, shape, .. } = self.head(i);
        if shape == expected {
            return Ok(());
        }
        let packed = self.head(of);
        Err(FourBitError::Shape {
            tensor: name.to_owned(),
            found: shape.to_vec(),
            expected: expected.to_vec(),
            of: format!("{} of {:?}", packed.name, packed.shape),
        })
    }

    /// Inputs per group, from the number of groups of the scales.
    fn group(&self, i: usize, inputs: usize, groups: usize) -> Result<usize, FourBitError> {
        let tensor = self.head(i).name;
        match inputs.checked_div(groups) {
            // All groups have the same size, the last one included.
            Some(group) if group > 0 && group * groups == inputs => Ok(group),
            _ => Err(FourBitError::Indivisible {
                tensor: tensor.to_owned(),
                inputs,
                by: groups,
                what: "the number of groups of its scales",
            }),
        }
    }

    /// Inputs per group from config.json, checked against the scales; `None` means whole rows.
    fn stated_group(
        &self,
        i: usize,
        stated: Option<usize>,
        inputs: usize,
        groups: usize,
    ) -> Result<usize, FourBitError> {
        let stated = stated.unwrap_or(inputs);
        let tensor = self.head(i).name.to_owned();
        if inputs == 0 || !inputs.is_multiple_of(stated) {
            return Err(FourBitError::Indivisible {
                tensor,
                inputs,
                by: stated,
                what: "the group_size of config.json",
            });
        }
        if inputs / stated != groups {
            return Err(FourBitError::Setting {
                key: "group_size".into(),
                found: format!("{stated}, but {tensor} has {groups} groups for {inputs} inputs"),
                expected: "both must agree",
            });
        }
        Ok(stated)
    }

    fn gptq(&self, quants: usize, stem: &str, settings: &GptqSettings) -> Result<FourBitEntry, FourBitError> {
        // GPTQ packs eight inputs of an output into a word.
        let (name, [words, outputs]) = self.packed(quants, stem)?;
        // Saturating: the header's shape is not trusted. A wrong product fails the checks of the
        // scales.
        let inputs = words.saturating_mul(8);
        let (scales, zeros) = (self.needed(quants, stem, "scales")?, self.needed(quants, stem, "qzeros")?);
        // The group of each input. Newer files omit it without act-order.
        let order = self.companion(stem, "g_idx");
        if let Some(order) = order {
            self.is(order, &[TensorType::I32], "I32")?;
            self.has_shape(order, &[inputs], quants)?;
        }
        let groups = self.scale_groups(scales, outputs, quants)?;
        // With `dynamic`, config.json has the group size of some modules only.
        let group = if settings.varies {
            self.group(quants, inputs, groups)?
        } else {
            self.stated_group(quants, settings.group, inputs, groups)?
        };
        self.words(&[quants, zeros])?;
        self.has_shape(zeros, &[groups, outputs.div_ceil(8)], quants)?;
        let form = IntEncoding {
            packing: WordPacking::Gptq,
            group,
            symmetric: settings.symmetric,
            zeros: if settings.second { ZeroCode::Nibbles } else { ZeroCode::LessOne },
            ordered: settings.ordered,
        };
        Ok(FourBitEntry {
            zeros: Some(zeros),
            order,
            ..FourBitEntry::integers(name, form, [outputs, inputs], quants, scales)
        })
    }

    fn awq(&self, quants: usize, stem: &str, stated: Option<usize>) -> Result<FourBitEntry, FourBitError> {
        // AWQ packs eight outputs of an input into a word.
        let (name, [inputs, words]) = self.packed(quants, stem)?;
        let outputs = words.saturating_mul(8);
        let (scales, zeros) = (self.needed(quants, stem, "scales")?, self.needed(quants, stem, "qzeros")?);
        let groups = self.scale_groups(scales, outputs, quants)?;
        let group = self.stated_group(quants, stated, inputs, groups)?;
        self.words(&[quants, zeros])?;
        self.has_shape(zeros, &[groups, words], quants)?;
        let form = IntEncoding {
            packing: WordPacking::Awq,
            group,
            symmetric: false,
            zeros: ZeroCode::Nibbles,
            ordered: false,
        };
        Ok(FourBitEntry {
            zeros: Some(zeros),
            ..FourBitEntry::integers(name, form, [outputs, inputs], quants, scales)
        })
    }

    /// Number of groups of scales `[groups, outputs]`.
    fn scale_groups(&self, scales: usize, outputs: usize, quants: usize) -> Result<usize, FourBitError> {
        self.is(scales, &FLOATS, "F16, BF16 or F32")?;
        // The default is never used: a scalar fails the check of the shape that follows.
        let groups = self.head(scales).shape.first().copied().unwrap_or(0);
        self.has_shape(scales, &[groups, outputs], quants)?;
        Ok(groups)
    }

    fn words(&self, tensors: &[usize]) -> Result<(), FourBitError> {
        tensors.iter().try_for_each(|&i| self.is(i, &[TensorType::I32], "I32"))
    }

    fn compressed(
        &self,
        quants: usize,
        stem: &str,
        kinds: &[CompressedScheme],
    ) -> Result<FourBitEntry, FourBitError> {
        let scales = self.needed(quants, stem, "weight_scale")?;
        // Floats are packed two per U8, integers eight per I32.
        // The header parser reads U8 as I8, so this is the U8 of the format.
        if self.head(quants).ty == TensorType::I8 {
            return self.compressed_float(quants, stem, scales, kinds);
        }
        self.is(quants, &[TensorType::I32], "I32 or U8")?;
        let (name, [outputs, words]) = self.packed(quants, stem)?;
        let inputs = words.saturating_mul(8);
        self.is(scales, &FLOATS, "F16, BF16 or F32")?;
        // Scales without a second dimension fail the check of the shape, whatever the default is.
        let groups = self.head(scales).shape.get(1).copied().unwrap_or(1);
        self.has_shape(scales, &[outputs, groups], quants)?;
        // config.json may announce several kinds, so the group size follows from the shapes.
        let group = self.group(quants, inputs, groups)?;
        let (zeros, order) =
            (self.companion(stem, "weight_zero_point"), self.companion(stem, "weight_g_idx"));
        let mut code = ZeroCode::Nibbles;
        if let Some(zeros) = zeros {
            self.is(zeros, &[TensorType::I32, TensorType::I8], "I32 or I8")?;
            let packed = self.head(zeros).ty == TensorType::I32;
            let rows = if packed { outputs.div_ceil(8) } else { outputs };
            self.has_shape(zeros, &[rows, groups], quants)?;
            code = if packed { ZeroCode::Nibbles } else { ZeroCode::Bytes };
        }
        if let Some(order) = order {
            self.is(order, &[TensorType::I32], "I32")?;
            self.has_shape(order, &[inputs], quants)?;
        }
        let here = CompressedScheme {
            bits: 4,
            float: false,
            symmetric: zeros.is_none(),
            group: (groups > 1).then_some(group),
        };
        self.announced(quants, &here, inputs, kinds)?;
        let form = IntEncoding {
            packing: WordPacking::Rows,
            group,
            symmetric: zeros.is_none(),
            zeros: code,
            ordered: true,
        };
        let stated_shape = self.stated_shape(stem)?;
        let found = FourBitEntry::integers(name, form, [outputs, inputs], quants, scales);
        Ok(FourBitEntry { zeros, order, stated_shape, ..found })
    }

    /// NVFP4 and MXFP4.
    fn compressed_float(
        &self,
        quants: usize,
        stem: &str,
        scales: usize,
        kinds: &[CompressedScheme],
    ) -> Result<FourBitEntry, FourBitError> {
        self.is(scales, &[TensorType::F8_E4M3, TensorType::I8], "F8_E4M3 or U8")?;
        // MXFP4 has E8M0 scales, stored as U8; NVFP4 has E4M3 scales.
        let (form, group) = match self.head(scales).ty {
            TensorType::I8 => (FourBitEncoding::Mxfp4, 32),
            // compressed-tensors divides by the global scale, ModelOpt multiplies by it.
            _ => (FourBitEncoding::Nvfp4 { divides: true }, 16),
        };
        let inputs = self.head(quants).shape.get(1).map_or(0, |bytes| bytes.saturating_mul(2));
        let here = CompressedScheme { bits: 4, float: true, symmetric: true, group: Some(group) };
        self.announced(quants, &here, inputs, kinds)?;
        let global = match form {
            FourBitEncoding::Nvfp4 { .. } => Some(self.needed(quants, stem, "weight_global_scale")?),
            _ => None,
        };
        let unused = self.companion(stem, "input_global_scale");
        self.float((quants, stem), form, scales, (global, unused))
    }

    /// NVFP4 of ModelOpt with the global scale at `global`.
    fn modelopt(&self, global: usize, stem: &str) -> Result<FourBitEntry, FourBitError> {
        let quants = self.needed(global, stem, "weight")?;
        self.is(quants, &[TensorType::I8], "U8")?;
        let scales = self.needed(quants, stem, "weight_scale")?;
        self.is(scales, &[TensorType::F8_E4M3], "F8_E4M3")?;
        let unused = self.companion(stem, "input_scale");
        let form = FourBitEncoding::Nvfp4 { divides: false };
        self.float((quants, stem), form, scales, (Some(global), unused))
    }

    /// NVFP4 and MXFP4, with a global scale and an unused one.
    fn float(
        &self,
        (quants, stem): (usize, &str),
        form: FourBitEncoding,
        scales: usize,
        (global, unused): (Option<usize>, Option<usize>),
    ) -> Result<FourBitEntry, FourBitError> {
        let (name, [outputs, bytes]) = self.packed(quants, stem)?;
        let inputs = bytes.saturating_mul(2);
        let (ty, group) = match form {
            FourBitEncoding::Mxfp4 => (TensorType::MXFP4, 32),
            _ => (TensorType::NVFP4, 16),
        };
        // A block of NVFP4 has four groups of 16 inputs in GGUF's layout.
        if inputs == 0 || !inputs.is_multiple_of(ty.block_len()) {
            return Err(FourBitError::Indivisible {
                tensor: self.head(quants).name.to_owned(),
                inputs,
                by: ty.block_len(),
                what: "a block's elements",
            });
        }
        self.has_shape(scales, &[outputs, inputs / group], quants)?;
        if let Some(global) = global {
            self.is(global, &[TensorType::F32], "F32")?;
            // A scalar has the shape [] or [1].
            let shape = self.head(global).shape;
            if shape.iter().product::<usize>() != 1 {
                self.has_shape(global, &[1], quants)?;
            }
        }
        Ok(FourBitEntry {
            name,
            form,
            ty,
            shape: [outputs, inputs],
            quants,
            scales,
            zeros: None,
            order: None,
            global,
            stated_shape: self.stated_shape(stem)?,
            unused,
        })
    }

    fn stated_shape(&self, stem: &str) -> Result<Option<usize>, FourBitError> {
        let Some(i) = self.companion(stem, "weight_shape") else { return Ok(None) };
        self.is(i, &[TensorType::I64, TensorType::I32], "I64 or I32")?;
        self.has_shape(i, &[2], i)?;
        Ok(Some(i))
    }

    /// Checks that config.json announces weights of this kind.
    fn announced(
        &self,
        quants: usize,
        here: &CompressedScheme,
        inputs: usize,
        kinds: &[CompressedScheme],
    ) -> Result<(), FourBitError> {
        // One group that spans the inputs is the same as a scale per row.
        let whole = |group: Option<usize>| group.unwrap_or(inputs);
        let same = |kind: &&CompressedScheme| {
            (kind.bits, kind.float, kind.symmetric) == (here.bits, here.float, here.symmetric)
                // The group size of NVFP4 and MXFP4 is part of the format, so files may omit it.
                && (whole(kind.group) == whole(here.group) || here.float && kind.group.is_none())
        };
        if kinds.iter().any(|kind| same(&kind)) {
            return Ok(());
        }
        let have: Vec<String> = kinds.iter().map(CompressedScheme::to_string).collect();
        Err(FourBitError::NoGroup {
            tensor: self.head(quants).name.to_owned(),
            found: format!("{here} (by its shape and its scales')"),
            have: if have.is_empty() { "nothing".into() } else { have.join(", ") },
        })
    }

    /// Makes weights F16 whose inputs are not in the order of their groups (act-order). If one
    /// weight is, all with a `g_idx` become F16, so that the experts of a layer have one type.
    /// Without data, config.json decides.
    fn reorder(&self, all: &mut [FourBitEntry]) -> Result<(), FourBitError> {
        let mut moved = false;
        for found in all.iter() {
            let (FourBitEncoding::Int(form), Some(order)) = (found.form, found.order) else { continue };
            if !form.ordered || moved {
                continue;
            }
            // Only the data tell whether the order differs. Without them, the safe assumption is
            // F16.
            moved = match (self.bytes)(order) {
                None => true,
                Some(bytes) => {
                    let groups = found.shape[1] / form.group;
                    numbers::check_groups(self.head(order).name, bytes, groups)?;
                    !numbers::in_order(bytes, form.group)
                }
            };
        }
        if moved {
            let ordered = |found: &&mut FourBitEntry| matches!(found.form, FourBitEncoding::Int(form) if form.ordered && found.order.is_some());
            all.iter_mut().filter(ordered).for_each(|found| found.ty = TensorType::F16);
        }
        Ok(())
    }
}

/// Types of the scales of integers.
const FLOATS: [TensorType; 3] = [TensorType::F16, TensorType::BF16, TensorType::F32];
