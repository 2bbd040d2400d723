//! Checks that every shader is valid WGSL and translates to the languages of Metal and Direct3D.
//! This needs no adapter, so that shaders for other systems are tested on any machine.

use crate::coop_matrix::CoopMatrix;
use crate::f16_values::F16Values;
use crate::matmul::gemm::GemmForm;
use crate::matmul::items::InputAccess;
use crate::matmul::layout::{BlockQuants, BlockStorage, LAYOUTS, layout};
use crate::matmul::product::ProductEpilogue;
use crate::matmul::products::quantize_source;
use crate::matmul::shader::{ProductShader, ProductShaderKind};
use crate::matmul::sort::sort_source;
use crate::matmul::tiles::{GEMM, GEMV_NARROW, GEMV_ROWS, GEMV_WIDE, GemmTile};
use crate::matmul::w4::{ScaleKind, W4_GEMM, W4CodeKind, W4RowShader, W4Shader, W4ShaderKind, reduce_source};
use latent_types::TensorType;
use naga::back::{hlsl, msl};
use naga::valid::{Capabilities, ValidationFlags, Validator};

/// Every kernel that multiplies in f32 and needs only features that every device has.
fn kernels() -> Vec<ProductShaderKind> {
    let mut all = vec![ProductShaderKind::Gather];
    all.extend([1, 2, 4].map(|rows| ProductShaderKind::Transposed { rows }));
    all.extend(gemvs(None));
    all.extend(gemms(GemmForm::F32));
    all
}

fn gemvs(subgroup: Option<usize>) -> Vec<ProductShaderKind> {
    let mut all = Vec::new();
    for tile in [GEMV_WIDE, GEMV_NARROW] {
        let gemv = |rows, by_ids, turns| ProductShaderKind::Gemv { rows, tile, by_ids, subgroup, turns };
        all.extend(GEMV_ROWS.map(|rows| gemv(rows, false, None)));
        all.extend([gemv(1, true, None), gemv(1, true, Some(2)), gemv(1, false, Some(16))]);
    }
    all
}

fn gemms(form: GemmForm) -> impl Iterator<Item = ProductShaderKind> {
    GEMM.into_iter()
        .flat_map(move |tile| [false, true].map(|sorted| ProductShaderKind::Gemm { tile, sorted, form }))
}

/// Every shader of a format that needs only features that every device has.
fn shaders(format: TensorType) -> Vec<ProductShader> {
    let scaled: &[bool] =
        if matches!(format, TensorType::F8_E4M3 | TensorType::NVFP4) { &[false, true] } else { &[false] };
    let mut all = Vec::new();
    for kernel in kernels() {
        let elements_only =
            matches!(kernel, ProductShaderKind::Gather | ProductShaderKind::Transposed { .. });
        let inputs: &[InputAccess] = if elements_only {
            &[InputAccess::Elements]
        } else {
            &[InputAccess::Elements, InputAccess::Vectors]
        };
        for inputs in inputs.iter().copied() {
            let with = |block_scales: &bool| {
                let (storage, block_scales) = (BlockStorage::File, *block_scales);
                ProductShader { format, kernel, storage, inputs, block_scales, keep: ProductEpilogue::Store }
            };
            all.extend(scaled.iter().map(with));
        }
    }
    all
}

/// The variants of the shaders of a format: repacked, with quantized inputs, with subgroups, with
/// other tiles.
fn variants(format: TensorType) -> Vec<ProductShader> {
    let base = ProductShader {
        format,
        kernel: ProductShaderKind::Gather,
        storage: BlockStorage::File,
        inputs: InputAccess::Vectors,
        block_scales: false,
        keep: ProductEpilogue::Store,
    };
    let mut kernels = kernels();
    kernels.extend([8, 64].into_iter().flat_map(|smallest| gemvs(Some(smallest))));
    let forms = GemmForm::all().into_iter().filter(|form| *form != GemmForm::Integers);
    kernels.extend(forms.flat_map(gemms));
    let mut all: Vec<_> = kernels.into_iter().map(|kernel| ProductShader { kernel, ..base }).collect();
    for shader in &mut all {
        if matches!(shader.kernel, ProductShaderKind::Gather | ProductShaderKind::Transposed { .. }) {
            shader.inputs = InputAccess::Elements;
        }
    }
    if layout(format).unwrap().has_integers() {
        let kernels = [None, Some(8)].into_iter().flat_map(gemvs).chain(gemms(GemmForm::Integers));
        all.extend(kernels.map(|kernel| ProductShader { kernel, inputs: InputAccess::Integers, ..base }));
        all.extend(gemvs(Some(8)).into_iter().map(|kernel| ProductShader {
            kernel,
            inputs: InputAccess::Quantized,
            ..base
        }));
    }
    // How sums are stored does not depend on the format, so one format is enough.
    if format == TensorType::Q8_0 {
        let keeps = [ProductEpilogue::Add, ProductEpilogue::SiluMul, ProductEpilogue::Relu2];
        all.extend(
            all.clone().into_iter().flat_map(|shader| keeps.map(|keep| ProductShader { keep, ..shader })),
        );
    }
    let storages = [BlockStorage::File, BlockStorage::Planes];
    all.into_iter().flat_map(|shader| storages.map(|storage| ProductShader { storage, ..shader })).collect()
}

/// The capabilities with which naga validates a shader, and the languages to which it is
/// translated.
struct ShaderTranslation {
    capabilities: Capabilities,
    /// The version of Metal's language.
    metal: (u8, u8),
    /// None for a shader with cooperative matrices: naga cannot write them for Direct3D, and no
    /// adapter of DX12 offers them.
    direct3d: Option<hlsl::ShaderModel>,
}

/// Translates a shader to both languages, with the capabilities that it enables. Every shader may
/// use `unpack2x16float`, which every WebGPU device has.
pub(crate) fn translate(name: &str, source: &str) -> [String; 2] {
    ShaderTranslation::of(source).write(name, source)
}

impl ShaderTranslation {
    fn of(source: &str) -> ShaderTranslation {
        let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
        let [f16, matrices, subgroups] = ["enable f16;", "enable wgpu_cooperative_matrix;", "subgroup_id"]
            .map(|word| source.contains(word));
        capabilities.set(Capabilities::SHADER_FLOAT16, f16);
        capabilities.set(Capabilities::COOPERATIVE_MATRIX, matrices);
        capabilities.set(Capabilities::SUBGROUP, subgroups);
        let model = match (f16, subgroups) {
            (true, _) => hlsl::ShaderModel::V6_2,
            (false, true) => hlsl::ShaderModel::V6_0,
            (false, false) => hlsl::ShaderModel::V5_1,
        };
        let metal = if matrices || subgroups { (2, 3) } else { (2, 0) };
        ShaderTranslation { capabilities, metal, direct3d: (!matrices).then_some(model) }
    }

    /// Parses, validates and writes.
    fn write(&self, name: &str, source: &str) -> [String; 2] {
        let module = naga::front::wgsl::parse_str(source)
            .unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(source)));
        let mut validator = Validator::new(ValidationFlags::all(), self.capabilities);
        let info =
            validator.validate(&module).unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(source)));
        let options =
            msl::Options { lang_version: self.metal, fake_missing_bindings: true, ..msl::Options::default() };
        let (metal, _) = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default())
            .unwrap_or_else(|e| panic!("{name} in MSL: {e}"));
        let mut direct3d = String::new();
        if let Some(shader_model) = self.direct3d {
            let options =
                hlsl::Options { fake_missing_bindings: true, shader_model, ..hlsl::Options::default() };
            hlsl::Writer::new(&mut direct3d, &options, &hlsl::PipelineOptions::default())
                .write(&module, &info, None)
                .unwrap_or_else(|e| panic!("{name} in HLSL: {e}"));
        }
        [metal, direct3d]
    }
}

/// Formats that differ in how quants and scales are stored: with and without a table, minimums, a
/// codebook, blocks of whole words.
#[test]
fn every_variant_translates() {
    use TensorType::{BF16, IQ2_XS, MXFP4, Q4_0, Q4_K, Q6_K, Q8_0};
    let mut found = [0; 7];
    for format in [BF16, Q4_0, Q4_K, Q6_K, MXFP4, IQ2_XS, Q8_0] {
        for shader in variants(format) {
            let (name, source) = (shader.name(), shader.wgsl(F16Values::ByIntegers).unwrap());
            let how = ShaderTranslation::of(&source);
            let [metal, direct3d] = how.write(&name, &source);
            assert!(metal.contains("kernel void main_"), "{name}");
            assert_eq!(direct3d.contains("numthreads"), how.direct3d.is_some(), "{name}");
            let used = [
                metal.contains("simdgroup_multiply_accumulate"),
                metal.contains("simd_shuffle_xor"),
                source.contains("dot4I8Packed"),
                metal.contains("half "),
                shader.keep == ProductEpilogue::Add,
                shader.keep == ProductEpilogue::SiluMul,
                shader.keep == ProductEpilogue::Relu2,
            ];
            found.iter_mut().zip(used).for_each(|(count, used)| *count += usize::from(used));
        }
    }
    assert!(found.iter().all(|count| *count > 20), "{found:?}");
    let [metal, _] = translate("quantize", &quantize_source());
    assert!(metal.contains("rint"), "quants are rounded to nearest even");
}

#[test]
fn every_shader_translates() {
    let mut count = 0;
    for layout in &LAYOUTS {
        for shader in shaders(layout.ty) {
            let [metal, direct3d] = translate(&shader.name(), &shader.wgsl(F16Values::ByIntegers).unwrap());
            assert!(
                metal.contains("kernel void main_") && direct3d.contains("numthreads"),
                "{}",
                shader.name()
            );
            count += 1;
        }
    }
    assert!(count > 30 * 30, "{count}");
}

#[test]
fn the_sort_translates_for_every_tile() {
    for tile in GEMM {
        translate("sort_by_expert", &sort_source(tile));
    }
}

#[test]
fn entries_for_4_bit_weights_translate() {
    let mut entries = vec![W4ShaderKind::DequantF32, W4ShaderKind::DequantF16];
    entries.extend(GEMV_ROWS.map(|rows| W4ShaderKind::Fused { rows }));
    entries.extend(W4_GEMM.map(|tile| W4ShaderKind::Gemm { tile }));
    for (side, subgroup) in [(8, 8), (8, 64), (16, 32)] {
        let matrix = CoopMatrix { side, f16: true, subgroup };
        entries.extend(W4_GEMM.map(|tile| W4ShaderKind::Matrices { tile, matrix }));
    }
    for entry in entries {
        for codes in [W4CodeKind::Fp4, W4CodeKind::Int4, W4CodeKind::Int4Sym] {
            for scales in [ScaleKind::F16, ScaleKind::E8m0, ScaleKind::E4m3] {
                for (whole_groups, f16) in [(false, false), (true, false), (false, true), (true, true)] {
                    let shader = W4Shader { entry, codes, scales, whole_groups, f16 };
                    for f16_values in [F16Values::ByIntegers, F16Values::ByDevice] {
                        translate(&shader.name(), &shader.wgsl(f16_values));
                    }
                }
            }
        }
    }
    translate("w4_reduce", &reduce_source());
    for map in W4RowShader::ALL {
        translate(map.name(), &map.wgsl(F16Values::ByIntegers));
    }
}

/// Every device allows eight storage buffers per shader, and not every device more.
#[test]
fn no_shader_binds_more_than_the_smallest_device_has() {
    for layout in &LAYOUTS {
        for shader in shaders(layout.ty) {
            let slots = shader.slots();
            assert!(slots.len() <= 1 + 8, "{}: {slots:?}", shader.name());
            let codebook = matches!(layout.quants, BlockQuants::Grid(_));
            assert_eq!(
                shader.wgsl(F16Values::ByIntegers).unwrap().contains("codebook: array"),
                codebook,
                "{}",
                shader.name()
            );
        }
    }
}

/// The workgroup memory of a tile's source is the same as in the table, by which tiles are chosen.
#[test]
fn workgroup_memory_is_that_of_the_table() {
    for (tile, form) in GEMM.into_iter().flat_map(|tile| GemmForm::all().into_iter().map(move |f| (tile, f)))
    {
        let GemmTile { rows, outputs, inputs } = tile;
        let kernel = ProductShaderKind::Gemm { tile, sorted: false, form };
        let integers = form == GemmForm::Integers;
        let shader = ProductShader {
            // A format with minimums, which need memory too.
            format: TensorType::Q4_1,
            kernel,
            storage: BlockStorage::File,
            inputs: if integers { InputAccess::Integers } else { InputAccess::Vectors },
            block_scales: false,
            keep: ProductEpilogue::Store,
        };
        let module = naga::front::wgsl::parse_str(&shader.wgsl(F16Values::ByIntegers).unwrap()).unwrap();
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).unwrap();
        let shared = module.global_variables.iter().filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup);
        let bytes: u32 = shared.map(|(_, variable)| layouter[variable.ty].size).sum();
        assert_eq!(bytes as usize, form.memory(tile), "{rows} × {outputs} × {inputs} {form:?}");
    }
}
