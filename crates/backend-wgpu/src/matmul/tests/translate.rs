//! Every shader is valid WGSL and can be written in Metal's language and in Direct3D's, on any machine.

use crate::matmul::layout::{LAYOUTS, Quants};
use crate::matmul::shader::{Kernel, ProductShader};
use crate::matmul::sort::sort_source;
use crate::matmul::tiles::{GEMM, GEMV_NARROW, GEMV_ROWS, GEMV_WIDE, GemmTile};
use crate::matmul::w4::{Entry, ScaleKind, W4_GEMM, W4Codes, W4Shader, reduce_source};
use latent_types::TensorType;
use naga::back::{hlsl, msl};
use naga::valid::{Capabilities, ValidationFlags, Validator};

/// Every kernel in every variant.
fn kernels() -> Vec<Kernel> {
    let mut all = vec![Kernel::Gather];
    all.extend([1, 2, 4].map(|rows| Kernel::Transposed { rows }));
    for tile in [GEMV_WIDE, GEMV_NARROW] {
        all.extend(GEMV_ROWS.map(|rows| Kernel::Gemv { rows, tile, by_ids: false }));
        all.push(Kernel::Gemv { rows: 1, tile, by_ids: true });
    }
    for tile in GEMM {
        all.extend([false, true].map(|sorted| Kernel::Gemm { tile, sorted }));
    }
    all
}

/// Every shader of a format.
fn shaders(format: TensorType) -> Vec<ProductShader> {
    let scaled: &[bool] =
        if matches!(format, TensorType::F8_E4M3 | TensorType::NVFP4) { &[false, true] } else { &[false] };
    let mut all = Vec::new();
    for kernel in kernels() {
        let elements_only = matches!(kernel, Kernel::Gather | Kernel::Transposed { .. });
        for vectors in [false, true].into_iter().filter(|vectors| !vectors || !elements_only) {
            let with =
                |block_scales: &bool| ProductShader { format, kernel, vectors, block_scales: *block_scales };
            all.extend(scaled.iter().map(with));
        }
    }
    all
}

/// Parses, validates with no capabilities but those of every WebGPU device (`unpack2x16float`), and writes both languages.
pub(crate) fn translate(name: &str, source: &str) -> [String; 2] {
    let module = naga::front::wgsl::parse_str(source)
        .unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(source)));
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::SHADER_FLOAT16_IN_FLOAT32);
    let info = validator.validate(&module).unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(source)));
    let options =
        msl::Options { lang_version: (2, 0), fake_missing_bindings: true, ..msl::Options::default() };
    let (metal, _) = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default())
        .unwrap_or_else(|e| panic!("{name} in MSL: {e}"));
    let options = hlsl::Options { fake_missing_bindings: true, ..hlsl::Options::default() };
    let (mut direct3d, pipeline) = (String::new(), hlsl::PipelineOptions::default());
    hlsl::Writer::new(&mut direct3d, &options, &pipeline)
        .write(&module, &info, None)
        .unwrap_or_else(|e| panic!("{name} in HLSL: {e}"));
    [metal, direct3d]
}

#[test]
fn every_shader_translates() {
    let mut count = 0;
    for layout in &LAYOUTS {
        for shader in shaders(layout.ty) {
            let [metal, direct3d] = translate(&shader.name(), &shader.wgsl().unwrap());
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
    let mut entries = vec![Entry::DequantF32, Entry::DequantF16];
    entries.extend(GEMV_ROWS.map(|rows| Entry::Fused { rows }));
    entries.extend(W4_GEMM.map(|tile| Entry::Gemm { tile }));
    for entry in entries {
        for codes in [W4Codes::Fp4, W4Codes::Int4, W4Codes::Int4Sym] {
            for scales in [ScaleKind::F16, ScaleKind::E8m0, ScaleKind::E4m3] {
                for whole_groups in [false, true] {
                    let shader = W4Shader { entry, codes, scales, whole_groups };
                    translate(&shader.name(), &shader.wgsl());
                }
            }
        }
    }
    translate("w4_reduce", &reduce_source());
}

/// What all devices offer: eight storage buffers.
#[test]
fn no_shader_binds_more_than_the_smallest_device_has() {
    for layout in &LAYOUTS {
        for shader in shaders(layout.ty) {
            let slots = shader.slots();
            assert!(slots.len() <= 1 + 8, "{}: {slots:?}", shader.name());
            let codebook = matches!(layout.quants, Quants::Grid(_));
            assert_eq!(shader.wgsl().unwrap().contains("codebook: array"), codebook, "{}", shader.name());
        }
    }
}

/// A tile's memory in its source is what the table says.
#[test]
fn workgroup_memory_is_that_of_the_table() {
    for tile in GEMM {
        let GemmTile { rows, outputs, inputs } = tile;
        let kernel = Kernel::Gemm { tile, sorted: false };
        let shader = ProductShader { format: TensorType::Q4_0, kernel, vectors: true, block_scales: false };
        let module = naga::front::wgsl::parse_str(&shader.wgsl().unwrap()).unwrap();
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).unwrap();
        let shared = module.global_variables.iter().filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup);
        let bytes: u32 = shared.map(|(_, variable)| layouter[variable.ty].size).sum();
        assert_eq!(bytes as usize, tile.memory(), "{rows} × {outputs} × {inputs}");
    }
}
